"""The manifests out of Git: a commit's tree read through the mirror, loaded and resolved."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from llmgw.controller.repo import applied
from llmgw.controller.repo.blame import who_wrote
from llmgw.controller.repo.mirror import Mirror, Tree
from llmgw.core.adapter import EngineAdapter
from llmgw.core.resolving.resolve import resolve
from llmgw.manifests.folder import read_folder
from llmgw.manifests.load import facts_paths, load
from llmgw.model.desired import Desired
from llmgw.model.ids import Commit
from llmgw.model.manifest import Manifests
from llmgw.model.problems import Where
from llmgw.model.struct import replace

AUTHOR = 200
"""Characters of a commit's author that are kept: anybody may write anything there."""


async def _anybody(_: Commit) -> str:
    """For repositories in which nobody needs to sign."""
    return ""


class GitSource:
    """The real :class:`~llmgw.controller.fleet.Source`. ``vouch`` says who signed a commit, and raises StalledError for one that
    must not be used: nothing of it is read then."""

    def __init__(
        self,
        mirror: Mirror,
        adapters: Mapping[str, EngineAdapter],
        *,
        vouch: Callable[[Commit], Awaitable[str]] = _anybody,
    ) -> None:
        self._mirror = mirror
        self._adapters = adapters
        self._vouch = vouch
        self._last: tuple[Commit, str, Desired] | None = None

    async def newest(self) -> Commit:
        return await self._mirror.newest()

    async def commit(self, name: str) -> Commit:
        return await self._mirror.commit(name)

    async def desired(self, commit: Commit, *, key_id: str) -> Desired:
        """The last answer is kept: an apply that waits asks for the same commit in every pass."""
        if self._last is not None and self._last[:2] == (commit, key_id):
            return self._last[2]
        signer = await self._vouch(commit)
        manifests = await manifests_of(self._mirror, commit)
        desired = replace(
            resolve(manifests, key_id=key_id, adapters=self._adapters),
            author=(await self._mirror.author_of(commit))[:AUTHOR],
            signer=signer[:AUTHOR],
        )
        self._last = (commit, key_id, desired)
        return desired

    async def is_ancestor(self, older: Commit, newer: Commit) -> bool:
        return await self._mirror.is_ancestor(older, newer)

    async def unpushed(self, commit: Commit) -> bool:
        return await self._mirror.unpushed(commit)

    async def keep(self, commit: Commit) -> None:
        await applied.keep(self._mirror.objects, commit)

    async def who_wrote(self, commit: Commit, where: Where) -> str:
        return await who_wrote(self._mirror.objects, commit, where)


async def manifests_of(mirror: Mirror, commit: Commit) -> Manifests:
    """What a commit says, whoever signed it. InvalidError with every problem of every file."""
    tree = await mirror.tree(commit)
    if wanted := facts_paths(_files(tree), links=tree.links, path=tree.path):
        tree = await mirror.tree(commit, tree.path, extra=wanted)
    return load(_files(tree), commit=commit, links=tree.links, path=tree.path)


def _files(tree: Tree) -> Mapping[str, bytes]:
    return {**tree.files, **tree.linked}


def desired_of_folder(
    top: Path, path: str | None, *, key_id: str, adapters: Mapping[str, EngineAdapter]
) -> Desired:
    """What a work tree asks for: for editing only, since nobody else can read it."""
    files, links = read_folder(top, path)
    return resolve(load(files, commit=None, links=links, path=path), key_id=key_id, adapters=adapters)

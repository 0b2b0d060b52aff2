"""What those go by who only look: what was applied, reached by the way that is written now."""

import asyncio

from llmgw.controller.passes.prepare import applied
from llmgw.model.desired import Desired
from llmgw.model.ids import Commit
from llmgw.model.manifest import FromFile, Ssh
from llmgw.model.problems import InvalidError, Problem, RetryError
from llmgw.model.struct import replace
from tests.controller.passes.pretend import Branch, Model, World


class _Reached(Branch):
    """Each commit names a key of its own, ``id-1`` and so on; from ``broken`` on they can't be read."""

    broken = 99

    async def desired(self, commit: Commit, *, key_id: str) -> Desired:
        number = int(commit, 16)
        if number >= self.broken:
            raise InvalidError((Problem(what="not YAML", instead="correct it"),))
        desired = await super().desired(commit, key_id=key_id)
        ssh = Ssh(host="10.0.0.11", identity=FromFile(from_file=f"id-{number}"))
        nodes = {
            name: replace(node, spec=replace(node.spec, ssh=ssh)) for name, node in desired.nodes.items()
        }
        return replace(desired, nodes=nodes)


def _identity(desired: Desired) -> str:
    ssh = desired.nodes["gpu01"].spec.ssh
    assert ssh is not None
    assert ssh.identity is not None
    return ssh.identity.from_file


def test_a_corrected_key_is_used_before_anything_is_applied_and_the_models_are_those_applied() -> None:
    async def main() -> None:
        world = World()
        branch = _Reached(("gpu01",), Model())
        world.branch = branch
        fleet = world.fleet()
        assert _identity((await applied(fleet)).desired) == "id-1"
        await world.settle()
        branch.commit_models(Model(replicas=2))
        known = await applied(fleet)
        assert _identity(known.desired) == "id-2"
        assert known.desired.models["chat"].spec.replicas == 1
        branch.broken = 3
        branch.commit_models(Model(replicas=3))
        known = await applied(fleet)
        assert (_identity(known.desired), known.desired.models["chat"].spec.replicas) == ("id-1", 1)

    asyncio.run(main())


def test_the_newest_commit_is_told_while_it_asks_for_something_else_with_what_is_wrong_in_it() -> None:
    async def main() -> None:
        world = World()
        branch = _Reached(("gpu01",), Model())
        world.branch = branch
        fleet = world.fleet()
        assert (await applied(fleet)).newest is None, "nothing was applied, so nothing is behind"
        await world.settle()
        assert (await applied(fleet)).newest is None
        branch.commit_models(Model(replicas=2))
        known = await applied(fleet)
        assert (known.newest, known.refused) == (branch.tip, ())
        branch.broken = 2
        known = await applied(fleet)
        assert known.newest == branch.tip
        assert known.refused == ("not YAML: correct it",)

    asyncio.run(main())


def test_a_commit_that_asks_for_the_same_is_not_behind() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        world.branch.commit_models(Model())
        assert (await applied(world.fleet())).newest is None

    asyncio.run(main())


class _Away(Branch):
    away = False

    async def newest(self) -> Commit:
        if self.away:
            raise RetryError("the host does not answer")
        return await super().newest()


def test_while_the_host_is_away_the_commit_that_was_read_last_is_the_newest() -> None:
    async def main() -> None:
        world = World()
        branch = _Away(("gpu01",), Model())
        world.branch = branch

        async def last_known() -> Commit:
            return branch.tip

        fleet = replace(world.fleet(), last_known=last_known)
        await world.settle()
        branch.commit_models(Model(replicas=2))
        branch.away = True
        assert (await applied(fleet, remembered=True)).newest == branch.tip
        assert (await applied(world.fleet(), remembered=True)).newest is None

    asyncio.run(main())


class _Shrinking(Branch):
    """From the second commit on, gpu02 is not named; from the third on, it is called desk."""

    async def desired(self, commit: Commit, *, key_id: str) -> Desired:
        desired = await super().desired(commit, key_id=key_id)
        nodes, number = dict(desired.nodes), int(commit, 16)
        gone = nodes.pop("gpu02") if number > 1 else None
        if gone is not None and number > 2:
            nodes["desk"] = replace(gone, name="desk", renamed_from="gpu02")
        return replace(desired, nodes=nodes)


def test_a_node_that_the_newest_commit_does_not_name_is_leaving_and_a_renamed_one_is_not() -> None:
    async def main() -> None:
        world = World(nodes=("gpu01", "gpu02"))
        world.branch = _Shrinking(("gpu01", "gpu02"), Model())
        await world.settle()
        world.branch.commit_models(Model())
        known = await applied(world.fleet())
        assert [name for name, node in known.desired.nodes.items() if node.leaving] == ["gpu02"]
        world.branch.commit_models(Model())
        known = await applied(world.fleet())
        assert not [name for name, node in known.desired.nodes.items() if node.leaving]

    asyncio.run(main())

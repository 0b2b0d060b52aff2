"""What the people of a machine let llmgw do there, as their policy file says: part of the facts, so that plans avoid
what the agent would refuse, and what the agent itself asks before it starts or fetches anything."""

import posixpath
from collections.abc import Iterable, Mapping

from llmgw.model.manifest import Reserve
from llmgw.model.struct import Struct, field


class LocalPolicy(Struct):
    """None is no rule: everything is allowed. Engines are names, or directories (with a slash in front) whose programs may
    run. ``obstacle`` says why nothing at all may be started; ``lines`` tells where in ``file`` each rule stands."""

    file: str
    engines: tuple[str, ...] | None = None
    users: tuple[str, ...] | None = None  # that engines may run as
    paths: tuple[str, ...] | None = None  # directories that weights and adapters may be read from
    reserve: Reserve = Reserve()
    lines: Mapping[str, int] = field(default_factory=dict)
    obstacle: str = ""

    def refuses_engine(self, name: str | None, path: str | None) -> str:
        """Why an engine may not run here, by its name or, one that lies on the node, by its directory; empty: it may."""
        if self.engines is None:
            return ""
        if path is not None:
            return "" if self._runs(path) else self._not_allowed("engines", f"the engine in {path}")
        return "" if name in self.engines else self._not_allowed("engines", f"engine {name}")

    def refuses_program(self, path: str) -> str:
        """The same of a program that is not the engine's own."""
        return "" if self.engines is None or self._runs(path) else self._not_allowed("engines", path)

    def _runs(self, path: str) -> bool:
        return beneath(path, [entry for entry in self.engines or () if entry.startswith("/")])

    def refuses_path(self, path: str) -> str:
        """Why weights or adapters may not be read from there; empty: they may."""
        if self.paths is None or beneath(path, self.paths):
            return ""
        return self._not_allowed("paths", path)

    def refuses_user(self, user: str) -> str:
        return self._not_allowed("users", f"engines as {user}")

    def keeps(self, uuid: str, parent: str | None = None) -> bool:
        """Whether a GPU is kept for people; with it go the MIG instances whose GPU it is."""
        return uuid in self.reserve.gpus or (parent is not None and parent in self.reserve.gpus)

    def refuses_gpu(self, uuid: str, parent: str | None = None) -> str:
        if not self.keeps(uuid, parent):
            return ""
        return f"GPU {uuid} is kept for people ({self.where('reserve')}): place it on another, or take it out of reserve.gpus there"

    def where(self, rule: str) -> str:
        line = self.lines.get(rule)
        return f"{self.file}:{line}" if line else self.file

    def _not_allowed(self, rule: str, what: str) -> str:
        listed: tuple[str, ...] = {"engines": self.engines, "users": self.users, "paths": self.paths}[
            rule
        ] or ()
        allowed = ", ".join(listed) or "nothing"
        return f"{self.where(rule)}: the machine's policy allows {allowed} in `{rule}`, not {what}: add it there, or use another node"


def beneath(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of the directories or lies below one, by its text alone."""
    plain = posixpath.normpath(path)
    wanted = [posixpath.normpath(folder) for folder in folders]
    return any(plain == folder or plain.startswith(folder.rstrip("/") + "/") for folder in wanted)

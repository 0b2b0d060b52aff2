"""What the machine's own people let llmgw do there, by the file that only root may write: read anew whenever it has
changed. A file that can't be understood or trusted allows nothing new, and touches nothing that runs."""

import os
import posixpath
import pwd
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from llmgw.agent.policyfile import BrokenPolicyError, read_policy
from llmgw.model.facts import EngineFact, Gpu
from llmgw.model.launch import FetchSpec, InstallSpec, LaunchSpec
from llmgw.model.localpolicy import LocalPolicy
from llmgw.model.struct import replace

POLICY = Path("/etc/llmgw/agent.yaml")
VARIABLE = "LLMGW_AGENT_POLICY"
"""In the agent's environment: another file than that. Only who starts the agent can set it."""
MAX_FILE = 64 * 1024
_ENGINE = "${engine}/"
Signature: TypeAlias = tuple[int, ...]


def policy_path(own_env: Mapping[str, str]) -> Path:
    """``own_env``: of the agent's process."""
    return Path(own_env.get(VARIABLE) or POLICY)


class PolicyFile:
    """The seam Rules on a file. ``user`` is whom engines run as, ``engines`` tells those that are installed, ``told`` hears of
    every change of the rules."""

    def __init__(
        self,
        path: Path,
        *,
        user: str,
        engines: Callable[[], Sequence[EngineFact]],
        told: Callable[[str], None],
    ) -> None:
        self.path = path
        self._user = user
        self._engines = engines
        self._told = told
        self._seen: Signature | None = None
        self._policy: LocalPolicy | None = None
        self._problem = ""

    def start(self, spec: LaunchSpec, gpus: tuple[Gpu, ...]) -> str:
        policy = self.facts()
        if policy is None:
            return ""
        return (
            policy.obstacle
            or self._engine(policy, spec)
            or _weights(policy, spec)
            or _reserved(policy, spec, gpus)
        )

    def install(self, spec: InstallSpec) -> str:
        policy = self.facts()
        return "" if policy is None else policy.obstacle or policy.refuses_engine(spec.engine, None)

    def fetch(self, spec: FetchSpec) -> str:
        policy = self.facts()
        if policy is None:
            return ""
        return policy.obstacle or (policy.refuses_path(_real(spec.path)) if spec.path is not None else "")

    def memory_kept(self) -> int:
        policy = self.facts()
        return policy.reserve.memory if policy is not None else 0

    def facts(self) -> LocalPolicy | None:
        found = _read(self.path)
        if found is None:
            signature: Signature = ()
            policy, problem = None, ""
        elif found[0] == self._seen:
            return self._policy
        else:
            signature = found[0]
            policy, problem = _understood(self.path, found[1], found[2])
        if (
            policy is not None
            and not problem
            and policy.users is not None
            and not _may_be(self._user, policy.users)
        ):
            policy = replace(policy, obstacle=policy.refuses_user(self._user))
        if signature != self._seen and not (self._seen is None and not signature):
            self._told(_news(self.path, policy, problem))
        self._seen, self._policy, self._problem = signature, policy, problem
        return policy

    def problem(self) -> str:
        self.facts()
        return self._problem

    def _engine(self, policy: LocalPolicy, spec: LaunchSpec) -> str:
        if policy.engines is None:
            return ""
        if spec.engine_path is not None and (why := policy.refuses_engine(None, _real(spec.engine_path))):
            return why
        name = next((one.name for one in self._engines() if one.digest == spec.engine), None)
        if spec.engine is not None and name is not None and (why := policy.refuses_engine(name, None)):
            return why
        for process in spec.processes:
            program = process.argv[0] if process.argv else ""
            where = _real(program) if program.startswith("/") else program
            if not _of_engine(program) and (why := policy.refuses_program(where)):
                return why
        return ""


def _of_engine(program: str) -> bool:
    """Whether it lies in the engine's own directory, also once the dots in it are followed."""
    return program.startswith(_ENGINE) and posixpath.normpath("/e/" + program[len(_ENGINE) :]).startswith(
        "/e/"
    )


def _weights(policy: LocalPolicy, spec: LaunchSpec) -> str:
    """Those of the model and of its LoRA adapters."""
    adapters = spec.lora.adapters if spec.lora is not None else ()
    paths = (spec.weights_path, *(adapter.path for adapter in adapters))
    refusals = (policy.refuses_path(_real(path)) for path in paths if path is not None)
    return next((why for why in refusals if why), "")


def _reserved(policy: LocalPolicy, spec: LaunchSpec, gpus: tuple[Gpu, ...]) -> str:
    parents = {gpu.uuid: gpu.parent for gpu in gpus}
    refusals = (policy.refuses_gpu(claim.uuid, parents.get(claim.uuid)) for claim in spec.claims.gpus)
    return next((why for why in refusals if why), "")


def _real(path: str) -> str:
    """Where it really leads: a link below an allowed directory must not lead out of it."""
    return os.path.realpath(path)


def _may_be(user: str, allowed: Sequence[str]) -> bool:
    """By number: a second name of root's is root."""
    try:
        wanted = pwd.getpwnam(user).pw_uid
    except KeyError:
        return user in allowed
    return any(_uid(name) == wanted for name in allowed)


def _uid(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _read(path: Path) -> tuple[Signature, bytes, str] | None:
    """What tells one state of the file from another, its text, and why it is not to be trusted. None: there is none."""
    try:
        folder = path.parent.stat()
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as wrong:
        return (
            (wrong.errno or -1,),
            b"",
            f"it can't be read: {wrong.strerror}: make it readable for the agent",
        )
    try:
        about = os.fstat(descriptor)
        signature = (
            *(about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns),
            *(folder.st_uid, folder.st_mode),
        )
        problem = _untrusted(about, "it") or _untrusted(folder, f"its folder {path.parent}")
        if not stat.S_ISREG(about.st_mode):
            return signature, b"", "it is no plain file: write one"
        return signature, os.read(descriptor, MAX_FILE + 1), problem
    finally:
        os.close(descriptor)


def _untrusted(about: os.stat_result, what: str) -> str:
    if about.st_uid not in (0, os.geteuid()):
        return f"{what} belongs to user number {about.st_uid}: `chown root` it"
    writers = stat.S_IWOTH | (stat.S_IWGRP if about.st_gid != 0 else 0)
    if about.st_mode & writers:
        return f"others than root may write to {what}: `chmod go-w` it"
    return ""


def _understood(path: Path, data: bytes, problem: str) -> tuple[LocalPolicy, str]:
    """The policy, and why it is broken: then it allows nothing."""
    line = 0
    if not problem and len(data) > MAX_FILE:
        problem = f"it has more than {MAX_FILE} bytes"
    if not problem:
        try:
            return read_policy(data.decode(), str(path)), ""
        except UnicodeDecodeError as wrong:
            line, problem = data[: wrong.start].count(b"\n") + 1, "it is not UTF-8"
        except BrokenPolicyError as wrong:
            line, problem = wrong.line, str(wrong)
    told = f"{path}:{line}: {problem}" if line else f"{path}: {problem}"
    obstacle = f"the machine's policy can't be used, so nothing may be started here: {told}"
    return LocalPolicy(file=str(path), obstacle=obstacle), obstacle


def _news(path: Path, policy: LocalPolicy | None, problem: str) -> str:
    if policy is None:
        return f"{path} is gone: everything is allowed here"
    rules = [name for name in ("engines", "users", "paths") if getattr(policy, name) is not None]
    rules += ["reserve"] if policy.reserve.gpus or policy.reserve.memory else []
    return problem or policy.obstacle or f"{path} was read: rules for {', '.join(rules) or 'nothing'}"

"""What one look at a machine has found: values."""

from llmgw.model.struct import Struct


class Python(Struct):
    """An interpreter of the machine. ``open``: users without rights may run it. ``lacks``: modules that the agent needs."""

    version: tuple[int, ...]
    executable: str
    soabi: str = ""
    free_threaded: bool = False
    open: bool = True
    lacks: tuple[str, ...] = ()
    makes_environments: bool = True


class Folder(Struct):
    """A directory that is wanted: what is true of it, or of the nearest one above it that exists. ``free`` in bytes."""

    path: str
    nearest: str
    is_folder: bool = True
    free: int = 0
    writable: bool = True
    read_only: bool = False
    no_exec: bool = False


class Owner(Struct):
    """Whose agent is set up there. ``digest`` of its settings file."""

    node: str
    fleet: str | None
    digest: str


class RunningAgent(Struct):
    """The agent that has the work directory's lock, and the digest of the bundle that it was started from."""

    pid: int
    start: int
    version: str
    settings: str
    bundle: str | None = None


class Bundles(Struct):
    """What earlier bootstraps have left. ``launcher`` is the digest of its file,
    ``version`` the current one's."""

    agents: tuple[str, ...] = ()
    current: str | None = None
    launcher: str | None = None
    version: str = ""


class User(Struct):
    """A user of the machine."""

    uid: int
    home: str


class Inside(Struct):
    """What runtime/nodelook.py has found, field by field."""

    python: Python
    arch: str
    libc: str
    folders: tuple[Folder, ...]
    owner: Owner | None = None
    pretended: str | None = None
    bundles: Bundles = Bundles()
    holder: RunningAgent | None = None
    others: tuple[str, ...] = ()
    systemd: bool = False
    first: str = ""  # the name of process 1
    unit: str | None = None
    main_pid: int = 0  # of the unit, when it runs
    boot_entries: tuple[str, ...] = ()  # the ways, other than the unit, that are there already
    cron_runs: bool = False
    rc_local: bool = False
    local_d: bool = False
    init_d: bool = False
    programs: tuple[str, ...] = ()
    user: User | None = None
    groups: tuple[str, ...] = ()


class Machine(Struct):
    """What a shell tells of a machine, and what its Python tells when there is one that will do.

    ``seen``: interpreters that won't do, path and version or what they said. ``skew``: seconds that its clock is ahead.
    """

    root: bool
    user: str
    arch: str
    os_ids: tuple[str, ...] = ()
    os_name: str = ""
    free: int | None = None
    nearest: str = ""
    writable: bool = False
    seen: tuple[str, ...] = ()
    skew: float = 0.0
    sudo_refused: str = ""
    inside: Inside | None = None

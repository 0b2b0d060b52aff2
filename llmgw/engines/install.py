"""How an engine gets onto a node: requirements of the Python package index and programs of our own runtime, in an
environment of its own that is named by a digest; or an archive that is unpacked under one.

The digest covers engine, version, requirements, programs, Python, where the packages come from (CPU and CUDA
builds of one version differ by nothing but their index) and llmgw's own version, since the programs are copied out
of it. Another digest is another directory: what runs keeps running on the one it was started with.
"""

from functools import lru_cache

from llmgw import __version__
from llmgw.engines.environment import escape
from llmgw.model import ids
from llmgw.model.launch import HelpSpec, InstallSpec, Program
from llmgw.model.manifest import Engine, NodeSpec, Pip

ENVIRONMENTS = 256
"""Environments whose digest is kept: a fleet has a few, and a plan asks for one several times for each replica."""


def install(
    engine: Engine,
    node: NodeSpec,
    pip: Pip,
    *,
    version: str,
    program: Program | None = None,
    requirements: tuple[str, ...] = (),
    help_: HelpSpec | None = None,
) -> InstallSpec | None:
    """None when the profile names a path: somebody else has installed the engine."""
    if engine.path is not None:
        return None
    if engine.url is not None and program is not None:
        return _archive(engine, version=version, program=program, help_=help_)
    source = pip if requirements else Pip()
    programs = (program,) if program is not None else ()
    digest = _digest(engine.name, version, requirements, programs, node.python, source)
    return InstallSpec(
        job=ids.JobId(f"install-{digest[:8]}"),
        engine=engine.name,
        version=version,
        digest=digest,
        requirements=requirements,
        programs=programs,
        index_url=source.index_url,
        wheel_dir=source.wheel_dir,
        python=node.python,
        help=help_,
    )


@lru_cache(maxsize=ENVIRONMENTS)
def _digest(
    engine: str,
    version: str,
    requirements: tuple[str, ...],
    programs: tuple[Program, ...],
    python: str | None,
    source: Pip,
) -> ids.Digest:
    return ids.digest(
        {
            "engine": engine,
            "version": version,
            "requirements": requirements,
            "programs": [[each.runtime, each.install_as] for each in programs],
            "python": python,
            "indexUrl": source.index_url,
            "wheelDir": source.wheel_dir,
            "llmgw": __version__,
        }
    )


def _archive(engine: Engine, *, version: str, program: Program, help_: HelpSpec | None) -> InstallSpec:
    """Nothing but what is in the archive: neither Python nor packages nor our programs have a part in it."""
    digest = ids.digest(
        {
            "engine": engine.name,
            "version": version,
            "sha256": engine.sha256,
            "finds": [program.install_as],
        }
    )
    return InstallSpec(
        job=ids.JobId(f"install-{digest[:8]}"),
        engine=engine.name,
        version=version,
        digest=digest,
        url=engine.url,
        sha256=engine.sha256,
        finds=(program.install_as,),
        help=help_,
    )


def program_path(engine: Engine, name: str) -> str:
    """Where the engine's program lies. ``path`` is the program itself when it is called so, else the directory
    that holds it in ``bin``."""
    if engine.path is not None and engine.path.rpartition("/")[2].startswith(name):
        return "${engine}"
    return f"${{engine}}/bin/{name}"


def environment_program(engine: Engine, name: str) -> str:
    """Where a program of the engine's Python environment lies. ``path`` is that environment, or a program in its ``bin``."""
    if engine.path is None:
        return f"${{engine}}/bin/{name}"
    folder, _, last = engine.path.rstrip("/").rpartition("/")
    if folder.endswith("/bin"):
        return "${engine}" if last == name else f"{escape(folder)}/{name}"
    return f"${{engine}}/bin/{name}"

"""The first fleet: copies the embedded manifests into a folder, makes it a Git repository and makes its secret."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import llmgw
from llmgw.controller.secrets import ensure_secret
from llmgw.controller.settings import enclosing_repository, load_settings
from llmgw.manifests import schema
from llmgw.manifests.paths import CONFIGURATION, DEFAULT_FOLDER
from llmgw.model.problems import StalledError

SCHEMAS = ".schemas"
"""Where editors find the schemas of the starter's manifests; a dot folder, so that it is not read as manifests."""


SETTINGS = f"""\
# Settings of llmgw itself. All have defaults; docs/operations.md lists them. That this file is here makes this folder
# the fleet's, also when it lies somewhere in a larger repository.
#
# repo: git@git.example.org:lab/fleet.git   # default: the repository around this file
# branch: main                              # default: the one that is checked out
# path: {DEFAULT_FOLDER}
"""


def folder() -> Path:
    """The embedded fleet: inside the package where it was installed from a wheel, beside it in a checkout."""
    package = Path(llmgw.__file__).parent
    inside = package / "starter"
    return inside if inside.is_dir() else package.parent / DEFAULT_FOLDER


def write(target: Path, *, environ: Mapping[str, str]) -> Iterator[str]:
    """Lines for people about what was done. Raises StalledError, before anything is written, when something is there
    that would be overwritten."""
    manifests = target / DEFAULT_FOLDER
    for there in (manifests, target / SCHEMAS, target / CONFIGURATION):
        if there.exists():
            raise StalledError(
                f"starting a fleet in {target}: {there} is there already: name a new directory, or edit what is there"
            )
    try:
        _copy(target, manifests)
    except OSError as wrong:
        raise StalledError(
            f"starting a fleet in {target}: {wrong.filename}: {wrong.strerror}: name a directory that this user can write to"
        ) from wrong
    for file in (target / CONFIGURATION, *sorted(manifests.iterdir())):
        yield f"wrote {file}"
    if enclosing_repository(target.resolve()) is None:
        _git_init(target)
        yield f"made {target} a Git repository"
    settings = load_settings(flags={}, environ=environ, cwd=target.resolve())
    ensure_secret(settings.secret_file, work_tree=settings.work_tree)
    yield f"the fleet's secret is {settings.secret_file} (keep a copy: the models' API keys are made from it)"
    yield ""
    yield "Next:"
    yield f"  cd {target}"
    yield "  git add . && git commit -m 'Start the fleet'"
    yield "  llmgw plan"
    yield "  llmgw apply"


def _copy(target: Path, manifests: Path) -> None:
    manifests.mkdir(parents=True)
    (target / CONFIGURATION).write_text(SETTINGS, encoding="utf-8")
    schemas = target / SCHEMAS
    schemas.mkdir()
    for kind in ("fleet", "node", "profile", "model"):
        (schemas / f"{kind}.schema.json").write_text(schema.text(kind), encoding="utf-8")
    for file in sorted(folder().glob("*.yaml")):
        text = file.read_text(encoding="utf-8").replace("$schema=../schemas/", f"$schema=../{SCHEMAS}/")
        (manifests / file.name).write_text(text, encoding="utf-8")


def _git_init(target: Path) -> None:
    done = subprocess.run(
        ["git", "init", "--quiet", "--initial-branch", "main", "--", str(target)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise StalledError(
            f"making {target} a Git repository: git init failed: {done.stderr.strip()}: correct that and run git init there"
        )

"""``node add``: from a host's name to a Node manifest in a commit."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmgw.cli import output
from llmgw.cli.asking import agree
from llmgw.cli.main import Asked, fleet_options
from llmgw.cli.nodes.manifest import OTHERWISE, make
from llmgw.cli.numbers import Whole
from llmgw.cli.session import fleet_of, run
from llmgw.cli.written import Written, written
from llmgw.controller.nodes import adding, joining
from llmgw.controller.nodes.joining import Looked
from llmgw.controller.opening import Opened
from llmgw.manifests import nodetext
from llmgw.model.manifest import NodeSpec
from llmgw.model.problems import LlmgwError, StalledError

if TYPE_CHECKING:
    from llmgw.controller.nodes.ssh.hostkeys import HostKey


@click.command("add", short_help="Look at a machine and make it a node.")
@click.argument("host")
@click.option("--name", help="Of the node. [default: the first part of the host's name]")
@click.option("--user", help="To log in as. [default: root]")
@click.option("--port", type=Whole(1, 65535, example=2222), help="Of its SSH server. [default: 22]")
@click.option("--identity", help="Private key file. [default: sshIdentity, the ssh-agent, or ~/.ssh/id_*]")
@click.option("--agent", is_flag=True, help="Log in with the keys of the ssh-agent.")
@click.option(
    "--become", type=click.Choice(["none", "sudo"]), default="none", help="How that user becomes root."
)
@click.option("--jump", help="Log in by way of [user@]host[:port].")
@click.option("--pool", default="default", show_default=True, help="That models are placed in.")
@click.option("--address", help="That engines listen on. [default: HOST, or what it has]")
@click.option("--python", help="Of the machine, for its agent. [default: the newest that will do]")
@click.option(
    "--host-key",
    "host_keys",
    multiple=True,
    metavar="SHA256:…",
    help="It must show this key; asks nothing then. With --jump also that host's.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask: trust the host key that it shows.")
@click.option("--no-commit", is_flag=True, help="Write the file only.")
@fleet_options
@click.pass_obj
def add(asked: Asked, /, **options: Any) -> int:
    """Look at the machine HOST over SSH and write and commit a manifest for it. Changes nothing on the machine.

    Shows its host keys and asks before it logs in; shows what the machine is and asks before it commits. HOST is
    [user@]host[:port].

    \b
    llmgw node add root@10.0.0.11 --identity ~/.ssh/id_ed25519
    llmgw node add gpu02.example.org --user ops --become sudo --jump ops@bastion.example.org
    llmgw node add 10.0.0.12 --name gpu03 --host-key SHA256:… --yes
    """  # noqa: D301 - click wants the character itself
    return run(_add(asked, **options))


async def _add(
    asked: Asked,
    *,
    host: str,
    name: str | None,
    address: str | None,
    host_keys: Sequence[str],
    yes: bool,
    no_commit: bool,
    **words: Any,
) -> int:
    at = adding.door(host)
    if name is not None:
        adding.check_name(name)
    async with fleet_of(asked) as (opened, _):
        fleet = written(opened, otherwise=OTHERWISE)
        spec = joining.draft(at, joining.Words(**words), around=opened.around, cwd=Path.cwd())
        assert spec.ssh is not None
        adding.refuse_taken(
            fleet.manifests,
            name=name,
            host=spec.ssh.host,
            port=spec.ssh.port,
            address=address or spec.ssh.host,
        )
        if not no_commit:
            guess = adding.file_of(fleet.manifests, name or "new", folder=fleet.folder)
            fleet.tree.check(guess, branch=await opened.followed(), doing=f"adding {host}")
        spec = await _pinned(opened, fleet, spec, host_keys=host_keys, yes=yes)
        looked = await joining.look(
            spec, ssh=opened.ssh, bootstrap=opened.bootstrap(), fleet=await _fleet_id(opened), name=name
        )
    name = looked.name
    spec, remark = adding.spec_of(spec, looked.facts, address=address)
    _tell(looked)
    return _write(fleet, name, spec, looked, remark=remark, yes=yes, no_commit=no_commit)


# ---- the fleet it comes into -----------------------------------------------------------------------------


async def _fleet_id(opened: Opened) -> str:
    """Whose agents are ours; a record that can't be read right now keeps nobody from adding a node."""
    try:
        record = (await opened.store.read()).record
    except LlmgwError as wrong:
        output.note(
            f"Note: the record can't be read now, so whether an agent there is ours is not known: {wrong}"
        )
        return opened.fleet.first_id
    return record.fleet if record is not None else opened.fleet.first_id


# ---- whether it is the right machine ---------------------------------------------------------------------


async def _pinned(
    opened: Opened, fleet: Written, spec: NodeSpec, *, host_keys: Sequence[str], yes: bool
) -> NodeSpec:
    """With the host keys that a person has agreed to, also those of a machine on the way."""
    assert spec.ssh is not None
    left = list(host_keys)
    if spec.ssh.jump is not None:
        shown = await joining.jump_keys(spec)
        agreed = _agreed(shown, spec.ssh.jump, left, yes=yes, several=True)
        left = [one for one in left if one.rstrip("=") not in {key.fingerprint for key in agreed}]
        spec = joining.pinned(spec, agreed, jump=True)
    assert spec.ssh is not None
    shown = await joining.machine_keys(spec, opened.around)
    adding.refuse_known_keys(fleet.manifests, shown, host=spec.ssh.host)
    return joining.pinned(spec, _agreed(shown, spec.ssh.host, left, yes=yes, several=False))


def _agreed(
    shown: "Sequence[HostKey]", host: str, wanted: Sequence[str], *, yes: bool, several: bool
) -> "tuple[HostKey, ...]":
    """``several``: the fingerprints that were given are of more machines than this one."""
    output.note(f"{host} shows the host {'key' if len(shown) == 1 else 'keys'}:")
    for key in shown:
        output.note(f"  {key}")
    if wanted:
        prints = {key.fingerprint for key in shown}
        mine = [one for one in wanted if not several or one.rstrip("=") in prints]
        return adding.chosen(shown, mine or wanted, host=host)
    if yes:
        output.note(
            "Trusted as it is, because of --yes. `ssh-keygen -lf` on the machine shows whether it is the right one."
        )
        return tuple(shown)
    agree(
        "Is that what `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` says on the machine?",
        otherwise="give --host-key SHA256:…, or --yes to trust it",
    )
    return tuple(shown)


# ---- what it is ------------------------------------------------------------------------------------------


def _tell(looked: Looked) -> None:
    output.say(f"{looked.name}:")
    told = adding.described(looked.facts)
    width = max(len(key) for key, _ in told)
    for key, value in told:
        output.say(f"  {key:<{width}}  {value}")
    for note in looked.notes:
        output.say(f"  {'note':<{width}}  {note}")
    if not looked.problems:
        output.say("Bootstrap has all it needs there.")
        return
    output.say("Before an agent can be installed there:")
    for problem in looked.problems:
        output.say(f"  - {problem}")


# ---- its manifest ----------------------------------------------------------------------------------------


def _write(
    fleet: Written, name: str, spec: NodeSpec, looked: Looked, *, remark: str, yes: bool, no_commit: bool
) -> int:
    assert spec.ssh is not None
    adding.refuse_taken(
        fleet.manifests,
        name=name,
        host=spec.ssh.host,
        port=spec.ssh.port,
        address=spec.address or spec.ssh.host,
    )
    path = adding.file_of(fleet.manifests, name, folder=fleet.folder)
    file = fleet.tree.top / path
    if file.exists() or file.is_symlink():
        raise StalledError(
            f"adding node {name}: {path} is there already: give another --name, or move it away"
        )
    remarks = nodetext.Remarks(
        machine=adding.remark_lines(looked.facts), address=remark, fabric=adding.adapters(looked.facts)
    )
    text = nodetext.node_text(name, spec, remarks=remarks, schema=fleet.schema(path))
    fleet.checked({path: text.encode()})
    output.say("")
    output.say(text)
    if not yes and output.is_terminal(sys.stdin):
        click.confirm(f"Write {path}{'' if no_commit else ' and commit it'}?", abort=True, err=True)
    make(fleet.tree, path, text)
    if no_commit:
        output.say(f"Wrote {path}. Next: commit it, then llmgw plan")
        return output.DONE
    return _commit(fleet, path, name, spec)


def _commit(fleet: Written, path: str, name: str, spec: NodeSpec) -> int:
    assert spec.ssh is not None
    gpus = f", {spec.expect.gpus} x {spec.expect.gpu_class or 'GPU'}" if spec.expect.gpus else ""
    try:
        commit = fleet.tree.commit(
            path, message=f"Add node {name} ({spec.ssh.host}{gpus})", doing=f"committing {path}"
        )
    except StalledError:
        (fleet.tree.top / path).unlink(missing_ok=True)
        raise
    output.say(f"Committed {path} ({commit}).")
    push = fleet.tree.push_hint()
    steps = " && ".join([*([push] if push else []), "llmgw plan", "llmgw apply"])
    output.say(f"Next: {steps}, which installs its agent; or only that: llmgw node bootstrap {name}")
    return output.DONE

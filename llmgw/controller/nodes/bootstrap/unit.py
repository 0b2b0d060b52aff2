"""How a machine is made to start its agent at every boot: which way, and the text of it. Pure."""

import shlex
from typing import Final, Literal

from llmgw.controller.nodes.bootstrap.machine import Inside
from llmgw.controller.nodes.layout import launcher, service_name
from llmgw.model.struct import Struct

Way = Literal["systemd", "crontab", "rc.local", "local.d", "init.d", "none"]
INITS: Final = frozenset({"init", "systemd", "busybox", "openrc-init", "runit", "s6-svscan", "upstart"})


class BootEntry(Struct):
    """``note`` is what a person should know of this way, if anything."""

    way: Way
    text: str
    note: str = ""


def boot_entry(inside: Inside, work: str, *, root: bool) -> BootEntry:
    """The best way that this machine offers."""
    if root and inside.systemd:
        return BootEntry(way="systemd", text=unit(work))
    if "crontab" in inside.programs:
        note = (
            "" if inside.cron_runs else "its agent starts at boot by cron, but no cron daemon runs: start one"
        )
        return BootEntry(way="crontab", text=f"@reboot {in_background(work)}", note=note)
    if root and inside.rc_local:
        return BootEntry(way="rc.local", text=in_background(work), note=_seen(inside, "/etc/rc.local"))
    if root and inside.local_d:
        text = f"#!/bin/sh\n{in_background(work)}\n"
        return BootEntry(way="local.d", text=text, note=_seen(inside, "/etc/local.d"))
    if root and inside.init_d and {"update-rc.d", "chkconfig"} & set(inside.programs):
        return BootEntry(way="init.d", text=init_script(work), note=_seen(inside, "/etc/init.d"))
    return BootEntry(
        way="none",
        text="",
        note="nothing here starts its agent at boot (no systemd, cron, rc.local or init.d): run"
        f" `{in_background(work)}` when the machine boots, or bootstrap again after each boot",
    )


def _seen(inside: Inside, place: str) -> str:
    if inside.first in INITS:
        return ""
    return f"its agent starts at boot by {place}; process 1 is {inside.first or 'unknown'}: see that it runs what lies there"


def in_background(work: str) -> str:
    """A line of shell that starts the agent and goes on."""
    command = shlex.join((launcher(work), "daemon", "--work", work))
    return f"( {command} </dev/null >>{shlex.quote(work + '/agent.log')} 2>&1 & )"


def unit(work: str) -> str:
    """The systemd unit. Nothing in it protects or hides anything (Protect…, Private…, DevicePolicy, RestrictSUIDSGID, MemoryMax):
    engines inherit it, and it would keep GPUs, RDMA, JIT compilers and the kernel's log of GPU faults from them.

    ``Type=notify``: it is up when it listens. ``WatchdogSec``: one whose loop hangs is started anew, and adopts its engines.
    ``KillMode=process``: engines outlive their agent. ``OOMPolicy=continue``: one engine's end for want of memory must not
    stop the unit."""
    return f"""\
[Unit]
Description=llmgw node agent in {work}
Wants=network-online.target
After=network-online.target remote-fs.target nvidia-persistenced.service
StartLimitIntervalSec=0

[Service]
Type=notify
WatchdogSec=120
ExecStart={_words(launcher(work), "daemon", "--work", work)}
Restart=always
RestartSec=2
KillMode=process
TimeoutStopSec=20
Delegate=yes
OOMScoreAdjust=-500
OOMPolicy=continue
LimitNOFILE=1048576
LimitMEMLOCK=infinity
LimitCORE=0
TasksMax=infinity
Environment=LANG=C.UTF-8

[Install]
WantedBy=multi-user.target
"""


def _words(*words: str) -> str:
    """As systemd reads them. Work directories have no signs that mean something to it (layout.py)."""
    return " ".join(f'"{word}"' for word in words)


def init_script(work: str) -> str:
    """For machines that start what lies in /etc/init.d. Its ``stop`` ends the agent that wrote itself into the lock file,
    if that is still the agent: engines run on."""
    name, lock = service_name(work), shlex.quote(f"{work}/agent.lock")
    return f"""\
#!/bin/sh
### BEGIN INIT INFO
# Provides:          {name}
# Required-Start:    $remote_fs $network
# Required-Stop:
# Default-Start:     2 3 4 5
# Default-Stop:
# Short-Description: llmgw node agent
### END INIT INFO
# chkconfig: 2345 90 10
# description: llmgw node agent
pid() {{
    found=$(sed -n 's/.*"pid":\\([0-9]*\\).*/\\1/p' {lock} 2>/dev/null)
    [ -n "$found" ] && tr '\\0' ' ' </proc/"$found"/cmdline 2>/dev/null | grep -qF -- {shlex.quote("--work " + work + " ")}
}}
case "$1" in
    start) {in_background(work)} ;;
    stop) if pid; then kill "$found"; fi ;;
    restart) "$0" stop; sleep 2; "$0" start ;;
    status) if pid; then echo "{name} runs, pid $found"; else echo "{name} does not run"; exit 3; fi ;;
    *) echo "usage: $0 start|stop|restart|status" >&2; exit 64 ;;
esac
"""

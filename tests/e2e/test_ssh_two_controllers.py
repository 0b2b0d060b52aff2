"""Two controllers on two hosts serve one fleet: killed, paused and cut off in the middle of a pass they never both command, the
other one takes over, and what the old one still says is refused.

The tests share the machines, and each takes the fleet as the one before has left it.
"""

import secrets
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from tests.e2e.rivals import (
    WITHIN,
    Controller,
    Fences,
    Hub,
    SlowBridges,
    controller_options,
    refused,
)
from tests.e2e.sshroad import engines
from tests.rig.host import Host, wait_for
from tests.rig.options import Options
from tests.rig.rig import Rig, require_rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

LEASE = "15s"
"""Short, so that the tests are; long enough for what must happen within it on a busy machine."""
A_START = 400
"""Bytes: a command to start a shard has more, what is asked all along has fewer."""
TRIES = 4
"""For what must happen within a lease, on a machine that may be busy."""


@dataclass(slots=True)
class Duel:
    """``replicas`` of chat, on all nodes, and ``others`` of embed, on the first."""

    hub: Hub
    nodes: tuple[Host, ...]
    controllers: tuple[Controller, Controller]
    fences: Fences
    replicas: int = 0
    others: int = 0

    def ask(self, message: str, *, replicas: int = 0, others: int = 0) -> None:
        """For so many more."""
        self.replicas += replicas
        self.others += others
        self._model("chat", self.replicas, placement={"spread": "node"})
        self._model("embed", self.others, placement={"nodes": [self.nodes[0].name]})
        self.hub.push(message)

    def _model(self, name: str, replicas: int, **more: object) -> None:
        usual = {"source": {"path": "/var/empty"}, "profile": "pretend", "rollout": {"drainTimeout": "5s"}}
        self.hub.write("Model", name, {**usual, "replicas": replicas, **more})

    def runs_what_is_asked(self) -> bool:
        return all(
            sum(len(engines(host, name)) for host in self.nodes) == count
            for name, count in (("chat", self.replicas), ("embed", self.others))
        )

    def serves_what_is_asked(self) -> None:
        what = f"{self.replicas} of chat and {self.others} of embed"
        try:
            wait_for(what, self.runs_what_is_asked, within=WITHIN)
        except AssertionError as late:
            said = "\n".join(f"{one.holder}:\n{one.said[-3000:]}" for one in self.controllers)
            raise AssertionError(f"{late}\n{said}") from late

    def comes_to_rest(self) -> None:
        """As Git asks, nothing is at work, and either one would change nothing."""
        self.serves_what_is_asked()
        wait_for("a pass that has ended", lambda: bool(self.hub.last_pass().get("outcome")), within=WITHIN)
        for one in self.controllers:
            self._changes_nothing(one)

    @staticmethod
    def _changes_nothing(one: Controller) -> None:
        try:
            wait_for(f"nothing to do for {one.holder}", lambda: not one.would_change(), within=WITHIN)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{one.would_change()}") from late

    def held_in_the_middle(self, one: Controller, message: str, *, replicas: int = 0, others: int = 0) -> int:
        """``one`` has written its intent and is kept from going on. Its serial."""
        (other,) = (it for it in self.controllers if it is not one)
        with other.paused():
            self.hub.hold_next_intent()
            self.ask(message, replicas=replicas, others=others)
            self.hub.wait_until_held()
        passed = self.hub.last_pass()
        assert passed["holder"] == one.holder
        return int(passed["serial"])

    def is_taken_over(self, serial: int, one: Controller) -> None:
        told = f"Take over from serial {serial} of {one.holder}"
        wait_for(told, lambda: any(told in line for line in self.hub.told()), within=WITHIN)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Duel]:
    require_rig("that two controllers never both command, and that either takes over from the other")
    folder = tmp_path_factory.mktemp("duel")
    runs = controller_options()
    with Rig(folder, hosts=[Options(), Options(), Options(), runs, runs]) as rig:
        *nodes, git, first, second = rig.hosts
        hub, secret = Hub(git), secrets.token_hex(32)
        ann, ben = (
            Controller(host, hub, holder, folder / f"{holder}.log", lease=LEASE)
            for host, holder in ((first, "ann@one"), (second, "ben@two"))
        )
        hub.make()
        for node in nodes:
            ssh = {"host": node.address, "user": "root", "hostKeys": list(node.host_keys)}
            hub.write("Node", node.name, {"ssh": ssh})
        profile = {"engine": {"name": "sim"}, "gpus": {"perNode": 0}, "memory": "64MiB"}
        hub.write("Profile", "pretend", {**profile, "timeouts": {"stop": "5s"}})
        with Fences(nodes) as fences:
            duel = Duel(hub, tuple(nodes), (ann, ben), fences)
            try:
                duel.ask("Serve chat and embed", replicas=2, others=1)
                for one in duel.controllers:
                    one.make(rig.identity, secret)
                    one.start()
                duel.comes_to_rest()
                yield duel
            finally:
                for one in duel.controllers:
                    one.kill()


@pytest.fixture
def duel(made: Duel) -> Iterator[Duel]:
    """At rest."""
    yield made
    made.hub.let_go()
    for one in made.controllers:
        one.host.heal()
        one.signal(signal.SIGCONT)


def test_from_one_that_is_killed_the_other_takes_over(duel: Duel) -> None:
    ann, _ = duel.controllers
    serial = duel.held_in_the_middle(ann, "One more", replicas=1)
    ann.kill()
    duel.hub.let_go()
    duel.is_taken_over(serial, ann)
    duel.serves_what_is_asked()
    ann.start()
    duel.comes_to_rest()


def test_of_one_that_slept_through_its_lease_the_agents_refuse_what_it_had_said(duel: Duel) -> None:
    """Its command is on its way to the agent when it falls asleep, and comes there when the other one has commanded."""
    _, ben = duel.controllers
    node = duel.nodes[0]
    before = len(refused(node))
    for _ in range(TRIES):
        serial = duel.held_in_the_middle(ben, "One more of embed", others=1)
        slow = SlowBridges(node, ben.host)
        try:
            duel.hub.let_go()
            if _sent(duel, slow):
                ben.signal(signal.SIGSTOP)
                duel.is_taken_over(serial, ben)
                wait_for("the other's command", partial(_newer, duel, node, serial), within=WITHIN)
                break
        finally:
            slow.let_go()
        duel.comes_to_rest()  # its lease was over before it could say anything
    else:
        raise AssertionError(f"in {TRIES} leases of {LEASE} no command came as far as {node.name}")
    wait_for("the agent to refuse", lambda: len(refused(node)) > before, within=WITHIN)
    assert f"refused a command of serial {serial} " in refused(node)[-1]
    duel.serves_what_is_asked()
    ben.signal(signal.SIGCONT)
    duel.comes_to_rest()
    assert len(refused(node)) == before + 1, "it went on commanding after it woke up"


def _sent(duel: Duel, slow: SlowBridges) -> bool:
    """Whether a command waits before the agent; False: its pass has ended without one."""
    wait_for(
        "a command, or the end of the pass",
        lambda: slow.held_back() > A_START or bool(duel.hub.last_pass().get("outcome")),
        within=WITHIN,
    )
    return slow.held_back() > A_START


def _newer(duel: Duel, node: Host, serial: int) -> bool:
    last = duel.fences.last(node)
    return last is not None and last.serial > serial


def test_while_one_is_cut_off_the_other_goes_on(duel: Duel) -> None:
    ann, ben = duel.controllers
    serial = duel.held_in_the_middle(ann, "One more", replicas=1)
    ann.host.cut()
    duel.hub.let_go()
    duel.is_taken_over(serial, ann)
    duel.serves_what_is_asked()
    ann.host.heal()

    ben.host.cut()
    duel.ask("One less", replicas=-1)
    duel.serves_what_is_asked()
    ben.host.heal()
    duel.comes_to_rest()


def test_all_along_there_was_never_more_than_one_who_commanded(duel: Duel) -> None:
    for one in duel.controllers:
        assert one.stop() == 0, one.said[-3000:]
        assert "Traceback" not in one.said
    written = duel.hub.state_commits()
    intents: dict[int, set[str]] = {}
    for name, seen in duel.fences.seen.items():
        assert seen, f"{name} was never commanded"
        assert seen == sorted(seen, key=lambda it: it.serial), f"{name} obeyed an older serial"
        for fence in seen:
            assert fence.intent in written, f"{name} obeyed an intent that is not in the record"
            assert duel.hub.pass_at(fence.intent)["serial"] == fence.serial
            intents.setdefault(fence.serial, set()).add(fence.intent)
    assert all(len(found) == 1 for found in intents.values()), "two intents commanded with one serial"
    holders = {duel.hub.pass_at(intent)["holder"] for found in intents.values() for intent in found}
    # Which of them has had to command depends on which of these tests ran before, on these machines.
    assert holders, "nobody ever commanded"
    assert holders <= {one.holder for one in duel.controllers}

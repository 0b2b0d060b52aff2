"""A running fleet is changed and gets hurt while people use it, on machines reached over SSH: rollouts, drains, machines that are
lost and come back, priorities, custody.

The tests share three machines with a GPU each and one model, ``chat``. Each takes the fleet as the one before has left it, and
all along a watcher looks that no GPU, port or name is ever held twice.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from llmgw.core.lifecycle import DRAIN_SETTLE
from tests.chaos.excuses import Excuses
from tests.chaos.gpus import add_gpus
from tests.chaos.seen import Eyes, networks
from tests.chaos.story import Story
from tests.chaos.watcher import Watcher
from tests.e2e.sshroad import SshRoad, engines
from tests.e2e.traffic import WITHIN, Held, Traffic, ready
from tests.rig.host import Host, wait_for
from tests.rig.rig import CONTROLLER, Rig, require_rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

WEIGHTS: Final = "/srv/weights"
"""A file that the engine needs and a machine may lack."""
NEEDS: Final = ("--weights", WEIGHTS, "--token-delay", "0.05", "--drain-seconds", "0")
"""The engine itself waits for nobody: what is in flight when it is told to end is cut off."""
APPLY: Final = ("apply", "--yes", "--allow-prune")


@dataclass(slots=True, kw_only=True)
class Fleet:
    """``file`` is the endpoints file that a gateway reads."""

    road: SshRoad
    file: Path
    watcher: Watcher
    story: Story
    replicas: int = 0
    failures: int = 0  # of the test run, when the fleet was last known to be at rest

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self.road.hosts

    def serve(self, replicas: int, *args: str) -> None:
        """``chat`` with so many replicas and these words more for its engine, from the next commit on."""
        self.replicas = replicas
        once = {"giveUpAfter": 1}
        self.road.write_profile(gpus={"perNode": 1}, args=[*NEEDS, *args], restart=once)
        drain = {"drainTimeout": "5m"}
        self.road.write_model(
            "chat", replicas=replicas, priority=10, placement={"spread": "node"}, rollout=drain
        )

    def two(self) -> tuple[Host, Host, Host]:
        """The machines, the one without ``chat`` last."""
        if self.replicas != 2:
            self.serve(2)
            self.apply("Two of chat")
        return self.places()

    def places(self) -> tuple[Host, Host, Host]:
        running = self.running("chat")
        assert len(running) == 2
        one, two, free = sorted(self.hosts, key=lambda host: (host.name not in running, host.name))
        return one, two, free

    def apply(self, message: str, *, expect: int = 0) -> str:
        self.road.commit(message)
        return self.again(expect=expect)

    def again(self, *, expect: int = 0) -> str:
        return self.road.llmgw(*APPLY, expect=expect, within=WITHIN * 2)

    def edit(self, *words: str) -> str:
        """A command that is a commit, in the work tree of whoever gives it."""
        variables = {"LLMGW_REPO": str(self.road.fleet), "LLMGW_STATE_REPO": str(self.road.hub)}
        return self.road.llmgw(*words, variables=variables)

    def running(self, model: str) -> dict[str, set[int]]:
        """Engines by host, of hosts that have any."""
        found = {host.name: set(engines(host, model)) for host in self.hosts}
        return {name: pids for name, pids in found.items() if pids}

    def published(self) -> dict[str, str]:
        """Whose replica of ``chat`` is ready, by host."""
        names = {host.address: host.name for host in self.hosts}
        return {names[one["address"]]: one["replica"] for one in ready(self.file, "chat").ready}

    def at_rest(self) -> None:
        said = self.road.llmgw("plan", "--detailed-exitcode")
        assert "No changes" in said, said

    def row(self, host: Host) -> str:
        """What the list of nodes says of one."""
        said = self.road.run("node", "list").out
        return next(line for line in said.splitlines() if line.split()[:1] == [host.name])

    def reset(self) -> None:
        """After a test that failed, wherever it did."""
        for host in self.hosts:
            host.heal()
            host.write(WEIGHTS, "")
            self.road.write_node(host)
        self.road.remove_models()
        self.apply("Nothing at all")
        self.serve(1)
        self.apply("Serve chat")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    require_rig("what people who use a fleet notice of changes and losses, over SSH")
    folder = tmp_path_factory.mktemp("changes")
    with Rig(folder, hosts=3) as rig:
        for host in rig.hosts:
            add_gpus(host, 1)
            host.write(WEIGHTS, "")
        file = folder / "endpoints.json"
        person = {"AUTHOR_NAME": "ann", "AUTHOR_EMAIL": "ann@localhost"}
        person |= {"COMMITTER_NAME": "ann", "COMMITTER_EMAIL": "ann@localhost"}
        variables = {"LLMGW_ENDPOINTS_FILE": str(file)} | {f"GIT_{name}": who for name, who in person.items()}
        road = SshRoad(rig, folder / "road", variables=variables)
        road.write("Fleet", "lab", {"unreachable": {"grace": "1s"}})
        excuses, story = Excuses(), Story()
        excuses.everything_may_end()  # who ends, and why, is what the tests are about
        eyes = Eyes(networks({host.name: host.namespace for host in rig.hosts}))
        watcher = Watcher(eyes.look, excuses, story)
        watcher.start()
        try:
            fleet = Fleet(road=road, file=file, watcher=watcher, story=story)
            fleet.serve(1)
            fleet.apply("Serve chat")
            yield fleet
        finally:
            road.close()
            watcher.close()


@pytest.fixture
def fleet(made: Fleet, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    if made.failures != request.session.testsfailed:
        made.reset()
        made.failures = request.session.testsfailed
    yield made
    made.road.close()
    assert made.watcher.looks
    assert made.watcher.broken == [], made.story.text()


def test_nobody_who_asks_notices_a_new_secret_or_a_rollout(fleet: Fleet) -> None:
    fleet.serve(1)
    first = set(fleet.published().values())
    with Traffic(fleet.road, fleet.file, "chat") as traffic:
        traffic.wait_for_all()
        fleet.road.llmgw("secret", "rotate", "--yes", within=WITHIN * 2)
        second = set(fleet.published().values())
        traffic.wait_for_all()
        fleet.serve(2, "--token-delay", "0.06")
        fleet.road.commit("Slower tokens, from two")
        (old,) = ready(fleet.file, "chat").ready
        with Held(fleet.road, old, "chat") as held:
            applying = fleet.road.start(*APPLY)
            told_to_go(fleet, str(old["replica"]), applying)
            held.let_go()
        fleet.road.end(applying, *APPLY, within=WITHIN * 2)
        third = set(fleet.published().values())
        traffic.wait_for_all()
    assert [len(first), len(second), len(third)] == [1, 1, 2]
    assert traffic.replicas() == first | second | third
    assert len(first | second | third) == 4
    assert [one["key"] for one in fleet.road.endpoints()] == [
        one["key"] for one in ready(fleet.file, "chat").ready
    ], "the file and the command say two things"


def told_to_go(fleet: Fleet, replica: str, applying: "subprocess.Popen[str]") -> None:
    """Others have taken over from it, and all that it waits for is a request in flight."""
    wait_for(f"{replica} to be told to go", lambda: replica not in fleet.published().values(), within=WITHIN)
    told = time.monotonic()
    assert fleet.published(), "it was told to go before another had taken over"
    wait_for("all time but that of its requests", lambda: time.monotonic() - told > DRAIN_SETTLE + 1)
    assert applying.poll() is None, "it was called done while a request was in flight"


def test_a_node_is_drained_when_its_agent_says_that_nothing_is_left(fleet: Fleet) -> None:
    host, other, free = fleet.two()
    before = fleet.running("chat")
    mine = next(one for one in ready(fleet.file, "chat").ready if one["address"] == host.address)
    with Traffic(fleet.road, fleet.file, "chat") as traffic, Held(fleet.road, mine, "chat") as held:
        traffic.wait_for_all()
        assert "being drained" in fleet.edit("drain", host.name)
        applying = fleet.road.start(*APPLY)
        told_to_go(fleet, mine["replica"], applying)
        assert set(fleet.published()) == {other.name, free.name}
        assert f"being drained: {mine['replica']}-r0 (draining) is left" in fleet.road.llmgw("status")
        assert fleet.running("chat")[host.name] == before[host.name]
        held.let_go()
        fleet.road.end(applying, *APPLY, within=WITHIN * 2)
        traffic.wait_for_all()
    assert "ok (drained)" in fleet.row(host)
    after = fleet.running("chat")
    assert set(after) == {other.name, free.name}
    assert after[other.name] == before[other.name]

    fleet.edit("uncordon", host.name)
    fleet.again()
    assert "drained" not in fleet.row(host)
    assert fleet.running("chat") == after, "what has moved away stays where it is"


def test_a_lost_machine_is_replaced_and_nothing_serves_twice_when_it_is_back(fleet: Fleet) -> None:
    one, two, free = fleet.two()
    before = fleet.running("chat")
    with unreachable(one), unreachable(two):
        for _ in range(2):  # by the second time the grace of a second is over
            assert "while the brake holds" in fleet.again(expect=6)
    assert fleet.running("chat") == before, "so many are not lost at once"
    assert set(fleet.published()) == {one.name, two.name}

    one.cut()
    apply_until("another copy", fleet, lambda: free.name in fleet.published())
    assert set(fleet.published()) == {two.name, free.name}
    assert fleet.running("chat")[one.name] == before[one.name], "it runs on there, and nobody can see it"
    one.heal()
    fleet.again()
    after = fleet.running("chat")
    assert set(after) == {two.name, free.name}
    assert after[two.name] == before[two.name]
    assert set(fleet.published()) == set(after)
    fleet.at_rest()


def unreachable(host: Host) -> AbstractContextManager[None]:
    """At once, and not only when nothing has been heard for long enough."""
    return host.refusing(CONTROLLER, how="reject with tcp reset", port=22)


def apply_until(what: str, fleet: Fleet, true: Callable[[], bool]) -> None:
    """While a machine is silent: the first time that is recorded, and nothing is done before its grace is over."""

    def applied() -> bool:
        fleet.road.end(fleet.road.start(*APPLY), *APPLY, expect=(5, 6), within=WITHIN * 2)
        return true()

    wait_for(what, applied, within=WITHIN)


def test_who_made_room_for_something_urgent_comes_back_when_that_is_gone(fleet: Fleet) -> None:
    fleet.two()
    before = fleet.running("chat")
    fleet.road.write_model("urgent", replicas=2, priority=200)
    assert "evicted for model/urgent/" in fleet.apply("Something urgent", expect=5)
    left = fleet.running("chat")
    assert len(fleet.running("urgent")) == 2
    assert [before[name] for name in left] == list(left.values())
    assert len(left) == 1
    assert "waits for room: evicted for model/urgent/" in fleet.road.llmgw("status")
    fleet.road.remove("Model", "urgent")
    fleet.apply("That was all")
    back = fleet.running("chat")
    assert len(back) == 2
    assert [back[name] for name in left] == list(left.values())
    assert fleet.running("urgent") == {}
    fleet.at_rest()


def test_what_nobody_manages_runs_on_and_is_taken_back_as_it_is(fleet: Fleet) -> None:
    host, other, _ = fleet.two()
    pids, replica = fleet.running("chat"), fleet.published()[host.name]
    fleet.road.llmgw("forget", replica, "--why", "handed over", "--yes")
    assert set(fleet.published()) == {other.name}
    assert fleet.running("chat") == pids
    assert "handed over" in fleet.road.llmgw("status")
    fleet.road.llmgw("adopt", replica, "--yes")
    assert fleet.published()[host.name] == replica
    assert fleet.running("chat") == pids
    fleet.at_rest()


def test_what_a_machine_ran_that_was_given_up_stops_when_it_is_found_again(fleet: Fleet) -> None:
    lost, other, free = fleet.two()
    before = fleet.running("chat")
    manifest = fleet.road.manifests / f"node-{lost.name}.yaml"
    written = manifest.read_text()
    lost.cut()
    fleet.edit("node", "remove", lost.name, "--lost", "--yes")
    assert not manifest.exists()
    fleet.apply("The machine is gone")
    assert set(fleet.published()) == {other.name, free.name}
    assert fleet.running("chat")[lost.name] == before[lost.name]
    lost.heal()
    manifest.write_text(written)
    fleet.apply("It was found again")
    after = fleet.running("chat")
    assert set(after) == {other.name, free.name}
    assert after[other.name] == before[other.name]
    assert set(fleet.published()) == set(after)
    fleet.at_rest()


def test_of_two_copies_the_older_one_stays_where_only_it_serves(fleet: Fleet) -> None:
    one, two, free = fleet.two()
    before, published = fleet.running("chat"), fleet.published()
    free.must("rm", WEIGHTS)
    with unreachable(one):
        apply_until("a copy that fails", fleet, lambda: "can't load weights" in fleet.road.llmgw("status"))
        assert set(fleet.published()) == {one.name, two.name}, "what may serve there stays published"
    fleet.again()
    assert fleet.running("chat") == before
    assert fleet.published() == published

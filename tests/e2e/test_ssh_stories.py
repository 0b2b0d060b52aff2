"""What a team does and meets every day, on machines reached over SSH: scaling, replacing, removing, failures, rivals, deaths.

The tests share three machines. Each takes the fleet as the one before has left it, and adds to it rather than taking down:
draining takes its time.
"""

import json
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.sshroad import SshRoad, agents, engines, kill_agent
from tests.e2e.watching import Watch
from tests.rig.host import Host, wait_for
from tests.rig.options import Options, User
from tests.rig.rig import Rig, require_rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

BANNER = "echo WELCOME to this machine; echo mind the gap >&2\n"
LOADING = ("--load-seconds", "0.5")


@dataclass(slots=True)
class Team:
    """A fleet with one model, ``chat``."""

    road: SshRoad
    replicas: int = 2
    args: tuple[str, ...] = ()
    failures: int = 0  # of the test run, when the fleet was last known to be at rest

    def write(self, **profile: Any) -> None:
        self.road.write_profile(**{"args": self.args, **profile})
        self.road.write_model("chat", replicas=self.replicas, placement={"spread": "node"})

    def one_more(self) -> None:
        self.replicas += 1
        self.write()

    def apply(self, message: str, *words: str, expect: int = 0) -> str:
        self.road.commit(message)
        return self.road.llmgw("apply", "--yes", "--allow-prune", *words, expect=expect)

    def running(self) -> dict[int, Host]:
        return {pid: host for host in self.road.hosts for pid in engines(host, "chat")}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """Three machines that have nothing yet: one whose login talks and needs sudo, one that allows hardly any sessions."""
    require_rig("the stories of an everyday fleet, over SSH")
    hosts = [Options(), Options(users=(User(name="ann", bashrc=BANNER),)), Options(max_sessions=2)]
    folder = tmp_path_factory.mktemp("stories")
    with Rig(folder, hosts=hosts) as rig:
        yield Team(
            SshRoad(rig, folder / "road", ssh={"node2": {"user": "ann", "become": "sudo"}}), failures=-1
        )


@pytest.fixture
def team(bare: Team, request: pytest.FixtureRequest) -> Iterator[Team]:
    if bare.failures != request.session.testsfailed:
        bare.replicas, bare.args = 2, ()
        bare.write()
        bare.apply("Serve chat")
    yield bare
    bare.road.close()
    bare.failures = request.session.testsfailed


def test_scaling_touches_what_is_new_and_removing_needs_permission(team: Team) -> None:
    road, before = team.road, team.running()
    assert len(before) == team.replicas
    assert all('"chat"' in road.ask(one) for one in road.endpoints())
    team.one_more()
    assert "ready after" in team.apply("One more")
    more = team.running()
    assert set(before) < set(more)
    assert {host.name for host in more.values()} == {"node1", "node2", "node3"}
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode")
    count = len(road.state())
    assert "Nothing to do" in road.llmgw("apply", "--yes")
    assert len(road.state()) == count, "nothing was done, and the record was written"

    team.replicas = 1
    team.write()
    team.apply("One is enough")
    (left,) = team.running()
    assert left in more
    road.remove_models()
    road.commit("Nothing at all")
    assert "--allow-prune" in road.llmgw("apply", "--yes", expect=6)
    assert set(team.running()) == {left}, "an emptied fleet went on serving"
    road.llmgw("apply", "--yes", "--allow-prune")
    assert team.running() == {}
    assert "Started" in road.llmgw("history")
    assert "ann@desk" in road.llmgw("history", str(road.last_pass()["serial"]))
    team.replicas = 1
    team.write()
    team.apply("One again")


def test_a_changed_flag_creates_before_it_destroys_and_one_serves_all_along(team: Team) -> None:
    road, before = team.road, team.running()
    watching = Watch(road, "chat")
    team.args = ("--token-delay", "0.001")
    team.write()
    road.commit("Slower tokens")
    assert "+/- model/chat/0" in road.llmgw("plan")
    road.llmgw("apply", "--yes")
    assert watching.gaps() == []
    after = team.running()
    assert len(after) == len(before)
    assert set(after).isdisjoint(before)
    assert all("--token-delay" in engines(host)[pid] for pid, host in after.items())


def test_a_replica_that_never_gets_ready_leaves_the_old_one_alone_and_its_output_is_in_the_error(
    team: Team,
) -> None:
    road, before = team.road, team.running()
    team.write(args=("--never-ready",), startupTimeout="2s", restart={"giveUpAfter": 1})
    failed = team.apply("A flag that is wrong", expect=5)
    assert "The last lines of its output:" in failed
    assert "sim-engine: serving chat" in failed
    assert team.running() == before
    assert road.llmgw("apply", "--yes", expect=6)
    assert '"chat"' in road.ask(road.endpoints()[0])
    team.write()
    team.apply("Back to what worked")
    assert team.running() == before


def test_of_two_controllers_at_once_one_works_and_the_other_names_it(team: Team) -> None:
    road = team.road
    team.one_more()
    road.commit("One more")
    road.hold_next_intent()
    first = road.start("apply", "--yes")
    road.wait_until_held()
    first.send_signal(signal.SIGSTOP)
    road.let_go()
    try:
        refused = road.llmgw("apply", "--yes", expect=4, variables=of_bob(road))
    finally:
        first.send_signal(signal.SIGCONT)
    assert "ann@desk is applying" in refused
    road.end(first, "apply")
    assert len(team.running()) == team.replicas
    assert "Nothing to do" in road.llmgw("apply", "--yes", variables=of_bob(road))


def of_bob(road: SshRoad) -> dict[str, str]:
    """A second machine: nothing but the repository and the fleet's secret are the same."""
    return {"LLMGW_HOLDER": "bob@laptop", "LLMGW_STATE_DIR": str(road.base / "of-bob")}


def test_a_saved_plan_is_exact_and_used_once_and_refused_when_it_is_stale(team: Team) -> None:
    road, file = team.road, str(team.road.base / "next.plan")
    team.one_more()
    road.commit("One more")
    road.llmgw("plan", "--out", file)
    road.llmgw("apply", file)
    assert len(team.running()) == team.replicas
    assert "was applied already" in road.llmgw("apply", file, expect=3)
    team.one_more()
    road.commit("Another one")
    road.llmgw("plan", "--out", file)
    road.llmgw("apply", "--yes", variables=of_bob(road))
    assert "bob@laptop" in road.llmgw("apply", file, expect=3)
    assert len(team.running()) == team.replicas


def test_an_agent_that_is_killed_comes_back_to_its_engine_by_the_next_apply(team: Team) -> None:
    road, before = team.road, team.running()
    host = road.hosts[1]
    here = next(one for one in road.endpoints() if one["address"] == host.address)
    killed = agents(host)
    assert len(killed) == 1
    kill_agent(host)
    assert '"chat"' in road.ask(here)  # nobody who uses the model notices
    assert "no agent runs" in road.llmgw("status")
    road.llmgw("apply", "--yes")
    assert team.running() == before
    assert len(agents(host)) == 1
    assert agents(host) != killed
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode")
    assert "serving chat" in road.llmgw("logs", here["replica"]), "what it wrote before is gone"


@pytest.mark.parametrize("point", ["after the intent", "after a command"])
def test_a_controller_that_is_killed_in_the_middle_is_finished_by_the_next(team: Team, point: str) -> None:
    road, before = team.road, set(team.running())
    team.one_more()
    road.commit("One more")
    if point == "after the intent":
        road.hold_next_intent()
    dying = road.start("apply", "--yes")
    if point == "after the intent":
        road.wait_until_held()
        assert set(team.running()) == before
    else:
        wait_for("an engine", lambda: set(team.running()) > before, within=60)
    dying.send_signal(signal.SIGKILL)
    dying.wait()
    road.let_go()
    begun = set(team.running())
    finished = road.llmgw("apply", "--yes")
    if point == "after the intent":
        assert "did not finish serial" in finished
    assert begun <= set(team.running()), "what was begun was begun again"
    assert len(team.running()) == team.replicas
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode")


def test_logs_are_followed_over_ssh_and_status_tells_what_runs_where(team: Team) -> None:
    road = team.road
    rows = road.status()
    assert {row["state"] for row in rows} == {"ready"}
    endpoint = road.endpoints()[0]
    assert endpoint["replica"] in json.dumps(rows)
    following = road.start("logs", endpoint["replica"], "-f", "-n", "0")
    seen: list[str] = []
    assert following.stdout is not None
    lines = iter(following.stdout.readline, "")
    reader = threading.Thread(target=lambda: seen.extend(lines), name="reading logs")
    reader.start()
    body = {"model": "chat", "messages": [{"role": "user", "content": "hello there"}]}

    def told() -> bool:
        road.ask(endpoint, "/chat/completions", body=body)
        return any("chat/completions" in line for line in seen)

    try:
        wait_for("a line about the request", told, within=60)
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 0
    finally:
        following.kill()
        reader.join(10)


def test_a_process_leads_to_its_line_commit_and_author_after_a_rename_a_move_and_two_rollouts(
    team: Team,
) -> None:
    """The process is what a child of the engine has left, and nothing of the fleet is its parent."""
    road, (first, second, _) = team.road, team.road.hosts
    leaving = ("--leave-children", "1", "--child-style", "double-fork")

    def write(*args: str, name: str = "talk", host: Host = second, renamed_from: str = "speak") -> None:
        road.write_profile("leaving", args=[*leaving, *args])
        placed = {"nodes": [host.name]}
        road.write_model(
            name, renamed_from=renamed_from, profile="leaving", servedName="talk", placement=placed
        )

    write(name="speak", host=first, renamed_from="")
    team.apply("Serve speak")
    road.remove("Model", "speak")
    write(host=first)
    team.apply("Call it talk")
    write()
    team.apply("Move it")
    write("--token-delay", "0.001")
    team.apply("Slower")
    write("--token-delay", "0.002")
    wrote = road.commit("Slower still", author="Ben <ben@example.org>")
    road.llmgw("apply", "--yes")
    road.commit("Something else")
    road.llmgw("apply", "--yes")

    wait_for("what the engine's child leaves", lambda: len(_own_pids(second, "talk")) == 2, within=60)
    left = max(_own_pids(second, "talk"))
    told = json.loads(road.run("why", f"{second.name}:{left}", "--json").out)
    assert f"pid {left} (" in told["process"]
    (found,) = told["why"]
    assert found["name"] == "model/talk/0"
    asked = found["asked"]
    text = (road.manifests / "profile-leaving.yaml").read_text().splitlines()
    line = next(number for number, one in enumerate(text, 1) if "0.002" in one)
    assert asked["line"] == f"manifests/profile-leaving.yaml:{line}"
    assert (asked["commit"], asked["author"]) == (wrote, "Ben <ben@example.org>")
    assert asked["where"].startswith("manifests/model-talk.yaml:")


def test_a_machine_gets_another_name_and_its_engines_never_notice(team: Team) -> None:
    road, host = team.road, team.road.hosts[1]
    road.remove_models()  # what earlier tests asked for names the machine
    team.replicas, team.args = 3, ()
    team.write()
    team.apply("One on each")
    before = team.running()
    agent = agents(host)
    road.remove("Node", host.name)
    road.write_node(host, name="desk", renamed_from=host.name, user="ann", become="sudo")
    assert f"renamed from {host.name}: nothing restarts" in team.apply("Call it desk")
    assert team.running() == before
    assert agents(host) != agent, "the agent was not told its new name"
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode")
    assert {one.split()[0] for one in road.run("node", "list").out.splitlines()[1:]} >= {"desk"}
    road.remove("Node", "desk")
    road.write_node(host, renamed_from="desk", user="ann", become="sudo")
    team.apply("Call it as before")
    assert team.running() == before
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode")


def _own_pids(host: Host, model: str) -> list[int]:
    """Of a model's engines, and of what looks like them, by the host's own numbers."""
    found = ((pid, args.split()) for pid, args in host.processes().items())
    return [
        pid for pid, words in found if model in words and any(it.endswith("/sim-engine") for it in words[:2])
    ]

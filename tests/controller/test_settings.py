"""Settings: one name each, from a flag, the environment or llmgw.yaml."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from llmgw.controller.given import KNOWN, NAMES, flag, variable
from llmgw.controller.serving.configuration import Tls
from llmgw.controller.settings import Settings, load_settings
from llmgw.model.manifest import Secret
from llmgw.model.problems import InvalidError


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    folder = tmp_path / "lab"
    (folder / ".git").mkdir(parents=True)
    return folder


def load(
    cwd: Path, environ: Mapping[str, str] | None = None, config: str | None = None, **flags: str | None
) -> Settings:
    return load_settings(
        flags=flags, environ={"HOME": "/home/ann", **(environ or {})}, cwd=cwd, config=config
    )


def problems(cwd: Path, environ: Mapping[str, str] | None = None, **flags: str | None) -> list[str]:
    with pytest.raises(InvalidError) as caught:
        load(cwd, environ, **flags)
    return [str(problem).replace(str(cwd), "HERE") for problem in caught.value.problems]


def test_inside_a_repository_nothing_needs_to_be_said(fleet: Path) -> None:
    (fleet / "sub").mkdir()
    settings = load(fleet / "sub")
    assert settings.repo.local == fleet
    assert not settings.repo.trusted, "nobody has named it"
    assert (settings.branch, settings.path, settings.base) == (None, None, ".")
    assert settings.state_repo == settings.repo
    assert settings.state_ref == "llmgw/state"
    assert settings.state_dir.parent == Path("/home/ann/.local/state/llmgw")
    assert settings.state_dir.name.startswith("lab-")
    assert settings.secret_file == settings.state_dir / "secret"
    assert "@" in settings.holder
    assert settings.lock_timeout == 0
    assert settings.endpoints_file is None
    assert settings.work_tree == fleet


def test_how_serve_and_sync_pace_themselves(fleet: Path) -> None:
    usual = load(fleet)
    assert (usual.listen, usual.poll_interval, usual.resync_interval) == ("127.0.0.1:9470", 30, 300)
    assert usual.jitter is None
    given = load(
        fleet, {"LLMGW_POLL_INTERVAL": "1m", "LLMGW_JITTER": "0"}, listen="none", resyncInterval="90s"
    )
    assert (given.listen, given.poll_interval, given.resync_interval, given.jitter) == (None, 60, 90, 0)
    for text in (":9470", "[::1]:80", "gpu.example.org:1"):
        assert load(fleet, listen=text).listen == text
    assert problems(fleet, {"LLMGW_POLL_INTERVAL": "10ms"}) == [
        "LLMGW_POLL_INTERVAL: pollInterval is 10ms, less than 1s: write 30s or 5m"
    ]
    assert (usual.lease, load(fleet, {"LLMGW_LEASE": "15s"}).lease) == (120, 15)
    assert "LLMGW_LEASE: lease is 9s, less than 10s" in problems(fleet, {"LLMGW_LEASE": "9s"})[0]
    for text in ("9470", "::1:9470", "127.0.0.1", "host:port", "a b:1"):
        assert "listen must be an address and a port" in problems(fleet, listen=text)[0]


def test_outside_of_any_it_is_asked_for(tmp_path: Path) -> None:
    assert problems(tmp_path) == [
        "HERE is in no Git repository, and none is named: run this in the manifests' repository, or name it with --repo"
    ]


def test_each_setting_is_spelt_one_way_everywhere() -> None:
    assert [flag(name) for name in NAMES][3:6] == ["--state-repo", "--state-ref", "--state-dir"]
    assert [variable(name) for name in NAMES][3:6] == [
        "LLMGW_STATE_REPO",
        "LLMGW_STATE_REF",
        "LLMGW_STATE_DIR",
    ]


def test_a_flag_goes_before_the_environment_and_that_before_the_file(fleet: Path) -> None:
    (fleet / "llmgw.yaml").write_text("branch: from-file\nstateRef: state/file\nholder: file@x\n")
    environ = {"LLMGW_BRANCH": "from-env", "LLMGW_STATE_REF": "state/env"}
    settings = load(fleet, environ, branch="from-flag", holder=None)
    assert (settings.branch, settings.state_ref, settings.holder) == ("from-flag", "state/env", "file@x")


def test_relative_paths_count_from_where_they_were_written(fleet: Path) -> None:
    inner = fleet / "fleets" / "home"
    (inner / "deep").mkdir(parents=True)
    (inner / "llmgw.yaml").write_text(
        "stateDir: state\nsecretFile: ~/secret\nendpointsFile: out/endpoints.json\n"
    )
    settings = load(inner / "deep", {"LLMGW_ENDPOINTS_FILE": "here.json"})
    assert settings.state_dir == inner / "state"
    assert settings.secret_file == Path("/home/ann/secret")
    assert settings.endpoints_file == inner / "deep" / "here.json"
    assert settings.base == "fleets/home"
    assert settings.file == inner / "llmgw.yaml"


def test_a_repository_elsewhere_is_named_by_address(fleet: Path) -> None:
    settings = load(fleet, repo="ssh://git@host/team/fleet.git", lockTimeout="90s", stateRepo="../state.git")
    assert settings.repo.address == "ssh://git@host/team/fleet.git"
    assert settings.work_tree is None
    assert settings.state_repo.local == fleet.parent / "state.git"
    assert settings.state_dir.name.startswith("fleet-")
    assert settings.lock_timeout == 90


def test_a_named_repository_is_a_trusted_one(fleet: Path, tmp_path: Path) -> None:
    assert load(tmp_path, repo="lab").repo.trusted
    assert load(tmp_path, {"LLMGW_REPO": str(fleet)}).repo.trusted


def test_fleets_of_one_machine_never_share_a_state_directory(fleet: Path) -> None:
    directories = {
        load(fleet).state_dir,
        load(fleet, path="fleets/a").state_dir,
        load(fleet, path="fleets/b").state_dir,
        load(fleet, stateRef="other/state").state_dir,
        load(fleet, stateRepo="/srv/state.git").state_dir,
        load(fleet, repo="git@host:lab.git").state_dir,
    }
    assert len(directories) == 6
    assert load(fleet / ".git" / "..").state_dir == load(fleet).state_dir
    assert load(fleet, {"XDG_STATE_HOME": "/var/state"}).state_dir.parent == Path("/var/state/llmgw")


def test_a_fleet_is_called_the_same_wherever_its_state_lies(fleet: Path) -> None:
    usual, elsewhere = load(fleet), load(fleet, {"LLMGW_STATE_DIR": "/var/lib/llmgw/state"})
    assert usual.name == usual.state_dir.name == elsewhere.name
    assert elsewhere.state_dir == Path("/var/lib/llmgw/state")


def test_the_key_for_nodes_that_name_none_is_a_path_like_others(fleet: Path) -> None:
    assert load(fleet).ssh_identity is None
    assert load(fleet, {"LLMGW_SSH_IDENTITY": "~/.ssh/llmgw"}).ssh_identity == Path("/home/ann/.ssh/llmgw")
    (fleet / "llmgw.yaml").write_text("sshIdentity: keys/llmgw\n")
    assert load(fleet).ssh_identity == fleet / "keys" / "llmgw"


def test_everything_wrong_is_told_at_once_with_its_place(fleet: Path) -> None:
    (fleet / "llmgw.yaml").write_text("branc: main\nverify: {}\n\nzzz: 1\n")
    assert problems(fleet) == [
        "HERE/llmgw.yaml:1:1: unknown setting 'branc': did you mean branch?",
        f"HERE/llmgw.yaml:4:1: unknown setting 'zzz': known are {', '.join(KNOWN)}",
        (
            "HERE/llmgw.yaml:2:1: verify names nobody whose signature would count: add allowedSigners (SSH) or pgpKeyring "
            "(PGP): a path, or the content itself"
        ),
    ]


def test_values_that_can_not_be_meant_are_refused(fleet: Path) -> None:
    (fleet / "llmgw.yaml").write_text("branch: 1.10\nlockTimeout: 30\n")
    told = problems(fleet, {"LLMGW_PATH": "../out"}, repo="ext::sh", stateRef="--force")
    assert [line.split(":")[0] for line in told[:1]] == ["--repo"]
    (fleet / "llmgw.yaml").write_text("branch: 1.10\nlockTimeout: 30\n")
    told = problems(fleet, {"LLMGW_PATH": "../out"}, stateRef="--force")
    assert told == [
        "HERE/llmgw.yaml:1:1: branch must be text in one line, got 1.1: quote it",
        (
            "LLMGW_PATH: path: '../out' is no path inside the repository: write it from the repository's top, such as "
            "manifests or fleets/lab"
        ),
        "--state-ref: stateRef: '--force' is no branch name: write a name such as main or llmgw/state",
        "HERE/llmgw.yaml:2:1: lockTimeout must be a duration, got 30: write 30s, 5m or 1h",
    ]


def test_the_record_needs_a_branch_of_its_own(fleet: Path) -> None:
    assert problems(fleet, branch="main", stateRef="main") == [
        "branch and stateRef are both main: keep the record on a branch of its own"
    ]
    load(fleet, branch="main", stateRef="main", stateRepo="/srv/state.git")


def test_a_file_that_was_named_must_be_there(fleet: Path) -> None:
    with pytest.raises(InvalidError, match=r"other\.yaml: the settings can't be read: No such file"):
        load(fleet, config="other.yaml")
    with pytest.raises(InvalidError, match=r"env\.yaml"):
        load(fleet, {"LLMGW_CONFIG": "env.yaml"})


@pytest.mark.parametrize(
    "text", ["- a\n", "just text\n", "a: 1\n---\nb: 2\n", "a: [\n", "branch: a\nbranch: b\n", "\0"]
)
def test_what_is_no_settings_file_is_refused(fleet: Path, text: str) -> None:
    (fleet / "llmgw.yaml").write_text(text)
    assert problems(fleet)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_an_empty_settings_file_says_nothing(fleet: Path, text: str) -> None:
    (fleet / "llmgw.yaml").write_text(text)
    assert load(fleet).branch is None


def test_a_password_in_an_address_shows_in_no_message(fleet: Path) -> None:
    told = problems(fleet, repo="http://ann:canary-31@host/x")
    assert "canary" not in "".join(told)
    told = problems(fleet, repo="https://ann:canary-31@host/x")
    assert "canary" not in "".join(told)
    told = problems(fleet, {"LLMGW_TOKEN": "canary-31"})
    assert told == [
        "LLMGW_TOKEN: token can't be what is written there: write {fromFile: /absolute/path} or {fromEnv: NAME}"
    ]


SERVING = """\
webhooks:
  - {name: forge, provider: github, secrets: [{fromFile: /etc/llmgw/new}, {fromEnv: OLD}], repository: ann/fleet}
tls: {cert: /etc/llmgw/tls.crt, key: ~/tls.key}
accessToken: {fromEnv: TOKEN}
notices:
  commitStatus: {provider: gitea, api: "https://git.example.org/api/v1", token: {fromEnv: FORGE}}
  webhooks:
    - {name: chat, url: {fromFile: /etc/llmgw/chat}, format: slack, every: 4h, severity: critical}
"""


def test_what_serve_answers_and_tells_stands_in_the_file_with_its_secrets_by_reference(fleet: Path) -> None:
    own = fleet.parent / "llmgw.yaml"
    own.write_text(SERVING)
    found = load(fleet, config=str(own)).serving
    assert found.webhooks[0].secrets == (Secret(from_file="/etc/llmgw/new"), Secret(from_env="OLD"))
    assert found.tls == Tls(cert="/etc/llmgw/tls.crt", key="~/tls.key")
    assert found.access_token == Secret(from_env="TOKEN")
    assert found.notices.commit_status is not None
    assert found.notices.commit_status.api == "https://git.example.org/api/v1"
    chat = found.notices.webhooks[0]
    assert (float(chat.every), chat.format) == (4 * 3600.0, "slack")


def test_what_is_wrong_with_it_is_told_with_its_place_and_without_the_secret(fleet: Path) -> None:
    (fleet / "llmgw.yaml").write_text(
        "webhooks:\n"
        "  - {name: a, provider: git, secrets: []}\n"
        "  - {name: b, provider: github, secrets: [c4n4ry-in-clear]}\n"
        "  - {name: c, provider: github}\n"
        "tls: {cert: a.crt}\n"
        "accessToken: c4n4ry-in-clear\n"
        "notices: {webhooks: [{name: chat, url: 'https://hooks.example/c4n4ry'}]}\n"
    )
    told = problems(fleet)
    assert "c4n4ry" not in "\n".join(told)
    assert [line.split(": ")[0] for line in told] == [
        "HERE/llmgw.yaml:2:25",
        "HERE/llmgw.yaml:2:30",
        "HERE/llmgw.yaml:3:43",
        "HERE/llmgw.yaml:4:5",
        "HERE/llmgw.yaml:5:1",
        "HERE/llmgw.yaml:5:13",
        "HERE/llmgw.yaml:6:14",
        "HERE/llmgw.yaml:7:40",
    ]
    assert "a webhook without a secret is never believed" in told[1]
    twice = "webhooks:\n" + 2 * "  - {name: a, provider: gitea, secrets: [{fromFile: /x}]}\n"
    (fleet / "llmgw.yaml").write_text(twice)
    assert problems(fleet) == ["HERE/llmgw.yaml:3:12: webhooks has the name a twice: give each its own"]


def test_a_notice_with_a_token_is_never_described_by_what_a_commit_may_change(tmp_path: Path) -> None:
    """Whoever commits could have any file of the controller sent to a host of theirs."""
    fleet = tmp_path / "fleet"
    (fleet / ".git").mkdir(parents=True)
    key = "{fromFile: /home/ann/.ssh/id_ed25519}"
    status = f"  commitStatus: {{provider: gitea, api: https://git.example/api, token: {key}}}\n"
    post = f"  webhooks: [{{name: room, url: {{fromEnv: ROOM}}, token: {key}}}]\n"
    plain = "  webhooks: [{name: room, url: {fromEnv: ROOM}}]\n"
    for notices in (status, post):
        (fleet / "llmgw.yaml").write_text(f"notices:\n{notices}")
        with pytest.raises(
            InvalidError, match=r"llmgw\.yaml:1:\d+: notices.* sends a token.*outside of any repository"
        ):
            load_settings(flags={}, environ={"HOME": "/home/ann"}, cwd=fleet)
    (fleet / "llmgw.yaml").write_text(f"notices:\n{plain}")
    assert load_settings(flags={}, environ={"HOME": "/home/ann"}, cwd=fleet).serving.notices.webhooks
    own = tmp_path / "llmgw.yaml"
    own.write_text(f"repo: {fleet}\nnotices:\n{status}")
    found = load_settings(flags={}, environ={"HOME": "/home/ann"}, cwd=tmp_path, config=str(own))
    assert found.serving.notices.commit_status is not None

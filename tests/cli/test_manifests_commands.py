"""validate, schema, explain and init as a person meets them: output, places, exit codes."""

import json
import shutil
import stat
import subprocess
from pathlib import Path

import jsonschema_rs
import pytest

from llmgw.cli import output
from llmgw.cli.main import run
from llmgw.manifests import schema

ROOT = Path(__file__).parents[2]
MODEL = """\
apiVersion: llmgw/v1
kind: Model
metadata: {name: m}
spec:
  source: {path: /x}
  profile: p
"""
PROFILE = """\
apiVersion: llmgw/v1
kind: Profile
metadata: {name: p}
spec: {engine: {name: sim}, gpus: {perNode: 0}}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to work in, with a home of its own and no settings from outside."""
    for name in (
        "XDG_STATE_HOME",
        "LLMGW_CONFIG",
        "LLMGW_REPO",
        "LLMGW_PATH",
        "LLMGW_STATE_DIR",
        "LLMGW_SECRET_FILE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def fleet(place: Path, model: str = MODEL) -> Path:
    (place / "manifests").mkdir(parents=True)
    (place / "manifests" / "model.yaml").write_text(model)
    (place / "manifests" / "profile.yaml").write_text(PROFILE)
    subprocess.run(["git", "init", "--quiet", "--initial-branch", "main", str(place)], check=True)
    return place


def test_a_right_fleet_is_counted(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet(place)
    assert run(["validate"]) == output.DONE
    assert capsys.readouterr().out == "2 manifests: 1 profile, 1 model\n"


def test_from_anywhere_inside_the_repository_it_is_the_whole_fleet(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(place, MODEL + "  replicas: two\n")
    (place / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(place / "deep" / "er")
    assert run(["validate"]) == output.ERROR
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(
        '../../manifests/model.yaml:7:13: spec.replicas must be a whole number, not the text "two"'
    )
    assert "1 problem" in told.err


def test_the_path_of_the_settings_counts(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet(place)
    (place / "manifests").rename(place / "fleet")
    (place / "llmgw.yaml").write_text("path: fleet\n")
    (place / "other.yaml").write_text("not: ours\n")
    assert run(["validate"]) == output.DONE
    assert run(["--path", "nowhere", "validate"]) == output.ERROR
    assert "nowhere: No such file or directory" in capsys.readouterr().err


def test_a_folder_can_be_named_with_and_without_git(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "examples" / "pretend-cluster", place / "copy")
    assert run(["validate", "copy"]) == output.DONE
    assert run(["validate", str(ROOT / "examples" / "pretend-cluster")]) == output.DONE
    assert run(["validate", "copy/manifests/models.yaml"]) == output.DONE
    out = capsys.readouterr().out.splitlines()
    assert out == ["20 manifests: 1 fleet, 8 nodes, 5 profiles, 6 models"] * 3


def test_where_there_is_no_fleet_nothing_is_read_unless_its_folder_is_named(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "notes.yaml").write_text("not: ours\n")
    assert run(["validate"]) == output.ERROR
    told = capsys.readouterr().err
    assert "notes.yaml" not in told
    assert f"{place} is in no Git repository and has no manifests folder" in told
    assert "llmgw validate PATH" in told
    assert run(["validate", "."]) == output.ERROR
    assert "notes.yaml" in capsys.readouterr().err
    (place / "notes.yaml").unlink()
    (place / "manifests").mkdir()
    (place / "manifests" / "profile.yaml").write_text(PROFILE)
    assert run(["validate"]) == output.DONE


def test_references_are_checked_too(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet(place, MODEL.replace("profile: p", "profile: q"))
    assert run(["validate"]) == output.ERROR
    assert "manifests/model.yaml:6:12: spec.profile names q" in capsys.readouterr().err


def test_problems_as_json_are_for_programs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet(place, MODEL + "  replicas: -1\n")
    assert run(["validate", "--json"]) == output.ERROR
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "valid": False,
        "problems": [
            {
                "file": "manifests/model.yaml",
                "line": 7,
                "column": 13,
                "what": "spec.replicas is -1",
                "instead": "write at least 0",
            }
        ],
    }
    (place / "manifests" / "model.yaml").write_text(MODEL)
    assert run(["validate", "--json"]) == output.DONE
    told = json.loads(capsys.readouterr().out)
    assert told["manifests"] == {"Fleet": 0, "Node": 0, "Profile": 1, "Model": 1}
    assert told["warnings"] == []


def test_a_secret_in_plain_text_is_warned_of_and_not_shown(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(place, MODEL + "  env: {HF_TOKEN: hf_abcdefghijklmnopqrstuvwxyz}\n")
    monkeypatch.chdir(place / "manifests")
    assert run(["validate"]) == output.DONE
    told = capsys.readouterr()
    assert told.out == "2 manifests: 1 profile, 1 model\n"
    assert told.err.startswith("Warning: model.yaml:7:19: spec.env.HF_TOKEN looks like a secret")
    assert run(["validate", "--json"]) == output.DONE
    as_json = capsys.readouterr()
    (warning,) = json.loads(as_json.out)["warnings"]
    assert (warning["file"], warning["line"], warning["column"]) == ("model.yaml", 7, 19)
    assert "hf_" not in told.err + as_json.out


def test_an_empty_folder_is_no_error_but_is_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "."]) == output.DONE
    told = capsys.readouterr()
    assert told.out == "0 manifests: none\n"
    assert "llmgw init" in told.err


def test_a_folder_that_is_not_there_is_wrong_usage(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "nope"]) == output.USAGE
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("name", schema.DOCUMENTS)
def test_each_schema_is_printed_as_it_is(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", name.capitalize()]) == output.DONE
    printed = json.loads(capsys.readouterr().out)
    assert printed == schema.schema(name)
    jsonschema_rs.Draft202012Validator(printed)


def test_an_unknown_schema_is_wrong_usage(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "pod"]) == output.USAGE
    assert "'fleet', 'node', 'profile', 'model'" in capsys.readouterr().err


def test_a_field_is_explained(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "Model.spec.rollout.drainTimeout"]) == output.DONE
    assert 'duration; default "2m"' in capsys.readouterr().out
    assert run(["explain", "Model.spec.rolout"]) == output.USAGE
    assert "did you mean Model.spec.rollout?" in capsys.readouterr().err


def test_a_started_fleet_is_valid_commented_and_keeps_its_secret_out_of_git(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["init", "fleet"]) == output.DONE
    told = capsys.readouterr().out
    started = place / "fleet"
    secrets = [Path(word) for word in told.split() if word.endswith("/secret")]
    assert len(secrets) == 1
    assert stat.S_IMODE(secrets[0].stat().st_mode) == 0o600
    assert secrets[0].is_relative_to(place.parent / "home")
    assert secrets[0].read_text().strip() not in told
    files = sorted((started / "manifests").iterdir())
    assert {file.name for file in files} == {"fleet.yaml", "model.yaml", "node.yaml", "profile.yaml"}
    for file in files:
        lines = file.read_text().splitlines()
        named = lines[0].removeprefix("# yaml-language-server: $schema=")
        assert (file.parent / named).resolve().is_file()
        assert sum(line.lstrip().startswith("#") for line in lines) >= 3
    monkeypatch.chdir(started)
    assert run(["validate"]) == output.DONE
    assert capsys.readouterr().out == "4 manifests: 1 fleet, 1 node, 1 profile, 1 model\n"
    status = subprocess.run(["git", "status", "--short"], check=True, capture_output=True, text=True).stdout
    assert set(status.split()) == {"??", ".schemas/", "llmgw.yaml", "manifests/"}


def test_a_fleet_started_inside_another_repository_is_its_own(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(place)
    assert run(["init", "second"]) == output.DONE
    assert not (place / "second" / ".git").exists()
    capsys.readouterr()
    monkeypatch.chdir(place / "second")
    assert run(["validate"]) == output.DONE
    assert capsys.readouterr().out == "4 manifests: 1 fleet, 1 node, 1 profile, 1 model\n"


@pytest.mark.parametrize("there", ["manifests/own.yaml", "llmgw.yaml", ".schemas/x.json"])
def test_starting_a_fleet_overwrites_nothing(
    there: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = place / "fleet" / there
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    assert run(["init", "fleet"]) == output.ERROR
    assert "is there already" in capsys.readouterr().err
    assert [path for path in (place / "fleet").rglob("*") if path.is_file()] == [own]
    assert own.read_text() == "mine"


@pytest.mark.parametrize("command", ["validate", "schema", "explain", "init"])
def test_help_shows_an_example(command: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == output.DONE
    assert f"  llmgw {command} " in capsys.readouterr().out

"""From files to Manifests: which files count, all or nothing, links, facts, and how fast."""

import os
import time
from pathlib import Path

import pytest

from llmgw.manifests import paths
from llmgw.manifests.folder import read_folder
from llmgw.manifests.load import facts_paths, load
from llmgw.model.manifest import ModelSpec
from llmgw.model.problems import InvalidError


def manifest(kind: str, name: str, spec: str) -> bytes:
    return f"apiVersion: llmgw/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n".encode()


def model(name: str) -> bytes:
    return manifest("Model", name, "{source: {path: /x}, profile: p}")


def node(name: str, facts: str = "") -> bytes:
    local = f"{{facts: {facts}}}" if facts else "{}"
    return manifest("Node", name, f"{{transport: local, local: {local}}}")


def refused(
    files: dict[str, bytes], links: dict[str, str] | None = None, path: str | None = None
) -> list[str]:
    with pytest.raises(InvalidError) as invalid:
        load(files, commit=None, links=links, path=path)
    return [str(problem) for problem in invalid.value.problems]


def names(files: dict[str, bytes], links: dict[str, str] | None = None, path: str | None = None) -> list[str]:
    loaded = load(files, commit=None, links=links, path=path)
    return [f"{found.where.file}:{found.metadata.name}" for found in (*loaded.nodes, *loaded.models)]


def test_documents_of_all_kinds_are_sorted_by_name_and_know_their_place() -> None:
    files = {
        "b.yml": model("m2") + b"---\n" + model("m1"),
        "a.yaml": manifest("Fleet", "lab", "{}") + b"---\n" + node("n"),
    }
    loaded = load(files, commit="c" * 40)
    assert [found.metadata.name for found in loaded.models] == ["m1", "m2"]
    assert loaded.fleet is not None
    assert loaded.fleet.metadata.name == "lab"
    assert (loaded.commit, str(loaded.models[0].where)) == ("c" * 40, "b.yml:6:1")
    assert str(loaded.models[0].at("spec.source.path")) == "b.yml:9:23"
    assert str(loaded.models[0].at("spec.replicas")) == "b.yml:9:1"
    assert isinstance(loaded.models[0].spec, ModelSpec)


def test_only_yaml_below_the_fleets_path_is_read_and_dot_names_are_skipped() -> None:
    files = {
        "manifests/a.yaml": model("a"),
        "manifests/deep/er/b.yml": model("b"),
        "manifests/.hidden/c.yaml": b"nonsense",
        "manifests/.d.yaml": b"nonsense",
        "manifests/readme.txt": b"nonsense",
        "manifests/llmgw.yaml": b"repo: x",
        "other.yaml": b"nonsense",
    }
    assert names(files) == ["manifests/a.yaml:a", "manifests/deep/er/b.yml:b"]
    assert names(files, path="manifests/deep") == ["manifests/deep/er/b.yml:b"]


def test_without_a_folder_called_manifests_the_whole_repository_is_the_fleet() -> None:
    assert paths.fleet_path(["a.yaml", "x/manifests/b.yaml"]) == "."
    assert paths.fleet_path(["manifests/a.yaml"]) == "manifests"
    assert names({"a.yaml": model("a"), "llmgw.yaml": b"repo: x", ".github/x.yml": b"on: push"}) == [
        "a.yaml:a"
    ]


def test_one_bad_file_stops_everything_and_all_problems_of_all_files_are_told() -> None:
    files = {
        "a.yaml": model("a"),
        "b.yaml": b"kind: [",
        "c.yaml": model("c").replace(b"profile", b"profil"),
        "d.yaml": b"x: \xff",
        "e.yaml": b"#" * (1024 * 1024 + 1),
    }
    assert [line.split(":")[0] for line in refused(files)] == [
        "b.yaml",
        "c.yaml",
        "c.yaml",
        "d.yaml",
        "e.yaml",
    ]


def test_duplicates_name_both_places() -> None:
    (problem,) = refused({"a.yaml": model("x"), "b.yaml": b"\n" + model("x")})
    assert problem == "b.yaml:4:18: a second Model x; the first is at a.yaml:1:1: rename or remove one"
    assert names({"a.yaml": model("x"), "b.yaml": node("x")}) == ["b.yaml:x", "a.yaml:x"]


def test_a_second_fleet_is_refused_whatever_its_name() -> None:
    (problem,) = refused({"a.yaml": manifest("Fleet", "a", "{}"), "b.yaml": manifest("Fleet", "b", "{}")})
    assert problem == "b.yaml:2:7: a second Fleet; the first is at a.yaml:1:1: keep one"


# ---- symbolic links ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../../secret.yaml", "../x/../../y.yaml", "loop.yaml", "../up/secret.yaml"]
)
def test_a_manifest_that_is_a_link_out_of_the_repository_is_refused(target: str) -> None:
    links = {"manifests/loop.yaml": target, "up": "../elsewhere"}
    problems = refused({"manifests/a.yaml": model("a")}, links)
    assert len(problems) == 1
    assert problems[0].startswith(
        f"manifests/loop.yaml: a symbolic link to {target}, which leads out of the repository"
    )


def test_a_link_inside_the_repository_is_read_under_its_own_name() -> None:
    files = {"manifests/a.yaml": model("a"), "shared/b.yaml": model("b")}
    assert names(files, {"manifests/b.yaml": "../shared/b.yaml"}) == [
        "manifests/a.yaml:a",
        "manifests/b.yaml:b",
    ]
    chain = {"manifests/b.yaml": "../now/b.yaml", "now": "shared"}
    assert names(files, chain) == ["manifests/a.yaml:a", "manifests/b.yaml:b"]


def test_who_followed_a_link_may_give_the_bytes_under_the_links_name() -> None:
    files = {"manifests/a.yaml": model("a"), "manifests/b.yaml": model("b")}
    assert names(files, {"manifests/b.yaml": "../shared/b.yaml"}) == [
        "manifests/a.yaml:a",
        "manifests/b.yaml:b",
    ]


def test_a_link_to_another_manifest_of_the_fleet_adds_nothing() -> None:
    assert names({"manifests/a.yaml": model("a")}, {"manifests/b.yaml": "a.yaml"}) == ["manifests/a.yaml:a"]


def test_a_folder_that_is_a_link_is_followed() -> None:
    files = {"manifests/a.yaml": model("a"), "shared/deep/b.yaml": model("b")}
    assert names(files, {"manifests/more": "../shared"}) == [
        "manifests/a.yaml:a",
        "manifests/more/deep/b.yaml:b",
    ]


def test_a_link_that_leads_to_nothing_known_is_refused_since_it_may_hide_manifests() -> None:
    files = {"manifests/a.yaml": model("a")}
    assert "not a file of this repository" in refused(files, {"manifests/b.yaml": "gone.yaml"})[0]
    assert "may hold manifests" in refused(files, {"manifests/more": "../gone"})[0]
    assert names(files, {"manifests/notes.txt": "/etc/passwd"}) == ["manifests/a.yaml:a"]


# ---- facts -------------------------------------------------------------------------------------------


def test_facts_are_found_beside_the_manifest_and_kept_by_path() -> None:
    files = {"manifests/n/a.yaml": node("a", "../facts/x.json"), "manifests/facts/x.json": b"\xef\xbb\xbf{}"}
    assert facts_paths(files) == ("manifests/facts/x.json",)
    assert load(files, commit=None).texts == {"manifests/facts/x.json": "{}"}


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ("../../x.json", "lies outside the repository"),
        ("gone.json", "there is no file manifests/gone.json"),
        ("a.yaml", "name a .json file"),
        ("link.json", "lies outside the repository"),
    ],
)
def test_facts_that_are_not_there_or_outside_are_refused(facts: str, what: str) -> None:
    files = {"manifests/a.yaml": node("a", facts)}
    (problem,) = refused(files, {"manifests/link.json": "/etc/machine.json"})
    assert problem.startswith("manifests/a.yaml:4:")
    assert what in problem


def test_facts_must_be_text_of_bounded_size() -> None:
    files = {"a.yaml": node("a", "x.json"), "x.json": b"\xff"}
    assert refused(files) == ["x.json: the file is not UTF-8: save it as UTF-8"]
    files["x.json"] = b" " * (1024 * 1024 + 1)
    assert refused(files)[0].startswith("x.json: the file has 1,048,577 bytes")


# ---- a work tree -------------------------------------------------------------------------------------


def test_a_work_tree_is_read_without_following_links_out_of_it(tmp_path: Path) -> None:
    root, outside = tmp_path / "repo", tmp_path / "outside"
    for folder in (root / "manifests" / ".git", root / "shared", outside):
        folder.mkdir(parents=True)
    (outside / "s.yaml").write_bytes(model("secret"))
    (root / "manifests" / "a.yaml").write_bytes(node("a", "../shared/f.json"))
    (root / "manifests" / ".git" / "c.yaml").write_text("nonsense")
    (root / "manifests" / "big.txt").write_text("nonsense")
    (root / "shared" / "b.yaml").write_bytes(model("b"))
    (root / "shared" / "f.json").write_text("{}")
    (root / "unrelated.yaml").write_text("nonsense")
    (root / "manifests" / "b.yaml").symlink_to("../shared/b.yaml")
    (root / "manifests" / "more").symlink_to("../shared")
    (root / "out").symlink_to(outside)
    files, links = read_folder(root)
    assert sorted(files) == ["manifests/a.yaml", "shared/b.yaml", "shared/f.json"]
    assert links == {"manifests/b.yaml": "../shared/b.yaml", "manifests/more": "../shared"}
    problems = refused(files, links)
    assert problems == [
        "manifests/more/b.yaml:3:18: a second Model b; the first is at manifests/b.yaml:1:1: rename or remove one"
    ]
    (root / "manifests" / "more").unlink()
    (root / "manifests" / "out.yaml").symlink_to("../out/s.yaml")
    files, links = read_folder(root)
    assert "out/s.yaml" not in files
    assert "not a file of this repository" in refused(files, links)[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(model("a"))
    (tmp_path / "a.yaml").chmod(0)
    with pytest.raises(InvalidError, match=r"a\.yaml: can't be read: Permission denied"):
        read_folder(tmp_path)


def test_a_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "a.yaml").open("wb") as file:
        file.truncate(10**9)
    files, links = read_folder(tmp_path)
    assert "more than 1,048,576" in refused(files, links)[0]


# ---- time --------------------------------------------------------------------------------------------


def test_a_thousand_manifests_are_loaded_well_within_the_time_they_have() -> None:
    """1.5 s is the limit for the whole command; loading takes 0.15 s of CPU on an idle machine."""
    text = (Path(__file__).parents[2] / "manifests" / "model.yaml").read_text()
    files = {f"m{n}.yaml": text.replace("name: smollm2-135m", f"name: m{n}").encode() for n in range(1000)}
    started = time.process_time()
    assert len(load(files, commit=None).models) == 1000
    assert time.process_time() - started < 1.0

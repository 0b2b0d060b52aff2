"""The fleet's secret, the keys made from it, and the values that manifests only point to."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llmgw.controller.secrets import SecretStore, ensure_secret, replica_key, require_key, resolve
from llmgw.model.ids import ReplicaId, key_id
from llmgw.model.manifest import Secret
from llmgw.model.problems import StalledError
from llmgw.redaction import Masked, Redactor


def git(folder: Path, *arguments: str) -> None:
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, env=env)


def test_a_secret_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "secret"
    made = ensure_secret(path)
    assert len(made) == 64
    assert ensure_secret(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    assert [folder.stat().st_mode & 0o777 for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]
    assert [file.name for file in path.parent.iterdir()] == ["secret"]
    assert ensure_secret(tmp_path / "other") != made


def test_many_who_make_it_at_once_get_the_same(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: ensure_secret(path), range(16)))
    assert len(made) == 1
    assert os.listdir(tmp_path) == ["secret"]  # noqa: PTH208 - nothing else is left there


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    ensure_secret(path)
    path.chmod(0o640)
    with pytest.raises(StalledError, match=r"other users may read it \(mode 0640\): chmod 600"):
        ensure_secret(path)


@pytest.mark.parametrize("content", ["", "short\n", "x" * 5000])
def test_a_secret_that_is_none_is_refused_and_never_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "secret"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(StalledError, match="32 to 4096 are needed"):
        ensure_secret(path)
    assert path.read_text() == content


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StalledError, match=r"making the fleet secret .*file/x/secret.*--secret-file"):
        ensure_secret(tmp_path / "file" / "x" / "secret")


def test_a_secret_never_stands_in_git(tmp_path: Path) -> None:
    tree = tmp_path / "fleet"
    tree.mkdir()
    git(tree, "init", "--quiet")
    with pytest.raises(StalledError, match=r"Git does not ignore it: add it to \.gitignore"):
        ensure_secret(tree / "deep" / "secret", work_tree=tree)
    assert not (tree / "deep").exists()
    (tree / ".gitignore").write_text("secret\n")
    ensure_secret(tree / "deep" / "secret", work_tree=tree)
    git(tree, "add", "--force", "deep/secret")
    for place in (tree, None):
        with pytest.raises(StalledError, match="Git tracks this file"):
            ensure_secret(tree / "deep" / "secret", work_tree=place)
        with pytest.raises(StalledError, match="Git tracks this file"):
            SecretStore(path=tree / "deep" / "secret", work_tree=place).load()
    (tmp_path / "link").symlink_to(tree / "deep" / "secret")
    with pytest.raises(StalledError, match="Git tracks this file"):
        ensure_secret(tmp_path / "link")


def test_a_home_that_is_a_repository_is_no_hindrance(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert ensure_secret(tmp_path / ".local" / "state" / "secret", work_tree=tmp_path / "fleet")


def test_what_the_environment_gives_goes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    store = SecretStore(path=path)
    assert store.load() is None
    made = store.make()
    assert store.load() == made
    assert store.place == str(path)
    given = SecretStore(path=path, given=f"{'g' * 40}\n")
    assert given.load() == given.make() == b"g" * 40
    assert given.place == "LLMGW_SECRET"
    assert "ggg" not in repr(given)
    with pytest.raises(StalledError, match="LLMGW_SECRET: it has 3 characters"):
        SecretStore(path=path, given="abc").load()


def test_the_same_secret_works_from_a_file_and_from_the_environment(tmp_path: Path) -> None:
    made = SecretStore(path=tmp_path / "secret").make()
    copied = SecretStore(path=tmp_path / "none", given=(tmp_path / "secret").read_text()).load()
    assert copied == made


def test_a_secret_that_was_read_is_redacted_from_then_on(tmp_path: Path) -> None:
    redactor = Redactor()
    made = SecretStore(path=tmp_path / "secret", redactor=redactor).make()
    assert redactor(f"it is {made.decode()}!") == "it is ***!"


def test_another_secret_than_the_records_is_refused_with_what_to_copy() -> None:
    mine, theirs = b"m" * 40, b"t" * 40
    require_key(mine, recorded=key_id(mine), place="x")
    with pytest.raises(StalledError) as caught:
        require_key(mine, recorded=key_id(theirs), place="/s/secret")
    told = str(caught.value)
    assert f"the secret in /s/secret is {key_id(mine)}" in told
    assert f"copy the file or value named {key_id(theirs)}" in told
    assert "mmmm" not in told


def test_each_replica_has_a_key_of_its_own_always_the_same() -> None:
    one = replica_key(b"s" * 40, ReplicaId("chat-1f0c9a2b-0.1"))
    assert one == "44fd5781b156972c2cbb7a4d544cd95d0fe129f54da696e8391b83fdeea36986", (
        "HMAC-SHA256, as openssl computes it"
    )
    assert one == replica_key(b"s" * 40, ReplicaId("chat-1f0c9a2b-0.1"))
    assert one != replica_key(b"s" * 40, ReplicaId("chat-1f0c9a2b-0.2"))
    assert one != replica_key(b"t" * 40, ReplicaId("chat-1f0c9a2b-0.1"))


def test_masked_text_is_text_and_does_not_show_where_values_are_printed() -> None:
    masked = Masked("canary")
    assert masked == "canary"
    assert "canary" not in repr({"key": masked})
    assert f"Bearer {masked}" == "Bearer canary"


def test_values_come_from_where_the_manifest_points(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from file\n")
    environ = {"TOKEN": "from env", "HOME": str(tmp_path)}
    assert resolve("plain", environ) == "plain"
    assert resolve(Secret(from_env="TOKEN"), environ) == "from env"
    assert resolve(Secret(from_file="~/token"), environ) == "from file"
    assert resolve(Secret(from_file=str(tmp_path / "token")), environ) == "from file"


def test_values_that_are_not_there_are_named_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"canary\xff")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "large").write_text("canary" * 20_000)
    for value, told in (
        (Secret(from_env="ABSENT"), "fromEnv: ABSENT: the variable is not set"),
        (Secret(from_env="EMPTY"), "fromEnv: EMPTY: the variable is empty"),
        (Secret(from_file="/nowhere/x"), "fromFile: /nowhere/x: No such file"),
        (Secret(from_file="relative"), "fromFile: relative: the path is relative"),
        (Secret(from_file=str(tmp_path / "binary")), "it is not UTF-8 text"),
        (Secret(from_file=str(tmp_path / "empty")), "it holds no usable text"),
        (Secret(from_file=str(tmp_path / "large")), "more than 65536 bytes"),
        (Secret(from_file=str(tmp_path)), "Is a directory"),
    ):
        with pytest.raises(StalledError) as caught:
            resolve(value, {"EMPTY": ""})
        assert told in str(caught.value)
        assert "canary" not in str(caught.value)


# ---- rotation ------------------------------------------------------------------------------------------------


def test_a_rotation_keeps_the_earlier_secret_beside_the_new_one_until_it_is_dropped(tmp_path: Path) -> None:
    store = SecretStore(path=tmp_path / "secret")
    old = store.make()
    new = store.rotate()
    assert key_id(store.make()) == new != key_id(old)
    assert store.kept() == {key_id(old): old}
    files = {it.name: it.stat().st_mode & 0o777 for it in tmp_path.iterdir()}
    assert files == {"secret": 0o600, f"secret.{key_id(old)}": 0o600}
    store.drop(key_id(old))
    assert store.kept() == {}
    store.drop(key_id(old))


def test_a_file_that_is_not_what_its_name_says_is_no_earlier_secret(tmp_path: Path) -> None:
    store = SecretStore(path=tmp_path / "secret")
    store.make()
    for name in ("secret.0badcafe", "secret.orig", "secret.0badcafe.old"):
        (tmp_path / name).write_text("x" * 40)
        (tmp_path / name).chmod(0o600)
    assert store.kept() == {}


def test_a_rotation_that_was_cut_off_begins_anew(tmp_path: Path) -> None:
    """Killed after the old one was linked and before the new one was in its place."""
    store = SecretStore(path=tmp_path / "secret")
    old = store.make()
    (tmp_path / f"secret.{key_id(old)}").hardlink_to(tmp_path / "secret")
    assert store.load() == old
    assert store.rotate() != key_id(old)
    assert store.kept() == {key_id(old): old}


def test_what_the_environment_gives_is_not_rotated(tmp_path: Path) -> None:
    with pytest.raises(StalledError, match=r"comes from LLMGW_SECRET.*put its content into"):
        SecretStore(path=tmp_path / "secret", given="g" * 40).rotate()
    with pytest.raises(StalledError, match="is not there: rotate where it is"):
        SecretStore(path=tmp_path / "secret").rotate()


def test_an_earlier_secret_never_stands_in_git_either(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("/secret\n")
    store = SecretStore(path=tmp_path / "secret", work_tree=tmp_path)
    old = store.make()
    with pytest.raises(StalledError, match="Git does not ignore it"):
        store.rotate()
    assert store.load() == old

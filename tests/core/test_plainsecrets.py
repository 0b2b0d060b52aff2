"""Which values of manifests look like secrets in plain text, and what is told of them: the place, never the value."""

import pytest

from llmgw.core.resolving import plainsecrets
from llmgw.model.manifest import Custom, Manifest, Secret, Value
from tests.core.test_resolve import desired, local, manifests, model, profile

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
BY_REFERENCE = Secret(from_env="NAME")


def told(*documents: Manifest) -> list[str]:
    return [str(warning) for warning in plainsecrets.warnings(manifests(*documents))]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "anything at all"),
        ("OPENAI_API_KEY", "0123456789abcdef"),
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG"),
        ("TOKEN", "x1"),
        ("db_password", "sesame"),
        ("SMTP_PASSWD", "sesame"),
        ("CLIENT_SECRET", "sesame"),
        ("CREDENTIALS", "ann:sesame"),
        ("ANY", TOKEN),
        ("ANY", "sk-proj-abcdefghijklmnopqrst"),
        ("ANY", "ghp_0123456789abcdefghijklmnopqrstuvwxyz"),
        ("ANY", "github_pat_0123456789abcdefghijkl_mn"),
        ("ANY", "glpat-0123456789abcdefghij"),
        ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE"),
    ],
)
def test_a_variable_that_looks_like_a_secret_is_told(name: str, value: str) -> None:
    (warning,) = told(model("m", f"spec.env.{name}", env={name: value}))
    assert warning.startswith(f"model-m.yaml:10:3: spec.env.{name} looks like a secret")
    assert "{fromEnv: NAME}" in warning
    assert value not in warning


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", BY_REFERENCE),
        ("HF_TOKEN", ""),
        ("HF_TOKEN", "true"),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
        ("OPENAI_API_KEY", "EMPTY"),
        ("SSL_KEY", "/etc/ssl/key.pem"),
        ("SSL_KEY", "~/key.pem"),
        ("SSL_KEY", "./key.pem"),
        ("SOME_KEY", "-1.5"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKENS", "many"),
        ("MONKEY", "see"),
        ("AWS_ACCESS_KEY_ID", "by another way"),
        ("MODEL", "sk-small"),
        ("ANY", "hf_transfer"),
    ],
)
def test_what_can_be_no_secret_is_not(name: str, value: Value) -> None:
    assert not told(model(env={name: value}), profile(env={name: value}), local(env={name: value}))


@pytest.mark.parametrize(
    ("args", "place"),
    [
        (("--api-key", "sesame"), "spec.args[1]"),
        (("--seed", "1", "--api_key=sesame"), "spec.args[2]"),
        (("--ssl-keyfile-password", "sesame"), "spec.args[1]"),
        (("--anything", TOKEN), "spec.args[1]"),
        ((f"--anything={TOKEN}",), "spec.args[0]"),
        ((TOKEN,), "spec.args[0]"),
    ],
)
def test_an_argument_that_looks_like_a_secret_is_told(args: tuple[str, ...], place: str) -> None:
    (warning,) = told(model("m", place, args=args))
    assert warning.startswith(f"model-m.yaml:10:3: {place}")
    assert "looks like a secret" in warning
    assert "sesame" not in warning
    assert TOKEN not in warning


@pytest.mark.parametrize(
    "args",
    [
        ("--api-key", "--seed", "1"),
        ("--api-key-file", "sesame"),
        ("--pad-token", "<pad>"),
        ("--sort-key", "length"),
        ("--ssl-keyfile-password", "/etc/ssl/password"),
        ("--max-tokens", "many"),
    ],
)
def test_other_arguments_are_not(args: tuple[str, ...]) -> None:
    assert not told(model(args=args), profile(args=args))


def test_every_place_that_takes_values_is_looked_at() -> None:
    custom = Custom(
        command=("serve", "--key", "${key}", "--hub", TOKEN),
        worker=("work", f"--hub={TOKEN}"),
        env={"KEY": "Bearer ${key}", "HF_TOKEN": "sesame"},
    )
    warnings = told(
        local("n", "spec.env.HF_TOKEN", env={"HF_TOKEN": "sesame"}),
        profile("p", env={"HF_TOKEN": "sesame"}, args=("--hub", TOKEN), custom=custom),
    )
    assert [warning.partition(" ")[2].partition(" looks")[0].partition(",")[0] for warning in warnings] == [
        "spec.env.HF_TOKEN",
        "spec.env.HF_TOKEN",
        "spec.args[1]",
        "spec.custom.env.HF_TOKEN",
        "spec.custom.command[4]",
        "spec.custom.worker[1]",
    ]
    assert "write in spec.env" in warnings[3]  # custom.env takes no references


def test_it_holds_nothing_back() -> None:
    wanted = desired(model("m", "spec.env.HF_TOKEN", env={"HF_TOKEN": TOKEN}))
    (warning,) = wanted.warnings
    assert "looks like a secret" in warning.what
    assert wanted.models["m"].spec.env == {"HF_TOKEN": TOKEN}

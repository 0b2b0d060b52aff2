"""Flags are read out of help as programs print it, and not out of what it says about flags."""

import subprocess
import sys
from pathlib import Path

import pytest

import llmgw
from llmgw.wire.flags import MAX_FLAG, flags_of, points_elsewhere

RUNTIME = Path(llmgw.__file__).parent / "runtime"

GROUPS = """\
usage: vllm serve [model_tag] [options]

Serve a model over HTTP.

Config Groups:
  Frontend                 Arguments of the server.
  ModelConfig              Arguments of the model.

For one group: vllm serve --help=ModelConfig; for everything: vllm serve --help=all
"""
ALL = """\
usage: vllm serve [-h] [--headless]
                  [--api-server-count API_SERVER_COUNT]

Frontend:
  --host HOST           Where to listen. (default: None)
  --served-model-name SERVED_MODEL_NAME [SERVED_MODEL_NAME ...]
                        Names; see --model for the weights, and
                        --swap-space is gone.
  --allowed-origins ALLOWED_ORIGINS
  --enable-lora, --no-enable-lora
                        Whether adapters are served.

ModelConfig:
  --dtype {auto,half,-strange}, -d {auto,half}
                        The type.
  --compilation-config.mode MODE, -cc.mode MODE
"""
PADDED = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-m,    --model FNAME                    model path to load, as --hf-repo would
--lora-scaled FNAME:SCALE,...           path to an adapter
                                        --deep-in-the-text is none
-ngl,  --gpu-layers, --n-gpu-layers N   layers; see also --fit
"""


def test_groups_of_flags_name_none_of_them_and_point_to_where_they_stand() -> None:
    assert flags_of(GROUPS) == ()
    assert points_elsewhere(GROUPS, "--help") == "--help=all"


def test_entries_and_usage_are_read_and_sentences_are_not() -> None:
    assert flags_of(ALL) == (
        "--allowed-origins",
        "--api-server-count",
        "--compilation-config.mode",
        "--dtype",
        "--enable-lora",
        "--headless",
        "--host",
        "--no-enable-lora",
        "--served-model-name",
        "-cc.mode",
        "-d",
        "-h",
    )


def test_names_that_are_set_below_each_other_belong_to_one_entry() -> None:
    assert flags_of(PADDED) == (
        "--gpu-layers",
        "--help",
        "--lora-scaled",
        "--model",
        "--n-gpu-layers",
        "--usage",
        "-h",
        "-m",
        "-ngl",
    )


def test_colours_hide_no_flag_and_a_page_without_entries_has_none() -> None:
    assert flags_of("  \x1b[1;36m--host\x1b[0m \x1b[33mHOST\x1b[0m  where") == ("--host",)
    assert flags_of("it takes --host and --port\n\n    - one\n    -- two\n") == ()
    assert flags_of(f"--{'x' * MAX_FLAG}") == ()


@pytest.mark.parametrize(
    ("program", "some"),
    [
        ("simengine", {"--host", "--port", "--served-name", "--load-seconds"}),
        ("llamaserver", {"--host", "--model", "-m", "-ngl", "--lora-scaled", "--no-webui", "-lv"}),
    ],
)
def test_the_help_of_our_own_programs_names_what_they_take(program: str, some: set[str]) -> None:
    told = subprocess.run(
        [sys.executable, RUNTIME / f"{program}.py", "--help"], capture_output=True, text=True, check=True
    )
    assert some <= set(flags_of(told.stdout))

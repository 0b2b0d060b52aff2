"""The examples of networks between nodes, planned as their pages tell people to: every word of every rank's command line and
environment is held by a golden file. UPDATE_GOLDEN=1 writes them anew."""

import os
from pathlib import Path

import pytest

from tests.core.examples import planned, text_of

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "network"
UPDATE = bool(os.environ.get("UPDATE_GOLDEN"))


@pytest.mark.parametrize("example", ["ib-pair", "roce-ray"])
def test_every_ranks_command_line_and_environment_is_as_written_down(example: str) -> None:
    text = text_of(planned(example))
    path = GOLDEN / f"{example}.txt"
    if UPDATE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; UPDATE_GOLDEN=1 writes it anew"


NODE2 = "gpu02.json"
SEVENTH = '"device": "mlx5_7", "port": 1, "linkLayer": "InfiniBand", "state": "ACTIVE"'
LABELS = "  fabrics: [{name: ib-a, hcas: [mlx5_0, mlx5_1, mlx5_4, mlx5_5, mlx5_6, mlx5_7, mlx5_8, mlx5_9]}]\n"


@pytest.mark.parametrize(
    ("example", "changed", "told"),
    [
        (
            "ib-pair",
            {NODE2: (SEVENTH, SEVENTH.replace("ACTIVE", "DOWN"))},
            "fabric ib-a: mlx5_7 is DOWN (LinkUp)",
        ),
        (
            "ib-pair",
            {NODE2: ('"state": "ACTIVE"', '"state": "DOWN"')},
            "needs one (fabric: required); ib-a: mlx5_0 is DOWN (LinkUp); mlx5_1 is DOWN (LinkUp)",
        ),
        (
            "ib-pair",
            {"nodes.yaml": ("mlx5_1,", "mlx5_2,")},
            "mlx5_2 is missing: there is mlx5_0, mlx5_1, mlx5_4 and 6 more",
        ),
        ("ib-pair", {"nodes.yaml": (LABELS, "")}, "spec.fabrics is not written; it has mlx5_0, mlx5_1"),
        (
            "ib-pair",
            {
                "profiles.yaml": (
                    "  fabric: required\n",
                    '  fabric: required\n  env: {NCCL_SOCKET_IFNAME: "=ib0"}\n',
                )
            },
            "# NCCL_SOCKET_IFNAME: profile two-nodes, spec.env; over network: =bond0",
        ),
        (
            "roce-ray",
            {"profiles.yaml": ("preferred", "required")},
            "its ports disagree on the GID index (mlx5_0:1 has 3; mlx5_1:1 has 3; mlx5_2:1 has 3; mlx5_3:1 has 5)",
        ),
        ("roce-ray", {"profiles.yaml": ("fabric: preferred", "fabric: none")}, "NCCL_IB_DISABLE=1"),
    ],
)
def test_what_the_pages_tell_people_to_try_shows_what_they_say(
    example: str, changed: dict[str, tuple[str, str]], told: str
) -> None:
    assert told not in text_of(planned(example))
    assert told in text_of(planned(example, changed=changed))

"""What a failure of pip says."""

from llmgw.agent.jobs.commands import Ended
from llmgw.agent.jobs.pip import pip_failure


def test_a_version_that_does_not_exist_is_told_with_the_newest_ones_not_with_all_there_ever_were() -> None:
    versions = ", ".join(f"0.{n}" for n in range(300))
    ended = Ended(
        code=1,
        last_lines=(
            "Looking in indexes: https://ann:canary-4711@pypi.example.org/simple",
            f"ERROR: Could not find a version that satisfies the requirement x==9 (from versions: {versions})",
            "ERROR: No matching distribution found for x==9",
        ),
    )
    assert str(pip_failure("installing x", ended)) == (
        "installing x: ERROR: Could not find a version that satisfies the requirement x==9 (newest versions: 0.297, 0.298, "
        "0.299); ERROR: No matching distribution found for x==9"
    )

"""Of several exit codes one counts."""

from llmgw.model.exitcode import worst


def test_when_several_are_true_the_worst_counts() -> None:
    assert worst([0, 2, 5]) == 5
    assert worst([5, 6]) == 6
    assert worst([6, 3]) == 3
    assert worst([3, 4]) == 4
    assert worst([4, 1]) == 1
    assert worst([1, 64]) == 64
    assert worst([]) == 0

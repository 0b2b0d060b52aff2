from datetime import datetime, timezone

from llmgw.agent.shards.autopsy import LAST_LINES, MAX_TRACEBACK, explain
from llmgw.model.report import Exit

EXIT = Exit(at=datetime(2030, 1, 1, tzinfo=timezone.utc), code=1)
PLAIN = """loading
Traceback (most recent call last):
  File "x.py", line 1, in <module>
    load()
ValueError: No available memory for the cache blocks
cleaning up
Traceback (most recent call last):
  File "y.py", line 2, in <module>
RuntimeError: Engine core initialization failed. See root cause above.
"""


def test_the_first_traceback_is_kept_not_its_echo() -> None:
    found = explain(EXIT, PLAIN)
    assert found.traceback.splitlines()[-1] == "ValueError: No available memory for the cache blocks"
    assert found.traceback.startswith("Traceback (most recent call last):")
    assert found.last_lines[-1].startswith("RuntimeError: Engine core")


def test_a_loggers_prefix_is_cut_off() -> None:
    prefix = "(EngineCore pid=77) ERROR 01-01 00:00:00 [core.py:708] "
    text = "".join(f"{prefix}{line}\n" for line in PLAIN.splitlines())
    assert explain(EXIT, text).traceback == explain(EXIT, PLAIN).traceback


def test_out_of_memory_is_recognised() -> None:
    assert explain(EXIT, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB").out_of_memory
    assert not explain(EXIT, "all is well").out_of_memory


def test_what_is_kept_is_bounded() -> None:
    deep = "Traceback (most recent call last):\n" + '  File "x"\n' * 10_000 + "RecursionError: deep\n"
    found = explain(EXIT, deep + "x" * 100_000)
    assert len(found.traceback) <= MAX_TRACEBACK
    assert found.traceback.endswith("RecursionError: deep")
    assert len(found.last_lines) == LAST_LINES
    assert max(map(len, found.last_lines)) <= 2_000


def test_silence_is_no_traceback() -> None:
    assert explain(EXIT, "") == EXIT

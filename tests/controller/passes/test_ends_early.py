"""A saved plan is carried out once and to its own end: what it could not know is left to the next."""

from llmgw.controller.passes.settle import ends_early
from llmgw.model.ids import JobId
from llmgw.model.launch import FetchSpec
from llmgw.model.plan import Step, StepKind
from llmgw.model.struct import replace
from tests.controller.passes.doubles import install, plan_of, start, step


def fetch(model: str = "chat") -> Step:
    spec = FetchSpec(job=JobId("fetch-1"), digest="1" * 64, description="x", url="http://x", sha256="0" * 64)
    return replace(step("fetch", StepKind.FETCH), model=model, fetch=spec)


def test_a_plan_ends_where_a_download_tells_a_size() -> None:
    assert ends_early(plan_of(install("install"), fetch()))
    assert ends_early(plan_of(fetch("other"), start("start")))


def test_a_plan_that_starts_what_it_fetches_is_whole() -> None:
    assert not ends_early(plan_of(fetch(), start("start")))
    assert not ends_early(plan_of(install("install")))


def test_a_plan_ends_where_a_bootstrap_tells_facts() -> None:
    assert ends_early(plan_of(step("bootstrap", StepKind.BOOTSTRAP), start("start")))

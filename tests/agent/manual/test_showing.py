"""What ``llmgw-agent status`` prints of a report."""

from datetime import datetime, timezone

from llmgw.agent.manual.showing import status_text
from llmgw.model.facts import Facts
from llmgw.model.ids import JobId
from llmgw.model.report import AgentInfo, JobReport, Report

NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
MIB = 1024**2


def test_a_job_at_work_shows_how_far_it_is_and_a_failed_one_why() -> None:
    agent = AgentInfo(
        version="1", protocol="1.0", fleet="f", node="n", boot_id="b", pid=7, started=NOON, user="root"
    )
    at_work = JobReport(
        job=JobId("fetch-1"),
        kind="fetch",
        target="1",
        description="weights",
        state="running",
        done_bytes=29 * MIB,
        total_bytes=57 * MIB,
    )
    failed = JobReport(
        job=JobId("fetch-2"), kind="fetch", target="2", description="others", state="failed", error="404"
    )
    text = status_text(Report(agent=agent, at=NOON, facts=Facts(), jobs=(at_work, failed)))
    assert "job fetch-1  running  weights: 29 of 57 MiB\n" in text
    assert "job fetch-2  failed  others  404\n" in text

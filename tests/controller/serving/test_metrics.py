"""Numbers for Prometheus: what a scrape says, and that nobody else can make it long."""

from collections.abc import Mapping

import pytest
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from llmgw.controller.serving.metrics import MOST, Counts, Page
from llmgw.controller.serving.snapshot import Snapshot
from llmgw.core.show.status import ModelRow, NodeRow
from llmgw.model.ids import Commit
from llmgw.model.struct import replace
from tests.controller.serving.surroundings import COMMIT, NOW, STATUS, snapshot


def text_of(known: Snapshot, counts: Counts | None = None, accept: str = "") -> str:
    encode, _ = choose_encoder(accept)
    data = encode(Page(counts or Counts()).of(known))
    assert isinstance(data, bytes)
    return data.decode()


def scraped(known: Snapshot, counts: Counts | None = None) -> Mapping[str, Metric]:
    return {family.name: family for family in parse_text(text_of(known, counts))}


def values(families: Mapping[str, Metric], name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name
    }


def test_each_number_says_what_the_snapshot_says() -> None:
    counts = Counts()
    counts.webhook("forge", 202)
    counts.webhook("forge", 202)
    counts.notice("chat", "sent")
    told = scraped(snapshot(), counts)
    assert values(told, "llmgw_passes_total") == {("done", "webhook"): 1, ("nothing", "watch"): 1}
    assert values(told, "llmgw_steps_total") == {("start", "done"): 2, ("fetch", "failed"): 1}
    assert values(told, "llmgw_pass_duration_seconds_bucket")["0.25",] == 0
    assert values(told, "llmgw_pass_duration_seconds_bucket")["0.5",] == 1
    assert values(told, "llmgw_pass_duration_seconds_bucket")["+Inf",] == 2
    assert values(told, "llmgw_pass_duration_seconds_sum") == {(): pytest.approx(200.4)}
    shards = {state: count for (state,), count in values(told, "llmgw_shards").items() if count}
    assert shards == {"ready": 1, "loading": 1, "other": 1}, (
        "a gang counts by its ranks; words of the future as one"
    )
    assert values(told, "llmgw_nodes")["unreachable",] == 1
    assert values(told, "llmgw_gpus") == {("allocated",): 5, ("free",): 11}
    assert values(told, "llmgw_applied_info") == {(COMMIT,): 1}
    assert values(told, "llmgw_applied_serial") == {(): 12}
    assert NOW.timestamp() - values(told, "llmgw_applied_timestamp_seconds")[()] == 60
    assert values(told, "llmgw_head_applied") == {(): 1}
    assert values(told, "llmgw_drift") == {(): 3}
    assert values(told, "llmgw_alerts")["agent-lost", "critical"] == 1
    assert sum(values(told, "llmgw_alerts").values()) == 1
    assert values(told, "llmgw_model_replicas_ready") == {("chat",): 1, ("embed",): 0}
    assert values(told, "llmgw_models_held") == {(): 1}
    assert values(told, "llmgw_source_up") == {(): 1}
    assert values(told, "llmgw_webhooks_total") == {("202", "forge"): 2}
    assert values(told, "llmgw_notices_total") == {("sent", "chat"): 1}


def test_a_commit_that_asks_for_nothing_else_is_as_good_as_applied() -> None:
    """A README was changed, and the alert about a commit that is not applied went off after 15 minutes."""
    later = Commit("9" * 40)
    assert values(scraped(replace(snapshot(), head=later)), "llmgw_head_applied") == {(): 0}
    assert values(scraped(replace(snapshot(), head=later, same=later)), "llmgw_head_applied") == {(): 1}


def test_before_the_first_pass_there_is_less_to_tell_and_nothing_breaks() -> None:
    young = snapshot(
        applied=None, head=None, last_pass=None, last_good=None, status=None, source_error="no answer"
    )
    told = scraped(young)
    assert values(told, "llmgw_source_up") == {(): 0}
    assert "llmgw_shards" not in told
    other = snapshot(head="f" * 40)
    assert values(scraped(other), "llmgw_head_applied") == {(): 0}


def test_every_number_is_explained_and_has_our_name() -> None:
    for family in scraped(snapshot()).values():
        assert family.name.startswith("llmgw")
        assert family.documentation.endswith("."), family.name
        assert family.type != "unknown", family.name


def test_openmetrics_is_spoken_with_who_asks_for_it() -> None:
    text = text_of(snapshot(), accept="application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    families = openmetrics.text_string_to_metric_families(text)  # type: ignore[no-untyped-call] # theirs
    assert len(list(families)) == len(scraped(snapshot()))


def test_names_of_a_huge_fleet_do_not_make_it_long_without_end() -> None:
    models = tuple(
        ModelRow(name=f"m{number}", served_name="m", wanted=1, ready=1) for number in range(MOST * 3)
    )
    nodes = tuple(
        NodeRow(name=f'n"{number}\n', reach="ok", gpus=8, gpus_free=8) for number in range(MOST * 3)
    )
    told = scraped(snapshot(status=replace(STATUS, models=models, nodes=nodes)))
    assert len(values(told, "llmgw_model_replicas_ready")) == MOST
    assert len(values(told, "llmgw_node_gpus")) == MOST
    assert values(told, "llmgw_nodes")["ok",] == MOST * 3, "the sums are whole"
    assert values(told, "llmgw_gpus")["free",] == MOST * 3 * 8

"""examples/monitoring: every name in it is one that ``/metrics`` says, and Prometheus' own tool takes it."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from ruamel.yaml import YAML

from llmgw.controller.readings import DEFAULT_LISTEN
from llmgw.controller.serving.metrics import Counts
from llmgw.controller.serving.snapshot import ERROR, HELD, INVALID, NOTHING
from llmgw.model.record import Outcome
from tests.controller.serving.surroundings import snapshot
from tests.controller.serving.test_metrics import text_of

FOLDER = Path(__file__).parents[3] / "examples" / "monitoring"
RULES = FOLDER / "llmgw.rules.yml"
DASHBOARD = FOLDER / "grafana-dashboard.json"
LONG = 120


def read(file: Path) -> Any:
    return YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))


def told() -> Mapping[str, set[str]]:
    """Every number that there can be, with its labels."""
    counts = Counts()
    counts.webhook("forge", 202)
    counts.notice("chat", "sent")
    found: dict[str, set[str]] = {}
    for family in parse(text_of(snapshot(), counts)):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> Iterator[str]:
    for group in read(RULES)["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (entry["expr"] for entry in board["annotations"]["list"])


def test_every_number_and_label_that_is_asked_for_is_told() -> None:
    there = told()
    asked = list(expressions())
    assert len(asked) > 25
    for expression in asked:
        names = re.findall(r"\bllmgw_\w+", expression)
        assert names or "up{" in expression, expression
        for name in names:
            assert name in there, f"{name} in {expression}"
        known = set().union(*(there[name] for name in names))
        for label in re.findall(r"[{,](\w+)(?:=~|!~|!=|=)", expression):
            assert label in known | {"job"}, f"{label} in {expression}"
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            assert {it.strip() for it in labels.split(",")} <= known, expression


def test_every_number_is_on_the_dashboard_or_in_a_rule() -> None:
    asked = "\n".join(expressions())
    aside = {"llmgw_start_time_seconds", "llmgw_last_pass_timestamp_seconds", "llmgw_last_pass_exit_code", "llmgw_plan_changes",
             "llmgw_models_held", "llmgw_node_gpus"}  # fmt: skip
    for name in told():
        whole = re.sub(r"_(bucket|sum|count)$", "", name)
        assert re.search(rf"\b{whole}(_bucket)?\b", asked) or whole in aside, name


def test_unattended_md_lists_every_number() -> None:
    page = (FOLDER.parents[1] / "docs" / "unattended.md").read_text(encoding="utf-8")
    section = page.partition("\n## Monitoring\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`([a-z_]+)`", "\n".join(re.findall(r"(?m)^\| (`[^|]*) \|", section))))
    names = {re.sub(r"_(bucket|sum|count)$", "", name).removeprefix("llmgw_") for name in told()}
    assert names - listed == set()


def test_words_in_rules_are_words_of_ours() -> None:
    outcomes = {it.value for it in Outcome} | {NOTHING, HELD, INVALID, ERROR}
    for words in re.findall(r'outcome=~"([^"]+)"', RULES.read_text(encoding="utf-8")):
        assert set(words.split("|")) <= outcomes
    families = {family.name: family for family in parse(text_of(snapshot()))}
    severities = {sample.labels["severity"] for sample in families["llmgw_alerts"].samples}
    assert {"critical", "warning"} <= severities


def test_labels_in_texts_are_those_of_the_expression() -> None:
    there = told()
    for rule in read(RULES)["groups"][0]["rules"]:
        used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        names = re.findall(r"\bllmgw_\w+", rule["expr"])
        kept = re.search(r"by \((\w+)\)", rule["expr"])
        known = {kept[1]} if kept else set().union(*(there[name] for name in names))
        assert used <= known, rule["alert"]
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert board["schemaVersion"] >= 36
    assert [entry["name"] for entry in board["templating"]["list"]] == ["datasource"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids) >= 15
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, f"{panel['title']} lies over another"
        taken |= cells
        assert panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0


def test_the_scrape_jobs_ask_where_serve_answers_by_default() -> None:
    jobs = {job["job_name"]: job for job in read(FOLDER / "prometheus.yml")["scrape_configs"]}
    assert jobs["llmgw"]["static_configs"] == [{"targets": [DEFAULT_LISTEN]}]
    assert jobs["engines"]["http_sd_configs"][0]["url"] == f"http://{DEFAULT_LISTEN}/sd"
    assert read(FOLDER / "prometheus.yml")["rule_files"] == [RULES.name]


# ---- by Prometheus' own tool -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip(
            "NOT PROVED that Prometheus takes the rules and that they fire: no promtool here (apt install prometheus)"
        )
    return found


def run(*words: str, at: Path, stdin: str | None = None) -> str:
    done = subprocess.run(
        words, cwd=at, input=stdin, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_prometheus_takes_configuration_rules_and_numbers(promtool: str, tmp_path: Path) -> None:
    run(promtool, "check", "config", "prometheus.yml", at=FOLDER)
    run(promtool, "check", "rules", RULES.name, at=FOLDER)
    run(promtool, "check", "metrics", at=tmp_path, stdin=text_of(snapshot()))


FIRES = {
    "LlmgwDown": ("10m", ['up{job="llmgw"}'], "0x20"),
    "LlmgwNoGoodPass": ("45m", ["llmgw_last_good_pass_timestamp_seconds"], "0x60"),
    "LlmgwSourceUnreadable": ("20m", ["llmgw_source_up"], "0x60"),
    "LlmgwCommitNotApplied": ("20m", ["llmgw_head_applied"], "0x60"),
    "LlmgwPassesFail": ("40m", ['llmgw_passes_total{outcome="failed",trigger="watch"}'], "0+1x60"),
    "LlmgwBlocked": ("40m", ["llmgw_plan_blocked"], "2x60"),
    "LlmgwNodeUnreachable": ("10m", ['llmgw_node_reachable{node="gpu02"}'], "0x60"),
    "LlmgwMachineCritical": ("10m", ['llmgw_alerts{kind="gpu-xid",severity="critical"}'], "1x60"),
    "LlmgwMachineWarning": ("40m", ['llmgw_alerts{kind="disk-low",severity="warning"}'], "1x60"),
    "LlmgwNoticesLost": ("30m", ['llmgw_notices_total{to="chat",outcome="failed"}'], "0+1x60"),
    "LlmgwWebhooksRefused": ("30m", ['llmgw_webhooks_total{webhook="forge",status="401"}'], "0+1x60"),
    "LlmgwModelDown": (
        "10m",
        ['llmgw_model_replicas_ready{model="chat"}', 'llmgw_model_replicas_wanted{model="chat"}'],
        "0x60 2x60",
    ),
    "LlmgwModelShort": (
        "40m",
        ['llmgw_model_replicas_ready{model="chat"}', 'llmgw_model_replicas_wanted{model="chat"}'],
        "1x60 2x60",
    ),
}
"""By alert: when to look, what is told until then, and how it goes on (one for each)."""
CALM = {
    'up{job="llmgw"}': "1x60",
    "llmgw_last_good_pass_timestamp_seconds": "0+60x60",
    "llmgw_source_up": "1x60",
    "llmgw_head_applied": "1x60",
    'llmgw_passes_total{outcome="nothing",trigger="watch"}': "0+1x60",
    "llmgw_plan_blocked": "0x60",
    'llmgw_node_reachable{node="gpu02"}': "1x60",
    'llmgw_alerts{kind="gpu-xid",severity="critical"}': "0x60",
    'llmgw_notices_total{to="chat",outcome="sent"}': "0+1x60",
    'llmgw_webhooks_total{webhook="forge",status="202"}': "0+1x60",
    'llmgw_model_replicas_ready{model="chat"}': "2x60",
    'llmgw_model_replicas_wanted{model="chat"}': "2x60",
}


def test_each_rule_fires_when_it_should_and_none_while_all_is_well(promtool: str, tmp_path: Path) -> None:
    names = {rule["alert"] for rule in read(RULES)["groups"][0]["rules"]}
    assert names == set(FIRES)
    shutil.copy(RULES, tmp_path)
    tests = []
    for name, (at, series, values) in FIRES.items():
        given = [{"series": one, "values": value} for one, value in zip(series, values.split(), strict=True)]
        tests.append({"interval": "1m", "input_series": given, "promql_expr_test": [
            {"expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) > 0', "eval_time": at,
             "exp_samples": [{"labels": "{}", "value": 1}]}
        ]})  # fmt: skip
    calm = [{"series": series, "values": values} for series, values in CALM.items()]
    quiet = [{"alertname": name, "eval_time": "50m", "exp_alerts": []} for name in sorted(names)]
    tests.append({"interval": "1m", "input_series": calm, "alert_rule_test": quiet})
    document = {"rule_files": [RULES.name], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(json.dumps(document))
    run(promtool, "test", "rules", "tests.yml", at=tmp_path)

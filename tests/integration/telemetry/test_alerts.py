"""R11: the alert rules and the dashboard use metrics and labels that exist, and each alert fires when it should.

Prometheus' own promtool judges: it parses every expression, and evaluates the rules over what our metrics rendered.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from antiphon.host.webhooks import QUEUE
from antiphon.telemetry import BuiltinMetrics
from antiphon.telemetry import _metrics as schema
from antiphon.telemetry._metrics import DURATION, METRICS

DEPLOY = Path(__file__).parents[3] / "deploy"
ALERTS = DEPLOY / "prometheus-alerts.yml"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
}
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
DASHBOARD_QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
MINUTE = 60.0
STORE = "redis://cache:6379/0"

KNOWN: dict[str, set[str]] = {metric.full_name("antiphon"): set(metric.labels) for metric in METRICS}
KNOWN[DURATION.full_name("antiphon") + "_bucket"] = {*DURATION.labels, "le"}
KNOWN |= {"antiphon_host_webhook_queue": {"instance"}, "antiphon_host_runs_executing": {"instance"}}
KNOWN |= {"antiphon_host_webhook_lost_total": {"instance"}}
"""The host's own gauges have no labels but the one that Prometheus gives."""
_SELECTOR = re.compile(r"(antiphon_\w+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_KEPT = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


def check(expression: str) -> None:
    """Every metric and label in it exists."""
    labels: set[str] = set()
    for metric, given in _SELECTOR.findall(expression):
        assert metric in KNOWN, f"{metric} does not exist"
        assert set(_LABEL.findall(given)) <= KNOWN[metric], (metric, given)
        labels |= KNOWN[metric]
    assert labels, expression
    for kept in _KEPT.findall(expression):
        assert {name.strip() for name in kept.split(",") if name.strip()} <= labels, kept


def run(promtool: str, *words: str) -> str:
    done = subprocess.run([promtool, *words], capture_output=True, text=True, check=False, timeout=120)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("name", RULES)
def test_a_rule_uses_what_exists_and_says_what_to_do(name: str) -> None:
    rule = RULES[name]
    check(rule["expr"])
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"[0-9]+[smh]", rule.get("for", "0s"))
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "runbook"}


def test_prometheus_takes_the_rules_and_every_query_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    assert run(promtool, "check", "rules", str(ALERTS)) == ""
    queries = [query.replace("$__rate_interval", "5m").replace("$tool", ".*") for query in DASHBOARD_QUERIES]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert run(promtool, "check", "rules", str(file)) == ""
    rules.append({"record": "panel:bad", "expr": "sum by (tool (x)"})
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert "panel:bad" in run(promtool, "check", "rules", str(file))


@pytest.mark.parametrize("expression", DASHBOARD_QUERIES)
def test_a_panel_uses_what_exists(expression: str) -> None:
    check(expression)


def test_the_dashboard_shows_every_metric() -> None:
    shown = " ".join(DASHBOARD_QUERIES)
    for name in KNOWN:
        assert name in ("antiphon_tool_info", DURATION.full_name("antiphon")) or name in shown, name


def test_the_dashboard_is_one_that_grafana_loads() -> None:
    """The fields that Grafana requires of a dashboard, a panel and a query; no panel covers another."""
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["uid"]
    assert DASHBOARD["title"]
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "tool"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["type"] == "timeseries"
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        assert place["h"] > 0
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        for number, target in enumerate(panel["targets"]):
            assert target["refId"] == "ABCDEF"[number]
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= set().union(*KNOWN.values())


def test_a_wrong_name_or_label_is_noticed() -> None:
    for wrong in (
        "sum by (tool) (rate(antiphon_tool_call_total[5m]))",
        'sum by (tool) (rate(antiphon_tool_calls_total{state="x"}[5m]))',
        "sum by (tenant) (rate(antiphon_tool_calls_total[5m]))",
    ):
        with pytest.raises(AssertionError):
            check(wrong)


# -- do they fire? ---------------------------------------------------------------------------------------------------

Step = Callable[[BuiltinMetrics, int], None]
Series = dict[tuple[str, frozenset[tuple[str, str]]], dict[int, float]]


def play(step: Step, minutes: int) -> Series:
    """Scrape a registry once a minute while *step* uses it."""
    metrics = BuiltinMetrics()
    metrics.described("shop/find", scope="session", effect="read", ttl_s={"done": 86400.0})
    metrics.described("shop/buy", scope="session", effect="write", ttl_s={"done": 86400.0})
    series: Series = {}
    for minute in range(minutes):
        step(metrics, minute)
        for family in text_string_to_metric_families(metrics.render()):
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                series.setdefault(key, {})[minute] = sample.value
    return series


def _shown(labels: frozenset[tuple[str, str]]) -> str:
    return ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(labels))


def found(promtool: str, folder: Path, series: Series, minutes: int, query: str, label: str) -> set[str]:
    """The values of a label in what a query gives at the end, as promtool's test of the rules says."""
    inputs = [
        {
            "series": f"{metric}{{{_shown(labels)}}}",
            "values": " ".join(f"{values[m]:g}" if m in values else "_" for m in range(minutes)),
        }
        for (metric, labels), values in series.items()
    ]
    test = {"expr": query, "eval_time": f"{minutes - 1}m", "exp_samples": []}
    document = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": inputs, "promql_expr_test": [test]}],
    }
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump(document))
    said = run(promtool, "test", "rules", str(file))  # it expects none, and says which there are
    given = set(re.findall(rf'{label}=\\?"([^"\\]*)', said.partition("got:")[2]))
    assert bool(said) == bool(given), said
    return given


@pytest.fixture
def fires(promtool: str, tmp_path: Path) -> Callable[..., set[str]]:
    """The tools, stores or instances for which an alert fires at the end."""

    def firing(name: str, step: Step, minutes: int = 60, more: Series | None = None) -> set[str]:
        series = play(step, minutes) | (more or {})
        label = re.search(r"\bby \((tool|store|instance)", RULES[name]["expr"])
        assert label is not None
        query = f'count by ({label[1]}) (ALERTS{{alertname="{name}",alertstate="firing"}})'
        used = {key: values for key, values in series.items() if key[0].removesuffix("_total") in RULES[name]["expr"]}
        return found(promtool, tmp_path, used, minutes, query, label[1])

    return firing


Fires = Callable[..., set[str]]


def healthy(metrics: BuiltinMetrics, minute: int) -> None:
    for n in range(20):
        metrics.call_ended("shop/find", "success", "session", 40.0 + n)
        metrics.call_ended("shop/buy", "success", "session", 900.0)
    metrics.hit("shop/find", "done")
    metrics.dedupe({("shop/find", "done"): 100, ("shop/buy", "inflight"): 20, ("shop/buy", "unknown"): 1})
    for gauge, value in (
        (schema.STORE_UP, 1.0),
        (schema.STORE_LATENCY, 2.0),
        (schema.UNRECORDED, 0.0),
        (schema.INTERRUPTED, 0.0),
    ):
        metrics.sampled(gauge, {(STORE,): value})
    metrics.sampled(schema.STORE_BREAKER, {(STORE, "CLOSED"): 1.0, (STORE, "OPEN"): 0.0})
    if minute == 10:
        metrics.breaker("tool/shop/buy", "CLOSED", "OPEN")
        metrics.breaker("tool/shop/buy", "OPEN", "HALF_OPEN")
        metrics.breaker("tool/shop/buy", "HALF_OPEN", "CLOSED")


def test_nothing_fires_while_all_is_well(promtool: str, tmp_path: Path) -> None:
    series, query = play(healthy, 60), 'count by (alertname) (ALERTS{alertstate="firing"})'
    assert found(promtool, tmp_path, series, 60, query, "alertname") == set()
    for key in series:
        if key[0] == schema.STORE_LATENCY.full_name("antiphon"):
            series[key] = dict.fromkeys(range(60), 400.0)
    assert found(promtool, tmp_path, series, 60, query, "alertname") == {"AntiphonStoreSlow"}


def test_slow_reads_fire_and_slow_writes_do_not(fires: Fires) -> None:
    def slow(metrics: BuiltinMetrics, minute: int) -> None:
        for n in range(20):
            metrics.call_ended("shop/find", "success", "session", 3000.0 if n < 3 else 40.0)
            metrics.call_ended("shop/buy", "success", "session", 9000.0)

    assert fires("AntiphonReadToolSlow", slow) == {"shop/find"}


def test_a_short_slow_spell_does_not_fire(fires: Fires) -> None:
    def slow(metrics: BuiltinMetrics, minute: int) -> None:
        metrics.call_ended("shop/find", "success", "session", 9000.0 if minute == 50 else 40.0)

    assert fires("AntiphonReadToolSlow", slow) == set()


def test_fast_refusals_do_not_hide_slow_reads(fires: Fires) -> None:
    def slow(metrics: BuiltinMetrics, minute: int) -> None:
        metrics.call_ended("shop/find", "success", "session", 9000.0)
        for _ in range(100):
            metrics.call_ended("shop/find", "circuit_open", "session", 0.1)

    assert fires("AntiphonReadToolSlow", slow) == {"shop/find"}


def test_a_breaker_that_reopens_after_each_probe_fires(fires: Fires) -> None:
    def sick(metrics: BuiltinMetrics, minute: int) -> None:
        if minute == 45:
            metrics.breaker("tool/shop/buy", "CLOSED", "OPEN")
        if minute > 45 and minute % 2:
            metrics.breaker("tool/shop/buy", "OPEN", "HALF_OPEN")
            metrics.breaker("tool/shop/buy", "HALF_OPEN", "OPEN")

    def once(metrics: BuiltinMetrics, minute: int) -> None:
        if minute == 50:
            metrics.breaker("tool/shop/buy", "HALF_OPEN", "OPEN")

    assert fires("AntiphonBreakerReopens", sick) == {"shop/buy"}
    assert fires("AntiphonBreakerReopens", once) == set()


@pytest.mark.parametrize(("hits", "expected"), [(0, {"shop/buy"}), (2, {"shop/buy"}), (6, set())])
def test_little_reuse_where_much_is_retried_fires(fires: Fires, hits: int, expected: set[str]) -> None:
    def fragmented(metrics: BuiltinMetrics, minute: int) -> None:
        for n in range(10):
            metrics.call_ended("shop/buy", "success", "session", 40.0)
            metrics.call_ended("shop/find", "success", "session", 40.0)
            if n < 5:
                metrics.retried("shop/buy", "http_503")
            if n < hits:
                metrics.hit("shop/buy", "done")

    assert fires("AntiphonLowReuse", fragmented) == expected


@pytest.mark.parametrize(("stale", "expected"), [(0, set()), (1, set()), (2, {"shop/buy"})])
def test_more_than_one_stale_claim_in_a_hundred_fires(fires: Fires, stale: int, expected: set[str]) -> None:
    def leaking(metrics: BuiltinMetrics, minute: int) -> None:
        metrics.dedupe({("shop/buy", "inflight"): 100 - stale, ("shop/buy", "stale"): stale, ("shop/find", "done"): 5})

    assert fires("AntiphonStaleClaims", leaking) == expected


def test_a_forced_breaker_fires_after_ten_minutes(fires: Fires) -> None:
    def forced(metrics: BuiltinMetrics, minute: int) -> None:
        if minute == 45:
            metrics.breaker("tool/shop/buy", "CLOSED", "FORCED_OPEN")

    assert fires("AntiphonBreakerOpen", forced) == {"shop/buy"}
    assert fires("AntiphonBreakerOpen", forced, minutes=50) == set()


def test_a_store_outage_fires_at_once(fires: Fires) -> None:
    def outage(metrics: BuiltinMetrics, minute: int) -> None:
        metrics.hit("shop/find", "done")
        if minute == 58:
            metrics.hit("shop/buy", "store_outage_closed")

    assert fires("AntiphonStoreOutage", outage) == {"shop/buy"}


def test_unknown_outcomes_fire_after_an_hour(fires: Fires) -> None:
    def waiting(metrics: BuiltinMetrics, minute: int) -> None:
        metrics.dedupe({("shop/buy", "unknown_1h"): 1, ("shop/find", "unknown"): 3, ("shop/find", "done"): 5})

    assert fires("AntiphonUnknownOutcomes", waiting) == {"shop/buy"}


@pytest.mark.parametrize("sign", ["up", "breaker"])
def test_a_store_that_does_not_answer_fires(fires: Fires, sign: str) -> None:
    def down(metrics: BuiltinMetrics, minute: int) -> None:
        bad = minute >= 57
        metrics.sampled(schema.STORE_UP, {(STORE,): float(not (bad and sign == "up"))})
        metrics.sampled(schema.STORE_BREAKER, {(STORE, "OPEN"): float(bad and sign == "breaker")})

    assert fires("AntiphonStoreDown", down) == {STORE}
    assert fires("AntiphonStoreDown", down, minutes=58) == set(), "a hiccup does not"


def test_a_slow_store_fires(fires: Fires) -> None:
    assert fires("AntiphonStoreSlow", lambda m, _: m.sampled(schema.STORE_LATENCY, {(STORE,): 400.0})) == {STORE}


def test_results_that_stay_unrecorded_fire(fires: Fires) -> None:
    assert fires("AntiphonOutcomesUnrecorded", lambda m, _: m.sampled(schema.UNRECORDED, {(STORE,): 2.0})) == {STORE}


def test_interrupted_runs_fire(fires: Fires) -> None:
    assert fires("AntiphonInterruptedRuns", lambda m, _: m.sampled(schema.INTERRUPTED, {(STORE,): 1.0})) == {STORE}


def test_a_long_webhook_queue_fires(fires: Fires) -> None:
    where = frozenset({("instance", "host:8321")})
    long: Series = {("antiphon_host_webhook_queue", where): dict.fromkeys(range(60), float(QUEUE))}
    assert fires("AntiphonWebhookQueue", healthy, more=long) == {"host:8321"}, "one full queue"


def test_lost_webhook_deliveries_fire(fires: Fires) -> None:
    where = frozenset({("instance", "host:8321")})
    lost: Series = {("antiphon_host_webhook_lost_total", where): {minute: float(minute > 50) for minute in range(60)}}
    assert fires("AntiphonWebhookLost", healthy, more=lost) == {"host:8321"}

"""R11: the alert rules and the dashboard use metrics and labels that exist, and the alerts fire when they should."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from antiphon.telemetry import BuiltinMetrics
from antiphon.telemetry._metrics import DURATION, METRICS
from tests.unit.telemetry.promql import Query, Series

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((DEPLOY / "prometheus-alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
DASHBOARD_QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
MINUTE = 60.0

KNOWN: dict[str, set[str]] = {metric.full_name("antiphon"): set(metric.labels) for metric in METRICS}
KNOWN[DURATION.full_name("antiphon") + "_bucket"] = {*DURATION.labels, "le"}


def check(expression: str) -> None:
    query = Query(expression.replace("$__rate_interval", "5m").replace("$tool", ".*"))
    assert query.selectors
    labels: set[str] = set()
    for selector in query.selectors:
        assert selector.metric in KNOWN, f"{selector.metric} does not exist"
        assert set(selector.labels) <= KNOWN[selector.metric], selector
        labels |= KNOWN[selector.metric]
    for kept in query.kept:
        assert set(kept) <= labels, kept


@pytest.mark.parametrize("name", RULES)
def test_a_rule_uses_what_exists_and_says_what_to_do(name: str) -> None:
    rule = RULES[name]
    check(rule["expr"])
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"[0-9]+[smh]", rule.get("for", "0s"))
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "runbook"}


@pytest.mark.parametrize("expression", DASHBOARD_QUERIES)
def test_a_panel_uses_what_exists(expression: str) -> None:
    check(expression)


def test_the_dashboard_shows_every_metric() -> None:
    shown = " ".join(DASHBOARD_QUERIES)
    for metric in METRICS:
        assert metric.name == "tool_info" or metric.name in shown, metric.name
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


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
                series.setdefault(key, []).append((minute * MINUTE, sample.value))
    return series


def firing(name: str, series: Series, minutes: int) -> set[str]:
    """The tools for which the alert fires at the end."""
    rule = RULES[name]
    query = Query(rule["expr"])
    wait = {"s": 1, "m": 60, "h": 3600}[rule.get("for", "0s")[-1]] * int(rule.get("for", "0s")[:-1])
    end = (minutes - 1) * MINUTE
    steps = [end - n * MINUTE for n in range(int(wait // MINUTE) + 1)]
    each = [{dict(labels)["tool"] for labels in query.at(series, at)} for at in steps]
    return set.intersection(*each)


def fires(name: str, step: Step, minutes: int = 60) -> set[str]:
    return firing(name, play(step, minutes), minutes)


def healthy(metrics: BuiltinMetrics, minute: int) -> None:
    for n in range(20):
        metrics.call_ended("shop/find", "success", "session", 40.0 + n)
        metrics.call_ended("shop/buy", "success", "session", 900.0)
    metrics.hit("shop/find", "done")
    metrics.dedupe({("shop/find", "done"): 100, ("shop/buy", "inflight"): 20})
    if minute == 10:
        metrics.breaker("tool/shop/buy", "CLOSED", "OPEN")
        metrics.breaker("tool/shop/buy", "OPEN", "HALF_OPEN")
        metrics.breaker("tool/shop/buy", "HALF_OPEN", "CLOSED")


@pytest.mark.parametrize("name", RULES)
def test_nothing_fires_while_all_is_well(name: str) -> None:
    assert fires(name, healthy) == set()


def test_slow_reads_fire_and_slow_writes_do_not() -> None:
    def slow(metrics: BuiltinMetrics, minute: int) -> None:
        for n in range(20):
            metrics.call_ended("shop/find", "success", "session", 3000.0 if n < 3 else 40.0)
            metrics.call_ended("shop/buy", "success", "session", 9000.0)

    assert fires("AntiphonReadToolSlow", slow) == {"shop/find"}


def test_a_short_slow_spell_does_not_fire() -> None:
    def slow(metrics: BuiltinMetrics, minute: int) -> None:
        metrics.call_ended("shop/find", "success", "session", 9000.0 if minute == 50 else 40.0)

    assert fires("AntiphonReadToolSlow", slow) == set()


def test_fast_refusals_do_not_hide_slow_reads() -> None:
    def slow(metrics: BuiltinMetrics, minute: int) -> None:
        metrics.call_ended("shop/find", "success", "session", 9000.0)
        for _ in range(100):
            metrics.call_ended("shop/find", "circuit_open", "session", 0.1)

    assert fires("AntiphonReadToolSlow", slow) == {"shop/find"}


def test_a_breaker_that_reopens_after_each_probe_fires() -> None:
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
def test_little_reuse_where_much_is_retried_fires(hits: int, expected: set[str]) -> None:
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
def test_more_than_one_stale_claim_in_a_hundred_fires(stale: int, expected: set[str]) -> None:
    def leaking(metrics: BuiltinMetrics, minute: int) -> None:
        metrics.dedupe({("shop/buy", "inflight"): 100 - stale, ("shop/buy", "stale"): stale, ("shop/find", "done"): 5})

    assert fires("AntiphonStaleClaims", leaking) == expected


def test_a_forced_breaker_fires_after_ten_minutes() -> None:
    def forced(metrics: BuiltinMetrics, minute: int) -> None:
        if minute == 45:
            metrics.breaker("tool/shop/buy", "CLOSED", "FORCED_OPEN")

    assert fires("AntiphonBreakerOpen", forced) == {"shop/buy"}
    assert fires("AntiphonBreakerOpen", forced, minutes=50) == set()


def test_a_store_outage_fires_at_once() -> None:
    def outage(metrics: BuiltinMetrics, minute: int) -> None:
        metrics.hit("shop/find", "done")
        if minute == 58:
            metrics.hit("shop/buy", "store_outage_closed")

    assert fires("AntiphonStoreOutage", outage) == {"shop/buy"}

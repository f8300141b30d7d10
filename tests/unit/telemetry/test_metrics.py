"""R11, TR-13: the documented metrics, with bounded labels, in the built-in registry and in Prometheus' own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from antiphon import AsyncGateway, Gateway
from antiphon.redact import Redactor
from antiphon.stores import MemoryStore
from antiphon.telemetry import BuiltinMetrics, metrics
from antiphon.telemetry._metrics import METRICS, STATUSES, Labels
from antiphon.telemetry.prometheus import PrometheusListener

Made = BuiltinMetrics | PrometheusListener
DOCUMENTED = {
    "openclaw_tool_calls_total": {"tool", "status", "scope"},
    "openclaw_tool_call_duration_ms_bucket": {"tool", "status", "le"},
    "openclaw_tool_retry_attempts_total": {"tool", "reason"},
    "openclaw_tool_idempotency_hits_total": {"tool", "state"},
    "openclaw_tool_dedupe_cache_size": {"tool", "scope"},
    "openclaw_tool_dedupe_ttl_seconds": {"tool", "state"},
    "openclaw_tool_circuit_breaker_state": {"tool", "state"},
    "openclaw_tool_circuit_breaker_transitions_total": {"tool", "from_state", "to_state"},
    "openclaw_tool_dedupe_inflight": {"tool", "stale"},
}


def builtin(**options: Any) -> Made:
    return BuiltinMetrics(options.pop("prefix", "antiphon"), **options)


def prometheus(**options: Any) -> Made:
    return PrometheusListener(options.pop("prefix", "antiphon"), CollectorRegistry(), **options)


both = pytest.mark.parametrize("make", [builtin, prometheus])


def samples(made: Made) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What a scraper reads, without the creation times that only one of them gives."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(made.render())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def value(made: Made, name: str, **labels: str) -> float:
    return samples(made)[(name, frozenset(labels.items()))]


def busy(made: Made) -> None:
    made.described(
        "shop/find", scope="global", effect="read", ttl_s={"done": 86400.0, "failed": 300.0, "inflight": 120.0}
    )
    made.call_ended("shop/find", "success", "global", 2.0)
    made.call_ended("shop/find", "success", "global", 700.0)
    made.call_ended("shop/buy", "retry_exhausted", "session", 30_000.0)
    made.call_ended("shop/buy", "success", "session", 90_000.5)
    made.retried("shop/buy", "http_503")
    made.retried("shop/buy", "http_503")
    made.hit("shop/find", "done")
    made.breaker("tool/shop/buy", "CLOSED", "OPEN")
    made.breaker("tool/shop/buy", "OPEN", "HALF_OPEN")
    made.dedupe({("shop/find", "done"): 7, ("shop/buy", "inflight"): 3, ("shop/buy", "stale"): 1})


@both
def test_the_documented_names_and_labels(make: Callable[..., Made]) -> None:
    made = make(prefix="openclaw")
    busy(made)
    seen: dict[str, set[str]] = {}
    for name, labels in samples(made):
        seen.setdefault(name, set()).update(label for label, _ in labels)
    for name, expected in DOCUMENTED.items():
        assert seen[name] == expected, name


@both
def test_values(make: Callable[..., Made]) -> None:
    made = make()
    busy(made)
    assert value(made, "antiphon_tool_calls_total", tool="shop/find", status="success", scope="global") == 2
    assert value(made, "antiphon_tool_call_duration_ms_count", tool="shop/find", status="success") == 2
    assert value(made, "antiphon_tool_call_duration_ms_sum", tool="shop/find", status="success") == 702
    assert value(made, "antiphon_tool_retry_attempts_total", tool="shop/buy", reason="http_503") == 2
    assert value(made, "antiphon_tool_idempotency_hits_total", tool="shop/find", state="done") == 1
    assert value(made, "antiphon_tool_dedupe_cache_size", tool="shop/find", scope="global") == 7
    assert value(made, "antiphon_tool_dedupe_cache_size", tool="shop/buy", scope="session") == 4
    assert value(made, "antiphon_tool_dedupe_inflight", tool="shop/buy", stale="false") == 3
    assert value(made, "antiphon_tool_dedupe_inflight", tool="shop/buy", stale="true") == 1
    assert value(made, "antiphon_tool_dedupe_ttl_seconds", tool="shop/find", state="done") == 86400
    assert value(made, "antiphon_tool_info", tool="shop/find", effect="read") == 1
    assert (
        value(
            made,
            "antiphon_tool_circuit_breaker_transitions_total",
            tool="shop/buy",
            from_state="CLOSED",
            to_state="OPEN",
        )
        == 1
    )
    states = [
        value(made, "antiphon_tool_circuit_breaker_state", tool="shop/buy", state=s) for s in ("OPEN", "HALF_OPEN")
    ]
    assert states == [0, 1]


def test_both_say_the_same() -> None:
    one, other = builtin(), prometheus()
    busy(one)
    busy(other)
    assert samples(one) == samples(other)


@both
def test_buckets_are_cumulative_and_their_bounds_inclusive(make: Callable[..., Made]) -> None:
    made = make()
    for duration in (0.0, 1.0, 1.1, 60_000.0, 60_001.0):
        made.call_ended("t", "success", "session", duration)

    def bucket(bound: str) -> float:
        found = samples(made)
        return next(
            v for (n, ls), v in found.items() if n.endswith("_bucket") and float(dict(ls)["le"]) == float(bound)
        )

    assert [bucket(b) for b in ("1", "2.5", "30000", "60000", "+Inf")] == [2, 3, 3, 4, 5]


@both
def test_a_sample_of_the_store_forgets_what_is_gone(make: Callable[..., Made]) -> None:
    made = make()
    made.dedupe({("t", "inflight"): 2})
    made.dedupe({("u", "done"): 1})
    assert value(made, "antiphon_tool_dedupe_inflight", tool="t", stale="false") == 0
    assert value(made, "antiphon_tool_dedupe_cache_size", tool="t", scope="session") == 0


@both
def test_label_values_are_bounded(make: Callable[..., Made]) -> None:
    made = make(max_tools=5)
    for n in range(500):
        made.call_ended(f"tool-{n}", "success", "session", 1.0)
        made.call_ended("tool-1", f"status-{n}", f"scope-{n}", 1.0)
        made.retried("tool-1", f"reason-{n}")
        made.hit("tool-1", f"state-{n}")
    found = samples(made)
    assert len(found) < 400
    assert value(made, "antiphon_tool_calls_total", tool="other", status="success", scope="session") == 495
    assert value(made, "antiphon_tool_calls_total", tool="tool-1", status="other", scope="other") == 500
    assert len(made._quick) <= 5 * len(STATUSES)


@both
def test_a_label_never_shows_a_secret(make: Callable[..., Made]) -> None:
    made = make(clean=Redactor(salt="unit").redact_text)
    made.call_ended("mail/ada@example.org", "success", "session", 1.0)
    made.retried("t", "password=hunter2hunter2")
    assert "ada@" not in made.render()
    assert "hunter2" not in made.render()


@both
def test_odd_label_values_are_escaped(make: Callable[..., Made]) -> None:
    made = make()
    odd = 'a"b\\c\nd'
    made.call_ended(odd, "success", "session", 1.0)
    assert value(made, "antiphon_tool_calls_total", tool=odd, status="success", scope="session") == 1


@both
def test_events_count_the_same(make: Callable[..., Made]) -> None:
    made = make()
    call = {"toolName": "find", "toolNamespace": "shop", "requestId": "r"}
    made.emit("tool_call_start", call)
    made.emit("tool_call_retry", {**call, "errorCode": "http_503", "delayMs": 5})
    made.emit("tool_call_end", {**call, "status": "success", "elapsedMs": 12.5, "fromCache": True})
    made.emit("tool_call_blocked", {**call, "status": "circuit_open", "elapsedMs": 0.1})
    made.emit("tool_call_circuit_state", {"toolName": "tool/shop/find", "fromState": "CLOSED", "toState": "OPEN"})
    assert value(made, "antiphon_tool_calls_total", tool="shop/find", status="success", scope="session") == 1
    assert value(made, "antiphon_tool_calls_total", tool="shop/find", status="circuit_open", scope="session") == 1
    assert value(made, "antiphon_tool_retry_attempts_total", tool="shop/find", reason="http_503") == 1
    assert value(made, "antiphon_tool_idempotency_hits_total", tool="shop/find", state="done") == 1
    assert value(made, "antiphon_tool_circuit_breaker_state", tool="shop/find", state="OPEN") == 1


@both
def test_no_count_is_lost_between_threads(make: Callable[..., Made]) -> None:
    made = make()

    def work() -> None:
        for _ in range(3000):
            made.call_ended("t", "success", "session", 1.0)
            made.hit("t", "done")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(made, "antiphon_tool_calls_total", tool="t", status="success", scope="session") == 12_000
    assert value(made, "antiphon_tool_idempotency_hits_total", tool="t", state="done") == 12_000


def test_an_empty_registry_names_all_metrics() -> None:
    text = BuiltinMetrics().render()
    for metric in METRICS:
        assert f"# TYPE {metric.full_name('antiphon')} {metric.type}" in text


def test_two_listeners_on_one_registry_share_their_metrics() -> None:
    registry = CollectorRegistry()
    for _ in range(2):
        PrometheusListener("antiphon", registry).call_ended("t", "success", "session", 1.0)
    made = PrometheusListener("antiphon", registry)
    assert value(made, "antiphon_tool_calls_total", tool="t", status="success", scope="session") == 2


def test_listeners_on_one_registry_count_together() -> None:
    registry = CollectorRegistry()
    one, other = PrometheusListener("antiphon", registry), PrometheusListener("antiphon", registry)
    ended = [made.bound("t", "success", "session") for made in (one, other)]
    for n in range(1000):
        ended[n % 2](1.0)
        one.call_ended("t", "success", "session", 1.0)
    del one, ended
    assert value(other, "antiphon_tool_calls_total", tool="t", status="success", scope="session") == 2000


def test_whoever_reads_the_registry_reads_every_call() -> None:
    registry = CollectorRegistry()
    ended = PrometheusListener("antiphon", registry).bound("t", "success", "session")
    labels = {"tool": "t", "status": "success"}
    for n in range(1, 200):
        ended(2.0)
        calls = registry.get_sample_value("antiphon_tool_calls_total", {**labels, "scope": "session"})
        seconds = registry.get_sample_value("antiphon_tool_call_duration_ms_sum", labels)
        assert (calls, seconds) == (n, 2.0 * n)
        if n % 50 == 0:
            only = registry.restricted_registry(["antiphon_tool_call_duration_ms_count"])
            assert [s.value for family in only.collect() for s in family.samples if s.name.endswith("_count")] == [n]


def test_a_duration_that_is_none_costs_no_other_count() -> None:
    made = prometheus()
    ended = made.bound("t", "success", "session")
    for duration in (1.0, "long", 2.0):
        ended(duration)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        made.render()
    assert value(made, "antiphon_tool_calls_total", tool="t", status="success", scope="session") == 2
    assert value(made, "antiphon_tool_call_duration_ms_count", tool="t", status="success") == 2


MULTIPROCESS = """
import os
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from antiphon.telemetry.prometheus import PrometheusListener

made = PrometheusListener()
ended = made.bound("t", "success", "session")
for _ in range(10):
    ended(1.0)
    made.call_ended("t", "success", "session", 1.0)
    made.hit("t", "done")
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode(), flush=True)
os._exit(0)  # nothing is written at the end
"""


def test_in_the_multi_process_mode_a_call_is_counted_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", MULTIPROCESS], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert 'antiphon_tool_calls_total{scope="session",status="success",tool="t"} 20.0' in done.stdout
    assert 'antiphon_tool_call_duration_ms_count{status="success",tool="t"} 20.0' in done.stdout
    assert 'antiphon_tool_idempotency_hits_total{state="done",tool="t"} 10.0' in done.stdout


ELSEWHERE = """
import os
from antiphon.telemetry._metrics import STORE_UP
from antiphon.telemetry.prometheus import PrometheusListener

made = PrometheusListener()
made.described("shop/buy", scope="session", effect="write", ttl_s={"done": 60.0})
made.call_ended("shop/buy", "success", "session", 5.0)
made.breaker("tool/shop/buy", "CLOSED", "OPEN")
made.dedupe({("shop/buy", "unknown_1h"): 2})
made.sampled(STORE_UP, {("here",): 1.0})
%s
os._exit(0)
"""


def test_in_the_multi_process_mode_every_process_is_seen(tmp_path: Path) -> None:
    """A process that has ended is still counted; what only a living process can say of itself is not shown."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    shown = ""
    for end in ("", "", "print(made.render(), flush=True)"):
        command = [sys.executable, "-c", ELSEWHERE % end]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        shown = done.stdout
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(shown)
        for sample in family.samples
    }

    def one(name: str, **labels: str) -> float | None:
        return found.get((name, frozenset(labels.items())))

    assert one("antiphon_tool_calls_total", tool="shop/buy", status="success", scope="session") == 3
    assert one("antiphon_tool_unknown_outcomes", tool="shop/buy", age="1h") == 2, "what the store says is not added up"
    assert one("antiphon_tool_info", tool="shop/buy", effect="write") == 1
    assert one("antiphon_store_up", store="here") == 1
    assert one("antiphon_tool_circuit_breaker_state", tool="shop/buy", state="OPEN") == 1
    assert len(list(tmp_path.glob("gauge_livemax_*.db"))) == 1, "the others are gone with their processes"


@both
def test_unknown_outcomes_are_shown_by_tool_and_age_until_they_are_settled(make: Callable[..., Made]) -> None:
    made = make()
    made.dedupe({("shop/buy", "unknown"): 1, ("shop/buy", "unknown_1d"): 2, ("shop/find", "done"): 4})
    assert value(made, "antiphon_tool_unknown_outcomes", tool="shop/buy", age="new") == 1
    assert value(made, "antiphon_tool_unknown_outcomes", tool="shop/buy", age="1d") == 2
    assert value(made, "antiphon_tool_unknown_outcomes", tool="shop/find", age="1h") == 0
    assert value(made, "antiphon_tool_dedupe_cache_size", tool="shop/buy", scope="session") == 3
    made.dedupe({("shop/find", "done"): 4})
    assert value(made, "antiphon_tool_unknown_outcomes", tool="shop/buy", age="1d") == 0


def test_labels_stay_bounded_between_threads() -> None:
    cleaned: list[str] = []

    def clean(text: str) -> str:
        cleaned.append(text)
        time.sleep(0.0005)
        return text

    labels = Labels(10, clean)
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for n in range(20):
            labels(f"tool-{n}")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(cleaned) == sorted(f"tool-{n}" for n in range(10))


@both
def test_a_known_label_set_is_not_cleaned_again(make: Callable[..., Made]) -> None:
    cleaned: list[str] = []

    def clean(text: str) -> str:
        cleaned.append(text)
        return text

    made = make(clean=clean)
    for _ in range(3):
        made.call_ended("t", "success", "session", 1.0)
        made.hit("t", "done")
        made.retried("t", "http_503")
    assert sorted(cleaned) == ["done", "http_503", "t"]


def test_the_factory_gives_what_is_configured() -> None:
    assert isinstance(metrics(prefix="x"), BuiltinMetrics)
    assert isinstance(metrics(prefix="factory_test", prometheus=True), PrometheusListener)


def test_a_label_is_never_empty_and_never_long() -> None:
    labels = Labels(3, str)
    assert labels("") == "none"
    assert len(labels("x" * 1000)) == 128


@both
def test_a_bound_tool_counts_like_any_call(make: Callable[..., Made]) -> None:
    made, other = make(), make()
    ended = made.bound("shop/pay", "success", "session")
    for n in range(3000):
        ended(n / 7)
        other.call_ended("shop/pay", "success", "session", n / 7)
    assert samples(made) == samples(other)
    assert samples(made) == samples(other)  # what was added up once is not added again


@both
def test_threads_lose_no_bound_call(make: Callable[..., Made]) -> None:
    made = make()
    ended = made.bound("shop/pay", "success", "session")

    def work() -> None:
        for _ in range(3000):
            ended(1.0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        made.render()
    for thread in threads:
        thread.join()
    assert value(made, "antiphon_tool_calls_total", tool="shop/pay", status="success", scope="session") == 12_000


def test_a_tool_may_be_called_for_the_first_time_at_any_moment_of_a_scrape() -> None:
    metrics = BuiltinMetrics(max_tools=1_000)
    metrics.call_ended("tools/known", "success", "session", 1.0)
    calls = 0

    def call_another(frame: FrameType, _event: str, _arg: object) -> Any:
        nonlocal calls
        if frame.f_code.co_filename.endswith("builtin.py") and "_lines" in frame.f_code.co_qualname and calls < 500:
            frame.f_trace_opcodes = True
            sys.settrace(None)
            calls += 1
            metrics.call_ended(f"tools/new{calls}", "success", "session", 1.0)
            sys.settrace(call_another)
        return call_another

    before = sys.gettrace()
    sys.settrace(call_another)
    try:
        text = metrics.render()
    finally:
        sys.settrace(before)
    assert calls > 50
    assert "tools/known" in text


@pytest.mark.parametrize("kind", [Gateway, AsyncGateway])
def test_a_sample_given_to_a_gateway_as_in_the_first_release_reaches_its_listeners(
    kind: type[Gateway | AsyncGateway],
) -> None:
    listener = PrometheusListener(registry=CollectorRegistry())
    with pytest.warns(DeprecationWarning, match="sample is deprecated: metrics"):
        kind(MemoryStore(), listeners=(listener,)).sample({("shop/buy", "done"): 3})
    assert value(listener, "antiphon_tool_dedupe_cache_size", tool="shop/buy", scope="session") == 3

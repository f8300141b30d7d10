"""TR-5 … TR-11: retry and breaker, each with its non-regression column."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from tests.acceptance.tr_kit import NEVER_TRIPS, Bench, HttpError

UNAVAILABLE = HttpError(503)


def fail(bench: Bench, times: int, **changes: Any) -> list[dict[str, Any]]:
    """So many calls with one attempt each, all of different intents."""
    return [bench.execute(attempts=1, params={"to": f"f{n}"}, **changes) for n in range(times)]


# -- TR-5 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure",
    [TimeoutError("timed out"), ConnectionResetError(104, "reset"), HttpError(502)],
    ids=lambda e: type(e).__name__,
)
def test_TR_5_two_transport_failures_then_success_are_three_attempts(bench: Bench, failure: Exception) -> None:
    script = bench.tool(failure, failure, "fine", idempotent=True)
    result = bench.execute()
    assert (result["status"], result["attempts"], result["output"]) == ("success", 3, {"content": "fine"})
    assert [retried["attempt"] for retried in result["retriedBy"]] == [1, 2]
    delays = [retried["delayMs"] for retried in result["retriedBy"]]
    assert delays == [second * 1000 for second in bench.clock.slept]
    assert delays == [0.5 * 200, 0.5 * 400]  # full jitter: random(0, min(4000, 200 * 2^n)), chance is 0.5 here
    assert len(script) == 3


def test_TR_5_jitter_spreads_over_the_whole_range(bench: Bench) -> None:
    bench.tool(UNAVAILABLE, idempotent=True, breaker=NEVER_TRIPS)
    seen = []
    for chance in (0.0, 0.25, 0.999):
        bench.clock.chance = chance
        seen.append([retried["delayMs"] for retried in bench.execute(params={"to": str(chance)})["retriedBy"]])
    assert seen[0] == [0.0, 0.0, 0.0]
    assert seen[1] == [50.0, 100.0, 200.0]
    assert all(delay < ceiling for delay, ceiling in zip(seen[2], (200, 400, 800), strict=True))


def test_TR_5_non_regression_a_stable_call_takes_one_attempt(bench: Bench) -> None:
    script = bench.tool("fine", idempotent=True)
    result = bench.execute()
    assert (result["attempts"], bench.clock.slept, len(script)) == (1, [], 1)
    assert "retriedBy" not in result


# -- TR-6 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_TR_6_a_terminal_answer_is_not_retried(bench: Bench, status: int) -> None:
    script = bench.tool(HttpError(status), idempotent=True)
    result = bench.execute()
    assert (result["status"], result["attempts"]) == ("error", 1)
    assert result["error"]["code"] == f"http_{status}"
    assert (result["error"]["terminal"], result["error"]["retriable"]) == (True, False)
    assert len(script) == 1
    assert bench.clock.slept == []


def test_TR_6_non_regression_the_exception_of_a_direct_call_is_unchanged(bench: Bench) -> None:
    error = HttpError(404)

    @bench.gateway.tool(idempotent=True)
    def look() -> None:
        raise error

    with pytest.raises(HttpError) as caught:
        look()
    assert caught.value is error
    assert caught.value.response.status_code == 404


# -- TR-7 ---------------------------------------------------------------------------------------------------------


def test_TR_7_an_exhausted_budget_ends_with_retry_exhausted(bench: Bench) -> None:
    script = bench.tool(UNAVAILABLE, idempotent=True)
    result = bench.execute()
    assert (result["status"], result["attempts"]) == ("retry_exhausted", 4)
    assert result["error"]["code"] == "http_503"
    assert len(script) == 4
    fail(bench, 1)
    assert bench.breaker_state() == "OPEN", "the breaker saw the four failures"


def test_TR_7_the_deadline_of_the_budget_counts_too(bench: Bench) -> None:
    bench.clock.chance = 1.0
    bench.tool(UNAVAILABLE, idempotent=True, breaker=NEVER_TRIPS)
    result = bench.execute(elapsed_ms=700)
    assert (result["status"], result["attempts"]) == ("retry_exhausted", 3)


def test_TR_7_non_regression_no_unbounded_delay(bench: Bench) -> None:
    bench.clock.chance = 1.0
    script = bench.tool(UNAVAILABLE, idempotent=True, breaker=NEVER_TRIPS)
    began = time.monotonic()
    result = bench.execute(attempts=1_000)
    assert time.monotonic() - began < 10
    assert result["attempts"] <= 4, "the tool's own ceiling holds"
    assert sum(bench.clock.slept) <= 0.2 + 0.4 + 0.8
    assert len(script) == 4


# -- TR-8 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", [None, "write"])
def test_TR_8_five_failures_open_the_breaker(bench: Bench, effect: Any) -> None:
    script = bench.tool(UNAVAILABLE, idempotent=True, effect=effect)
    results = fail(bench, 5)
    assert [result["status"] for result in results] == ["retriable_error"] * 5
    assert bench.breaker_state() == "OPEN"
    bench.execute(params={"to": "warm"})
    best = 1e9
    for number in range(200):  # the best: others have work for the machine, too
        began = time.perf_counter()
        refused = bench.execute(params={"to": f"x{number}"})
        best = min(best, time.perf_counter() - began)
        assert (refused["status"], refused["error"]["code"]) == ("circuit_open", "circuit_open")
        assert (refused["attempts"], refused["error"]["breakerState"]) == (0, "OPEN")
        if number >= 20 and best <= 0.010:
            break
    assert best <= 0.010, f"an open breaker answers within 10 ms, this took {best * 1000:.1f}"
    assert len(script) == 5


def test_TR_8_a_rate_of_failures_opens_it_too(bench: Bench) -> None:
    bench.tool(*(step for _ in range(10) for step in ("fine", UNAVAILABLE)), idempotent=True)
    fail(bench, 10)
    assert bench.breaker_state() == "OPEN"  # 5 of 10, never two in a row


def test_TR_8_non_regression_a_healthy_tool_stays_blocked_while_open(bench: Bench) -> None:
    script = bench.tool(*[UNAVAILABLE] * 5, "healthy again", idempotent=True)
    fail(bench, 5)
    bench.clock.advance(29.9)
    assert bench.execute(params={"to": "x"})["status"] == "circuit_open"
    assert len(script) == 5


def test_TR_8_calls_that_were_refused_leave_no_record(bench: Bench) -> None:
    bench.tool(UNAVAILABLE, idempotent=True)
    fail(bench, 5)
    before = len(bench.records())
    bench.execute(params={"to": "refused"})
    assert len(bench.records()) == before


# -- TR-9 ---------------------------------------------------------------------------------------------------------


def test_TR_9_two_good_probes_after_the_cool_down_close_it(bench: Bench) -> None:
    bench.tool(*[UNAVAILABLE] * 5, "fine", idempotent=True)
    fail(bench, 5)
    bench.clock.advance(30.1)
    assert bench.execute(params={"to": "p1"})["status"] == "success"
    assert bench.breaker_state() == "HALF_OPEN"
    assert bench.execute(params={"to": "p2"})["status"] == "success"
    assert bench.breaker_state() == "CLOSED"


def test_TR_9_non_regression_calls_recover_afterwards(bench: Bench) -> None:
    script = bench.tool(*[UNAVAILABLE] * 5, "fine", idempotent=True)
    fail(bench, 5)
    bench.clock.advance(30.1)
    results = [bench.execute(params={"to": f"p{n}"}) for n in range(10)]
    assert {(result["status"], result["attempts"]) for result in results} == {("success", 1)}
    assert len(script) == 15
    assert bench.clock.slept == []


# -- TR-10 --------------------------------------------------------------------------------------------------------


def test_TR_10_a_failing_probe_opens_it_again_and_restarts_the_cool_down(bench: Bench) -> None:
    script = bench.tool(*[UNAVAILABLE] * 6, "fine", idempotent=True)
    fail(bench, 5)
    bench.clock.advance(30.1)
    probe = bench.execute(params={"to": "probe"})
    assert (probe["status"], probe["error"]["breakerState"]) == ("retriable_error", "OPEN")
    assert bench.breaker_state() == "OPEN"
    bench.clock.advance(29)
    assert bench.execute(params={"to": "early"})["status"] == "circuit_open"
    bench.clock.advance(1.2)
    assert bench.execute(params={"to": "again"})["status"] == "success"
    assert len(script) == 7


def test_TR_10_one_good_probe_does_not_outweigh_a_bad_one(bench: Bench) -> None:
    bench.tool(*[UNAVAILABLE] * 5, "fine", UNAVAILABLE, "fine", idempotent=True)
    fail(bench, 5)
    bench.clock.advance(30.1)
    bench.execute(params={"to": "p1"})
    bench.execute(params={"to": "p2"})
    assert bench.breaker_state() == "OPEN"


def test_TR_10_non_regression_other_tools_and_kept_results_are_unaffected(bench: Bench) -> None:
    bench.tool("other is fine", name="other")
    bench.tool("kept", *[UNAVAILABLE] * 6, idempotent=True)
    bench.execute(params={"to": "kept"}, call_id="c1")
    fail(bench, 5)
    bench.clock.advance(30.1)
    bench.execute(params={"to": "probe"})
    assert bench.execute(tool="other")["status"] == "success"
    assert bench.execute(params={"to": "kept"}, call_id="c1")["output"] == {"content": "kept"}


# -- TR-11 --------------------------------------------------------------------------------------------------------


def test_TR_11_no_retry_once_the_breaker_is_open(bench: Bench) -> None:
    script = bench.tool(UNAVAILABLE, idempotent=True)
    fail(bench, 4)
    result = bench.execute(params={"to": "fifth"})  # its own first attempt opens the breaker
    assert (result["status"], result["attempts"]) == ("retriable_error", 1)
    assert (result["error"]["code"], result["error"]["breakerState"]) == ("http_503", "OPEN")
    assert len(script) == 5
    assert bench.clock.slept == []


def test_TR_11_retries_happen_while_it_is_closed(bench: Bench) -> None:
    script = bench.tool(UNAVAILABLE, "fine", idempotent=True)
    assert bench.execute()["attempts"] == 2
    assert len(script) == 2


def test_TR_11_retries_happen_while_it_is_half_open(bench: Bench) -> None:
    no_connection = httpx.PoolTimeout("all connections are in use")  # says nothing about the dependency: no vote
    script = bench.tool(*[UNAVAILABLE] * 5, no_connection, "fine", idempotent=True)
    fail(bench, 5)
    bench.clock.advance(30.1)
    probe = bench.execute(params={"to": "probe"})
    assert (probe["status"], probe["attempts"]) == ("success", 2)
    assert bench.breaker_state() == "HALF_OPEN"
    assert len(script) == 7


def test_TR_11_non_regression_no_retry_storm_in_a_full_outage(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    script = bench.tool(UNAVAILABLE, idempotent=True)
    calls = 200
    for number in range(calls):
        bench.execute(params={"to": str(number)})
        bench.clock.advance(0.05)
    ratio = len(script) / calls
    with capsys.disabled():
        print(f"\nattempts per call in a total outage (20 calls/s, defaults): {ratio:.3f}")
    assert ratio <= 1.1

"""When an attempt began and ended, how long a call took, and what became of it: in the record, the answer, the events,
the metrics and the run log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import UNSET

from antiphon import Antiphon
from antiphon._gateway.outcome import UNKNOWN_HINT
from antiphon.contract.spec import RetryPolicy
from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import START_MS, Rig, Tally


def takes(rig: Rig, seconds: float, then: Any = "done") -> Any:
    """A step of a script that takes its time, and then returns or raises."""

    def step(**_: Any) -> Any:
        rig.clock.advance(seconds)
        if isinstance(then, BaseException):
            raise then
        return then

    return step


def only(rig: Rig) -> Any:
    (record,) = rig.records()
    return record


def attempts(rig: Rig) -> list[tuple[int, int, str, bool]]:
    """Of the only record: from when to when, after the start of the test; the code; whether it may be tried again."""
    record = only(rig)
    assert record.execution.attempt_count == len(record.execution.attempts)
    return [
        (one.started_at_ms - START_MS, one.finished_at_ms - START_MS, one.error_code or "", one.retriable)
        for one in record.execution.attempts
    ]


class Durations(Tally):
    """Metrics that remember how long calls took."""

    def __init__(self) -> None:
        super().__init__()
        self.took: list[tuple[str, float]] = []

    def call_ended(self, tool: str, status: str, scope: str, duration_ms: float) -> None:
        super().call_ended(tool, status, scope, duration_ms)
        self.took.append((status, round(duration_ms)))


def measured() -> tuple[Rig, Durations]:
    rig = Rig()
    durations = Durations()
    rig.gateway._plans.reporter.metrics = durations
    rig.gateway._plans.changed()
    return rig, durations


def test_a_plain_call() -> None:
    rig = Rig()
    rig.tool(takes(rig, 2.5))
    rig.clock.advance(1.0)
    result = rig.execute(call_id="c1")
    assert attempts(rig) == [(1_000, 3_500, "", False)]
    assert result.duration_ms == pytest.approx(2_500)
    (end,) = rig.ears.of("tool_call_end")
    assert (end["elapsedMs"], end["attempt"], end["state"], end["fromCache"]) == (
        pytest.approx(2_500),
        1,
        "success",
        False,
    )


def test_a_decorated_call_without_identity() -> None:
    rig = Rig()

    def send(to: str) -> str:
        rig.clock.advance(2.5)
        return to

    assert rig.gateway.tool(idempotent=True)(send)("ada") == "ada"
    assert attempts(rig) == [(0, 2_500, "", False)]
    (end,) = rig.ears.of("tool_call_end")
    assert end["elapsedMs"] == pytest.approx(2_500)


def test_a_call_that_is_tried_again() -> None:
    rig = Rig()
    refused = ConnectionRefusedError(111, "refused")
    rig.tool(takes(rig, 5.0, refused), takes(rig, 1.25), idempotent=True)
    result = rig.execute(call_id="c1")
    assert attempts(rig) == [(0, 5_000, "ECONNREFUSED", True), (5_100, 6_350, "", False)]
    assert result.duration_ms == pytest.approx(6_350)
    assert (only(rig).output_redacted, only(rig).dispatched) == (UNSET, True)
    (retried,) = result.retried_by
    told = (retried.attempt, retried.delay_ms, retried.reason_code, retried.latency_ms)
    assert told == (1, pytest.approx(100), "ECONNREFUSED", pytest.approx(5_000))
    (event,) = rig.ears.of("tool_call_retry")
    assert (event["attempt"], event["errorCode"], event["delayMs"]) == (1, "ECONNREFUSED", pytest.approx(100))
    assert rig.tally.counts["retries", "tools/send", "ECONNREFUSED"] == 1
    (end,) = rig.ears.of("tool_call_end")
    assert (end["elapsedMs"], end["attempt"]) == (pytest.approx(6_350), 2)


def test_a_call_that_fails() -> None:
    rig = Rig()
    rig.tool(takes(rig, 5.0, ValueError("no")), idempotent=True)
    result = rig.execute(call_id="c1")
    assert result.duration_ms == pytest.approx(5_000)
    assert attempts(rig) == [(0, 5_000, result.code, False)]
    assert only(rig).error.terminal is True
    assert "Arguments" not in only(rig).error.message


def test_an_unknown_outcome() -> None:
    rig = Rig()
    rig.tool(takes(rig, 5.0, TimeoutError("no answer")))
    result = rig.execute(call_id="c1")
    assert result.code == "outcome_unknown"
    record = only(rig)
    assert (record.error.code, record.error.terminal) == ("outcome_unknown", True)
    assert [attempt[:2] for attempt in attempts(rig)] == [(0, 5_000)]
    assert record.error.message.endswith(' Arguments: {"to":"ada"}'), "for the person who settles it"
    assert record.expires_at_ms - START_MS > 90 * 365 * 86_400_000, "until somebody settles it"


def test_an_unknown_outcome_lives_as_long_as_the_tool_says() -> None:
    rig = Rig()
    rig.tool(takes(rig, 5.0, TimeoutError("no answer")), unknown_ttl=7.0)
    rig.execute(call_id="c1")
    assert only(rig).expires_at_ms - START_MS == 12_000


def test_a_call_whose_caller_was_interrupted() -> None:
    rig = Rig()
    rig.tool(takes(rig, 5.0, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        rig.execute(call_id="c1")
    record = only(rig)
    assert (record.state, record.error.code, record.error.terminal) == ("failed", "outcome_unknown", True)
    assert "the caller was interrupted (KeyboardInterrupt)" in record.error.message
    assert UNKNOWN_HINT in record.error.message
    assert attempts(rig) == [(0, 5_000, "cancelled", False)]


def test_a_call_of_an_idempotent_tool_whose_caller_was_interrupted_may_run_again() -> None:
    rig = Rig()
    rig.tool(takes(rig, 5.0, KeyboardInterrupt()), "second", idempotent=True)
    with pytest.raises(KeyboardInterrupt):
        rig.execute(call_id="c1")
    assert only(rig).state == "cancelled"
    assert attempts(rig) == [(0, 5_000, "cancelled", False)]
    assert rig.execute(call_id="c1").content == "second"


def test_metrics_hear_how_long_calls_took() -> None:
    rig, durations = measured()
    refused = ConnectionRefusedError(111, "refused")
    rig.tool(
        takes(rig, 2.5),
        takes(rig, 5.0, ValueError("no")),
        takes(rig, 0.75, refused),
        idempotent=True,
        reuse="session",
    )
    rig.execute(call_id="c1")
    rig.execute(call_id="c1")
    rig.execute(call_id="c2")
    rig.execute(call_id="c3", params={"to": "bob"})
    rig.execute(call_id="c4", params={"to": "eve"}, attempts=1)
    assert durations.took == [
        ("success", 2_500),
        ("success", 0),
        ("success", 0),
        ("error", 5_000),
        ("retriable_error", 750),
    ]
    hits = {labels[2]: count for labels, count in durations.counts.items() if labels[0] == "hits"}
    assert sum(hits.values()) == 2


# -- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_that_is_read_to_its_end() -> None:
    rig = Rig()

    @rig.gateway.tool("read", idempotent=True)
    def chunks() -> Iterator[str]:
        for word in ("a", "b"):
            rig.clock.advance(2.5)
            yield word

    assert list(chunks()) == ["a", "b"]
    assert attempts(rig) == [(0, 5_000, "", False)]
    (end,) = rig.ears.of("tool_call_end")
    assert end["elapsedMs"] == pytest.approx(5_000)


@pytest.mark.parametrize(
    ("error", "idempotent", "status", "code", "retriable"),
    [
        (ValueError("no"), True, "error", None, False),
        (ConnectionResetError(104, "reset"), True, "retriable_error", "ECONNRESET", True),
        (TimeoutError("slow"), True, "timeout", None, None),
        (ConnectionResetError(104, "reset"), False, "error", "outcome_unknown", None),
    ],
)
def test_a_stream_that_fails(
    error: Exception, idempotent: bool, status: str, code: str | None, retriable: bool | None
) -> None:
    rig = Rig()

    @rig.gateway.tool("read", idempotent=idempotent)
    def chunks() -> Iterator[str]:
        rig.clock.advance(2.5)
        yield "a"
        rig.clock.advance(2.5)
        raise error

    with pytest.raises(Exception):  # noqa: B017 - the tool's own, or one that says it is unknown
        list(chunks())
    (start, end, said, again) = attempts(rig)[0]
    assert (start, end) == (0, 5_000)
    assert said
    if retriable is not None:
        assert again is retriable
    (event,) = rig.ears.of("tool_call_end")
    assert event["status"] == status
    if code is not None:
        assert code in (said, only(rig).error.code)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_stream_whose_reader_goes_away(idempotent: bool) -> None:
    rig = Rig()

    @rig.gateway.tool("read", idempotent=idempotent)
    def chunks() -> Iterator[str]:
        for word in ("a", "b", "c"):
            rig.clock.advance(2.5)
            yield word

    stream = chunks()
    assert next(stream) == "a"
    stream.close()  # type: ignore[attr-defined]
    assert attempts(rig) == [(0, 2_500, "cancelled", False)]
    assert only(rig).state == ("cancelled" if idempotent else "failed")


# -- the log of a run -------------------------------------------------------------------------------------------------


def recorded(app: Antiphon, call: Any) -> list[Any]:
    with app.run("recorded") as run:
        call()
    return list(run.events())


def test_the_log_of_a_run_says_when_and_why() -> None:
    app = Antiphon(store=MemoryStore())
    made: list[str] = []

    def send(to: str) -> str:
        made.append(to)
        if len(made) == 1:
            raise ConnectionRefusedError(111, "refused")
        return "sent"

    tool = app.gateway.tool("send", idempotent=True, retry=RetryPolicy(base_ms=1))(send)
    began = time.time() * 1000
    events = recorded(app, lambda: tool("ada"))
    ended = time.time() * 1000
    (decision,) = (event for event in events if event.type == "decision")
    assert decision.payload == {"what": "retry", "detail": {"attempt": 1, "code": "ECONNREFUSED"}}
    assert decision.meta["delayMs"] >= 0
    (end,) = (event for event in events if event.type == "call.finished")
    assert 0 < end.meta["durationMs"] <= ended - began + 1
    assert (end.meta["status"], end.meta["attempts"]) == ("success", 2)
    first, second = end.meta["tries"]
    assert began - 1 <= first["startedAtMs"] <= first["finishedAtMs"] <= second["startedAtMs"]
    assert second["startedAtMs"] <= second["finishedAtMs"] <= ended + 1
    assert (first["status"], first["retriable"], first["errorCode"]) == ("error", True, "ECONNREFUSED")
    assert (second["status"], second["retriable"]) == ("success", False)


def test_the_log_of_a_run_says_what_the_loop_guard_refused() -> None:
    app = Antiphon({"loop": {"max_calls": 1}}, store=MemoryStore())
    tool = app.gateway.tool("send", idempotent=False)(lambda to: "sent")

    def calls() -> None:
        tool("ada")
        with pytest.raises(Exception, match="call"):
            tool("bob")

    events = recorded(app, calls)
    (decision,) = (event for event in events if event.type == "decision")
    assert decision.payload["what"] == "loop"
    assert decision.payload["detail"] == {"action": "end", "reason": "calls"}


def test_the_guard_of_a_run_is_the_runs_own() -> None:
    app = Antiphon({"loop": {"max_calls": 1}}, store=MemoryStore())
    tool = app.gateway.tool("send", idempotent=False)(lambda to: "sent")
    for name in ("one", "two"):
        with app.run(name):
            assert tool(name) == "sent"


def test_the_log_of_a_run_says_how_long_a_failed_call_took() -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=MemoryStore())

    def send(to: str) -> str:
        raise ValueError("no")

    tool = app.gateway.tool("send", idempotent=True)(send)
    began = time.monotonic()
    with app.run("failed") as run, pytest.raises(ValueError, match="no"):
        tool("ada")
    took_ms = (time.monotonic() - began) * 1000
    (end,) = (event for event in run.events() if event.type == "call.finished")
    assert 0 < end.meta["durationMs"] <= took_ms

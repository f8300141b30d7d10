"""Between two attempts: what ends a call, and what its answer says then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon import Antiphon
from antiphon._gateway.settings import Settings
from antiphon.contract.spec import RetryPolicy
from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import Hold, Rig
from tests.unit.gateway.test_outage import faulty_rig

REFUSED = ConnectionRefusedError(111, "refused")
SLOW = RetryPolicy(max_attempts=1)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_claim_that_cannot_be_made_sure_of(idempotent: bool) -> None:
    """A call that may be repeated is; any other ends with what its last attempt came to."""
    rig, store = faulty_rig()
    script = rig.tool(REFUSED, "second", idempotent=idempotent)
    store.fail("renew")
    result = rig.execute(call_id="c1")
    assert len(script) == (2 if idempotent else 1)
    if idempotent:
        assert (result.content, result.attempts) == ("second", 2)
    else:
        assert (result.status, result.code, result.attempts) == ("retriable_error", "ECONNREFUSED", 1)
        assert result.error.retriable is True


def test_a_deadline_that_passes_in_the_pause() -> None:
    rig = Rig()
    script = rig.tool(REFUSED, "second", idempotent=True)
    real = rig.clock.sleep

    def overslept(seconds: float) -> None:
        real(seconds + 60.0)

    rig.clock.sleep = overslept  # type: ignore[method-assign]
    result = rig.execute(call_id="c1", deadline_at_ms=rig.clock.now_ms() + 30_000)
    assert len(script) == 1
    assert (result.status, result.code) == ("retry_exhausted", "ECONNREFUSED")


def test_a_deadline_that_passes_at_the_very_moment() -> None:
    rig = Rig()
    script = rig.tool(REFUSED, "second", idempotent=True)
    rig.clock.sleep = lambda seconds: rig.clock.advance(30.0)  # type: ignore[method-assign]
    result = rig.execute(call_id="c1", deadline_at_ms=rig.clock.now_ms() + 30_000)
    assert len(script) == 1
    assert result.code == "ECONNREFUSED"


def test_a_gateway_that_is_switched_off_in_the_pause() -> None:
    rig = Rig()
    script = rig.tool(REFUSED, "second", idempotent=True)
    rig.clock.sleep = lambda seconds: rig.gateway._plans.configure(Settings(enabled=False))  # type: ignore[method-assign]
    result = rig.execute(call_id="c1")
    assert len(script) == 1
    assert (result.status, result.code) == ("retriable_error", "ECONNREFUSED")


def test_a_hook_that_refuses_the_second_attempt() -> None:
    rig = Rig()
    told: list[tuple[int, str]] = []

    @rig.gateway.before
    def refuse(call: Any) -> None:
        if call.attempt == 2:
            raise PermissionError("not twice")

    @rig.gateway.after
    def note(call: Any, result: Any) -> None:
        told.append((call.attempt, str(result.status)))

    script = rig.tool(REFUSED, "second", idempotent=True)
    result = rig.execute(call_id="c1")
    assert len(script) == 1
    assert result.code == "ECONNREFUSED"
    assert told == [(1, "retriable_error"), (2, "retriable_error")], "the hooks of the refused attempt hear the answer"


def abandon_a_thread(rig: Rig) -> tuple[Hold, list[str]]:
    """Time out the first call of a tool: what holds its thread, and the calls that were made."""
    hold = Hold()
    made: list[str] = []

    def send(to: str) -> str:
        made.append(to)
        if len(made) == 1:
            hold.wait_here()
        return "sent"

    rig.gateway.tool("send", idempotent=False, timeout=0.01, retry=SLOW)(send)
    assert rig.execute(call_id="c1").code == "outcome_unknown"
    return hold, made


def test_an_attempt_for_which_there_is_no_thread_was_not_made() -> None:
    rig = Rig(abandoned_threads=1)
    hold, made = abandon_a_thread(rig)
    refused = rig.execute(call_id="c2", params={"to": "bob"})
    assert refused.status == "retriable_error"
    assert (refused.attempts, refused.error.retriable) == (0, True)
    states = {record.request.identity: (record.state, record.dispatched) for record in rig.records()}
    assert states["c2"] == ("cancelled", False)
    assert made == ["ada"]
    hold.go.set()


@pytest.mark.parametrize(("how", "chunks"), [("read", 2), ("fails", 2), ("left", 1)])
def test_an_answer_in_chunks_says_how_many(how: str, chunks: int) -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=MemoryStore())

    @app.gateway.tool("read", idempotent=True)
    def words() -> Iterator[str]:
        yield "a"
        yield "b"
        if how == "fails":
            raise ValueError("no")

    with app.run("stream") as run, contextlib.suppress(ValueError):
        stream = words()
        next(stream)
        if how == "left":
            stream.close()  # type: ignore[attr-defined]
        else:
            list(stream)
    (end,) = (event for event in run.events() if event.type == "call.finished")
    assert end.meta["metadata"] == {"chunks": chunks}


def test_a_deadline_that_passes_while_the_claim_is_asked_for() -> None:
    rig = Rig()
    script = rig.tool("sent")
    world = rig.gateway._runtime
    real = world.journal.begin

    def slow(*arguments: Any) -> Any:
        rig.clock.advance(60.0)
        return real(*arguments)

    world.begin = slow
    result = rig.execute(call_id="c1", deadline_at_ms=rig.clock.now_ms() + 30_000)
    assert (len(script), result.attempts) == (0, 0)
    assert result.status != "success"
    assert rig.records()[0].state == "cancelled"


def test_an_attempt_that_may_have_had_its_effect_leaves_it_open() -> None:
    rig = Rig()
    script = rig.tool(TimeoutError("no answer"), "second")
    rig.clock.sleep = lambda seconds: rig.clock.advance(60.0)  # type: ignore[method-assign]
    hints = {"expectedRetrySafe": True}
    result = rig.execute(call_id="c1", hints=hints, deadline_at_ms=rig.clock.now_ms() + 30_000)
    assert len(script) == 1
    assert (result.status, result.code) == ("error", "outcome_unknown")


def test_a_stream_that_is_left_early_gives_its_probe_back() -> None:
    """A breaker that is half open lets one call through at a time; one that says nothing is not counted."""
    rig = Rig()
    fails = [True]

    @rig.gateway.tool("read", idempotent=True, retry=SLOW)
    def words() -> Iterator[str]:
        if fails:
            raise ConnectionResetError(104, "reset")
        yield "a"
        yield "b"

    for _ in range(40):
        with contextlib.suppress(Exception):
            list(words())
    breaker = rig.breaker("read")
    assert breaker.state == "OPEN"
    fails.clear()
    rig.clock.advance(600.0)
    stream = words()
    assert next(stream) == "a"
    assert breaker.state == "HALF_OPEN"
    stream.close()  # type: ignore[attr-defined]
    assert breaker.state == "HALF_OPEN"
    assert list(words()) == ["a", "b"]


@pytest.mark.parametrize(("left_ms", "attempts"), [(99, 1), (110, 2)])
def test_the_last_moment_of_a_budget(left_ms: int, attempts: int) -> None:
    """The pause before the next attempt is 100 ms: it has to end before the budget or the deadline does."""
    rig = Rig()

    def slow(**_: Any) -> Any:
        rig.clock.advance(20.0)
        raise REFUSED

    for name in ("by_budget", "by_deadline"):
        rig.tool(slow, "second", name=name, idempotent=True)
    assert rig.execute(tool="by_budget", call_id="c1", elapsed_ms=20_000 + left_ms).attempts == attempts
    deadline = rig.clock.now_ms() + 20_000 + left_ms
    assert rig.execute(tool="by_deadline", call_id="c2", deadline_at_ms=deadline).attempts == attempts


def test_a_deadline_just_before_the_next_attempt() -> None:
    rig = Rig()

    def slow(**_: Any) -> Any:
        rig.clock.advance(20.000_05)
        raise REFUSED

    rig.tool(slow, "second", idempotent=True)
    assert rig.execute(call_id="c1", deadline_at_ms=rig.clock.now_ms() + 20_100).attempts == 1
    assert rig.clock.slept == [], "nor does it wait for what cannot be made"

"""A breaker that is half open lets one probe through: an attempt that says nothing about its tool gives it back."""

from __future__ import annotations

from typing import Any

from antiphon.contract.spec import BreakerPolicy, RetryPolicy
from tests.unit.gateway.kit import Hold, HttpError, Rig
from tests.unit.gateway.test_attempts import abandon_a_thread

REFUSED = ConnectionRefusedError(111, "refused")
ONE_ATTEMPT = RetryPolicy(max_attempts=1)


def half_open(rig: Rig, name: str = "send") -> Any:
    """The breaker of a tool, which has cooled down."""
    breaker = rig.breaker(name)
    breaker.adopt("OPEN", breaker.epoch + 1, 1_000, "by another process", rig.clock.seconds)
    rig.clock.advance(2.0)
    return breaker


def test_a_call_that_another_breaker_refuses() -> None:
    """It opened while the claim was asked for."""
    rig = Rig()
    script = rig.tool("sent", dependency="mail")
    rig.execute(call_id="c0", hint="dependency", params={"to": "first"})
    breaker = half_open(rig)
    wider = rig.gateway._plans.breakers.get("dependency/mail")
    world = rig.gateway._runtime
    real = world.journal.begin

    def slow(*arguments: Any) -> Any:
        wider.force_open(rig.clock.seconds, "by an operator")
        return real(*arguments)

    world.begin = slow
    assert rig.execute(call_id="c1").code == "circuit_open"
    assert (breaker.state, breaker.peek(rig.clock.seconds)) == ("HALF_OPEN", None)
    world.begin = real
    wider.reset(rig.clock.seconds)
    assert rig.execute(call_id="c2").content == "sent"
    assert len(script) == 2


def test_a_call_whose_next_attempt_a_hook_refuses() -> None:
    rig = Rig()
    breaker = None

    @rig.gateway.before
    def refuse(call: Any) -> None:
        if call.attempt == 2:
            raise PermissionError("not twice")

    def slept(seconds: float) -> None:
        nonlocal breaker
        breaker = half_open(rig)

    script = rig.tool(REFUSED, "second", idempotent=True)
    rig.clock.sleep = slept  # type: ignore[method-assign]
    assert rig.execute(call_id="c1").code == "ECONNREFUSED"
    assert breaker is not None
    assert (breaker.state, breaker.peek(rig.clock.seconds)) == ("HALF_OPEN", None)
    assert len(script) == 1


def test_a_call_for_which_there_is_no_thread() -> None:
    rig = Rig(abandoned_threads=1)
    hold, made = abandon_a_thread(rig)
    breaker = half_open(rig)
    assert rig.execute(call_id="c2", params={"to": "bob"}).status == "retriable_error"
    assert (breaker.state, breaker.peek(rig.clock.seconds)) == ("HALF_OPEN", None)
    assert made == ["ada"]
    hold.go.set()


def test_the_next_attempt_of_a_call_for_which_there_is_no_thread() -> None:
    """Its first attempt is the answer, and the hooks hear of both."""
    rig = Rig(abandoned_threads=1)
    hold = Hold()
    told: list[tuple[int, str]] = []
    made: list[str] = []

    @rig.gateway.after
    def note(call: Any, result: Any) -> None:
        told.append((call.attempt, str(result.status)))

    def send(to: str) -> str:
        made.append(to)
        hold.wait_here()
        return "sent"

    rig.gateway.tool("send", idempotent=True, timeout=0.01)(send)
    result = rig.execute(call_id="c1")
    assert (result.status, result.attempts) == ("retriable_error", 1)
    assert told == [(1, "retriable_error"), (2, "retriable_error")]
    assert made == ["ada"]
    record: Any = rig.records()[0]
    assert record.execution.attempt_count == 1
    hold.go.set()


def test_a_probe_that_fails_opens_it_again() -> None:
    rig = Rig()
    rig.tool(HttpError(503), idempotent=True, retry=ONE_ATTEMPT, breaker=BreakerPolicy(cooldown_ms=5_000))
    breaker = half_open(rig)
    rig.execute(call_id="c1")
    assert breaker.state == "OPEN"

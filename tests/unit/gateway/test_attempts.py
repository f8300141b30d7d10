"""Between two attempts: what ends a call, and what its answer says then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from antiphon._gateway.settings import Settings
from antiphon.contract.spec import RetryPolicy
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
    assert told[0] == (1, "retriable_error")
    assert told[-1][0] == 2


def test_an_attempt_for_which_there_is_no_thread_was_not_made() -> None:
    rig = Rig(abandoned_threads=1)
    hold = Hold()
    made: list[str] = []

    def send(to: str) -> str:
        made.append(to)
        if len(made) == 1:
            hold.wait_here()
        return "sent"

    rig.gateway.tool("send", idempotent=False, timeout=0.01, retry=SLOW)(send)
    assert rig.execute(call_id="c1").code == "outcome_unknown"
    refused = rig.execute(call_id="c2", params={"to": "bob"})
    assert refused.status == "retriable_error"
    assert (refused.attempts, refused.error.retriable) == (0, True)
    states = {record.request.identity: (record.state, record.dispatched) for record in rig.records()}
    assert states["c2"] == ("cancelled", False)
    assert made == ["ada"]
    hold.go.set()


@pytest.mark.parametrize("fails", [False, True])
def test_an_answer_in_chunks_says_how_many(fails: bool) -> None:
    rig = Rig()

    @rig.gateway.tool("read", idempotent=True)
    def chunks() -> Iterator[str]:
        yield "a"
        yield "b"
        if fails:
            raise ValueError("no")

    stream = chunks()
    if fails:
        with pytest.raises(ValueError, match="no"):
            list(stream)
    else:
        assert list(stream) == ["a", "b"]
    result = rig.execute(tool="read", params={}, call_id="c1")
    if not fails:
        assert list(result.content) == ["a", "b"]

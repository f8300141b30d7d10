"""The rules of settlement as a table: what is written for which call, over which record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from antiphon._gateway import settlement as rules
from antiphon._gateway.call import GuardedCall, new_call
from antiphon._gateway.steps import DONE, SETTLE, Forgotten, Read, Reclaim, SettleVersion
from antiphon.contract.record import DedupeRecord, RecordedError
from antiphon.contract.spec import Ttls
from antiphon.decide.claim import UNKNOWN_CODE
from antiphon.ports import Claimed, Existing, Settlement
from tests.unit.gateway.kit import START_MS, Rig, request_of

UNKNOWN = Settlement("failed", 1, error=(UNKNOWN_CODE, "", True, False))
DONE_WITH = Settlement("done", 1, b"1")
FAILED = Settlement("failed", 1, error=("no", "", True, False))
BARE = Settlement("failed", 1)


def call_of(rig: Rig, **spec: Any) -> GuardedCall:
    """A call that holds a claim, whose tool is about to be called for the first time."""
    rig.tool("sent", **spec)
    call = new_call(rig.gateway._plans.plan(rig.gateway._plans.tools["send"]), {})
    call.key = call.idempotency_key = "k"
    call.version, call.number, call.started = 7, 1, rig.clock.monotonic()
    rig.execute(call_id="c0")
    call.template = request_of(rig, identity="c0", owner="this process").template
    return call


def record_of(rig: Rig, call: GuardedCall, **changes: Any) -> DedupeRecord:
    """The record of a call, as a store has it."""
    found = rig.records()[0]
    plain = {"version": 7, "fence": 7, "state": "inflight", "owner": f"{call.token}/{call.template.owner}"}
    return msgspec.structs.replace(found, **{**plain, **changes})


def _error(code: str) -> RecordedError:
    return RecordedError(code=code, message="", terminal=True, should_retriable=False)


def existing(record: DedupeRecord, own: DedupeRecord | None = None) -> Existing:
    return Existing(record, own, START_MS)


# -- a record that could not be settled -----------------------------------------------------------------------------


def test_there_is_no_record() -> None:
    call = call_of(Rig())
    call.settlement = DONE_WITH
    step = rules.reread(call, None)
    assert isinstance(step, Forgotten)
    assert step.version == 7
    again: Any = step.then(call, False)
    assert isinstance(again, Reclaim)
    assert (again.version, again.events) == (0, ())
    call.off_path().left = True
    assert step.then(call, True) is DONE, "somebody wanted it gone"


@pytest.mark.parametrize(("version", "with_events"), [(7, True), (8, False)])
def test_it_is_still_in_flight(version: int, with_events: bool) -> None:
    rig = Rig()
    call = call_of(rig)
    call.settlement, call.events = DONE_WITH, (b"row",)  # type: ignore[assignment]
    step = rules.reread(call, existing(record_of(rig, call, version=version)))
    assert isinstance(step, SettleVersion)
    assert (step.version, step.settlement) == (version, DONE_WITH)
    assert step.events == ((b"row",) if with_events else ())


@pytest.mark.parametrize(
    ("settlement", "code", "written"),
    [
        (DONE_WITH, UNKNOWN_CODE, True),
        (FAILED, UNKNOWN_CODE, True),
        (BARE, UNKNOWN_CODE, True),
        (UNKNOWN, UNKNOWN_CODE, False),
        (DONE_WITH, "no", False),
        (FAILED, "no", False),
        (UNKNOWN, "no", False),
    ],
)
def test_only_what_is_certain_replaces_an_unknown_outcome(settlement: Settlement, code: str, written: bool) -> None:
    rig = Rig()
    call = call_of(rig)
    call.settlement = settlement
    call.off_path().left = True
    record = record_of(rig, call, state="failed", error=_error(code))
    step = rules.reread(call, existing(record))
    assert isinstance(step, SettleVersion) is written
    if written:
        assert step.events == ()  # type: ignore[union-attr]


def test_the_record_of_another_dispatch_is_left_alone() -> None:
    rig = Rig()
    call = call_of(rig)
    call.settlement = DONE_WITH
    call.off_path().left = True
    error = _error(UNKNOWN_CODE)
    assert rules.reread(call, existing(record_of(rig, call, state="failed", fence=8, error=error))) is DONE


def test_a_call_is_found_by_its_own_record() -> None:
    rig = Rig()
    call = call_of(rig)
    call.settlement = DONE_WITH
    call.off_path().left = True
    other = record_of(rig, call, state="done", fence=9, version=9)
    step = rules.reread(call, existing(other, record_of(rig, call)))
    assert isinstance(step, SettleVersion)
    assert step.version == 7


def test_a_record_written_anew_takes_the_end() -> None:
    rig = Rig()
    call = call_of(rig)
    call.settlement = DONE_WITH
    step: Any = rules.reclaimed(call, Claimed(11, START_MS))
    assert (step.version, step.settlement) == (11, DONE_WITH)
    step = rules.reclaimed(call, existing(record_of(rig, call, version=12)))
    assert (step.version, step.settlement) == (12, DONE_WITH)
    call.off_path().left = True
    soon = {"state": "done", "expires_at_ms": START_MS + 1_000}
    assert rules.reclaimed(call, existing(record_of(rig, call, owner="another/process", **soon))) is DONE
    assert rig.leases._unfinished == [], "it had a claim: nothing of it is under way"


# -- keeping out a request that is under way -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("life_ms", "left_s"), [(29_999, 29.999), (30_000, None), (60_000, None), (10_000, 10.0), (0, 0.0)]
)
def test_a_record_that_expires_soon_is_replaced_then(life_ms: int, left_s: float | None) -> None:
    rig = Rig()
    call = call_of(rig)
    record = record_of(rig, call, state="done", expires_at_ms=START_MS + life_ms)
    rules.block_late_request(call, existing(record))
    due = [one.due - rig.clock.monotonic() if one.due else 0.0 for one in rig.leases._unfinished]
    assert due == ([] if left_s is None else [pytest.approx(left_s)])


@pytest.mark.parametrize(("failed_ms", "watched"), [(10_000, True), (300_000, False)])
def test_one_in_flight_may_end_and_expire(failed_ms: int, watched: bool) -> None:
    rig = Rig()
    call = call_of(rig, ttl=Ttls(failed_ms=failed_ms))
    rules.block_late_request(call, existing(record_of(rig, call, expires_at_ms=START_MS)))
    assert bool(rig.leases._unfinished) is watched


def test_the_half_minute_counts_from_when_the_caller_left() -> None:
    rig = Rig()
    call = call_of(rig)
    call.off_path().left = True
    rig.clock.advance(25.0)
    rules.block_late_request(call, existing(record_of(rig, call, state="done", expires_at_ms=START_MS + 10_000)))
    assert rig.leases._unfinished == []


def test_what_is_left_has_its_own_time_and_nothing_of_the_run() -> None:
    rig = Rig()
    call = call_of(rig)
    rig.clock.advance(5.0)
    rules.leave(call, DONE_WITH)
    (left,) = rig.leases._unfinished
    rest: Any = left.call
    assert rest is not call
    assert (rest.started, rest.settlement, rest.extras.left) == (rig.clock.monotonic(), DONE_WITH, True)
    assert isinstance(left.step, Read)
    call.version = 0
    rules.leave(call, DONE_WITH)
    step: Any = rig.leases._unfinished[1].step
    assert isinstance(step, Reclaim)
    assert step.version == 0
    rules.leave(call, DONE_WITH, 9)
    assert rig.leases._unfinished[2].step.version == 9


# -- an interrupted call ----------------------------------------------------------------------------------------------


def test_nothing_was_sent() -> None:
    rig = Rig()
    call = call_of(rig, ttl=Ttls(failed_ms=60_000))
    made = rules.interrupted(call, "why")
    assert (made.state, made.dispatched, made.ttl_ms) == ("cancelled", False, 60_000)
    rig = Rig()
    assert rules.not_dispatched(call_of(rig, ttl=Ttls(failed_ms=1_000))).ttl_ms == 30_000


@pytest.mark.parametrize("sure", ["entered", "dispatched", "may_have_applied"])
@pytest.mark.parametrize("idempotent", [True, False])
def test_something_may_have_been_sent(sure: str, idempotent: bool) -> None:
    rig = Rig()
    call = call_of(rig, idempotent=idempotent)
    if sure == "entered":
        call.entered = 1
    else:
        setattr(call.off_path(), sure, True)
    made = rules.interrupted(call, "its caller went away")
    if idempotent:
        assert (made.state, made.dispatched) == ("cancelled", True)
        return
    assert made.error is not None
    code, message, terminal, retriable = made.error
    assert (made.state, code, terminal, retriable) == ("failed", UNKNOWN_CODE, True, False)
    assert "was dispatched, but its caller went away." in message
    assert (made.attempt_count, made.ttl_ms) == (1, rules.NEVER_MS)


def test_an_attempt_that_is_over_was_not_under_way() -> None:
    rig = Rig()
    call = call_of(rig)
    call.entered, call.attempts = 1, ((0, 1, "no", False),)
    assert rules.interrupted(call, "why").dispatched is False
    call.off_path().dispatched = True
    call.attempts *= 3
    assert rules.interrupted(call, "why").attempt_count == 3


@pytest.mark.parametrize(
    ("value", "payload"), [("sent", b'"sent"'), ("x" * 300_000, None), (object(), None), (None, b"null")]
)
def test_the_tool_had_returned(value: Any, payload: bytes | None) -> None:
    rig = Rig()
    call = call_of(rig)
    call.value = value
    made = rules.interrupted(call, "why")
    assert (made.state, made.payload, made.attempt_count) == ("done", payload, 1)
    call.number = 3
    assert rules.interrupted(call, "why").attempt_count == 3
    call.number = 0
    assert rules.interrupted(call, "why").attempt_count == 1


def test_a_stream_had_ended() -> None:
    rig = Rig()

    @rig.gateway.tool("send", idempotent=False)
    def chunks() -> Iterator[str]:
        yield "a"

    list(chunks())
    call = new_call(rig.gateway._plans.plan(rig.gateway._plans.tools["send"]), {})
    call.number, call.value = 1, ["a"]
    assert rules.interrupted(call, "why").payload == b'["a"]'
    call.value = ["x" * 300_000]
    assert rules.interrupted(call, "why").payload is None


def test_a_result_whose_attempt_was_not_noted_yet() -> None:
    rig = Rig()
    call = call_of(rig)
    call.value = "sent"
    rig.clock.advance(2.5)
    assert rules.settle_value(call) is SETTLE
    assert call.attempts == ((START_MS, START_MS + 2_500, "", False),)
    assert call.settlement is not None
    assert (call.settlement.state, call.settlement.payload) == ("done", b'"sent"')
    before = call.attempts
    rig.leases.hold(call, 1.0)
    assert rules.settle_value(call) is SETTLE
    assert call.attempts == before, "noted once"
    assert not rig.leases.holds(call)
    call.version = 0
    assert rules.settle_value(call) is DONE, "there is no claim"


def test_an_interrupted_call_that_has_an_outcome_keeps_it() -> None:
    rig = Rig()
    call = call_of(rig)
    call.entered = 1
    assert rules.settle_interrupted(call, KeyboardInterrupt()) is SETTLE
    first = call.outcome
    assert first is not None
    assert rules.settle_interrupted(call, KeyboardInterrupt(), "its reader went away") is SETTLE
    assert call.outcome is first
    settlement: Any = call.settlement
    assert "its reader went away" in settlement.error[1]
    call.outcome = None
    assert rules.settle_interrupted(call, None, "its reader went away") is SETTLE
    assert call.outcome is None

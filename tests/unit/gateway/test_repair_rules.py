"""The repair of a call as a table: what follows from which step that was not made."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon._gateway import outcome as outcomes
from antiphon._gateway import repair
from antiphon._gateway.call import GuardedCall
from antiphon._gateway.settlement import reread
from antiphon._gateway.steps import BEGIN, DONE, SETTLE, Read, Reclaim, Refresh, Sleep, TakeOver
from antiphon.errors import StoreUnavailable
from antiphon.ports import Claimed, Settlement
from tests.unit.gateway.kit import START_MS, Rig
from tests.unit.gateway.test_settlement_rules import call_of, existing, record_of

STOP = KeyboardInterrupt()
GONE = StoreUnavailable("It is gone.")


def held(rig: Rig, **more: Any) -> GuardedCall:
    """A call that holds a claim and a lease."""
    call = call_of(rig, **more)
    call.policy = call.plan.policy
    call.outer = None
    rig.leases.hold(call, 1.0)
    return call


def elsewhere(call: GuardedCall, reply: Any) -> Any:
    """What takes a reply that has nothing to do with the end of a call."""


def left(rig: Rig) -> list[Any]:
    return [one.step for one in rig.leases._unfinished]


# -- interrupts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [None, Refresh(0.1, elsewhere)])
def test_a_call_that_was_not_admitted_yet_is_over(step: Any) -> None:
    rig = Rig()
    call = held(rig)
    call.version, call.number = 0, 0
    assert repair._interrupted(call, step, STOP) is DONE
    assert call.extras.interrupt is STOP
    assert (call.outcome, left(rig)) == (None, [])
    assert not rig.leases.holds(call)


def test_a_claim_that_may_have_been_made_is_asked_for_again() -> None:
    rig = Rig()
    call = held(rig)
    call.events = (b"start",)  # type: ignore[assignment]
    first: Any = repair._interrupted(call, BEGIN, STOP)
    assert (type(first), first.version, first.events) == (Reclaim, 0, (b"start",))
    call = held(rig)
    second: Any = repair._interrupted(call, TakeOver(call, 9, (b"other",), elsewhere), STOP)  # type: ignore[arg-type]
    assert (type(second), second.version, second.events) == (Reclaim, 9, (b"other",))


def test_an_end_that_may_have_been_written_is_looked_for() -> None:
    rig = Rig()
    call = held(rig)
    step: Any = repair._interrupted(call, SETTLE, STOP)
    assert isinstance(step, Read)
    assert (step.key, step.identity) == (call.key, call.identity)


@pytest.mark.parametrize(("then", "leaves"), [(reread, 1), (elsewhere, 0)])
def test_a_second_look_at_a_lost_claim_is_left_to_the_thread(then: Any, leaves: int) -> None:
    rig = Rig()
    call = held(rig)
    call.settlement, call.entered = Settlement("done", 1, b"1"), 1
    step = repair._interrupted(call, Read("k", "i", then), STOP)
    assert len(left(rig)) == leaves
    assert step is (DONE if leaves else SETTLE)


def test_a_second_interrupt_leaves_the_call_to_the_thread() -> None:
    rig = Rig()
    call = held(rig)
    call.off_path().interrupt = STOP
    assert repair._interrupted(call, Sleep(1.0, elsewhere), STOP) is DONE
    assert len(left(rig)) == 1
    assert not rig.leases.holds(call)


# -- what was known when the interrupt came ---------------------------------------------------------------------------


def test_the_result_is_written() -> None:
    rig = Rig()
    for outcome in (None, outcomes.Outcome("success", "sent")):
        call = held(rig)
        call.value, call.outcome = "sent", outcome
        assert repair._settle(call, STOP) is SETTLE
        assert call.settlement is not None
        assert call.settlement.state == "done"


def test_nothing_is_known() -> None:
    rig = Rig()
    call = held(rig)
    assert repair._settle(call, STOP) is SETTLE
    assert call.settlement is not None
    assert (call.settlement.state, call.settlement.dispatched) == ("cancelled", False)


def test_the_failure_is_written() -> None:
    rig = Rig()
    call = held(rig)
    call.attempts = ((0, 1, "no", False),)
    call.outcome = outcomes.failed("error", "no", "no", attempts=1)
    assert repair._settle(call, STOP) is SETTLE
    assert call.settlement is not None
    assert (call.settlement.state, call.settlement.error) == ("failed", ("no", "no", True, False))


@pytest.mark.parametrize("outcome", [outcomes.failed("error", "no", "no", attempts=1), outcomes.Outcome("success", 1)])
@pytest.mark.parametrize("version", [0, 7])
def test_there_is_nothing_to_write(outcome: Any, version: int) -> None:
    rig = Rig()
    call = held(rig)
    call.version, call.outcome = version, outcome
    expected = SETTLE if version and outcome.status == "error" else DONE
    assert repair._settle(call, STOP) is expected


# -- what is found ----------------------------------------------------------------------------------------------------


def test_the_claim_that_was_won_is_given_back() -> None:
    rig = Rig()
    for reply, version in (
        (lambda call: Claimed(11, START_MS), 11),
        (lambda call: existing(record_of(rig, call, version=12)), 12),
        (lambda call: existing(record_of(rig, call, owner="another/process")), 0),
    ):
        call = held(rig)
        call.version, call.events = 0, (b"start",)  # type: ignore[assignment]
        begun: list[int] = []
        run: Any = SimpleNamespace(begun=partial(begun.append, 1), together=False, entered=False)
        call.run = run
        call.off_path().interrupt = STOP
        repair._recovered(call, reply(call))
        assert len(begun) == (1 if version else 0)
        assert bool(call.settlement) is bool(version)


@pytest.mark.parametrize(
    ("changes", "written"),
    [({"state": "done"}, True), ({"state": "inflight"}, False), ({"state": "done", "fence": 9}, False)],
)
@pytest.mark.parametrize("own", [True, False])
def test_an_end_that_is_there_is_not_written_again(changes: dict[str, Any], written: bool, own: bool) -> None:
    rig = Rig()
    call = held(rig)
    call.value = "sent"
    record = record_of(rig, call, **changes)
    other = record_of(rig, call, state="done", fence=99)
    found = existing(other, record) if own else existing(record)
    assert repair._reread(call, found) is (DONE if written else SETTLE)
    assert repair._reread(call, None) is SETTLE


# -- a call that is left ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "changes", "leaves"),
    [
        (7, {}, True),
        (7, {"entered": 1}, True),
        (0, {}, True),
        (0, {"entered": 1}, False),
        (0, {"outcome": outcomes.failed("error", "no", "no")}, False),
        (0, {"key": ""}, False),
    ],
)
def test_what_is_left_to_the_thread(version: int, changes: dict[str, Any], leaves: bool) -> None:
    rig = Rig()
    call = held(rig)
    call.version = version
    for name, value in changes.items():
        setattr(call, name, value)
    repair.abandon(call)
    assert bool(left(rig)) is leaves
    assert not rig.leases.holds(call)


def test_a_call_that_wants_no_claim_leaves_none() -> None:
    rig = Rig()
    call = held(rig)
    call.version = 0
    call.policy = SimpleNamespace(unclaimed=True)  # type: ignore[assignment]
    repair.abandon(call)
    assert left(rig) == []


def test_whoever_waits_for_the_end_is_told() -> None:
    rig = Rig()
    call = held(rig)
    ended: list[Any] = []
    call.off_path().ended = ended.append
    repair.abandon(call)
    repair.abandon(call)
    assert ended == [call]


# -- a store that fails -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "version"), [("begin", 0), ("take over", 9)])
def test_a_claim_whose_request_failed_is_looked_for_later(step: str, version: int) -> None:
    rig = Rig()
    call = held(rig)
    call.version = 0
    asked: Any = BEGIN if step == "begin" else TakeOver(call, 9, (), elsewhere)
    repair._note_failure(call, asked, GONE)
    (later,) = left(rig)
    assert isinstance(later, Reclaim)
    assert later.version == version
    assert rig.leases.breaker.failures == 1


def test_a_store_that_answers_has_no_request_under_way() -> None:
    rig = Rig()
    call = held(rig)
    repair._note_failure(call, BEGIN, StoreUnavailable("It is full.", reason="full"))
    repair._note_failure(call, SETTLE, GONE)
    assert left(rig) == []


def test_an_interrupt_before_the_tool_was_called_sends_nothing() -> None:
    rig = Rig()
    script = rig.tool("sent", timeout=5.0)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    threads: Any = rig.gateway._plans.threads
    threads.run = interrupted
    rig.gateway._plans.changed()
    with pytest.raises(KeyboardInterrupt):
        rig.execute(call_id="c1")
    record: Any = rig.records()[0]
    assert (record.state, record.dispatched, len(script)) == ("cancelled", False, 0)

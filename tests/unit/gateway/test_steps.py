"""Steps as tables: what a call asks for next, given what it knows and what it is told. No store is needed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from antiphon._gateway import attempt, claim, repair, settlement
from antiphon._gateway.admission import admit
from antiphon._gateway.call import GuardedCall, new_call
from antiphon._gateway.context import CallContext, held, running
from antiphon._gateway.gateway import Gateway, from_envelope
from antiphon._gateway.plan import Dependencies
from antiphon._gateway.settings import Settings
from antiphon._gateway.steps import (
    BEGIN,
    DONE,
    INVOKE,
    SETTLE,
    Alias,
    Dispatch,
    Forgotten,
    Get,
    Plain,
    Put,
    Read,
    Reclaim,
    Reconcile,
    Refresh,
    Renew,
    SettleVersion,
    Sleep,
    Step,
    TakeOver,
    TryRead,
    Wait,
)
from antiphon.contract._base import UNSET
from antiphon.contract.envelope import ToolCallEnvelope
from antiphon.contract.record import DedupeRecord, RecordedError, RecordedRequest
from antiphon.contract.spec import BreakerPolicy, DidNotHappen, Happened, RetryPolicy, Ttls
from antiphon.errors import StoreError, StoreUnavailable
from antiphon.ports import BreakerRows, Claimed, Existing, Settlement
from antiphon.stores import MemoryStore
from antiphon.stores.memory.store import MemoryJournal
from tests.unit.gateway.kit import AsyncRig, HttpError, ManualClock, envelope, settle_down
from tests.unit.gateway.test_keeping import FakeBlobs

LEASE_MS = 30_000
THEIRS, OURS = 7, 9
"""Versions of another's record and of our claim."""


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    """Calls that are dispatched and never come back must not be around those of the next test."""
    yield
    held.set(None)
    running.set(None)


class NoStore:
    """Nobody opens it."""

    url = "none://"
    in_process = False

    def open_sync(self) -> Any:
        raise AssertionError("a table needs no store")

    open_async = open_sync


class Table:
    """Calls of one tool that nobody drives."""

    def __init__(self, *, idempotent: bool = False, settings: Any = None, context: bool = False, **spec: Any) -> None:
        self.clock = ManualClock()
        self.blobs = FakeBlobs()
        self.gateway = Gateway(
            Dependencies(
                store=NoStore(),
                clock=self.clock,
                settings=Settings(**(settings or {})),
                blobs=lambda: self.blobs,
                renews=False,
            )
        )
        self.plans = self.gateway._plans
        self.plans.next_refresh = math.inf

        def send(to: str) -> str:
            raise AssertionError("a table calls no tool")

        def with_context(to: str, ctx: CallContext) -> str:
            raise AssertionError("a table calls no tool")

        ttl = Ttls(lease_ms=LEASE_MS)
        self.gateway.tool("send", idempotent=idempotent, ttl=ttl, **spec)(with_context if context else send)

    def call(self, **wire: Any) -> GuardedCall:
        """A call of an envelope, not admitted yet."""
        plan = self.plans.plan(self.plans.tools["send"])
        if not wire:
            return new_call(plan, {"to": "ada"})
        checked = ToolCallEnvelope.from_wire(envelope(**{"call_id": "mine", **wire}))
        return from_envelope(checked, plan, None)

    def admitted(self, **wire: Any) -> GuardedCall:
        call = self.call(**{"mode": "enforced", **wire})
        step = admit(call)
        assert step is BEGIN
        return call

    def claimed(self, **wire: Any) -> GuardedCall:
        call = self.admitted(**wire)
        claim.claimed(call, Claimed(OURS, self.clock.now_ms()))
        return call

    def record(
        self, call: GuardedCall, state: str, *, identity: str = "theirs", lease_ms: int = LEASE_MS, **fields: Any
    ) -> DedupeRecord:
        now = self.clock.now_ms()
        digest = claim._digest(call.params)
        return DedupeRecord(
            key=call.key,
            tool="tools/send",
            idempotency_key=call.idempotency_key,
            state=state,  # type: ignore[arg-type]
            created_at_ms=now,
            updated_at_ms=now,
            expires_at_ms=now + 1_000_000,
            ttl_ms=1_000_000,
            request=RecordedRequest("s1", "a1", "r", digest, identity),
            lock_until_ms=now + lease_ms if state == "inflight" else UNSET,
            **{"version": THEIRS, "fence": THEIRS, "owner": "t/elsewhere", "dispatched": True, **fields},
        )

    def existing(self, record: DedupeRecord, own: DedupeRecord | None = None) -> Existing:
        if own is None and record.request.identity == "mine":
            own = record
        return Existing(record, own, self.clock.now_ms())


PAYLOAD = msgspec.Raw(b'"sent"')
FAILED = RecordedError("http_400", "no", True, False)
RETRIABLE = RecordedError("http_503", "busy", False, True)
UNKNOWN = RecordedError("outcome_unknown", "nobody knows", True, False)


def told(call: GuardedCall) -> tuple[str, bool]:
    """Code or result, and whether a record answered."""
    outcome = call.result()
    return outcome.code or outcome.value, outcome.from_cache


# -- after the claim was asked for ---------------------------------------------------------------------------------


def test_a_claim_that_is_ours_is_dispatched() -> None:
    table = Table()
    call = table.admitted()
    assert claim.claimed(call, Claimed(OURS, 0)) is INVOKE
    assert (call.version, call.number, call.entered) == (OURS, 1, 0)
    assert table.plans.leases.holds(call)


def test_a_tool_that_wants_its_context_is_dispatched_with_one() -> None:
    call = Table(context=True).admitted()
    step = claim.claimed(call, Claimed(OURS, 0))
    assert isinstance(step, Dispatch)
    assert step.context is not None
    assert (step.context.fence, step.limit) == (OURS, None)


def test_a_claim_that_took_long_is_made_sure_of() -> None:
    table = Table()
    call = table.admitted()
    table.clock.advance(LEASE_MS / 1000 / 2)
    assert claim.claimed(call, Claimed(OURS, 0)) == Renew(call.key, OURS, LEASE_MS, attempt.renewed)
    assert attempt.renewed(call, True) is INVOKE


def test_a_claim_that_was_lost_meanwhile_is_asked_for_again() -> None:
    table = Table()
    call = table.admitted()
    table.clock.advance(LEASE_MS / 1000 / 2)
    claim.claimed(call, Claimed(OURS, 0))
    assert attempt.renewed(call, False) is BEGIN
    assert call.version == 0


class Row(NamedTuple):
    """A record, who asks, and the kind of the next step, or the answer."""

    record: dict[str, Any]
    follows: type | tuple[Any, bool] | Plain
    spec: dict[str, Any] = {}
    wire: dict[str, Any] = {}


IN_FLIGHT = {"state": "inflight", "dispatched": False}
OVER = {**IN_FLIGHT, "lease_ms": -1}
MINE = {"identity": "mine"}
ROWS = {
    "in flight": Row(IN_FLIGHT, Wait),
    "in flight, the same call": Row({**IN_FLIGHT, **MINE}, Wait),
    "in flight, not to wait": Row(IN_FLIGHT, ("in_flight", False), wire={"mode": "bestEffort"}),
    "lost": Row(OVER, SettleVersion),
    "lost, may be repeated": Row(OVER, TakeOver, {"idempotent": True}),
    "done, the same call": Row({"state": "done", "payload": PAYLOAD, **MINE}, ("sent", True)),
    "done, a new call": Row({"state": "done", "payload": PAYLOAD}, TakeOver),
    "done, never reused": Row({"state": "done", "payload": PAYLOAD}, TakeOver, {"idempotent": True, "reuse": "never"}),
    "done, reused for a while": Row({"state": "done", "payload": PAYLOAD}, Alias, {"idempotent": True, "reuse": 60.0}),
    "done, reused in the session": Row(
        {"state": "done", "payload": PAYLOAD}, ("sent", True), {"idempotent": True, "reuse": "session"}
    ),
    "done, kept elsewhere": Row({"state": "done", "payload_ref": "sha256:x", **MINE}, Get),
    "failed, the same call": Row({"state": "failed", "error": FAILED, **MINE}, ("http_400", True)),
    "failed, a new call": Row({"state": "failed", "error": FAILED}, TakeOver),
    "failed, may be tried again": Row(
        {"state": "failed", "error": RETRIABLE, **MINE}, TakeOver, {"idempotent": True}, {"mode": "bestEffort"}
    ),
    "unknown": Row({"state": "failed", "error": UNKNOWN, **MINE}, ("outcome_unknown", False)),
    "unknown, a new call": Row({"state": "failed", "error": UNKNOWN}, ("outcome_unknown", False)),
    "unknown, may be repeated": Row({"state": "failed", "error": UNKNOWN}, TakeOver, {"idempotent": True}),
    "unknown, can be read back": Row(
        {"state": "failed", "error": UNKNOWN}, Reconcile, {"reconcile": lambda params: None}
    ),
    "cancelled before dispatch": Row({"state": "cancelled", "dispatched": False, **MINE}, TakeOver),
    "cancelled after dispatch": Row({"state": "cancelled", **MINE}, ("outcome_unknown", False)),
    "cancelled after dispatch, may be repeated": Row({"state": "cancelled", **MINE}, TakeOver, {"idempotent": True}),
}


@pytest.mark.parametrize("name", ROWS)
def test_another_record(name: str) -> None:
    row = ROWS[name]
    table = Table(**row.spec)
    call = table.admitted(**row.wire)
    record = table.record(call, **row.record)
    step = claim.claimed(call, table.existing(record))
    if isinstance(row.follows, tuple):
        assert step is DONE
        assert told(call) == row.follows
        return
    assert type(step) is row.follows
    assert call.version == 0
    match step:
        case TakeOver(asked, version, events, then):
            assert (asked, version, events) == (call, THEIRS, ())
            assert then(call, Claimed(9, 0)) is INVOKE
        case Wait(key, version, seconds, _):
            assert (key, version, seconds) == (call.key, THEIRS, 1.0)  # looks by itself now and then
        case SettleVersion(key, version, ends, _):
            assert (key, version, ends.state) == (call.key, THEIRS, "failed")
            assert ends.error is not None
            assert ends.error[0] == "outcome_unknown"
        case Alias(key, identity, version, _):
            assert (key, identity, version) == (call.key, "mine", THEIRS)
        case Get(_, _, ref, _):
            assert ref == "sha256:x"


def test_a_waiter_looks_less_and_less_often_and_not_beyond_its_deadline() -> None:
    table = Table()
    call = table.admitted(deadline_at_ms=table.clock.now_ms() + 4_500)
    busy = table.existing(table.record(call, "inflight"))
    naps = []
    while isinstance(step := claim.on_record(call, busy), Wait):
        naps.append(step.seconds)
        table.clock.advance(step.seconds)
        assert step.then(call, None) == Read(call.key, call.identity, claim.on_record)
        busy = table.existing(table.record(call, "inflight"))
    assert naps == [1.0, 2.0, 1.5]
    assert step is DONE
    assert told(call) == ("in_flight", False)


def test_who_waited_shares_the_answer_and_is_remembered() -> None:
    table = Table()
    call = table.admitted()
    claim.claimed(call, table.existing(table.record(call, "inflight")))
    done = table.record(call, "done", payload=PAYLOAD, version=8)
    assert claim.on_record(call, table.existing(done)) == Alias(call.key, "mine", 8, claim.aliased)
    assert claim.aliased(call, True) is DONE
    assert told(call) == ("sent", True)
    assert call.result().matched_on == "inflight"


def test_who_was_not_remembered_looks_who_was_faster() -> None:
    table = Table(idempotent=True, reuse=60.0)
    call = table.admitted()
    done = table.record(call, "done", payload=PAYLOAD)
    claim.claimed(call, table.existing(done))
    assert claim.aliased(call, False) == Read(call.key, "mine", claim.looked_at_alias)
    own = table.record(call, "done", payload=msgspec.Raw(b'"another"'), identity="mine", version=8)
    assert claim.looked_at_alias(call, table.existing(done, own)) == Read(call.key, "mine", claim.on_record)
    assert claim.on_record(call, table.existing(done, own)) is DONE
    assert told(call) == ("another", True)


def test_nothing_there_any_more_is_a_new_beginning() -> None:
    call = Table().admitted()
    assert claim.on_record(call, None) is BEGIN


def test_other_parameters_are_a_conflict_or_a_call_of_their_own() -> None:
    for rule, follows in (("conflict", DONE), ("independent", None)):
        table = Table(on_conflict=rule)
        call = table.admitted(key="k")
        key = call.key
        other = msgspec.structs.replace(
            table.record(call, "done", payload=PAYLOAD), request=RecordedRequest("s1", "a1", "r", "other", key)
        )
        step = claim.claimed(call, table.existing(other))
        if follows is DONE:
            assert step is DONE
            assert told(call) == ("idempotency_conflict", False)
        else:
            assert step == Read(call.key, call.identity, claim.on_record)
            assert call.key.startswith(f"{key}.")


@pytest.mark.parametrize(
    ("answer", "follows"),
    [
        (None, DONE),
        (Happened("sent"), SettleVersion),
        (DidNotHappen(), SettleVersion),
        (True, DONE),
        ("sent", DONE),
        (False, DONE),
    ],
)
def test_what_a_read_back_says(answer: Any, follows: Any) -> None:
    table = Table(reconcile=lambda params: answer)
    call = table.admitted()
    claim.claimed(call, table.existing(table.record(call, "failed", error=UNKNOWN)))
    step = claim._reconciled(call, answer)
    if follows is DONE:
        assert step is DONE
        assert told(call) == ("outcome_unknown", False)
        return
    assert isinstance(step, SettleVersion)
    assert (step.version, step.settlement.state) == (
        THEIRS,
        "cancelled" if isinstance(answer, DidNotHappen) else "done",
    )
    if isinstance(answer, DidNotHappen):
        assert step.then(call, 8) == Read(call.key, "mine", claim.on_record)
    else:
        assert step.then(call, 8) == Alias(call.key, "mine", 8, claim.aliased)
        assert call.outcome is not None
    assert step.then(call, None) == Read(call.key, "mine", claim._not_kept)  # another one settled it, or followed it
    moved_on = table.existing(table.record(call, "done", version=THEIRS + 100))
    assert claim._not_kept(call, moved_on) == claim.on_record(call, moved_on)


# -- in shadow -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "verdict"), [("inflight", "wait"), ("done", ""), ("failed", "unknown")], ids=["wait", "run", "unknown"]
)
def test_in_shadow_a_decision_is_only_noted(state: str, verdict: str) -> None:
    table = Table(settings={"shadow": True})
    twins: list[tuple[GuardedCall, Step]] = []
    table.plans.watcher.drive = lambda twin, step: twins.append((twin, step))
    assert admit(table.call(mode="enforced")) is INVOKE
    [(call, step)] = twins
    assert step is BEGIN
    assert call.key.startswith("shadow.")
    error = {"error": UNKNOWN} if state == "failed" else {"payload": PAYLOAD} if state == "done" else {}
    step = claim.claimed(call, table.existing(table.record(call, state, **error)))
    assert isinstance(step, TakeOver) if not verdict else step is DONE
    assert call.extras.verdict == verdict


# -- before the claim ----------------------------------------------------------------------------------------------


def test_admission() -> None:
    assert admit(Table().call()) is BEGIN
    assert admit(Table(settings={"derive_keys": False}).call()) is INVOKE
    assert admit(Table(settings={"enabled": False}).call(mode="enforced")) is INVOKE
    assert admit(Table().call(mode="disabled")) is INVOKE
    late = Table()
    late.plans.next_refresh = 0.0
    assert isinstance(admit(late.call()), Refresh)


def test_a_call_that_comes_too_late_is_answered() -> None:
    table = Table()
    call = table.call(deadline_at_ms=table.clock.now_ms() - 1)
    assert admit(call) is DONE
    assert told(call) == ("deadline_exceeded", False)


def test_while_a_breaker_is_open_only_a_record_can_answer() -> None:
    table = Table(breaker=BreakerPolicy(forced_open=True))
    call = table.call(mode="enforced")
    assert admit(call) == TryRead(call.key, "mine", 0.1, claim.on_record)
    assert claim.on_record(call, None) is DONE
    assert told(call) == ("circuit_open", False)
    call = table.call(mode="enforced")
    admit(call)
    assert claim.on_record(call, table.existing(table.record(call, "done", payload=PAYLOAD, identity="mine"))) is DONE
    assert told(call) == ("sent", True)


# -- attempts ------------------------------------------------------------------------------------------------------


def test_a_result_is_settled() -> None:
    call = Table().claimed()
    call.value = "sent"
    assert attempt.returned(call) is SETTLE
    assert call.settlement is not None
    assert (call.settlement.state, call.settlement.payload, call.settlement.attempt_count) == ("done", b'"sent"', 1)
    assert settlement.settled(call, 10) is DONE
    assert (call.outcome, call.version) == (None, 0)


def test_a_result_that_cannot_be_kept_is_settled_without() -> None:
    call = Table().claimed()
    call.value = object()
    assert attempt.returned(call) is SETTLE
    assert call.settlement is not None
    assert (call.settlement.state, call.settlement.payload) == ("done", None)


def test_a_large_result_is_kept_elsewhere_first() -> None:
    table = Table(settings={"payload_limit": 4})
    call = table.claimed()
    call.value = "a long one"
    assert attempt.returned(call) == Put(table.blobs, "default", b'"a long one"', settlement._kept)
    assert settlement._kept(call, "sha256:x") is SETTLE
    assert call.settlement is not None
    assert (call.settlement.payload, call.settlement.payload_ref) == (None, "sha256:x")


def test_without_a_claim_there_is_nothing_to_settle() -> None:
    call = Table().call(mode="disabled")
    assert admit(call) is INVOKE
    call.value = "sent"
    assert attempt.returned(call) is DONE


@pytest.mark.parametrize(
    ("error", "idempotent", "follows"),
    [
        (HttpError(503), True, Sleep),
        (ConnectionRefusedError(111, "refused"), False, Sleep),
        (HttpError(503), False, "outcome_unknown"),
        (HttpError(400), True, "http_400"),
        (HttpError(400), False, "http_400"),
        (KeyboardInterrupt(), False, "outcome_unknown"),
        (KeyboardInterrupt(), True, None),
    ],
)
def test_a_failed_attempt(error: BaseException, idempotent: bool, follows: Any) -> None:
    call = Table(idempotent=idempotent, retry=RetryPolicy(base_ms=200)).claimed()
    call.entered = call.number
    step = repair.broke_off(call, INVOKE, error)
    if follows is Sleep:
        assert step == Sleep(0.1, attempt._slept)
        assert attempt._slept(call, None) == Renew(call.key, OURS, LEASE_MS, attempt.renewed)
        assert attempt.renewed(call, True) is INVOKE
        assert call.number == 2
        return
    assert step is SETTLE
    assert call.settlement is not None
    assert call.settlement.state == ("cancelled" if follows is None else "failed")
    assert (call.settlement.error or (None,))[0] == follows


def test_a_claim_that_was_lost_in_the_pause_ends_the_attempts() -> None:
    call = Table(idempotent=True).claimed()
    call.entered = call.number
    assert isinstance(attempt.raised(call, HttpError(503)), Sleep)
    assert attempt.renewed(call, False) is SETTLE
    look = settlement.settled(call, None)
    assert look == Read(call.key, "mine", settlement.reread)
    assert look.then(call, None) == Forgotten(call, call.version, settlement._lost)
    assert settlement._lost(call, True) is DONE
    assert told(call) == ("http_503", False)
    assert call.result().metadata == {"fenced": True}


# -- when the store fails ------------------------------------------------------------------------------------------


def test_an_end_that_cannot_be_written_is_told_and_left_to_the_thread_of_the_process() -> None:
    call = Table().claimed()
    call.entered, call.value = call.number, "sent"
    assert attempt.returned(call) is SETTLE
    assert repair.broke_off(call, SETTLE, StoreUnavailable("gone")) is DONE
    assert call.result().metadata == {"notRecorded": "store_unavailable"}
    (left,) = call.plan.plans.leases._unfinished
    rest: Any = left.call
    assert left.step == Read(call.key, "mine", settlement.reread)
    assert (rest.version, rest.settlement) == (call.version, call.settlement)


@pytest.mark.parametrize(
    ("spec", "follows"),
    [({}, DONE), ({"idempotent": True}, DONE), ({"idempotent": True, "effect": "read"}, INVOKE)],
)
def test_a_claim_that_cannot_be_asked_for(spec: dict[str, Any], follows: Plain) -> None:
    call = Table(**spec).admitted()
    assert repair.broke_off(call, BEGIN, StoreUnavailable("gone")) is follows
    if follows is DONE:
        assert told(call) == ("store_unavailable", False)
    else:
        assert call.extras.unprotected == "store_unavailable"


def test_a_claim_that_cannot_be_made_sure_of_is_given_back() -> None:
    table = Table()
    call = table.admitted()
    table.clock.advance(LEASE_MS / 1000 / 2)
    renew = claim.claimed(call, Claimed(OURS, 0))
    step = repair.broke_off(call, renew, StoreError("no"))
    assert isinstance(step, SettleVersion)
    assert (step.version, step.settlement.state, step.settlement.dispatched) == (OURS, "cancelled", False)
    assert step.then(call, 10) is DONE
    assert told(call)[0] == "store_error"


INTERRUPTS: tuple[Callable[[], BaseException], ...] = (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit)


@pytest.mark.parametrize("interrupt", INTERRUPTS)
def test_an_interrupt_while_the_claim_is_asked_for(interrupt: Callable[[], BaseException]) -> None:
    table = Table()
    call = table.admitted()
    assert repair.broke_off(call, BEGIN, interrupt()) == Reclaim(call, 0, (), repair._recovered)
    ours = table.record(call, "inflight", identity="mine", owner=f"{call.token}/{call.template.owner}", version=OURS)
    assert repair._recovered(call, table.existing(ours)) is SETTLE
    assert call.settlement == Settlement("cancelled", 300_000, dispatched=False)
    assert call.version == OURS


def test_a_request_that_the_interrupt_kept_from_the_store_is_made_and_given_back() -> None:
    """So that it finds a settled record should it still arrive."""
    call = Table().admitted()
    repair.broke_off(call, BEGIN, KeyboardInterrupt())
    assert repair._recovered(call, Claimed(OURS, 0)) is SETTLE
    assert (call.version, call.settlement) == (OURS, Settlement("cancelled", 300_000, dispatched=False))


def test_a_takeover_that_is_interrupted_is_asked_for_again_with_its_version() -> None:
    table = Table(idempotent=True)
    call = table.admitted()
    step = claim.claimed(call, table.existing(table.record(call, "inflight", lease_ms=-1)))
    assert repair.broke_off(call, step, KeyboardInterrupt()) == Reclaim(call, THEIRS, (), repair._recovered)


def test_an_interrupt_while_the_claim_is_asked_for_that_is_not_ours() -> None:
    table = Table()
    call = table.admitted()
    repair.broke_off(call, BEGIN, KeyboardInterrupt())
    assert repair._recovered(call, table.existing(table.record(call, "inflight"))) is DONE
    assert call.version == 0


def test_an_interrupt_while_the_end_is_written() -> None:
    for written in (True, False):
        table = Table()
        call = table.claimed()
        call.entered, call.value = call.number, "sent"
        attempt.returned(call)
        assert repair.broke_off(call, SETTLE, KeyboardInterrupt()) == Read(call.key, "mine", repair._reread)
        state = "done" if written else "inflight"
        record = table.record(call, state, identity="mine", version=10 if written else OURS, fence=OURS)
        assert repair._reread(call, table.existing(record)) is (DONE if written else SETTLE)


# -- cancelled early, or in a repair -------------------------------------------------------------------------------


class HangingStore(MemoryStore):
    """A store whose breaker states never come."""

    def open_async(self) -> MemoryJournal:
        return _HangingJournal(self.open_sync())


class _HangingJournal(MemoryJournal):
    def __init__(self, journal: object) -> None:
        super().__init__(journal)  # type: ignore[arg-type]
        self.durable = True

    async def load_breakers(self, tenant: str) -> BreakerRows:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


async def test_a_call_that_is_cancelled_before_it_is_admitted_passes_the_cancellation_on() -> None:
    rig = AsyncRig(HangingStore(clock=ManualClock()))
    script = rig.tool("sent")
    with rig.gateway.session("s1", actor="a1") as session, session.turn() as turn:
        task = asyncio.ensure_future(turn.call("send", {}, "c1"))
        await settle_down()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(script) == 0
    assert rig.records() == []


async def test_an_error_while_a_cancelled_call_is_repaired_does_not_hide_the_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = AsyncRig()

    def broken(*_: object) -> Step:
        raise RuntimeError("a mistake in a repair")

    @rig.gateway.tool("send", idempotent=False)
    async def send(to: str = "ada") -> None:
        monkeypatch.setattr(attempt, "settle_interrupted", broken)
        await asyncio.Event().wait()

    task = asyncio.ensure_future(send())
    await settle_down()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    rig.leases.look()
    assert [record.state for record in rig.records()] == ["failed"]

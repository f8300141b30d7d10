"""What a call does about the record that it finds: it waits for people and for equal calls, asks the read-back of its
tool, and answers from what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from antiphon import Antiphon, Happened
from antiphon._drive import drive
from antiphon._gateway.claim import claimed
from antiphon._gateway.context import CallContext
from antiphon._gateway.ids import Fingerprints
from antiphon._gateway.steps import Wait
from antiphon.contract.approval import ASKING
from antiphon.decide.claim import RESOLVED
from antiphon.ops.approvals import Approvals
from antiphon.ports import Settlement
from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import START_MS, AsyncRig, ManualClock, Rig, envelope, request_of
from tests.unit.gateway.test_settlement_rules import call_of, existing, record_of

PAUSES = [0.05, 0.1, 0.2, 0.4, 0.8]

# -- waiting for a person ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("deadline_s", "waits_s"), [(None, 10.0), (3.0, 3.0), (60.0, 10.0)])
def test_a_call_waits_for_a_person_less_and_less_often(deadline_s: float | None, waits_s: float) -> None:
    rig = Rig()
    script = rig.tool("paid", approve="always", approval_wait=10.0)
    deadline = None if deadline_s is None else rig.clock.now_ms() + int(deadline_s * 1000)
    assert rig.execute(call_id="c1", deadline_at_ms=deadline).code == "approval_required"
    slept = rig.clock.slept
    assert slept[:5] == PAUSES
    assert set(slept[5:-1]) == {1.0}
    assert sum(slept) == pytest.approx(waits_s)
    assert len(script) == 0


def test_a_synchronous_call_inside_an_event_loop_does_not_wait_for_a_person() -> None:
    rig = Rig()
    rig.tool("paid", approve="always", approval_wait=10.0)

    async def inside() -> Any:
        return rig.execute(call_id="c1")

    assert asyncio.run(inside()).code == "approval_required"
    assert rig.clock.slept == []


async def test_a_task_waits() -> None:
    rig = AsyncRig()

    @rig.gateway.tool("send", idempotent=False, approve="always", approval_wait=1.0)
    async def send(to: str) -> str:
        return "sent"

    assert (await rig.execute(call_id="c1")).code == "approval_required"
    assert rig.clock.slept[:4] == PAUSES[:4]


class _Turns(ManualClock):
    """Whoever sleeps lets the others go on; after so many sleeps, something happens."""

    def __init__(self) -> None:
        super().__init__()
        self.then: dict[int, Callable[[], Any]] = {}

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)
        if (happens := self.then.get(len(self.slept))) is not None:
            happens()
        await asyncio.sleep(0)


async def _two_equal_calls(then: dict[int, str], **declared: Any) -> tuple[list[str], list[int], int]:
    """What becomes of them, which questions had been asked when the tool ran, and how many were asked."""
    clock = _Turns()
    rig = AsyncRig(clock=clock)
    ran: list[int] = []

    def asked() -> list[Any]:
        return rig.ears.of("approval.requested")

    @rig.gateway.tool("send", idempotent=False, approve="always", approval_wait=10.0, **declared)
    async def send(to: str) -> str:
        ran.append(len(asked()))
        return "sent"

    def decide(verdict: str) -> None:
        desk = Approvals(Antiphon({"telemetry": {"logs": False}}, store=rig.store), actor="grace", where="test")
        drive(desk.decide(asked()[-1]["approvalId"], verdict))

    clock.then = {number: partial(decide, verdict) for number, verdict in then.items()}
    answers = await asyncio.gather(*(rig.execute(call_id=one) for one in ("c1", "c2")))
    return sorted(answer.code or answer.content for answer in answers), ran, len(asked())


async def test_equal_calls_that_wait_do_not_replace_each_others_questions() -> None:
    assert await _two_equal_calls({}) == (["approval_required"] * 2, [], 2)


@pytest.mark.parametrize("number", [7, 8, 9])
async def test_a_waiting_call_leaves_the_approval_of_an_equal_one_alone_and_asks_afterwards(number: int) -> None:
    assert await _two_equal_calls({number: "approve"}) == (["approval_required", "sent"], [2], 3)
    assert await _two_equal_calls({number: "deny"}) == (["approval_denied", "approval_required"], [], 3)
    assert await _two_equal_calls({number: "approve", 12: "approve"}) == (["sent", "sent"], [2, 3], 3)


async def test_a_call_whose_question_was_replaced_names_the_one_that_is_open() -> None:
    rig = AsyncRig(clock=_Turns())

    @rig.gateway.tool("send", idempotent=False, approve="always", approval_wait=10.0)
    async def send(to: str) -> str:
        return "sent"

    answers = await asyncio.gather(*(rig.execute(call_id=one) for one in ("c1", "c2")))
    first, open_now = [fields["approvalId"] for fields in rig.ears.of("approval.requested")]
    assert first != open_now
    assert [answer.error.approval_id for answer in answers] == [open_now] * 2


async def test_a_waiting_call_asks_again_when_the_question_of_an_equal_one_is_over() -> None:
    answers, ran, asked = await _two_equal_calls({}, approval_ttl=3.0)
    assert (answers, ran) == (["approval_required"] * 2, [])
    assert 3 <= asked <= 8


def test_a_question_is_told_once() -> None:
    rig = Rig()
    rig.tool("paid", approve="always")
    first = rig.execute(call_id="c1")
    again = rig.execute(call_id="c1")
    assert first.error.approval_id == again.error.approval_id
    assert len(rig.ears.of("approval.requested")) == 1


def test_a_call_that_asks_shows_no_arguments_and_one_that_was_approved_says_by_what() -> None:
    """For whoever finds the claim of a worker that was lost."""
    store = MemoryStore()
    app = Antiphon({"telemetry": {"logs": False}}, store=store)
    seen: list[Any] = []

    def pay(amount: int) -> str:
        seen.append(store.open_sync().list(tenant="default")[0].arguments)
        return "paid"

    app.gateway.tool("pay", idempotent=False, approve="always")(pay)
    wire = envelope("pay", {"amount": 10}, call_id="c1")
    approval = str(app.gateway.execute(wire).error.approval_id)  # type: ignore[union-attr]
    drive(Approvals(app, actor="grace", where="test").decide(approval, "approve"))
    assert app.gateway.execute(wire).content == "paid"
    assert len(seen) == 1
    assert seen[0] != ASKING
    assert approval in seen[0]


# -- read-backs -------------------------------------------------------------------------------------------------------


def test_a_read_back_is_told_which_call_it_was() -> None:
    rig = Rig()
    asked: list[CallContext] = []

    def reconcile(params: dict[str, Any], ctx: CallContext) -> Any:
        asked.append(ctx)
        return Happened({"id": 1})

    rig.tool(TimeoutError("no answer"), reconcile=reconcile)
    assert rig.execute(call_id="c1", request_id="r1").code == "outcome_unknown"
    again = rig.execute(call_id="c1")
    assert (again.content, again.from_cache) == ({"id": 1}, True)
    assert again.output.metadata == {"reconciled": True}
    (ctx,) = asked
    assert (ctx.attempt, ctx.request_id, ctx.call_id, ctx.session, ctx.actor) == (0, "r1", "c1", "s1", "a1")
    record: Any = rig.records()[0]
    assert (record.state, record.execution.attempt_count) == ("done", 1)
    assert rig.execute(call_id="c1").content == {"id": 1}
    assert len(asked) == 1


def test_what_a_read_back_found_and_cannot_be_kept_is_the_answer() -> None:
    rig = Rig()
    found = object()
    rig.tool(TimeoutError("no answer"), reconcile=lambda params: Happened(found))
    rig.execute(call_id="c1")
    again = rig.execute(call_id="c1")
    assert again.status == "success"
    assert "not kept" in again.output.metadata["payload"]
    assert rig.records()[0].state == "done"


def test_another_call_that_has_the_read_back_made_shares_what_it_found() -> None:
    rig = Rig()
    script = rig.tool(TimeoutError("no answer"), "second", reconcile=lambda params: Happened("sent after all"))
    rig.execute(call_id="c1")
    answers = [rig.execute(call_id=name).content for name in ("c2", "c2", "c1")]
    assert answers == ["sent after all"] * 3
    assert len(script) == 1


@pytest.mark.parametrize(("answer", "said"), [("yes", "not str"), (Happened, "write it with parentheses")])
def test_a_read_back_that_says_neither_settles_nothing(answer: Any, said: str) -> None:
    rig = Rig()
    rig.tool(TimeoutError("no answer"), reconcile=lambda params: answer)
    rig.execute(call_id="c1")
    again = rig.execute(call_id="c1")
    assert again.code == "outcome_unknown"
    assert said in again.error.message


# -- kept answers -----------------------------------------------------------------------------------------------------


def test_a_lost_worker_leaves_an_unknown_outcome_of_one_attempt() -> None:
    rig = Rig()
    rig.tool("sent")
    rig.execute(call_id="c0", params={"to": "first"})
    rig.store.open_sync().begin(request_of(rig, identity="lost", owner="another.1.2.3", lease_ms=1_000))
    rig.clock.advance(1.5)
    assert rig.execute(call_id="lost").code == "outcome_unknown"
    record: Any = next(one for one in rig.records() if one.request.identity == "lost")
    assert (record.state, record.error.code) == ("failed", "outcome_unknown")
    assert "its worker was lost" in record.error.message
    assert (record.execution.attempt_count, tuple(record.execution.attempts or ())) == (1, ())


def with_an_unknown_outcome() -> tuple[Antiphon, Any]:
    """An application with one claim, whose outcome an operator has to settle, and its journal."""
    store = MemoryStore()
    app = Antiphon({"telemetry": {"logs": False}}, store=store)

    def send(to: str) -> str:
        raise TimeoutError("no answer")

    app.gateway.tool("send", idempotent=False)(send)
    app.gateway.execute(envelope(call_id="c1"))
    journal = store.open_sync()
    return app, journal


@pytest.mark.parametrize("value", ["settled by hand", None])
def test_what_an_operator_settled_is_given_and_then_stands(value: Any) -> None:
    app, journal = with_an_unknown_outcome()
    (record,) = journal.list(tenant="default")
    payload = None if value is None else msgspec.json.encode(value)
    assert journal.settle(record.key, record.version, Settlement("done", 60_000, payload=payload, error=RESOLVED))
    kept = []
    for _ in range(2):
        again: Any = app.gateway.execute(envelope(call_id="c1"))
        assert (again.status, again.content, again.from_cache) == ("success", value, True)
        kept.append(journal.list(tenant="default")[0])
    assert [one.error.code for one in kept] == ["resolved_and_served"] * 2
    assert kept[0].version == kept[1].version, "it stands"


def test_what_an_operator_corrects_at_the_same_moment_is_given_and_stands() -> None:
    """The call read the first word, and the second is there when it says that it gives it."""
    app, journal = with_an_unknown_outcome()

    def says(word: bytes) -> None:
        (record,) = journal.list(tenant="default")
        assert journal.settle(record.key, record.version, Settlement("done", 60_000, payload=word, error=RESOLVED))

    says(b'"first word"')
    world: Any = app.gateway._runtime
    real, corrected = world.journal, [b'"second word"']

    class Corrected:
        def __getattr__(self, name: str) -> Any:
            if name == "settle" and corrected:
                says(corrected.pop())
            return getattr(real, name)

    world._journal = Corrected()
    assert app.gateway.execute(envelope(call_id="c1")).content == "second word"
    (record,) = journal.list(tenant="default")
    assert record.error is not UNSET
    assert record.error.code == "resolved_and_served"


def test_a_question_that_is_cleared_before_it_stands_is_asked_again() -> None:
    rig = Rig()
    script = rig.tool("paid", approve="always")
    world: Any = rig.gateway._runtime
    real, cleared = world.journal, [True]

    class Cleared:
        def settle(self, *arguments: Any) -> Any:
            if cleared:
                cleared.pop()
                real.clear(real.list(tenant="default")[0].key)
            return real.settle(*arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    world._journal = Cleared()
    world.reopen()
    answer = rig.execute(call_id="c1")
    assert (answer.code, len(script), len(rig.records())) == ("approval_required", 0, 1)
    assert len(rig.ears.of("approval.requested")) == 1


@pytest.mark.parametrize(("left_ms", "seconds"), [(20, 0.02), (60_000, 1.0)])
def test_a_call_waits_for_another_until_its_lease_ends_at_most(left_ms: int, seconds: float) -> None:
    rig = Rig()
    call = call_of(rig)
    call.policy = call.plan.policy
    other = record_of(rig, call, owner="another.1.2.3", lock_until_ms=START_MS + left_ms)
    step = claimed(call, existing(other))
    assert isinstance(step, Wait)
    assert step.seconds == pytest.approx(seconds, rel=1e-6)


def test_an_id_is_good_for_one_answer_of_the_model() -> None:
    rig = Rig()
    script = rig.tool()

    def made(to: str, counted_in: str) -> Any:
        call: Any = rig.gateway.envelope_call(envelope(params={"to": to}, call_id="call_0"))
        call.options = call.options._replace(by_id=True, counted_in=counted_in)
        return rig.gateway.answer(call, rig.gateway.run(call))

    assert made("ada", "first answer").content == 1
    assert made("bob", "second answer").content == 2
    assert made("eve", "second answer").code == "idempotency_conflict"
    assert len(script) == 2


@pytest.mark.parametrize("key", [b"k" * 32, None])
def test_an_operator_is_told_which_claim_to_settle(key: bytes | None) -> None:
    fingerprints = Fingerprints() if key is None else Fingerprints(lambda: (key,))
    rig = Rig(parts={"fingerprints": fingerprints})
    rig.tool(TimeoutError("no answer"))
    rig.execute(call_id="c1")
    again = rig.execute(call_id="c1")
    name = rig.ears.of("tool_call_blocked")[-1]["idempotencyKeyHash"]
    assert (f"claims resolve {name}" in again.error.message) is (key is not None)
    assert ("claims resolve KEY" in again.error.message) is (key is None)

"""R8: time limits; synchronous tools cannot be stopped, so their late results settle what they left behind."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest
from msgspec import UNSET

from antiphon._gateway.context import CallContext
from antiphon.contract.spec import RetryPolicy
from antiphon.errors import CallTimeout, IdempotencyConflict, OutcomeUnknown, RetryExhausted
from tests.unit.gateway.kit import NEVER_TRIPS, AsyncRig, Hold, HttpError, Rig, Script, eventually, in_child
from tests.unit.gateway.test_keeping import FakeBlobs, keeping_rig

SHORT = 0.02
ONCE = RetryPolicy(max_attempts=1)


def slow(hold: Hold, value: Any = "late") -> Any:
    def body(**_: Any) -> Any:
        hold.wait_here()
        if isinstance(value, BaseException):
            raise value
        return value

    return body


def state(rig: Rig) -> tuple[str, str]:
    [record] = rig.records()
    return record.state, getattr(record.error, "code", "")


def finish(rig: Rig, hold: Hold) -> dict[str, Any]:
    """Let the tool end, and wait until its late result has been looked at."""
    hold.go.set()
    eventually(lambda: rig.ears.of("tool_call_late_result"), "the late result was never looked at")
    return rig.ears.of("tool_call_late_result")[-1]


def test_without_a_limit_a_tool_runs_in_the_callers_thread() -> None:
    rig = Rig()
    rig.tool(lambda **_: threading.current_thread() is threading.main_thread())
    assert rig.execute().content is True


def test_with_a_limit_it_runs_on_a_worker_thread() -> None:
    rig = Rig()
    rig.tool(lambda **_: threading.current_thread().name, timeout=5.0)
    assert rig.execute().content == "antiphon-tool"


def test_a_late_success_settles_an_unknown_outcome() -> None:
    rig = Rig()
    hold = Hold()
    script = rig.tool(slow(hold, "sent after all"), timeout=SHORT)
    assert rig.execute(call_id="c1").code == "outcome_unknown"
    assert state(rig) == ("failed", "outcome_unknown")
    assert rig.execute(call_id="c2").code == "outcome_unknown"
    assert finish(rig, hold)["settled"] is True
    assert state(rig) == ("done", "")
    assert rig.execute(call_id="c1").content == "sent after all"
    assert len(script) == 1


def test_a_late_definite_failure_settles_it_too() -> None:
    rig = Rig()
    hold = Hold()
    rig.tool(slow(hold, HttpError(404)), "sent", timeout=SHORT)
    assert rig.execute(call_id="c1").code == "outcome_unknown"
    assert finish(rig, hold)["settled"] is True
    assert state(rig) == ("failed", "http_404")
    [record] = rig.records()
    assert record.error is not UNSET
    assert (record.error.terminal, record.error.should_retriable) == (True, False)
    assert record.execution is not UNSET
    assert record.execution.attempt_count == len(record.execution.attempts) == 1
    assert rig.execute(call_id="c2").content == "sent"


def test_a_late_definite_failure_that_may_be_tried_again_is_not_final() -> None:
    rig = Rig()
    hold = Hold()
    rig.tool(slow(hold, HttpError(429)), timeout=SHORT)
    assert rig.execute(call_id="c1").code == "outcome_unknown"
    late = finish(rig, hold)
    assert late["settled"] is True
    assert late["idempotencyKeyHash"] == rig.ears.of("tool_call_end")[0]["idempotencyKeyHash"] != ""
    [record] = rig.records()
    assert record.error is not UNSET
    assert (record.error.terminal, record.error.should_retriable) == (False, True)


def test_a_large_late_success_is_spilled_like_any_other() -> None:
    rig = keeping_rig(blobs=FakeBlobs(), payload_limit=100)
    hold = Hold()
    rig.tool(slow(hold, "x" * 1_000), timeout=SHORT)
    assert rig.execute(call_id="c1").code == "outcome_unknown"
    assert finish(rig, hold)["settled"] is True
    assert rig.execute(call_id="c1").content == "x" * 1_000


class NoBlobs(FakeBlobs):
    def put(self, *_: Any) -> Any:
        raise OSError("the bucket is away")


@pytest.mark.parametrize("value", [object(), "x" * 1_000], ids=["no JSON", "no place"])
def test_a_late_success_that_cannot_be_kept_is_a_success(value: Any) -> None:
    rig = keeping_rig(blobs=NoBlobs(), payload_limit=100)
    hold = Hold()
    script = rig.tool(slow(hold, value), timeout=SHORT)
    assert rig.execute(call_id="c1").code == "outcome_unknown"
    assert finish(rig, hold)["settled"] is True
    [record] = rig.records()
    assert (record.state, record.payload) == ("done", UNSET)
    assert record.execution is not UNSET
    [attempt] = record.execution.attempts
    assert (record.execution.attempt_count, attempt.status, attempt.retriable) == (1, "success", False)
    assert rig.execute(call_id="c1").status == "success"
    assert len(script) == 1


def test_a_late_failure_that_settles_nothing() -> None:
    rig = Rig()
    hold = Hold()
    rig.tool(slow(hold, ConnectionResetError(104, "reset")), timeout=SHORT)
    rig.execute(call_id="c1")
    assert finish(rig, hold)["settled"] is False
    assert state(rig) == ("failed", "outcome_unknown")


def test_a_late_result_does_not_touch_its_successor() -> None:
    rig = Rig()
    hold = Hold()
    rig.tool(slow(hold), "second", timeout=SHORT)
    rig.execute(call_id="c1")
    rig.store.open_sync().clear(rig.records()[0].key)
    assert rig.execute(call_id="c2").content == "second"
    assert finish(rig, hold)["settled"] is False
    assert rig.execute(call_id="c2").content == "second"


def test_an_idempotent_tool_may_be_tried_again_while_it_still_runs() -> None:
    rig = Rig()
    hold = Hold()
    script = rig.tool(slow(hold), "second", idempotent=True, timeout=SHORT)
    result = rig.execute()
    assert (result.content, result.attempts) == ("second", 2)
    assert len(script) == 2
    assert finish(rig, hold)["settled"] is False
    assert rig.records()[0].state == "done"


def test_a_late_result_settles_an_idempotent_timeout() -> None:
    rig = Rig()
    hold = Hold()
    rig.tool(slow(hold, "here it is"), idempotent=True, timeout=SHORT, retry=ONCE)
    assert rig.execute(call_id="c1").status == "timeout"
    assert finish(rig, hold)["settled"] is True
    assert rig.execute(call_id="c1").content == "here it is"


REFUSED = ConnectionRefusedError(111, "refused")


def pay_twice(rig: Rig, *attempts: Any) -> Any:
    """Two attempts for the key of one order; nobody learns in time what came of them."""
    script = Script(*attempts)

    @rig.gateway.tool(idempotent=True, timeout=SHORT, retry=RetryPolicy(max_attempts=2), key=lambda order, **_: order)
    def pay(order: str, amount: int) -> Any:
        return script(order=order, amount=amount)

    with pytest.raises((RetryExhausted, TimeoutError)):
        pay("order-1", 10)
    return pay


def heard(rig: Rig, number: int) -> bool:
    return len(rig.ears.of("tool_call_late_result")) == number


@pytest.mark.parametrize("second", ["lost", "still running"])
def test_a_late_certain_failure_says_nothing_of_the_other_attempts(second: str) -> None:
    """The key stays taken: another attempt of the call may have had its effect."""
    rig, holds = Rig(), [Hold(), Hold()]
    lost = TimeoutError("no answer")
    pay = pay_twice(rig, slow(holds[0], REFUSED), lost if second == "lost" else slow(holds[1]))
    assert finish(rig, holds[0])["settled"] is False
    [record] = rig.records()
    assert (record.state, record.dispatched) == ("cancelled", True)
    with pytest.raises(IdempotencyConflict):
        pay("order-1", 20)
    holds[1].go.set()


def test_late_certain_failures_of_all_attempts_free_the_key() -> None:
    rig, holds = Rig(), [Hold(), Hold()]
    pay_twice(rig, *(slow(hold, REFUSED) for hold in holds))
    for number, hold in enumerate(holds, 1):
        hold.go.set()
        eventually(partial(heard, rig, number), "a late result was not looked at")
    assert [late["settled"] for late in rig.ears.of("tool_call_late_result")] == [False, True]
    [record] = rig.records()
    assert (record.state, record.dispatched) == ("cancelled", False)


def test_abandoned_threads_are_counted_and_capped() -> None:
    rig = Rig(abandoned_threads=2)
    holds = [Hold(), Hold()]
    script = rig.tool(slow(holds[0]), slow(holds[1]), "free again", idempotent=True, timeout=SHORT, retry=ONCE)
    for number in range(2):
        assert rig.execute(params={"to": str(number)}).status == "timeout"
    refused = rig.execute(params={"to": "3"})
    assert (refused.status, refused.code, refused.attempts) == ("retriable_error", "too_many_abandoned_threads", 0)
    for hold in holds:
        hold.go.set()
    eventually(lambda: rig.gateway._plans.threads.abandoned == 0, "threads stay counted")
    assert rig.execute(params={"to": "3"}).content == "free again"
    assert len(script) == 3


def test_a_forked_child_has_no_abandoned_threads() -> None:
    rig, hold = Rig(abandoned_threads=1), Hold()
    rig.tool(slow(hold), "sent", idempotent=True, timeout=SHORT, retry=ONCE)
    assert rig.execute(params={"to": "1"}).status == "timeout"
    assert rig.execute(params={"to": "2"}).code == "too_many_abandoned_threads"
    assert in_child(lambda: rig.execute(params={"to": "3"}).code) != "too_many_abandoned_threads"
    hold.go.set()


def test_no_thread_left_for_a_retry_gives_the_last_error() -> None:
    rig = Rig(abandoned_threads=1)
    hold = Hold()
    rig.tool(slow(hold), idempotent=True, timeout=SHORT, breaker=NEVER_TRIPS)
    result = rig.execute()
    assert (result.code, result.attempts) == ("ETIMEDOUT", 1)
    hold.go.set()


def test_the_smallest_limit_counts() -> None:
    rig = Rig()
    seen: list[Any] = []

    @rig.gateway.tool("send", idempotent=True, timeout=60.0)
    def send(to: str, ctx: CallContext) -> str:
        seen.append(ctx.deadline)
        return to

    now = rig.clock.now_ms()
    rig.execute(params={"to": "1"})
    rig.execute(params={"to": "2"}, hints={"timeoutMs": 30_000})
    rig.execute(params={"to": "3"}, hints={"timeoutMs": 30_000}, deadline_at_ms=now + 5_000)
    assert [round(at - now / 1000) for at in seen] == [60, 30, 5]


def test_the_context_offers_key_and_fence() -> None:
    rig = Rig()
    seen: list[CallContext] = []

    @rig.gateway.tool("send", idempotent=False)
    def send(to: str, ctx: CallContext) -> str:
        seen.append(ctx)
        return to

    rig.execute(key="order-7", call_id="c1")
    rig.execute(key="order-8")
    assert (seen[0].idempotency_key, seen[0].attempt, seen[0].call_id) == ("order-7", 1, "c1")
    assert 0 < seen[0].fence < seen[1].fence
    assert seen[0].deadline is None


def test_a_decorated_function_raises_a_timeout() -> None:
    rig = Rig()
    hold = Hold()

    @rig.gateway.tool(idempotent=True, timeout=SHORT, retry=ONCE)
    def look() -> None:
        hold.wait_here()

    with pytest.raises(CallTimeout):
        look()
    hold.go.set()


# -- asynchronous ---------------------------------------------------------------------------------------------------


async def test_an_asynchronous_tool_is_stopped_at_its_limit() -> None:
    rig = AsyncRig()
    stopped: list[bool] = []

    @rig.gateway.tool(idempotent=False, timeout=SHORT)
    async def pay(amount: int) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(True)
            raise
        return "paid"

    with pytest.raises(OutcomeUnknown):
        await pay(3)
    assert stopped == [True]


async def test_a_timeout_of_the_tools_own_is_told_apart() -> None:
    rig = AsyncRig()

    @rig.gateway.tool("send", idempotent=True, timeout=60.0)
    async def send(to: str) -> str:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
        return to

    result = await rig.execute(attempts=1)
    assert result.code == "ETIMEDOUT"
    assert "60" not in result.error.message


async def test_synchronous_tools_do_not_block_the_event_loop() -> None:
    rig = AsyncRig()
    hold = Hold()
    rig.tool(slow(hold, "done"))
    task = asyncio.ensure_future(rig.execute())
    while not hold.reached.is_set():
        await asyncio.sleep(0)
    hold.go.set()
    assert (await task).content == "done"


async def test_a_synchronous_tool_of_a_cancelled_task_settles_its_record_later() -> None:
    rig = AsyncRig()
    hold = Hold()
    rig.tool(slow(hold, "sent after all"))
    task = asyncio.ensure_future(rig.execute(call_id="c1"))
    while not hold.reached.is_set():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert state(rig) == ("failed", "outcome_unknown")
    assert finish(rig, hold)["settled"] is True
    assert (await rig.execute(call_id="c1")).content == "sent after all"


async def test_a_synchronous_tool_with_a_limit_in_the_asynchronous_face() -> None:
    rig = AsyncRig()
    hold = Hold()
    rig.tool(slow(hold, "sent after all"), timeout=SHORT)
    assert (await rig.execute(call_id="c1")).code == "outcome_unknown"
    hold.go.set()
    while not rig.ears.of("tool_call_late_result"):
        await asyncio.sleep(0)
    assert (await rig.execute(call_id="c1")).content == "sent after all"

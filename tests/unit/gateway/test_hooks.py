"""R10, TR-12: before and after, once per attempt, once for a call that is answered without one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon._gateway.hooks import HookCall, HookReply
from antiphon._gateway.settings import ToolOverride
from antiphon.errors import ToolDeniedError
from tests.unit.gateway.kit import NEVER_TRIPS, AsyncRig, Hold, HttpError, Rig, envelope, in_thread


class Spy:
    """Notes every hook, in order."""

    def __init__(self, rig: Rig) -> None:
        self.seen: list[tuple[str, int]] = []
        self.outcomes: list[Any] = []
        rig.gateway.before(self.before)
        rig.gateway.after(self.after)

    def before(self, call: HookCall) -> None:
        self.seen.append(("before", call.attempt))

    def after(self, call: HookCall, outcome: Any) -> None:
        self.seen.append(("after", call.attempt))
        self.outcomes.append(outcome)


ONCE = [("before", 1), ("after", 1)]


def test_once_around_a_call() -> None:
    rig = Rig()
    rig.tool("sent")
    spy = Spy(rig)
    rig.execute()
    assert spy.seen == ONCE
    assert (spy.outcomes[0].status, spy.outcomes[0].value) == ("success", "sent")


def test_once_per_attempt() -> None:
    rig = Rig()
    rig.tool(HttpError(503), HttpError(503), "fine", idempotent=True)
    spy = Spy(rig)
    rig.execute()
    assert spy.seen == [("before", 1), ("after", 1), ("before", 2), ("after", 2), ("before", 3), ("after", 3)]
    assert [outcome.status for outcome in spy.outcomes] == ["retriable_error", "retriable_error", "success"]


def test_once_for_each_kind_of_short_circuit() -> None:
    rig = Rig()
    rig.tool("sent", idempotent=True)
    turn = rig.gateway.session("s1").turn()
    turn.call("send", {"to": "ada"}, "c1")
    rig.execute(key="k")
    spy = Spy(rig)

    turn.call("send", {"to": "ada"}, "c1")
    assert (spy.seen, spy.outcomes[-1].from_cache) == (ONCE, True)  # duplicate
    spy.seen.clear()
    turn.call("send", {"to": "ada"}, "c2")
    assert (spy.seen, spy.outcomes[-1].code) == (ONCE, "denied")
    spy.seen.clear()
    rig.execute(key="k", params={"to": "bob"})
    assert (spy.seen, spy.outcomes[-1].code) == (ONCE, "idempotency_conflict")
    spy.seen.clear()
    rig.breaker().force_open(rig.clock.seconds, "maintenance")
    rig.execute(params={"to": "eve"})
    assert (spy.seen, spy.outcomes[-1].code) == (ONCE, "circuit_open")
    spy.seen.clear()
    rig.execute(params={"to": "eve"}, deadline_at_ms=1)
    assert (spy.seen, spy.outcomes[-1].code) == (ONCE, "deadline_exceeded")


def test_once_when_the_breaker_opens_between_two_attempts() -> None:
    rig = Rig()
    rig.tool(HttpError(503), idempotent=True)
    spy = Spy(rig)
    real = rig.clock.sleep

    def sleep(seconds: float) -> None:
        real(seconds)
        rig.breaker().force_open(rig.clock.seconds, "maintenance")

    rig.clock.sleep = sleep  # type: ignore[method-assign]
    result = rig.execute()
    assert (result.status, result.error.breaker_state) == ("retriable_error", "FORCED_OPEN")
    assert spy.seen == ONCE


def test_once_for_an_attempt_that_is_interrupted() -> None:
    rig = Rig()
    rig.tool(KeyboardInterrupt())
    spy = Spy(rig)
    with pytest.raises(KeyboardInterrupt):
        rig.execute()
    assert spy.seen == ONCE
    assert spy.outcomes[0].code == "cancelled"


async def test_once_for_a_waiter_that_is_cancelled() -> None:
    rig = AsyncRig()
    hold = asyncio.Event()

    @rig.gateway.tool("send", idempotent=False)
    async def send(to: str) -> str:
        await hold.wait()
        return to

    leader = asyncio.ensure_future(rig.execute(call_id="c1"))
    await asyncio.sleep(0)
    spy = Spy(rig)
    waiter = asyncio.ensure_future(rig.execute(call_id="c2"))
    for _ in range(5):
        await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert spy.seen == ONCE
    hold.set()
    assert (await leader).ok


def test_once_for_a_stream_when_it_has_ended() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=True)
    def count(n: int) -> Any:
        yield from range(n)

    spy = Spy(rig)
    stream = count(2)
    assert next(stream) == 0
    assert spy.seen == [("before", 1)]
    assert list(stream) == [1]
    assert spy.seen == ONCE
    assert spy.outcomes[0].value == [0, 1]


def test_registering_twice_is_registering_once() -> None:
    rig = Rig()
    rig.tool()
    spy = Spy(rig)
    rig.gateway.before(spy.before)
    rig.gateway.after(spy.after)
    rig.execute()
    assert spy.seen == ONCE


def test_wrapping_twice_is_wrapping_once() -> None:
    rig = Rig()
    spy = Spy(rig)
    decorate = rig.gateway.tool(idempotent=True)

    @decorate
    @decorate
    def look(q: str) -> str:
        return q

    assert look("x") == "x"
    assert spy.seen == ONCE


def test_a_hook_may_supply_the_key() -> None:
    rig = Rig()
    script = rig.tool()
    rig.gateway.before(lambda call: HookReply(idempotency_key=f"order-{call.params['to']}", name="orders"))
    rig.execute(call_id="c1")
    assert rig.execute(call_id="c2").from_cache
    assert len(script) == 1
    assert rig.records()[0].idempotency_key == "order-ada"


def test_the_callers_key_goes_before_the_hooks() -> None:
    rig = Rig()
    rig.tool()
    rig.gateway.before(lambda call: HookReply(idempotency_key="hook"))
    rig.execute(key="caller")
    assert rig.records()[0].idempotency_key == "caller"


def test_the_end_of_a_call_names_the_hook_that_supplied_its_key() -> None:
    rig = Rig()
    rig.tool()
    rig.gateway.before(lambda call: HookReply(idempotency_key="order-1", name="orders"))
    rig.execute(call_id="c1", correlationId="batch-7")
    rig.execute(call_id="c2", key="caller")
    rig.gateway.execute(envelope(call_id="c3", key="caller") | {"control": {"fromHook": "client"}})
    ends = rig.ears.of("tool_call_end")
    assert [end.get("fromHook") for end in ends] == ["orders", None, "client"]
    assert ends[0]["correlationId"] == "batch-7"


def test_a_hook_may_give_hints() -> None:
    rig = Rig()
    script = rig.tool(TimeoutError(), "sent")
    rig.gateway.before(lambda call: HookReply(expected_retry_safe=True))
    assert rig.execute().content == "sent"
    assert len(script) == 2


def test_a_hook_may_deny() -> None:
    rig = Rig()
    script = rig.tool()

    @rig.gateway.before
    def deny(call: HookCall) -> None:
        raise ToolDeniedError("not on a Sunday")

    after: list[Any] = []
    rig.gateway.after(lambda call, outcome: after.append(outcome.code))
    result = rig.execute()
    assert (result.status, result.code, result.attempts) == ("error", "denied", 0)
    denied = rig.gateway.session("s").turn().call("send", {}, "c1")
    assert (denied.reason, denied.details) == ("hook", "not on a Sunday")  # type: ignore[union-attr]
    assert after == ["denied", "denied"]
    assert len(script) == 0
    assert rig.records() == []


def test_a_hook_that_fails_stops_the_call() -> None:
    rig = Rig()
    script = rig.tool()

    @rig.gateway.before
    def broken(call: HookCall) -> None:
        raise ZeroDivisionError("a bug in the hook")

    result = rig.execute()
    assert (result.status, result.code, result.attempts) == ("error", "hook_failed", 0)
    assert len(script) == 0


def test_a_hook_that_fails_before_a_retry_leaves_the_last_error() -> None:
    rig = Rig()
    script = rig.tool(HttpError(503), "fine", idempotent=True)
    seen: list[int] = []

    @rig.gateway.before
    def second_time_unlucky(call: HookCall) -> None:
        seen.append(call.attempt)
        if call.attempt == 2:
            raise ToolDeniedError("enough")

    after: list[int] = []
    rig.gateway.after(lambda call, outcome: after.append(call.attempt))
    result = rig.execute()
    assert (result.status, result.code, result.attempts) == ("retriable_error", "http_503", 1)
    assert (seen, after, len(script)) == ([1, 2], [1, 2], 1)


def test_an_after_hook_that_fails_harms_nobody() -> None:
    rig = Rig()
    rig.tool("sent")

    @rig.gateway.after
    def broken(call: HookCall, outcome: Any) -> None:
        raise ZeroDivisionError

    assert rig.execute().content == "sent"


@pytest.mark.parametrize("settings", [{"enabled": False}, {"tools": {"send": ToolOverride(enabled=False)}}])
def test_with_the_layer_off_hooks_still_fire_once(settings: dict[str, Any]) -> None:
    rig = Rig(**settings)
    script = rig.tool("sent", ValueError("no"))
    spy = Spy(rig)
    assert rig.execute().content == "sent"
    assert spy.seen == ONCE
    spy.seen.clear()
    failed = rig.execute()
    assert (spy.seen, failed.status) == (ONCE, "error")
    assert len(script) == 2
    assert rig.records() == []


def test_in_shadow_mode_hooks_fire_once() -> None:
    rig = Rig(shadow=True)
    rig.tool(HttpError(503), "sent", idempotent=True)
    spy = Spy(rig)
    rig.execute()
    assert spy.seen == ONCE
    spy.seen.clear()
    rig.execute()
    assert spy.seen == ONCE


def test_once_when_no_thread_is_left() -> None:
    rig = Rig(abandoned_threads=0)
    rig.tool("sent", timeout=5.0, breaker=NEVER_TRIPS)
    spy = Spy(rig)
    result = rig.execute()
    assert (result.code, result.attempts) == ("too_many_abandoned_threads", 0)
    assert spy.seen == ONCE


def test_hooks_of_concurrent_calls_do_not_mix() -> None:
    rig = Rig()
    hold = Hold()
    rig.tool(hold.then("slow"), "quick")
    spy = Spy(rig)
    slow = in_thread(lambda: rig.execute(params={"to": "slow"}))
    hold.until_reached()
    rig.execute(params={"to": "quick"})
    hold.go.set()
    slow.result()
    assert sorted(spy.seen) == sorted(ONCE * 2)


@pytest.mark.parametrize("make", [Rig, AsyncRig], ids=["threads", "loop"])
def test_an_asynchronous_deny_hook_behind_another_one_is_never_skipped(make: Any) -> None:
    import asyncio

    rig = make()
    script = rig.tool("sent")

    def first(call: HookCall) -> HookReply:
        return HookReply(timeout_ms=1000)

    async def deny(call: HookCall) -> None:
        await asyncio.sleep(0)
        raise ToolDeniedError("not today")

    told: list[str] = []

    async def after(call: HookCall, outcome: Any) -> None:
        await asyncio.sleep(0)
        told.append(outcome.code)

    rig.gateway.before(first)
    rig.gateway.before(deny)
    rig.gateway.after(after)

    async def execute() -> Any:
        return await rig.gateway.execute(envelope())

    answer = asyncio.run(execute()) if make is AsyncRig else rig.execute()
    assert (answer.error.code, told, len(script)) == ("denied", ["denied"], 0)


def test_a_before_hook_that_answers_something_else_stops_the_call() -> None:
    rig = Rig()
    script = rig.tool("sent")
    rig.gateway.before(lambda call: True)  # type: ignore[arg-type, return-value]
    answer = rig.execute()
    assert (answer.error.code, len(script)) == ("hook_failed", 0)
    assert "HookReply or None" in answer.error.message

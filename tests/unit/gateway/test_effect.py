"""The point of no return: what a tool raises before ``effect()`` has had no effect."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import antiphon
from antiphon import effect as begins
from antiphon._gateway import point as points
from antiphon._gateway.point import has_point
from antiphon.contract.spec import RetryPolicy
from antiphon.errors import CallTimeout, IdempotencyConflict, OutcomeUnknown

QUIET: dict[str, Any] = {"telemetry": {"logs": False}, "retry": {"base_ms": 0}}


@pytest.fixture
def gateway() -> Iterator[antiphon.Gateway]:
    with antiphon.Gateway("memory:", QUIET) as made:
        yield made


def helper() -> None:
    with antiphon.effect():
        pass


def test_outside_a_call_it_does_nothing() -> None:
    with antiphon.effect(), antiphon.effect():
        pass


def by_attribute() -> None:
    with antiphon.effect():
        pass


def by_name() -> None:
    with begins():
        pass


def by_import() -> None:
    from antiphon import effect

    with effect():
        pass


def by_module() -> None:
    import antiphon as other

    with other.effect():
        pass


def by_helper() -> None:
    helper()


async def in_a_coroutine() -> None:
    with antiphon.effect():
        pass


def in_a_nested_function() -> None:
    def inner() -> None:
        with antiphon.effect():
            pass

    inner()


class Till:
    def __call__(self) -> None:
        with antiphon.effect():
            pass

    def method(self) -> None:
        with antiphon.effect():
            pass


@functools.wraps(by_attribute)
def wrapped() -> None:
    by_attribute()


SAYS = [
    *(by_attribute, by_name, by_import, by_module, by_helper, in_a_coroutine, in_a_nested_function),
    *(Till(), Till().method, functools.partial(by_name), wrapped),
]


@pytest.mark.parametrize("function", SAYS, ids=lambda function: getattr(function, "__name__", type(function).__name__))
def test_a_tool_that_says_where_its_effect_begins_is_known(function: Callable[..., Any]) -> None:
    assert has_point(function)


def test_a_tool_that_says_nothing_is_known(gateway: antiphon.Gateway) -> None:
    def other(antiphon: Any) -> Any:
        return antiphon.effect

    def mentions(spec: Any) -> Any:
        return antiphon.DidNotHappen, spec.effect

    def calls_another_tool() -> Any:
        return charge()

    @gateway.tool("charge", idempotent=False)
    def charge() -> None:
        with antiphon.effect():
            pass

    functions: list[Callable[..., Any]] = [other, mentions, calls_another_tool, len, print]
    assert not any(map(has_point, functions))


def test_a_tool_that_calls_itself_can_be_registered(gateway: antiphon.Gateway) -> None:
    @gateway.tool(idempotent=False)
    def again(left: int) -> int:
        if left:
            return again(left - 1)
        with antiphon.effect():
            return 0

    assert again(2) == 0
    assert again.tool.has_point


def test_a_tool_on_a_thread_that_runs_out_of_time_never_passes(gateway: antiphon.Gateway) -> None:
    """A certain failure, although its thread goes on: the thread is stopped at the point."""
    go, over, charged = threading.Event(), threading.Event(), []

    @gateway.tool(idempotent=False, key="order", timeout=0.05, retry=RetryPolicy(max_attempts=1))
    def charge(order: str, cents: int) -> str:
        try:
            if cents == 500:
                go.wait(30)
            with antiphon.effect():
                charged.append((order, cents))
            return "charged"
        finally:
            if cents == 500:
                over.set()

    with pytest.raises(CallTimeout):
        charge("o-1", 500)
    charge_now = antiphon.Gateway(gateway._plans.store, QUIET).tool("charge", idempotent=False, key="order")(
        charge.tool.function
    )
    assert charge_now("o-1", 400) == "charged"  # the key is free
    go.set()
    assert over.wait(30)
    assert charged == [("o-1", 400)]


def test_a_tool_on_a_thread_that_runs_out_of_time_behind_the_point_is_unknown(gateway: antiphon.Gateway) -> None:
    inside, go = threading.Event(), threading.Event()

    @gateway.tool(idempotent=False, key="order", timeout=0.3)
    def charge(order: str, cents: int) -> str:
        with antiphon.effect():
            inside.set()
            go.wait(30)
        raise AssertionError("nobody hears of it")

    try:
        with pytest.raises(OutcomeUnknown):
            charge("o-1", 500)
        assert inside.is_set()
        with pytest.raises(IdempotencyConflict):
            charge("o-1", 400)
    finally:
        go.set()


async def test_a_cancelled_call_is_released_before_and_unknown_behind_the_point() -> None:
    asked: list[str] = []
    async with antiphon.AsyncGateway("memory:", QUIET) as gateway:
        before, behind = asyncio.Event(), asyncio.Event()

        @gateway.tool(idempotent=False, key="order")
        async def charge(order: str) -> str:
            asked.append(order)
            if asked.count(order) == 1 and order == "before":
                before.set()
                await asyncio.sleep(60)
            with antiphon.effect():
                if order == "behind":
                    behind.set()
                    await asyncio.sleep(60)
            return "charged"

        for order, reached in (("before", before), ("behind", behind)):
            call = asyncio.ensure_future(charge(order))
            await reached.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert await charge("before") == "charged"
        with pytest.raises(OutcomeUnknown):
            await charge("behind")


def test_nested_calls_have_points_of_their_own(gateway: antiphon.Gateway) -> None:
    fails: list[Exception] = [ValueError("after the inner effect, before the outer one")]

    @gateway.tool(idempotent=False, key="order")
    def book(order: str) -> str:
        with antiphon.effect():
            return "booked"

    @gateway.tool(idempotent=False, key="order")
    def charge(order: str, cents: int) -> str:
        book(order)
        if fails:
            raise fails.pop()
        with antiphon.effect():
            return "charged"

    with pytest.raises(ValueError, match="outer"):
        charge("o-1", 500)
    assert charge("o-1", 400) == "charged"
    assert points.point.get() is None


def test_a_transient_failure_before_the_effect_is_retried(gateway: antiphon.Gateway) -> None:
    asked: list[int] = []

    @gateway.tool(idempotent=False)
    def charge(cents: int) -> str:
        asked.append(cents)
        if len(asked) == 1:
            raise TimeoutError("the price list does not answer")
        with antiphon.effect():
            return "charged"

    assert charge(500) == "charged"
    assert len(asked) == 2


def test_a_stream_that_fails_before_its_effect_frees_the_key(gateway: antiphon.Gateway) -> None:
    @gateway.tool(idempotent=False, key="order")
    def charge(order: str, cents: int) -> Iterator[str]:
        yield "looking"
        if cents == 500:
            raise ValueError("no such order")
        with antiphon.effect():
            yield "charged"

    with pytest.raises(ValueError, match="no such order"):
        list(charge("o-1", 500))
    assert list(charge("o-1", 400)) == ["looking", "charged"]


def test_without_the_point_the_test_above_would_fail(
    gateway: antiphon.Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: the gateway does not look where the attempt ended."""
    monkeypatch.setattr("antiphon._gateway.attempt._before_effect", lambda call: False)

    @gateway.tool(idempotent=False, key="order")
    def charge(order: str, cents: int) -> str:
        if cents == 500:
            raise ValueError("no such order")
        with antiphon.effect():
            return "charged"

    with pytest.raises(ValueError, match="no such order"):
        charge("o-1", 500)
    with pytest.raises(IdempotencyConflict):
        charge("o-1", 400)


class Client:
    """Its method has the name of a function that says where its effect begins."""

    def helper(self) -> None:
        raise TimeoutError("sent, no answer")


def by_attribute_of_another(client: Client) -> None:
    client.helper()


def named_only(order: str) -> object:
    return helper


def called_with_parts(*parts: Any) -> None:
    helper(*parts)


def test_only_a_function_that_the_tool_calls_says_where_its_effect_begins() -> None:
    assert not has_point(by_attribute_of_another)
    assert not has_point(named_only)
    assert has_point(called_with_parts)


def test_an_effect_on_a_thread_of_the_tool_is_not_repeated(gateway: antiphon.Gateway) -> None:
    sent: list[str] = []

    def send(order: str) -> None:
        with antiphon.effect():
            sent.append(order)

    @gateway.tool(idempotent=False, key="order")
    def charge(order: str) -> None:
        thread = threading.Thread(target=send, args=(order,))
        thread.start()
        thread.join()
        if not sent:
            with antiphon.effect():
                sent.append("here")
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError):
        charge("o-1")
    with pytest.raises(OutcomeUnknown):
        charge("o-1")
    assert sent == ["o-1"]

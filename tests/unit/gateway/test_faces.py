"""What the two drivers do differently: threads, coroutines, time limits of the store."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon import Antiphon, Happened
from antiphon._gateway.gateway import AsyncGateway
from antiphon._gateway.plan import Dependencies
from antiphon.contract.spec import RetryPolicy
from antiphon.ops.gateways import AsyncGateway as RecordingGateway
from antiphon.stores import MemoryStore
from tests.unit.gateway.heard import Heard
from tests.unit.gateway.kit import AsyncRig, envelope


@pytest.mark.parametrize("timeout", [None, 5.0])
async def test_a_coroutine_behind_a_plain_decorator_is_awaited(timeout: float | None) -> None:
    gateway = AsyncGateway(Dependencies(store=MemoryStore()))

    async def send(to: str) -> str:
        await asyncio.sleep(0)
        return to

    @functools.wraps(send)
    def plain(to: str) -> Any:
        return send(to)

    hidden: Callable[..., Any] = lambda to: plain(to)  # noqa: E731
    tool: Any = gateway.tool("send", idempotent=False, timeout=timeout)(hidden)
    assert await tool(to="ada") == "ada"
    await gateway.close()


def test_without_an_asyncio_loop_the_call_says_so() -> None:
    gateway = AsyncGateway(Dependencies(store=MemoryStore()))

    @gateway.tool(idempotent=True)
    async def send(to: str) -> str:
        return to

    with pytest.raises(RuntimeError, match="AsyncGateway needs a running asyncio event loop"):
        send("ada").send(None)


async def test_nor_does_it_escape_its_time_limit() -> None:
    rig = AsyncRig()
    never = asyncio.Event()

    async def send(to: str) -> str:
        await never.wait()
        return to

    hidden: Callable[..., Any] = lambda to: send(to)  # noqa: E731
    rig.gateway.tool("send", idempotent=True, timeout=0.01, retry=RetryPolicy(max_attempts=1))(hidden)
    assert (await rig.execute(call_id="c1")).status == "timeout"


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_read_back_that_blocks_does_not_block_the_event_loop(asynchronous: bool) -> None:
    rig = AsyncRig()
    where: list[threading.Thread] = []

    def now(params: dict[str, Any]) -> Any:
        where.append(threading.current_thread())
        return Happened("sent after all")

    async def later(params: dict[str, Any]) -> Any:
        return now(params)

    @rig.gateway.tool("send", idempotent=False, reconcile=later if asynchronous else now)
    async def send(to: str) -> str:
        raise TimeoutError("no answer")

    assert (await rig.execute(call_id="c1")).code == "outcome_unknown"
    again = await rig.execute(call_id="c1")
    assert again.content == "sent after all"
    assert (where[0] is threading.main_thread()) is asynchronous


# -- a recorded call with a deadline ------------------------------------------------------------------------------


@pytest.fixture
def store() -> Iterator[Heard]:
    store = Heard()
    yield store
    store.repair()


def soon() -> dict[str, Any]:
    return envelope(call_id="c1", mode="disabled", deadline_at_ms=int((time.time() + 15.0) * 1000))


KINDS = ["run.started", "call.started", "call.finished", "run.finished"]


def test_a_call_with_a_deadline_is_in_the_log_of_its_run(store: Heard) -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=store)
    app.gateway.tool("send", idempotent=False)(lambda to: "sent")
    with app.run("deadline") as run:
        assert app.gateway.execute(soon()).content == "sent"
    assert [event.type for event in run.events()] == KINDS
    app.gateway.close()


async def test_so_is_one_of_an_event_loop(store: Heard) -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=store)
    gateway: RecordingGateway = app.async_gateway

    @gateway.tool("send", idempotent=False)
    async def send(to: str) -> str:
        return "sent"

    async with app.run("deadline") as run:
        assert (await gateway.execute(soon())).content == "sent"
    assert [event.type for event in run.events()] == KINDS
    await gateway.close()


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_so_is_one_that_fails_or_is_interrupted(error: BaseException, store: Heard) -> None:
    """It has no claim that its end could be written with."""
    app = Antiphon({"telemetry": {"logs": False}}, store=store)

    def send(to: str) -> str:
        raise error

    app.gateway.tool("send", idempotent=False)(send)
    with app.run("unclaimed") as run, contextlib.suppress(KeyboardInterrupt):
        assert app.gateway.execute(envelope(call_id="c1", mode="disabled")).status == "error"
    assert [event.type for event in run.events()] == KINDS
    app.gateway.close()

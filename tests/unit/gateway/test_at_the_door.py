"""What is refused before anything runs, and what must not hang or be lost: the small findings of the audits."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from antiphon.errors import ConfigError, InFlight
from tests.unit.gateway.kit import AsyncRig, Rig, envelope

LONE = "x\ud800y"


@pytest.mark.parametrize("name", ["TOOL_RELIABILITY_ENABLED", "TOOL_RELIABILITY_OPEN_MODE", "ANTIPHON_SHADOW"])
def test_a_word_that_says_neither_on_nor_off_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "flase")
    with pytest.raises(ConfigError, match=f"{name} is 'flase'.*true or false"):
        Rig()


def test_arguments_that_are_none_are_refused() -> None:
    rig = Rig()
    script = rig.tool()
    arguments: Any = None
    answer = rig.gateway.session("s").turn().call("send", arguments)
    assert (answer.code, len(script)) == ("validation_error", 0)


def _with(path: str) -> dict[str, Any]:
    wire: dict[str, Any] = envelope(call_id="c1", key="k", workspaceId="w", tenantId="t")
    *way, last = path.split(".")
    part = wire
    for name in way:
        part = part[name]
    part[last] = LONE
    return wire


@pytest.mark.parametrize(
    "path",
    [
        "requestId",
        "toolCallId",
        "toolName",
        "toolNamespace",
        "target.sessionKey",
        "target.actorId",
        "target.workspaceId",
        "target.tenantId",
        "target.correlationId",
        "payload.idempotencyKey",
        "trace.traceparent",
    ],
)
def test_a_text_that_cannot_be_written_is_refused(path: str) -> None:
    rig = Rig()
    script = rig.tool()
    answer = rig.gateway.execute(_with(path))
    assert (answer.code, len(script)) == ("validation_error", 0)
    assert answer.error is not None
    assert path in answer.error.message
    json.dumps(answer.to_wire(), ensure_ascii=False).encode()
    assert rig.records() == []


def on_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for itself"


def on_a_pool(work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(20)


def on_a_thread_of_a_thread(work: Callable[[], None]) -> None:
    on_a_thread(lambda: on_a_pool(work))


@pytest.mark.parametrize("elsewhere", [on_a_thread, on_a_pool, on_a_thread_of_a_thread])
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_tool_that_calls_itself_through_a_thread_does_not_wait_for_itself(
    elsewhere: Callable[[Callable[[], None]], None], timeout: float | None
) -> None:
    rig, raised = Rig(), list[Exception]()

    def again() -> None:
        try:
            send("ada")
        except InFlight as error:
            raised.append(error)

    @rig.gateway.tool("send", idempotent=True, timeout=timeout)
    def send(to: str) -> str:
        elsewhere(again)
        return "sent"

    assert send("ada") == "sent"
    assert ["called itself" in str(error) for error in raised] == [True]


def test_a_call_in_another_thread_still_waits_and_shares() -> None:
    rig, entered, go, ran = Rig(), threading.Event(), threading.Event(), list[str]()

    @rig.gateway.tool("send", idempotent=True)
    def send(to: str) -> str:
        ran.append(to)
        entered.set()
        assert go.wait(20)
        return "sent"

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(send, "ada")
        assert entered.wait(20)
        second = pool.submit(send, "ada")
        go.set()
        assert (first.result(20), second.result(20), ran) == ("sent", "sent", ["ada"])


def test_a_coroutine_behind_a_decorator_that_hides_it_is_awaited() -> None:
    ran: list[str] = []

    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    async def send(to: str) -> str:
        await asyncio.sleep(0)
        ran.append(to)
        return "sent"

    async def main() -> None:
        rig = AsyncRig()
        for number, limit in enumerate((None, 60.0)):
            tool = rig.gateway.tool(f"send{number}", idempotent=False, timeout=limit)(plain(send))
            assert await tool(to="ada") == "sent"

    asyncio.run(main())
    assert ran == ["ada", "ada"]

"""``connect``: a guarded client of a real server, over stdio and over HTTP. A replay needs no server, starts none."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters

from antiphon import Antiphon
from antiphon.adapters.mcp import connect, guard
from antiphon.ops.replay import replay
from tests.servers import free_port

_SERVER = """
import asyncio, os, sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("desk")

def note(words):
    with open(os.environ["EFFECTS"], "a") as log:
        print(words, file=log)

@server.tool()
def charge(order: str) -> str:
    "Charge an order."
    note(f"charged {order}")
    return f"charged {order}"

@server.tool()
def fail() -> str:
    "Fail."
    raise ValueError("nope")

@server.tool()
async def slow() -> str:
    "Take long."
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        note("cancelled")
        raise

server.run("stdio") if len(sys.argv) == 1 else server.run("streamable-http", port=int(sys.argv[1]))
"""


class Desk:
    """A server process that notes what it does."""

    def __init__(self, folder: Path) -> None:
        self.effects = folder / "effects"
        self.program = folder / "server.py"
        self.program.write_text(_SERVER)
        self.env = {**os.environ, "EFFECTS": str(self.effects)}
        self.close: Callable[[], None] = lambda: None
        self.place: Any = None

    def over_stdio(self) -> None:
        self.place = StdioServerParameters(command=sys.executable, args=[str(self.program)], env=self.env)

    def over_http(self) -> None:
        port = free_port()
        process = subprocess.Popen(
            [sys.executable, str(self.program), str(port)], env=self.env, stderr=subprocess.DEVNULL
        )

        def close() -> None:
            process.terminate()
            process.wait(10)

        self.close = close
        self.place = f"http://127.0.0.1:{port}/mcp"
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.05)
        raise TimeoutError("the server did not start")

    def done(self) -> list[str]:
        return self.effects.read_text().splitlines() if self.effects.exists() else []


@pytest.fixture(params=["stdio", "http"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    getattr(made, f"over_{request.param}")()
    yield made
    made.close()


def _text(result: Any) -> str:
    return str(result.content[0].text)


def test_recorded_and_replayed_with_the_server_gone(desk: Desk, app: Antiphon) -> None:
    async def agent() -> list[Any]:
        async with Client(connect(desk.place)) as client:
            tools = guard(client, "desk", session="ticket-7")
            listed = [tool.name for tool in (await tools.list_tools()).tools]
            orders = ("A", "B", "A")  # the last is a redelivery of the first
            charged = await asyncio.gather(
                *(tools.call_tool("charge", {"order": order}, call_id=f"call_{order}") for order in orders)
            )
            failed = await tools.call_tool("fail", {}, call_id="call_F")
            with pytest.raises(MCPError, match="timed out"):
                await tools.call_tool("slow", {}, 0.3, call_id="call_S")
        return [sorted(listed), [_text(result) for result in charged], failed.is_error]

    run = app.record(lambda: asyncio.run(agent()))
    desk.close()
    assert run.output == [["charge", "fail", "slow"], ["charged A", "charged B", "charged A"], True]
    assert sorted(desk.done()) == ["cancelled", "charged A", "charged B"]
    started = [event.payload for event in run.events() if event.type == "call.started"]
    tools = [payload["name"] for payload in started if payload["kind"] == "tool"]
    assert sorted(tools) == ["charge", "charge", "charge", "fail", "slow"]
    assert not [payload for payload in started if payload["name"].startswith("tools/call")], "one event for each call"
    desk.place = "http://127.0.0.1:9/mcp" if isinstance(desk.place, str) else desk.place
    assert replay(run, app=app, function=lambda: asyncio.run(agent()), mode="strict").divergences == []
    assert sorted(desk.done()) == ["cancelled", "charged A", "charged B"]


def test_calls_that_nobody_guards_are_recorded_as_messages(desk: Desk, app: Antiphon) -> None:
    async def agent() -> str:
        async with Client(connect(desk.place)) as client:
            return _text(await client.call_tool("charge", {"order": "C"}))

    run = app.record(lambda: asyncio.run(agent()))
    desk.close()
    assert run.output == "charged C"
    assert replay(run, app=app, function=lambda: asyncio.run(agent()), mode="strict").divergences == []
    assert desk.done() == ["charged C"]


def test_an_answer_that_came_after_the_client_gave_up_is_not_replayed(
    tmp_path: Path, app: Antiphon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes long to start is asked in the older way; its late answer comes all the same."""
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 0.1)
    desk = Desk(tmp_path)
    desk.over_stdio()

    async def agent() -> str:
        async with Client(connect(desk.place)) as client:
            return _text(await client.call_tool("charge", {"order": "C"}))

    run = app.record(lambda: asyncio.run(agent()))
    asked = [event.payload["name"] for event in run.events() if event.type == "call.started"]
    assert asked[:2] == ["server/discover", "initialize"]
    assert replay(run, app=app, function=lambda: asyncio.run(agent()), mode="strict").divergences == []
    assert desk.done() == ["charged C"]

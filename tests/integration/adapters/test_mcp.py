"""The MCP adapter beyond the common behaviour: hints, timeouts, calls without an id."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

from antiphon import Antiphon
from antiphon.adapters.mcp import guard, suggested_spec
from antiphon.contract.spec import ToolSpec


class _Tool:
    def __init__(self, **hints: Any) -> None:
        self.name = "t"
        self.description = ""
        self.annotations = ToolAnnotations(**hints) if hints else None


@pytest.mark.parametrize(
    ("hints", "trusted", "idempotent", "effect"),
    [
        ({}, False, False, None),
        ({}, True, False, None),
        ({"read_only_hint": True}, False, False, None),
        ({"read_only_hint": True}, True, True, "read"),
        ({"idempotent_hint": True}, False, False, "write"),
        ({"idempotent_hint": True}, True, True, "write"),
        ({"destructive_hint": True}, False, False, "write"),
        ({"destructive_hint": False}, True, False, "write"),
    ],
)
def test_a_hint_makes_us_only_stricter_unless_the_server_is_trusted(
    hints: dict[str, Any], trusted: bool, idempotent: bool, effect: str | None
) -> None:
    spec, _ = suggested_spec(_Tool(**hints), namespace="mcp.x", trusted=trusted)
    assert (spec.idempotent, spec.effect) == (idempotent, effect)


async def test_a_declaration_beats_the_hint(app: Antiphon) -> None:
    server = MCPServer("s")
    tries: list[int] = []

    @server.tool(annotations=ToolAnnotations(read_only_hint=False))
    def look() -> str:
        """Look."""
        tries.append(1)
        return f"seen {len(tries)}"

    async with Client(server) as client:
        tools = guard(client, "s", tools=[ToolSpec(name="look", idempotent=True, effect="read", reuse="session")])
        await tools.list_tools()
        first = await tools.call_tool("look", {}, call_id="1")
        again = await tools.call_tool("look", {}, call_id="2")
    assert first.content == again.content
    assert tries == [1]


async def test_a_call_that_takes_too_long_is_cancelled_at_the_server_and_stays_unknown(app: Antiphon) -> None:
    server = MCPServer("s")
    began = asyncio.Event()
    stopped = asyncio.Event()

    @server.tool()
    async def slow() -> str:
        """Take long."""
        began.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            stopped.set()
            raise
        return "late"

    async with Client(server) as client:
        tools = guard(client, "s", tools={"slow": {"idempotent": False, "timeout": 0.2}}, session="one")
        result = await tools.call_tool("slow", {}, call_id="1")
        assert result.is_error
        assert "not known whether" in str(result.content)
        await asyncio.wait_for(stopped.wait(), 5)
        again = await tools.call_tool("slow", {}, call_id="2")
    assert again.is_error, "an unknown outcome blocks the same intent until somebody verified it"


async def test_calls_without_an_id_are_known_by_their_place_in_the_run(app: Antiphon) -> None:
    server = MCPServer("s")
    done: list[str] = []

    @server.tool()
    def send(to: str) -> str:
        """Send."""
        done.append(to)
        return f"sent {len(done)}"

    async def agent() -> list[str]:
        async with Client(server) as client:
            tools = guard(client, "s")
            results = [await tools.call_tool("send", {"to": name}) for name in ("ada", "ada", "bob")]
        return [getattr(result.content[0], "text", "") for result in results]

    async with app.run("mail") as run:
        first = await agent()
    async with app.run("mail", resume=run.id):
        assert await agent() == first
    assert done == ["ada", "ada", "bob"]

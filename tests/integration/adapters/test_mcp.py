"""The MCP adapter beyond the common behaviour: hints, timeouts, calls without an id."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, InputRequiredResult, ToolAnnotations

from antiphon import Antiphon
from antiphon.adapters.mcp import NotExecuted, guard, suggested_spec
from antiphon.contract.spec import ToolSpec
from antiphon.ops.replay import replay


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
        await asyncio.wait_for(stopped.wait(), 30)
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


class _Scripted:
    """A session that answers from a script."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), 0

    async def call_tool(self, name: str, *given: Any, **options: Any) -> Any:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


_DONE = CallToolResult.model_validate({"content": [{"type": "text", "text": "charged"}]})


@pytest.mark.parametrize("code", [-32020, -32021, -32022])
async def test_a_call_that_the_server_refused_unexecuted_did_not_happen(app: Antiphon, code: int) -> None:
    session = _Scripted(MCPError(code, "not so"), _DONE)
    tools = guard(session, "s", session="one", app=app)
    with pytest.raises(NotExecuted) as refused:
        await tools.call_tool("charge", {}, call_id="1")
    assert refused.value.code == code
    again = await tools.call_tool("charge", {}, call_id="2")
    assert (again.content[0].text, session.asked) == ("charged", 2)


async def test_what_other_codes_mean_is_not_known_so_the_call_is_not_made_again(app: Antiphon) -> None:
    session = _Scripted(MCPError(-32000, "perhaps"), _DONE)
    tools = guard(session, "s", session="one", app=app)
    with pytest.raises(MCPError):
        await tools.call_tool("charge", {}, call_id="1")
    again = await tools.call_tool("charge", {}, call_id="2")
    assert (again.is_error, session.asked) == (True, 1)


async def test_each_leg_of_an_exchange_is_a_call_of_its_own(app: Antiphon) -> None:
    asks = InputRequiredResult.model_validate({"resultType": "input_required", "requestState": "s1"})
    session = _Scripted(asks, _DONE)
    tools = guard(session, "s", session="one", app=app)
    for _ in range(2):
        first = await tools.call_tool("charge", {}, call_id="1", allow_input_required=True)
        assert isinstance(first, InputRequiredResult)
        assert first.request_state == "s1"
    for _ in range(2):
        last = await tools.call_tool("charge", {}, call_id="1", request_state="s1", allow_input_required=True)
        assert last.content[0].text == "charged"
    assert session.asked == 2


@pytest.mark.parametrize("code", [-32000, -32099, -32602, -32001, -32021])
def test_a_replayed_error_is_the_one_that_was_recorded(app: Antiphon, code: int) -> None:
    session = _Scripted(MCPError(code, "so"))

    async def agent() -> list[Any]:
        with pytest.raises(MCPError) as raised:
            await guard(session, "s", session="one", app=app).call_tool("charge", {}, call_id="1")
        return [type(raised.value).__name__, raised.value.code, raised.value.message]

    run = app.record(lambda: asyncio.run(agent()))
    assert run.output == ["NotExecuted" if code == -32021 else "MCPError", code, "so"]
    replayed = replay(run, app=app, function=lambda: asyncio.run(agent()), mode="strict")
    assert (replayed.divergences, session.asked) == ([], 1)  # the output is compared, too

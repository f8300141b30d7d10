"""D42: the same call id with other arguments is a conflict, also where the framework does not tell the message."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from mcp import Client
from mcp.server.mcpserver import MCPServer

from antiphon import Antiphon
from antiphon.adapters import mcp, openai_agents
from antiphon.adapters._calls import _is_random

set_tracing_disabled(True)
DRAWN = "call_9pQw3eRt5yUi7oPa2sDf4gHj"


@pytest.mark.parametrize(
    "call_id",
    [DRAWN, "toolu_01A09q90qw90lq917835lq9", "0b7c4a52-6c9e-4d0b-9a51-2f3c7d8e9a10", "chatcmpl-tool-1f2e3d4c5b6a7988"],
)
def test_drawn_ids(call_id: str) -> None:
    assert _is_random(call_id)


@pytest.mark.parametrize(
    "call_id", ["call_0", "0", "", "functions.get_weather_tomorrow:12", "call_0000000000000001", "weatherlookup000123"]
)
def test_counted_ids(call_id: str) -> None:
    assert not _is_random(call_id)


async def _sent(app: Antiphon, *responses: list[tuple[str, str]]) -> list[str]:
    """What an agent sends whose model answers with these calls (id, recipient)."""
    sent: list[str] = []

    @function_tool
    def send(to: str) -> str:
        """Send."""
        sent.append(to)
        return "sent"

    model = ScriptedModel(
        [[function_call("send", {"to": to}, call_id=call_id) for call_id, to in calls] for calls in responses]
        + [[assistant_message("done")]]
    )
    agent = openai_agents.protect(Agent(name="desk", model=model, tools=[send]), gateway=app, session="ticket-1")
    await Runner.run(agent, "go")
    return sent


async def test_a_drawn_id_is_for_one_set_of_arguments_in_its_session(app: Antiphon) -> None:
    assert await _sent(app, [(DRAWN, "ada")]) == ["ada"]
    assert await _sent(app, [(DRAWN, "bob")]) == [], "a conflict"
    assert await _sent(app, [(DRAWN, "ada")]) == [], "a redelivery"


async def test_a_counted_id_is_for_one_set_of_arguments_in_its_response(app: Antiphon) -> None:
    async with app.run("mail") as run:
        assert await _sent(app, [("call_0", "ada"), ("call_1", "bob")]) == ["ada", "bob"]
    async with app.run("mail", resume=run.id):
        assert await _sent(app, [("call_0", "ada"), ("call_1", "eve")]) == [], "a redelivery, and a conflict"
    async with app.run("mail"):
        assert await _sent(app, [("call_0", "dan")]) == ["dan"], "another run"


async def test_an_id_of_an_mcp_call_is_for_one_set_of_arguments(app: Antiphon) -> None:
    server = MCPServer("s")
    done: list[str] = []

    @server.tool()
    def send(to: str) -> str:
        """Send."""
        done.append(to)
        return "sent"

    async with Client(server) as client:
        tools = mcp.protect(client, server="s", gateway=app, session="ticket-1")
        answers: list[Any] = [await tools.call_tool("send", {"to": to}, call_id="c1") for to in ("ada", "ada", "bob")]
        answers.append(await tools.call_tool("send", {"to": "bob"}, call_id="c2"))
    assert [answer.is_error for answer in answers] == [False, False, True, False]
    assert "c1" in answers[2].content[0].text
    assert done == ["ada", "bob"]

"""An MCP client under test: a plain loop asks the model and calls the tools of a real server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
from mcp import Client
from mcp.server.mcpserver import MCPServer

import antiphon
from antiphon.adapters.mcp import guard
from tests.integration.adapters.world import World

_TOOL: Any = {"type": "function", "function": {"name": "charge", "parameters": {"type": "object"}}}


def server_of(world: World) -> MCPServer:
    server = MCPServer("desk")

    @server.tool()
    def charge(order: str) -> str:
        """Charge an order."""
        return world.charge(order)

    return server


def make(world: World) -> World:
    return world


async def _loop(world: World, question: str, session: str) -> str:
    model = antiphon.wrap(openai.AsyncOpenAI(api_key="none", base_url=f"{world.provider.url}/v1"))
    messages: list[Any] = [{"role": "user", "content": question}]
    async with Client(server_of(world)) as client:
        tools = guard(client, "desk", session=session)
        while True:
            answer = await model.chat.completions.create(model="fake-1", messages=messages, tools=[_TOOL])
            said = answer.choices[0].message
            if not said.tool_calls:
                return said.content or "refused"
            messages.append(said.model_dump(exclude_none=True))
            calls: list[Any] = list(said.tool_calls)
            results = await asyncio.gather(
                *(tools.call_tool(c.function.name, json.loads(c.function.arguments), call_id=c.id) for c in calls)
            )
            for call, result in zip(calls, results, strict=True):
                text = "".join(getattr(part, "text", "") for part in result.content)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


def ask(world: World, question: str, session: str) -> str:
    return asyncio.run(_loop(world, question, session))


def crash_and_resume(world: World) -> None:
    """The loop starts again with the same message of the model."""
    for _ in range(2):
        assert ask(world, "charge A please", "ticket-9") == "all done"

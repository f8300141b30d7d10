"""An agent of the OpenAI Agents SDK under test; its model asks the fake provider over real HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    ModelRefusalError,
    OpenAIResponsesModel,
    Runner,
    RunState,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from antiphon.adapters.openai_agents import protect
from tests.integration.adapters.world import World

set_tracing_disabled(True)


def agent_of(world: World, *, approval: bool = False) -> Agent[Any]:
    @function_tool(needs_approval=approval)
    def charge(order: str) -> str:
        """Charge an order."""
        return world.charge(order)

    client = AsyncOpenAI(api_key="none", base_url=f"{world.provider.url}/v1", max_retries=0)
    return Agent(name="desk", model=OpenAIResponsesModel("fake-1", client), tools=[charge])


def make(world: World) -> World:
    return world


def ask(world: World, question: str, session: str) -> str:
    async def main() -> str:
        try:
            result = await Runner.run(protect(agent_of(world), session=session), question)
        except ModelRefusalError:
            return "refused"
        return str(result.final_output)

    return asyncio.run(main())


def ask_streamed(world: World, question: str, session: str) -> str:
    async def main() -> str:
        result = Runner.run_streamed(protect(agent_of(world), session=session), question)
        try:
            async for _ in result.stream_events():
                pass
        except ModelRefusalError:
            return "refused"
        return str(result.final_output)

    return asyncio.run(main())


def crash_and_resume(world: World) -> None:
    """A saved state is resumed twice: the first process died before it could save the next one."""

    async def main() -> None:
        agent = protect(agent_of(world, approval=True), session="ticket-9")
        first = await Runner.run(agent, "charge A please")
        saved = first.to_state().to_string()
        for _ in range(2):
            state: Any = await RunState.from_string(agent, saved)
            state.approve(state.get_interruptions()[0])
            assert (await Runner.run(agent, state)).final_output == "all done"

    asyncio.run(main())

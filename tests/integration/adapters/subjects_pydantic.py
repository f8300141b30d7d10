"""An agent of Pydantic AI under test; its model asks the fake provider over real HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.exceptions import ContentFilterError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, UserPromptPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from antiphon.adapters.pydantic_ai import protect
from tests.integration.adapters.world import World


def agent_of(world: World, session: str) -> AbstractAgent[None, str]:
    client = AsyncOpenAI(api_key="none", base_url=f"{world.provider.url}/v1", max_retries=0)
    model = OpenAIChatModel("fake-1", provider=OpenAIProvider(openai_client=client))

    def charge(order: str) -> str:
        """Charge an order."""
        return world.charge(order)

    return protect(Agent(model, tools=[charge]), session=session)


def make(world: World) -> World:
    return world


def ask(world: World, question: str, session: str) -> str:
    async def main() -> str:
        try:
            return (await agent_of(world, session).run(question)).output
        except ContentFilterError:
            return "refused"

    return asyncio.run(main())


def ask_streamed(world: World, question: str, session: str) -> str:
    async def main() -> str:
        try:
            async with agent_of(world, session).run_stream(question) as result:
                return await result.get_output()
        except ContentFilterError:
            return "refused"

    return asyncio.run(main())


def crash_and_resume(world: World) -> None:
    """A history that ends with the model's call is continued twice: the first time nobody saved the result."""
    call = ToolCallPart("charge", {"order": "A"}, tool_call_id="call_A")
    question = UserPromptPart("charge A please")
    history: list[ModelMessage] = [ModelRequest(parts=[question]), ModelResponse(parts=[call])]

    async def main() -> None:
        for _ in range(2):
            result: Any = await agent_of(world, "ticket-9").run(message_history=history)
            assert result.output == "all done"

    asyncio.run(main())

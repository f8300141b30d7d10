"""What frameworks say by other means than results: handoffs made by hand, requests to try again, reported failures."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from agents import Agent as OpenAIAgent
from agents import Runner, function_tool, handoff, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import DeferredToolRequests
from pydantic_ai.exceptions import CallDeferred, ModelRetry, ToolFailed
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

from antiphon import Antiphon
from antiphon.adapters.openai_agents import protect
from antiphon.adapters.pydantic_ai import Reliable
from antiphon.ops.replay import replay


def test_an_agent_behind_a_handoff_object_is_protected_too(app: Antiphon) -> None:
    set_tracing_disabled(True)
    charged: list[str] = []

    @function_tool
    def charge(order: str) -> str:
        """Charge an order."""
        charged.append(order)
        return f"charged {order}"

    async def main() -> list[str]:
        does = [[function_call("charge", {"order": "7"}, call_id="call_2")], [assistant_message("Done.")]]
        billing = OpenAIAgent(name="billing", model=ScriptedModel(does), tools=[charge])
        model = ScriptedModel([[function_call("transfer_to_billing", {}, call_id="call_1")]])
        desk = protect(OpenAIAgent(name="desk", model=model, handoffs=[handoff(billing)]), session="ticket-7")
        result = await Runner.run(desk, "charge 7")
        return [result.final_output, result.last_agent.name]

    run = app.record(lambda: asyncio.run(main()))
    assert run.output == ["Done.", "billing"]
    kinds = [event.payload["kind"] for event in run.events() if event.type == "call.started"]
    assert sorted(kinds) == ["llm", "llm", "llm", "tool"]
    assert replay(run, app=app, function=lambda: asyncio.run(main()), mode="strict").divergences == []
    assert charged == ["7"]


@pytest.mark.parametrize("signal", [ModelRetry("try again"), ToolFailed("no such order")])
def test_what_a_tool_says_to_the_model_is_its_answer(signal: Exception, app: Antiphon) -> None:
    tries: list[str] = []

    def look(order: str) -> str:
        """Look an order up; the first time it does not work."""
        tries.append(order)
        if len(tries) == 1:
            raise signal
        return f"found {order}"

    def answer(messages: Any, info: Any) -> ModelResponse:
        if len(messages) > 3:
            return ModelResponse(parts=[TextPart(str(messages[-1].parts[0].content))])
        return ModelResponse(parts=[ToolCallPart("look", {"order": "7"}, tool_call_id=f"call_{len(messages)}")])

    async def main() -> str:
        agent = PydanticAgent(FunctionModel(answer), tools=[look], capabilities=[Reliable(session="ticket-7")])
        return (await agent.run("look")).output

    run = app.record(lambda: asyncio.run(main()))
    assert run.output == "found 7", "the same call may be made again when the model asks for it again"
    assert tries == ["7", "7"]
    assert replay(run, app=app, function=lambda: asyncio.run(main()), mode="strict").divergences == []
    assert tries == ["7", "7"]


@dataclass
class Review:
    order: str
    amount: Decimal


def test_a_deferred_call_shows_the_objects_that_the_tool_gave(app: Antiphon) -> None:
    review, shown = Review("A-1", Decimal("1.10")), []

    def pay(amount: int) -> str:
        """Pay somebody."""
        raise CallDeferred(metadata={"review": review, "limits": (1, 2)})

    async def main() -> str:
        reliable = Reliable(session="ticket-7")
        agent = PydanticAgent(
            TestModel(), tools=[pay], output_type=[str, DeferredToolRequests], capabilities=[reliable]
        )
        asked: Any = (await agent.run("pay")).output
        shown.extend(asked.metadata.values())
        return str(shown[-1])

    run = app.record(lambda: asyncio.run(main()))
    report = replay(run, app=app, function=lambda: asyncio.run(main()), mode="strict")
    assert shown == [{"review": review, "limits": (1, 2)}] * 2, "live, and in the replay"
    assert report.divergences == []

"""A tool that raised in the recording raises in a replay: frameworks go on from the exception, not from its text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import Agent as OpenAIAgent
from agents import Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain.agents import create_agent
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

import antiphon
from antiphon.adapters.langchain import AntiphonMiddleware
from antiphon.adapters.openai_agents import protect
from antiphon.adapters.pydantic_ai import Reliable


class Gone(Exception):
    """An exception that only the agent's code knows."""


calls: list[str] = []


def look(order: str) -> str:
    """Look an order up."""
    calls.append(order)
    raise Gone(f"no order {order}")


class Scripted(FakeMessagesListChatModel):
    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


DECLARED: dict[str, dict[str, Any]] = {"look": {"idempotent": True, "effect": "read"}}


async def with_langchain() -> Any:
    asked = AIMessage("", tool_calls=[{"name": "look", "args": {"order": "7"}, "id": "call_1"}])
    model = Scripted(responses=[asked, AIMessage("Done.")])
    agent: Any = create_agent(model, tools=[look], middleware=[AntiphonMiddleware(DECLARED)])
    return await agent.ainvoke({"messages": [("user", "hi")]})


async def with_pydantic_ai() -> Any:
    def answer(messages: Any, info: Any) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart("Done.")])
        return ModelResponse(parts=[ToolCallPart("look", {"order": "7"}, tool_call_id="call_1")])

    agent = PydanticAgent(FunctionModel(answer), tools=[look], capabilities=[Reliable(declared=DECLARED)])
    return await agent.run("hi")


async def with_openai_agents() -> Any:
    set_tracing_disabled(True)
    model = ScriptedModel([[function_call("look", {"order": "7"}, call_id="call_1")], [assistant_message("Done.")]])
    tool = function_tool(failure_error_function=None)(look)
    agent = protect(OpenAIAgent(name="desk", model=model, tools=[tool]), DECLARED)
    return await Runner.run(agent, "hi")


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("agent", [with_langchain, with_pydantic_ai, with_openai_agents])
def test_the_exception_of_a_tool_is_raised_again(
    agent: Callable[[], Any], repeatable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DECLARED["look"], "idempotent", repeatable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "state"))
    app = antiphon.Antiphon({"telemetry": {"logs": False}})
    calls.clear()

    async def main() -> str:
        try:
            await agent()
        except Exception as error:  # the framework may have one of its own around it
            found: BaseException | None = error
            while found is not None and not isinstance(found, Gone):
                found = found.__cause__
            notes = [note for note in getattr(found, "__notes__", ()) if note.startswith("antiphon")]
            return f"{type(found).__name__}: {found} {notes}"
        return "nothing was raised"

    run = app.record(main)
    assert run.output.startswith("Gone: no order 7 [")
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert report.passed, report.text()
    assert calls == ["7"]

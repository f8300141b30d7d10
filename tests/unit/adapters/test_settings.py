"""Whatever decides what a model answers is compared, whichever framework asks it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import Agent, ModelSettings, RunConfig, Runner
from agents.items import ModelResponse as AgentsResponse
from agents.models.interface import Model
from agents.usage import Usage
from langchain_core.language_models import FakeListChatModel
from openai.types.responses import ResponseOutputMessage, ResponseOutputText
from openai.types.shared import Reasoning
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.test import TestModel

import antiphon
from antiphon.adapters import langchain, openai_agents, pydantic_ai
from tests.unit.replay.kit import memory_app


class Echo(Model):
    """A model without a network."""

    async def get_response(self, *_: Any, **__: Any) -> AgentsResponse:
        said = ResponseOutputText(text="done", type="output_text", annotations=[])
        message = ResponseOutputMessage(id="1", content=[said], role="assistant", status="completed", type="message")
        return AgentsResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def ask_agents(settings: dict[str, Any]) -> str:
    agent = openai_agents.protect(Agent(name="a", model=Echo(), model_settings=ModelSettings(**settings)))
    config = RunConfig(tracing_disabled=True)
    return str(asyncio.run(Runner.run(agent, "hi", run_config=config)).final_output)


def ask_pydantic(settings: dict[str, Any]) -> str:
    agent: Any = pydantic_ai.protect(PydanticAgent(TestModel(custom_output_text="done")), session="s")
    return str(asyncio.run(agent.run("hi", model_settings=settings)).output)


class Chat(FakeListChatModel):
    presence_penalty: float | None = None
    reasoning_effort: str | None = None
    thinking: dict[str, Any] | None = None
    model_kwargs: dict[str, Any] = {}


def ask_langchain(settings: dict[str, Any]) -> str:
    return str(langchain.protect(Chat(responses=["done"], **settings)).invoke("hi").content)


CHANGES: list[tuple[Any, dict[str, Any]]] = [
    *((ask_agents, one) for one in ({"frequency_penalty": 1.0}, {"verbosity": "low"}, {"extra_body": {"seed": 3}})),
    *((ask_agents, one) for one in ({"reasoning": Reasoning(effort="high")}, {"top_logprobs": 2}, {"top_p": 0.5})),
    *((ask_pydantic, one) for one in ({"stop_sequences": ["x"]}, {"tool_choice": "none"}, {"presence_penalty": 1.0})),
    *((ask_pydantic, one) for one in ({"extra_body": {"seed": 3}}, {"thinking": "high"}, {"seed": 1})),
    *((ask_langchain, one) for one in ({"presence_penalty": 1.0}, {"reasoning_effort": "high"})),
    *((ask_langchain, one) for one in ({"thinking": {"type": "enabled"}}, {"model_kwargs": {"seed": 3}})),
]
NOISE: list[tuple[Any, dict[str, Any]]] = [
    (ask_agents, {"metadata": {"run": "7"}}),
    (ask_agents, {"extra_headers": {"x-trace": "7"}}),
    (ask_pydantic, {"timeout": 7.0}),
    (ask_pydantic, {"extra_headers": {"x-trace": "7"}}),
    (ask_pydantic, {"openai_user": "7"}),
]


@pytest.mark.parametrize(
    ("ask", "change"), [pytest.param(*one, id=f"{one[0].__name__}-{'-'.join(one[1])}") for one in [*CHANGES, *NOISE]]
)
def test_a_setting_that_decides_the_answer_is_compared(ask: Any, change: dict[str, Any]) -> None:
    app, now = memory_app(), dict[str, Any]()

    def agent() -> str:
        return str(ask(now))

    run = app.record(agent)
    assert run.output == "done"
    assert antiphon.replay(run, app=app, mode="strict", function=agent, keep=False).passed
    now = change
    assert antiphon.replay(run, app=app, mode="strict", function=agent, keep=False).passed is ((ask, change) in NOISE)

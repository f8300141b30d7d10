"""A model call that failed in the recording fails in a replay with the exception that the framework knows (R7)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from agents import Agent as OpenAIAgent
from agents import Runner, set_tracing_disabled
from agents.models.openai_responses import OpenAIResponsesModel
from langchain.agents import create_agent
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ModelHTTPError
from pydantic_ai.exceptions import ModelRateLimitError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from antiphon import Antiphon
from antiphon.adapters.langchain import AntiphonMiddleware
from antiphon.adapters.openai_agents import protect
from antiphon.adapters.pydantic_ai import Reliable
from antiphon.ops.replay import replay
from tests.fake_provider import FakeProvider, Reply
from tests.integration.adapters.subjects_langchain import ProviderChat


def _client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0)


async def with_langchain(url: str) -> Any:
    agent: Any = create_agent(ProviderChat(url=url), middleware=[AntiphonMiddleware()])
    return await agent.ainvoke({"messages": [("user", "hi")]})


async def with_openai_agents(url: str) -> Any:
    set_tracing_disabled(True)
    return await Runner.run(protect(OpenAIAgent(name="desk", model=OpenAIResponsesModel("m", _client(url)))), "hi")


def _pydantic(url: str) -> PydanticAgent[None, str]:
    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=_client(url)))
    return PydanticAgent(model, capabilities=[Reliable()])


async def with_pydantic_ai(url: str) -> Any:
    return await _pydantic(url).run("hi")


async def with_a_pydantic_ai_stream(url: str) -> Any:
    async with _pydantic(url).run_stream("hi") as stream:
        return await stream.get_output()


async def _told(ask: Callable[[str], Awaitable[Any]], url: str) -> list[Any]:
    try:
        await ask(url)
    except openai.RateLimitError as error:
        return [error.status_code, str(error), error.body, error.response.headers["retry-after"]]
    except ModelHTTPError as error:
        limited = isinstance(error, ModelRateLimitError)
        return [error.status_code, str(error), error.body, (error.headers or {})["retry-after"], limited]
    except openai.APIConnectionError as error:
        return [type(error).__name__, str(error)]
    except Exception as error:
        return [f"{type(error).__module__}.{type(error).__name__}"]
    return ["nothing was raised"]


ASKING = [with_langchain, with_openai_agents, with_pydantic_ai, with_a_pydantic_ai_stream]


@pytest.mark.parametrize("ask", ASKING)
def test_an_answer_with_a_status_is_raised_again(ask: Callable[[str], Awaitable[Any]], app: Antiphon) -> None:
    with FakeProvider([Reply(status=429, text="slow down", headers=(("retry-after", "7"),))]) as provider:
        run = app.record(lambda: asyncio.run(_told(ask, provider.url)))
    assert run.output[0] == 429
    assert run.output[3] == "7"
    report = replay(run, app=app, function=lambda: asyncio.run(_told(ask, provider.url)), mode="strict")
    assert report.divergences == []
    assert provider.requests == 1


@pytest.mark.parametrize("ask", ASKING)
def test_so_is_a_provider_that_cannot_be_reached(ask: Callable[[str], Awaitable[Any]], app: Antiphon) -> None:
    with FakeProvider() as provider:
        pass
    run = app.record(lambda: asyncio.run(_told(ask, provider.url)))
    assert "onnection" in run.output[0]
    report = replay(run, app=app, function=lambda: asyncio.run(_told(ask, provider.url)), mode="strict")
    assert report.divergences == []

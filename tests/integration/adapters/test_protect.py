"""One spelling for one act: each adapter has ``protect(obj, *, gateway=None, tools=…)``."""

from __future__ import annotations

import asyncio
import inspect
from importlib import import_module

import httpx
import pytest
from agents import Agent as OpenAIAgent
from agents import Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

import antiphon
from antiphon.adapters import google, langchain, mcp, openai_agents, pydantic_ai
from antiphon.adapters.httpx import protect as protect_client
from antiphon.errors import InvalidInput
from antiphon.stores import MemoryStore

GUARDED = ("langchain", "openai_agents", "pydantic_ai", "mcp")
DECLARED = {"charge": {"idempotent": False, "effect": "write"}}


@pytest.mark.parametrize("name", GUARDED)
def test_the_words_are_the_same(name: str) -> None:
    module = import_module(f"antiphon.adapters.{name}")
    parameters = inspect.signature(module.protect).parameters
    assert {"gateway", "tools", "session"} <= set(parameters)
    assert "protect" in module.__all__
    assert module.protect.__doc__


def test_what_langchain_gets_depends_on_the_object() -> None:
    assert isinstance(langchain.protect(tools=DECLARED), AgentMiddleware)
    assert isinstance(langchain.protect([print_it], tools={}), ToolNode)
    assert isinstance(langchain.protect(FakeListChatModel(responses=["hi"])), langchain.RecordedChatModel)


def print_it(text: str) -> str:
    """Print."""
    return text


def test_a_gateway_of_ones_own_makes_the_calls() -> None:
    made: list[str] = []

    def charge(order: str) -> str:
        """Charge an order."""
        made.append(order)
        return f"charged {order}"

    gateway = antiphon.Gateway(store=MemoryStore())
    graph = StateGraph(MessagesState)
    graph.add_node("tools", langchain.protect([charge], gateway=gateway, tools=DECLARED, session="t-1"))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    call = AIMessage("", tool_calls=[{"name": "charge", "args": {"order": "A"}, "id": "call_1"}], id="m1")
    compiled = graph.compile()
    for _ in range(2):
        assert compiled.invoke({"messages": [call]})["messages"][-1].content == "charged A"
    assert made == ["A"]
    assert "tools/charge" in gateway.tools


def test_a_gateway_of_the_wrong_kind_is_refused_in_words() -> None:
    agent = pydantic_ai.protect(
        Agent(TestModel(), tools=[print_it]), gateway=antiphon.Gateway(store=MemoryStore()), session="t-2"
    )
    with pytest.raises(InvalidInput, match="must be an AsyncGateway"):
        asyncio.run(agent.run("go"))


def test_pydantic_ai_and_openai_agents_run_a_call_once() -> None:
    set_tracing_disabled(True)
    made: list[str] = []

    def charge(order: str) -> str:
        """Charge an order."""
        made.append(order)
        return f"charged {order}"

    async def main() -> None:
        gateway = antiphon.AsyncGateway(store=MemoryStore())
        for _ in range(2):
            agent = pydantic_ai.protect(
                Agent(TestModel(), tools=[charge]), gateway=gateway, tools=DECLARED, session="ticket-7"
            )
            await agent.run("go")
        assert len(made) == 1
        made.clear()
        for _ in range(2):
            model = ScriptedModel(
                [[function_call("charge", {"order": "A"}, call_id="call_1")], [assistant_message("Done.")]]
            )
            desk = OpenAIAgent(name="desk", model=model, tools=[function_tool(charge)])
            desk = openai_agents.protect(desk, gateway=gateway, tools=DECLARED, session="ticket-8")
            await Runner.run(desk, "go")
        assert made == ["A"]

    asyncio.run(main())


def test_clients() -> None:
    client = httpx.Client(base_url="http://127.0.0.1:9")
    assert isinstance(protect_client(client), httpx.Client)
    assert google.protect().httpx_client is not None
    assert mcp.protect(object(), server="files", tools={"read": {"idempotent": True}}) is not None


def test_the_names_of_the_last_release_still_work() -> None:
    assert isinstance(langchain.AntiphonMiddleware({}), AgentMiddleware)
    assert isinstance(langchain.tool_node([print_it], {}), ToolNode)
    assert pydantic_ai.Reliable(declared={}, session="s") is not None
    assert mcp.guard(object(), "files", session="s") is not None
    assert google.http_options() is not None

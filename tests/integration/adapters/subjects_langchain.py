"""Agents of LangChain and LangGraph under test; their model asks the fake provider over real HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, TypedDict

import openai
import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import tools_condition

from antiphon.adapters.langchain import AntiphonMiddleware, chat_model, tool_node
from tests.integration.adapters.world import World


class ProviderChat(BaseChatModel):
    """A chat model over the OpenAI SDK."""

    url: str
    model: str = "fake-1"
    temperature: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "provider-chat"

    def bind_tools(self, tools: Any, **options: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **options)

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kw: Any
    ) -> ChatResult:
        client = openai.OpenAI(api_key="none", base_url=f"{self.url}/v1", max_retries=0)
        spoken: Any = convert_to_openai_messages(messages)
        answer = client.chat.completions.create(model=self.model, messages=spoken, temperature=self.temperature, **kw)
        said = answer.choices[0].message
        calls = [
            {"name": call.function.name, "args": json.loads(call.function.arguments), "id": call.id}
            for call in said.tool_calls or ()
            if call.type == "function"
        ]
        extra = {"refusal": said.refusal} if said.refusal else {}
        message = AIMessage(said.content or "", tool_calls=calls, additional_kwargs=extra)
        return ChatResult(generations=[ChatGeneration(message=message)])


def tools_of(world: World) -> list[Any]:
    @tool
    def charge(order: str) -> str:
        """Charge an order."""
        return world.charge(order)

    @tool
    def flaky() -> str:
        """Fail the first time."""
        return world.flaky()

    return [charge, flaky]


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


def middleware_agent(world: World, saver: Any = None) -> Any:
    model = ProviderChat(url=world.provider.url)
    return create_agent(model, tools=tools_of(world), middleware=[AntiphonMiddleware()], checkpointer=saver)


def graph_agent(world: World, saver: Any = None) -> Any:
    tools = tools_of(world)
    model = chat_model(ProviderChat(url=world.provider.url)).bind_tools(tools)
    graph = StateGraph(State)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", tool_node(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


def ask_sync(agent: Any, question: str, session: str) -> str:
    config = {"configurable": {"thread_id": session}}
    result = agent.invoke({"messages": [{"role": "user", "content": question}]}, config)
    return str(result["messages"][-1].text)


def ask_async(agent: Any, question: str, session: str) -> str:
    config = {"configurable": {"thread_id": session}}
    asked = agent.ainvoke({"messages": [{"role": "user", "content": question}]}, config)
    return str(asyncio.run(asked)["messages"][-1].text)


def crash_and_resume(make: Any) -> Any:
    """A node whose second tool fails is run again, all of it, when the thread is resumed."""

    def go(world: World) -> None:
        agent = make(world, InMemorySaver())
        config = {"configurable": {"thread_id": "thread-9"}}
        with pytest.raises(RuntimeError, match="the worker died"):
            agent.invoke({"messages": [{"role": "user", "content": "charge A then fail"}]}, config)
        agent.invoke(None, config)

    return go


def crash_and_resume_async(make: Any) -> Any:
    def go(world: World) -> None:
        async def main() -> None:
            agent = make(world, InMemorySaver())
            config = {"configurable": {"thread_id": "thread-9"}}
            with pytest.raises(RuntimeError, match="the worker died"):
                await agent.ainvoke({"messages": [{"role": "user", "content": "charge A then fail"}]}, config)
            await agent.ainvoke(None, config)

        asyncio.run(main())

    return go

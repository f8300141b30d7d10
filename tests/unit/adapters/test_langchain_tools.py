"""Tools of LangChain in OpenAI's dialect: made once, and made again when the tool says something else."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, MessagesState, StateGraph

from antiphon import Antiphon
from antiphon.adapters import _langchain_calls as plain
from antiphon.adapters.langchain import protect
from antiphon.stores import MemoryStore


def look(query: str, limit: int = 10) -> str:
    """Look something up."""
    return query


def test_a_tool_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = StructuredTool.from_function(look)
    made: list[Any] = []

    def counted(found: Any) -> Any:
        made.append(found)
        return convert_to_openai_tool(found)

    monkeypatch.setattr(plain, "convert_to_openai_tool", counted)
    assert plain.tool_body(tool) == convert_to_openai_tool(tool)
    assert plain.tool_body(tool) == convert_to_openai_tool(tool)
    assert len(made) == 1
    tool.description = "Look elsewhere."
    assert plain.tool_body(tool) == convert_to_openai_tool(tool)
    assert "elsewhere" in plain.tool_body(tool)["function"]["description"]
    assert len(made) == 2
    assert plain.tool_body(StructuredTool.from_function(look)) == convert_to_openai_tool(
        StructuredTool.from_function(look)
    )


def test_what_may_change_unseen_is_written_each_time() -> None:
    schema: dict[str, Any] = {"title": "look", "type": "object", "properties": {"query": {"type": "string"}}}
    tool = StructuredTool(name="look", description="d", args_schema=schema, func=look)
    assert plain.tool_body(tool) == convert_to_openai_tool(tool)
    schema["properties"]["query"]["description"] = "what"
    assert plain.tool_body(tool) == convert_to_openai_tool(tool)
    given = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert plain.tool_body(given) == given
    assert plain.tool_body(look) == convert_to_openai_tool(look)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("in_run", [False, True], ids=["alone", "in a run"])
def test_listeners_hear_a_protected_model_once(in_run: bool, asynchronous: bool) -> None:
    model = protect(GenericFakeChatModel(messages=iter([AIMessage("hello big world")])))
    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "model")
    made, asked = graph.compile(), {"messages": [("user", "hi")]}

    async def ask() -> list[str]:
        return [chunk.text async for chunk, _ in made.astream(asked, stream_mode="messages")]

    with Antiphon(store=MemoryStore()).run("asks") if in_run else nullcontext():
        said = (
            asyncio.run(ask())
            if asynchronous
            else [chunk.text for chunk, _ in made.stream(asked, stream_mode="messages")]
        )
    assert "".join(said) == "hello big world"

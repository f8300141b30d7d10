"""Tools of LangChain in OpenAI's dialect: made once, and made again when the tool says something else."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from antiphon.adapters import _langchain_calls as plain


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

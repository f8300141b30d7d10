"""Pydantic AI's messages as plain data: a request in OpenAI's chat dialect, a response kept as it came."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from antiphon.adapters._model import NATIVE, chat_response

_RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)
_CONTENT: TypeAdapter[Any] = TypeAdapter(Any)
_SETTINGS = frozenset({"temperature", "top_p", "max_tokens", "seed"})


def request_body(
    model: str, messages: Sequence[ModelMessage], settings: Mapping[str, Any] | None, parameters: Any
) -> dict[str, Any]:
    """The request. Times and ids of runs are left out: they differ between two runs that do the same."""
    spoken: list[dict[str, Any]] = []
    instructions = None
    for message in messages:
        if isinstance(message, ModelResponse):
            spoken.append(_response(message))
        else:
            instructions = message.instructions or instructions
            for part in message.parts:
                if type(part) is UserPromptPart and type(part.content) is str:
                    spoken.append({"role": "user", "content": part.content})
                else:
                    spoken.append(_part(part))
    if instructions:
        spoken.insert(0, {"role": "system", "content": instructions})
    body: dict[str, Any] = {"model": model, "messages": spoken}
    tools = [*parameters.function_tools, *parameters.output_tools]
    if tools:
        body["tools"] = [_tool(tool) for tool in tools]
    if settings:
        for name, value in settings.items():
            if name in _SETTINGS and value is not None:
                body[name] = value
    if parameters.output_object is not None:
        found = parameters.output_object
        schema = {"name": found.name or "output", "schema": found.json_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def _tool(tool: Any) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters_json_schema}
    return {"type": "function", "function": function}


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, SystemPromptPart):
        return {"role": "system", "content": part.content}
    if isinstance(part, UserPromptPart):
        return {"role": "user", "content": _content(part.content)}
    if isinstance(part, ToolReturnPart):
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response_str()}
    if isinstance(part, RetryPromptPart):
        if part.tool_name is None:
            return {"role": "user", "content": part.model_response()}
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response()}
    return {"role": "user", "content": json.dumps(_data(part))}


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    pieces = []
    for item in content:
        text = item if isinstance(item, str) else json.dumps(_data(item))
        pieces.append({"type": "text", "text": text})
    return pieces


def _data(value: Any) -> Any:
    data = _CONTENT.dump_python(value, mode="json", serialize_as_any=True, warnings=False)
    return {name: item for name, item in data.items() if name != "timestamp"} if isinstance(data, dict) else data


def _response(message: ModelResponse) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": _text(message) or None}
    calls = _calls(message)
    if calls:
        said["tool_calls"] = calls
    return said


def _text(message: ModelResponse) -> str:
    return "".join([part.content for part in message.parts if isinstance(part, TextPart)])


def _calls(message: ModelResponse) -> list[dict[str, Any]]:
    return [
        {
            "id": part.tool_call_id,
            "type": "function",
            "function": {"name": part.tool_name, "arguments": part.args_as_json_str()},
        }
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]


def pack(message: ModelResponse) -> dict[str, Any]:
    """A response as it is recorded."""
    details = message.provider_details or {}
    refused = message.finish_reason == "content_filter"
    return chat_response(
        text=_text(message),
        calls=_calls(message),
        native=_RESPONSE.serializer.to_python(message, mode="json"),
        model_name=message.model_name,
        refusal=str(details.get("refusal") or details.get("finish_reason") or "content_filter") if refused else None,
        stop=message.finish_reason,
        usage=(message.usage.input_tokens, message.usage.output_tokens),
    )


def unpack(value: Mapping[str, Any]) -> ModelResponse:
    """The response again; it belongs to the run that is going on now."""
    found = _RESPONSE.validate_python(value[NATIVE])
    return dataclasses.replace(found, run_id=None, conversation_id=None)


__all__ = ["ModelRequest", "pack", "request_body", "unpack"]

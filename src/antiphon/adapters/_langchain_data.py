"""Messages, tool results and interrupts of LangChain as plain data, and back."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)
from langchain_core.messages.utils import convert_to_messages, convert_to_openai_messages
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphInterrupt
from langgraph.types import Command, Interrupt

from antiphon._gateway import codec
from antiphon._scope import current_scope
from antiphon.adapters._model import (
    NATIVE,
    Asking,
    chat_response,
)
from antiphon.errors import Paused, is_of_script

_SETTINGS = ("temperature", "seed", "top_p", "max_tokens", "max_completion_tokens", "stop", "tool_choice")


# -- model calls -------------------------------------------------------------------------------------------------


def vendor_of(model: Any) -> str:
    """Who serves a chat model, by the package it comes from: ``langchain_openai`` gives ``openai``.

    A class of a script counts as the one that it is made from: a script has another name each time it is loaded. What
    a recording called it is used for its replay.
    """
    kinds = type(model).__mro__
    kind = next(kind for kind in kinds if not is_of_script(kind.__module__))
    if kind is not kinds[0]:
        scope = current_scope()
        recorded: str | None = getattr(None if scope is None else scope.invoker, "script_vendor", None)
        if recorded is not None:
            return recorded
    return kind.__module__.partition(".")[0].removeprefix("langchain_") or kind.__name__


def name_of(model: Any) -> str:
    """The model's name, under whichever attribute its package keeps it."""
    fields = vars(model)
    for attribute in _MODEL_NAMES:
        value = fields.get(attribute)
        if isinstance(value, str) and value:
            return value
    return type(model).__name__


def config_of(model: Any) -> dict[str, Any]:
    """What the determinism score reads off a chat model (K3)."""
    config: dict[str, Any] = {"model_name": name_of(model), "provider": vendor_of(model)}
    for name in ("temperature", "seed"):
        value = vars(model).get(name)
        if isinstance(value, (int, float)):
            config[name] = value
    return config


def request_body(
    model: Any, messages: Sequence[BaseMessage], tools: Sequence[Any] = (), settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The request in OpenAI's chat dialect, whoever serves the model. Message ids are left out: they are random."""
    spoken = []
    for message in messages:
        role, content = _ROLES.get(type(message)), message.content
        if role is not None and type(content) is str and not message.name:
            spoken.append({"role": role, "content": content})
        else:
            spoken.append(_spoken(message))
    body: dict[str, Any] = {"model": name_of(model), "messages": spoken}
    fields = vars(model)  # a chat model keeps its settings as fields; to ask for one it lacks is slow
    for name in _SETTINGS:
        value = fields.get(name)
        if value is not None and isinstance(value, (bool, int, float, str, list)):
            body[name] = value
    if tools:
        body["tools"] = [tool_body(tool) for tool in tools]
    if settings:
        body.update({name: value for name, value in settings.items() if value is not None})
    return body


_TOOLS_KEPT = 256
_tools: dict[int, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}
"""Tools by the identity of their objects, what they said of themselves, and that in OpenAI's dialect."""


def tool_body(tool: Any) -> dict[str, Any]:
    """A tool in OpenAI's dialect. To make its schema is slow, so it is made again only if the tool has changed."""
    schema = getattr(tool, "args_schema", None)
    if not isinstance(tool, BaseTool) or not isinstance(schema, type) or tool.metadata or getattr(tool, "extras", None):
        return convert_to_openai_tool(tool)
    said = (tool.name, tool.description, schema)
    known = _tools.get(id(tool))
    if known is None or known[0] is not tool or known[1] != said:
        if len(_tools) >= _TOOLS_KEPT:
            _tools.clear()
        known = _tools[id(tool)] = (tool, said, convert_to_openai_tool(tool))
    return known[2]


_ROLES = {HumanMessage: "user", SystemMessage: "system"}


def _spoken(message: BaseMessage) -> dict[str, Any]:
    """A message in OpenAI's dialect; an answer that is plain text takes the short way."""
    if type(message) is AIMessage and isinstance(message.content, str):
        if not (message.tool_calls or message.invalid_tool_calls or message.name):
            return {"role": "assistant", "content": message.content}
    spoken: Any = convert_to_openai_messages(message)
    return dict(spoken)


def _dumped(message: BaseMessage) -> dict[str, Any]:
    """A message as data, without the fields that say nothing."""
    if type(message) is AIMessage and not message.additional_kwargs:  # where objects of a provider's package may be
        data = {**vars(message), **(message.model_extra or {})}
    else:
        data = message.model_dump()
    kept = {name: value for name, value in data.items() if value or value not in _NOTHING}
    return {"type": message.type, "data": kept}


_NOTHING: tuple[Any, ...] = (None, [], {})


def asking(body: dict[str, Any], model: Any, pack: Any, unpack: Any, change: Any) -> Asking:
    """A model call of LangChain."""
    fields = vars(model)
    url = next((fields[name] for name in _URLS if isinstance(fields.get(name), str)), None)
    return Asking(
        body,
        pack,
        unpack,
        vendor_of(model),
        framework="langchain",
        settable=_settable(model.__class__),
        change=change,
        endpoint=url,
    )


def plain_asking(
    model: Any,
    messages: Sequence[BaseMessage],
    stop: list[str] | None,
    options: dict[str, Any],
    call: Callable[[Any, Sequence[BaseMessage]], Any],
) -> Asking:
    """A model call outside the middleware; *call* asks a model."""

    def change(wanted: dict[str, Any]) -> Callable[[], Any]:
        asked = list(messages)
        if "messages" in wanted:
            asked = [message for message in asked if not isinstance(message, SystemMessage)]
            asked.insert(0, SystemMessage(wanted["messages"][0]["content"]))
        return lambda: call(with_settings(model, wanted), asked)

    body = request_body(model, messages, options.get("tools") or (), {**options, "stop": stop})
    return asking(body, model, lambda said: pack_messages([said]), lambda value: unpack_messages(value)[0], change)


_URLS = ("openai_api_base", "anthropic_api_url", "base_url", "azure_endpoint", "endpoint_url")
_MODEL_NAMES = ("model_name", "model", "model_id", "deployment_name")


@functools.cache
def _settable(kind: type) -> tuple[str, ...]:
    """What a replay can change in a chat model: what its package keeps as a field."""
    fields = getattr(kind, "model_fields", {})
    named = ["model"] if any(name in fields for name in _MODEL_NAMES) else []
    return (*named, *(name for name in ("temperature", "seed") if name in fields), "prompt")


def with_settings(model: Any, wanted: Mapping[str, Any]) -> Any:
    """A copy of a chat model with another name, temperature or seed."""
    update = {name: wanted[name] for name in ("temperature", "seed") if name in wanted}
    if "model" in wanted:
        named = next(name for name in _MODEL_NAMES if isinstance(vars(model).get(name), str))
        update[named] = wanted["model"]
    return model.model_copy(update=update) if update else model


def pack_messages(messages: Sequence[BaseMessage], structured: Any = None) -> dict[str, Any]:
    """The answer of a model: in OpenAI's dialect for whoever reads the recording, and as it was for the replay."""
    said = None
    native: dict[str, Any] = {"messages": []}
    for message in messages:
        if said is None and isinstance(message, AIMessage):
            said = message
        native["messages"].append(_dumped(message))
    if structured is not None:
        native["structured"] = structured
    said = said or AIMessage("")
    spoken = _spoken(said)
    about = said.response_metadata
    usage = said.usage_metadata
    return chat_response(
        text=spoken.get("content"),
        calls=spoken.get("tool_calls") or [],
        native=native,
        model_name=about.get("model_name") or about.get("model"),
        refusal=said.additional_kwargs.get("refusal") or _refused(about),
        stop=about.get("finish_reason") or about.get("stop_reason"),
        usage=None if usage is None else (usage["input_tokens"], usage["output_tokens"]),
    )


def _refused(about: Mapping[str, Any]) -> str | None:
    """A refusal that a provider says by its stop reason."""
    reason = about.get("stop_reason") or about.get("finish_reason")
    return str(reason) if reason in ("refusal", "content_filter", "SAFETY", "guardrail_intervened") else None


def unpack_messages(value: Mapping[str, Any]) -> list[BaseMessage]:
    """The messages of a recorded answer, or of one in OpenAI's chat dialect that a function gave."""
    if NATIVE in value:
        return messages_from_dict(value[NATIVE]["messages"])
    choice = value["choices"][0]
    (said,) = convert_to_messages([{"role": "assistant", **choice["message"]}])
    if isinstance(said, AIMessage):
        usage = value.get("usage") or {}
        given, taken = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
        said.usage_metadata = {"input_tokens": given, "output_tokens": taken, "total_tokens": given + taken}
        said.response_metadata = {"model_name": value.get("model"), "finish_reason": choice.get("finish_reason")}
    return [said]


# -- tool results ------------------------------------------------------------------------------------------------


def pack_result(result: Any) -> Any:
    """What a tool call gave: a message, or a command that changes the graph's state."""
    if isinstance(result, ToolMessage):
        packed = {"content": result.content, "status": result.status, "name": result.name}
        if result.artifact is not None and _keepable(result.artifact):
            packed["artifact"] = result.artifact
        return {"message": packed}
    if isinstance(result, Command):
        goto = result.goto
        update = result.update
        if isinstance(update, dict):
            update = {name: _pack_value(value) for name, value in update.items()}
        return {"command": {"graph": result.graph, "update": update, "goto": goto if goto else None}}
    return {"value": result}


def told(words: str, call: Mapping[str, Any], **options: Any) -> Any:
    """A sentence in place of a result, for the model that asked; for code that called the tool itself, the words."""
    if call["id"] is None:
        return words
    return ToolMessage(words, tool_call_id=call["id"], name=call["name"], **options)


def unpack_result(packed: Any, call: Mapping[str, Any]) -> Any:
    """The same again, as the answer to *call*; a sentence in its place (a blocked call) is told to the model."""
    if not isinstance(packed, Mapping) or not packed.keys() & {"message", "command", "value"}:
        return told(packed if isinstance(packed, str) else json.dumps(packed), call)
    if "message" in packed:
        fields = dict(packed["message"])
        return ToolMessage(tool_call_id=call["id"], **{**fields, "name": fields.get("name") or call["name"]})
    if "command" in packed:
        fields = dict(packed["command"])
        update = fields["update"]
        if isinstance(update, dict):
            update = {name: _unpack_value(value) for name, value in update.items()}
        return Command(graph=fields["graph"], update=update, goto=fields["goto"] or ())
    return packed.get("value")


def _keepable(value: Any) -> bool:
    try:
        codec.encode(value)
    except codec.NotSerialisable:
        return False
    return True


def _pack_value(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return {"$message": message_to_dict(value)}
    return [_pack_value(item) for item in value] if isinstance(value, list) else value


def _unpack_value(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"$message"}:
        return messages_from_dict([value["$message"]])[0]
    return [_unpack_value(item) for item in value] if isinstance(value, list) else value


# -- interrupts --------------------------------------------------------------------------------------------------


def paused(interrupt: GraphInterrupt) -> Paused:
    """An interrupt on its way through the gateway; its message is what a replay needs to raise it again."""
    found = interrupt.args[0] if interrupt.args else ()
    return Paused(json.dumps([{"value": item.value, "id": item.id} for item in found], default=str))


def interrupt_again(message: str) -> GraphInterrupt:
    """The recorded interrupt."""
    return GraphInterrupt(tuple(Interrupt(**item) for item in json.loads(message or "[]")))

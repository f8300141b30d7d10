"""The short way of requests that hold what nearly all do: texts, function calls, their results, function tools.

It makes no references to the body, and leaves every request with something else in it, as a whole, to the reader of
its dialect. The two agree on each request that goes this way, byte for byte (by test). Texts need no proof that orjson
prints them canonically; calls and tools are proved once and known again, so most keys are made without a walk.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from antiphon.canonical import parse_json
from antiphon.errors import CanonicalError
from antiphon.llm._draft import FIELD_ORDER, TRANSPORT
from antiphon.llm._proof import is_proved, is_proved_number, key_of_proved, look
from antiphon.llm.key import tool_order

_ROLES: Final = frozenset({"system", "user", "assistant"})
_TEXTS: Final = ("text", "input_text")
_MESSAGE: Final = frozenset({"role", "content", "tool_calls", "tool_call_id", "name"})
_CALL: Final = frozenset({"id", "type", "function"})
_FUNCTION: Final = frozenset({"name", "arguments"})
_ITEM: Final = frozenset({"type", "role", "content", "id", "status"})
_CALL_ITEM: Final = frozenset({"type", "call_id", "name", "arguments", "id", "status"})
_OUTPUT_ITEM: Final = frozenset({"type", "call_id", "output", "id", "status"})
_TEXT_PART: Final = frozenset({"type", "text"})
_OUTPUT_PART: Final = frozenset({"type", "text", "annotations", "logprobs"})
_TOOL: Final = frozenset({"type", "name", "description", "parameters", "strict"})
_FORM: Final = frozenset({"type", "name", "schema", "strict"})
_NUMBERS: Final = {"temperature": "temperature", "top_p": "topP"}
_CHAT_NUMBERS: Final = {**_NUMBERS, "top_k": "topK"}
_INTEGERS: Final = {"seed": "seed", "max_output_tokens": "maxOutputTokens"}
_CHAT_INTEGERS: Final = {"seed": "seed", "max_tokens": "maxOutputTokens", "max_completion_tokens": "maxOutputTokens"}
_CHAT_OURS: Final = frozenset({"model", "tools", "messages"})
_RESPONSES_OURS: Final = frozenset({"model", "tools", "input", "instructions"})
_ELSE: Final = frozenset({"functions", "function_call", "stop"})
_TRANSPORT: Final = frozenset(TRANSPORT)
_CHOICES: Final = ("none", "auto", "required")


class _Other(Exception):
    """Something that only the reader of the dialect knows."""


Doubts = list[str]
"""Arguments of which it is not known that orjson prints them canonically."""
Plain = tuple[dict[str, Any], str | None]
"""A canonical request, and its key by the first recipe if that needs no further proof."""


def plain_chat(body: dict[str, Any], vendor: str) -> Plain | None:
    """The canonical request of a chat completion, or ``None`` if it holds something else."""
    messages = body.get("messages")
    if type(messages) is not list:
        return None
    calls: dict[str, str] = {}
    doubts: Doubts = []
    try:
        spoken = []
        for message in messages:
            if type(message) is dict and len(message) == 2:
                role, content = message.get("role"), message.get("content")
                if type(role) is str and role in _ROLES and type(content) is str:
                    spoken.append({"role": role, "content": content})
                    continue
            spoken.append(_spoken(message, calls, doubts))
        return _request(body, vendor, spoken, doubts, nested=True)
    except _Other:
        return None


def plain_responses(body: dict[str, Any], vendor: str) -> Plain | None:
    """The same for a request of the Responses API."""
    given, instructions = body.get("input"), body.get("instructions")
    spoken: list[dict[str, Any]] = []
    doubts: Doubts = []
    try:
        if type(instructions) is str:
            if instructions:
                spoken.append({"role": "system", "content": instructions})
        elif instructions:
            return None
        if type(given) is str:
            spoken.append({"role": "user", "content": given})
        elif type(given) is list:
            _items(given, spoken, doubts)
        else:
            return None
        return _request(body, vendor, spoken, doubts, nested=False)
    except _Other:
        return None


# -- messages ----------------------------------------------------------------------------------------------------


def _spoken(message: Any, calls: dict[str, str], doubts: Doubts) -> dict[str, Any]:
    if type(message) is not dict:
        raise _Other
    role, content = message.get("role"), message.get("content")
    if type(role) is not str:
        raise _Other
    if not _MESSAGE.issuperset(message) or not (role in _ROLES or role == "tool"):
        raise _Other
    blocks = _blocks(content)
    asked = message.get("tool_calls")
    if asked is not None:
        if type(asked) is not list:
            raise _Other
        blocks += [_call(call, calls, doubts) for call in asked]
    spoken = _said(role, blocks)
    name, answers = message.get("name"), message.get("tool_call_id")
    if name is not None and not (role == "tool" and calls.get(_text(answers or "")) == name) and _text(name):
        spoken["name"] = name
    if answers is not None and _text(answers):
        spoken["toolCallId"] = answers
    return spoken


def _call(call: Any, calls: dict[str, str], doubts: Doubts) -> dict[str, Any]:
    if type(call) is not dict or not _CALL.issuperset(call) or call.get("type", "function") != "function":
        raise _Other
    function, call_id = call.get("function"), call.get("id")
    if type(function) is not dict or not _FUNCTION.issuperset(function):
        raise _Other
    block = _asked(function.get("name"), call_id, function.get("arguments"), doubts)
    if call_id is not None:
        calls[call_id] = block["name"]
    return block


def _items(items: list[Any], spoken: list[dict[str, Any]], doubts: Doubts) -> None:
    """Items of one answer become one assistant message, as the reader of the dialect joins them."""
    blocks: list[dict[str, Any]] = []
    is_open = has_text = has_call = False
    for item in items:
        if type(item) is not dict:
            raise _Other
        kind = item.get("type")
        is_text = kind is None or kind == "message"
        is_answer = item.get("role") == "assistant" if is_text else kind == "function_call"
        if is_open and (not is_answer or (is_text and (has_text or has_call))):
            spoken.append(_said("assistant", blocks))
            blocks = []
            is_open = has_text = has_call = False
        if is_text:
            role, content = item.get("role"), item.get("content")
            if type(role) is not str or role not in _ROLES or not _ITEM.issuperset(item):
                raise _Other
            if not is_answer:
                spoken.append(
                    {"role": role, "content": content} if type(content) is str else _said(role, _blocks(content))
                )
                continue
            blocks += _blocks(content)
            is_open = has_text = True
        elif is_answer and _CALL_ITEM.issuperset(item):
            blocks.append(_asked(item.get("name"), _word(item.get("call_id")), item.get("arguments"), doubts))
            is_open = has_call = True
        elif kind == "function_call_output" and _OUTPUT_ITEM.issuperset(item) and item.get("output") is not None:
            answer = _said("tool", _blocks(item["output"]))
            answer["toolCallId"] = _word(item.get("call_id"))
            spoken.append(answer)
        else:
            raise _Other
    if is_open:
        spoken.append(_said("assistant", blocks))


def _said(role: str, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        return {"role": role, "content": blocks[0]["text"]}
    return {"role": role, "content": blocks or ""}


def _blocks(content: Any) -> list[dict[str, Any]]:
    if content is None or content == "":
        return []
    if type(content) is str:
        return [{"type": "text", "text": content}]
    if type(content) is not list:
        raise _Other
    return [_part(part) for part in content]


def _part(part: Any) -> dict[str, Any]:
    if type(part) is not dict:
        raise _Other
    kind, text = part.get("type"), part.get("text")
    known = _TEXT_PART if kind in _TEXTS else _OUTPUT_PART if kind == "output_text" else None
    if known is None or not known.issuperset(part):
        raise _Other
    return {"type": "text", "text": "" if text is None else _text(text)}


def _asked(name: Any, call_id: Any, arguments: Any, doubts: Doubts) -> dict[str, Any]:
    """A call the model asked for."""
    block: dict[str, Any] = {"type": "toolCall", "name": _word(name)}
    if call_id is not None:
        block["id"] = _text(call_id)
    text = "" if arguments is None else _text(arguments)
    if not text:
        block["arguments"] = {}
        return block
    is_strict, is_plain = look(text)
    if not is_plain:
        doubts.append(text)
    if is_strict:
        block["arguments"] = orjson.loads(text)
        return block
    try:
        block["arguments"] = parse_json(text)
    except CanonicalError:
        block["argumentsText"] = text
    return block


# -- tools and settings ------------------------------------------------------------------------------------------


def _request(body: dict[str, Any], vendor: str, spoken: list[dict[str, Any]], doubts: Doubts, *, nested: bool) -> Plain:
    model, tools = body.get("model"), body.get("tools")
    if type(model) is not str or not model:
        raise _Other
    if tools is None or tools == []:
        tools = []
    else:
        tools = _tools(tools, nested=nested)
    request: dict[str, Any] = {"model": model, "provider": vendor, "messages": spoken, "tools": tools}
    ours = _CHAT_OURS if nested else _RESPONSES_OURS
    proved = not doubts and type(vendor) is str and (not tools or is_proved(tools))
    if not ours.issuperset(body):
        _settings(request, body, vendor, ours, nested=nested)
        proved = proved and is_proved_number(request.get("temperature"))
        if "responseSchema" in request:
            proved = proved and is_proved(request["responseSchema"])
    return request, key_of_proved(request) if proved else None


def _settings(
    request: dict[str, Any], body: dict[str, Any], vendor: str, ours: frozenset[str], *, nested: bool
) -> None:
    numbers, integers = (_CHAT_NUMBERS, _CHAT_INTEGERS) if nested else (_NUMBERS, _INTEGERS)
    form = "response_format" if nested else "text"
    fields: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in body.items():
        if name in ours or value is None or name in _TRANSPORT:
            continue
        if name in numbers and (type(value) is float or type(value) is int):
            fields[numbers[name]] = value
        elif name in integers and type(value) is int and integers[name] not in fields:
            fields[integers[name]] = value
        elif name == "tool_choice" and type(value) is str and value in _CHOICES:
            fields["toolChoice"] = {"mode": value}
        elif name == form:
            _form(fields, value, nested=nested)
        elif name in _ELSE or name in numbers or name in integers or name == "tool_choice" or type(name) is not str:
            raise _Other
        else:
            options[f"vendor.{vendor}.{name}"] = value
    if "toolChoice" in fields:
        options = {f"vendor.{vendor}.toolChoice": fields["toolChoice"], **options}
    for name in FIELD_ORDER:
        if name in fields:
            request[name] = fields[name]
    if options:
        request["providerOptions"] = options


def _form(fields: dict[str, Any], value: Any, *, nested: bool) -> None:
    """The schema of the answer."""
    if type(value) is not dict or len(value) != (2 if nested else 1):
        raise _Other
    given = value.get("json_schema" if nested else "format")
    kind = value.get("type") if nested else given.get("type") if type(given) is dict else None
    if type(given) is not dict or kind != "json_schema" or not _FORM.issuperset(given) or (nested and "type" in given):
        raise _Other
    schema, name, strict = given.get("schema"), given.get("name"), given.get("strict")
    if type(schema) is not dict or type(name) is not str or not (strict is None or type(strict) is bool):
        raise _Other
    fields["responseSchema"] = schema
    form = fields["responseFormat"] = {"type": "json", "schema": schema}
    if name:
        form["name"] = name
    if strict:
        form["strict"] = strict


def _tools(tools: Any, *, nested: bool) -> list[dict[str, Any]]:
    if type(tools) is not list:
        raise _Other
    found = [_tool(tool, nested=nested) for tool in tools]
    found.sort(key=tool_order)
    return found


def _tool(tool: Any, *, nested: bool) -> dict[str, Any]:
    if type(tool) is not dict or tool.get("type") != "function":
        raise _Other
    if nested:
        inner = tool.get("function")
        if len(tool) != 2 or type(inner) is not dict or "type" in inner:
            raise _Other
        tool = inner
    if not _TOOL.issuperset(tool):
        raise _Other
    parameters, description, strict = tool.get("parameters"), tool.get("description"), tool.get("strict")
    if parameters is not None and type(parameters) is not dict:
        raise _Other
    found: dict[str, Any] = {"name": _word(tool.get("name")), "parameters": parameters or {}}
    if description is not None:
        found["description"] = _text(description)
    if strict is not None:
        if type(strict) is not bool:
            raise _Other
        found["strict"] = strict
    return found


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _Other
    return value


def _word(value: Any) -> str:
    if type(value) is not str or not value:
        raise _Other
    return value

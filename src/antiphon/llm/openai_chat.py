"""OpenAI chat completions (and everything that speaks its dialect) -> canonical request."""

from __future__ import annotations

from typing import Any

from antiphon.llm._blocks import Piece, openai_part, text_piece, tool_call
from antiphon.llm._draft import Draft
from antiphon.llm._read import Fields, as_list, as_text, wrong

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def read(draft: Draft) -> None:
    """Move everything from the body into *draft*."""
    body = draft.body
    if not body.has("messages"):
        raise wrong("$.messages", "a list of messages")
    for value, path in body.items("messages"):
        _message(draft, value, path)
    _tools(draft)
    _choice(draft)
    response_format(draft, body.take("response_format"), "$.response_format", nested="json_schema")
    draft.number("temperature", body, "temperature")
    draft.number("topP", body, "top_p")
    draft.number("topK", body, "top_k")
    draft.integer("maxOutputTokens", body, "max_completion_tokens", "max_tokens")
    draft.integer("seed", body, "seed")
    path = body.at("stop")
    draft.set("stop", body.texts("stop"), path)


def _message(draft: Draft, value: Any, path: str) -> None:
    message = Fields(value, path)
    said = message.text("role")
    role = _ROLES.get(said or "")
    if role is None:
        raise wrong(f"{path}.role", f"one of {', '.join(_ROLES)}")
    pieces = content(message.take("content"), f"{path}.content", draft.vendor)
    fields: dict[str, Any] = {}
    if message.rest():
        thought = message.text("reasoning_content")
        if thought is not None:
            pieces.insert(0, Piece({"type": "thinking", "text": thought}, f"{path}.reasoning_content"))
        pieces += _refusal_and_calls(message, path)
        fields = {
            "name": message.text("name"),
            "toolCallId": message.text("tool_call_id"),
            "vendorFields": message.rest(),
        }
    if said == "developer":
        draft.say_as_developer(pieces, path, **fields)
    else:
        draft.say(role, pieces, path, **fields)


def _refusal_and_calls(message: Fields, path: str) -> list[Piece]:
    pieces = []
    refusal = message.text("refusal")
    if refusal is not None:
        pieces.append(Piece({"type": "refusal", "text": refusal}, f"{path}.refusal"))
    pieces += [_call(call, at) for call, at in message.items("tool_calls")]
    old_call = message.fields("function_call")
    if old_call is not None:
        at = f"{old_call.path}.arguments"
        pieces.append(tool_call(old_call.need_text("name"), old_call.text("arguments") or "", old_call.path, at))
    return pieces


def content(value: Any, path: str, vendor: str) -> list[Piece]:
    """The pieces of a content: text, parts or nothing."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [text_piece(value, path)]
    parts = as_list(value, path)
    return [openai_part(part, f"{path}[{index}]", vendor) for index, part in enumerate(parts)]


def _call(value: Any, path: str) -> Piece:
    call = Fields(value, path)
    kind = call.text("type") or "function"
    call_id = call.text("id")
    inner = call.fields("custom" if kind == "custom" else "function")
    if inner is None:
        raise wrong(f"{path}.{kind}", "an object")
    name = inner.need_text("name")
    if kind == "custom":
        block = {
            "type": "toolCall",
            "name": name,
            "argumentsText": inner.text("input") or "",
            "vendorFields": {"type": "custom"},
        }
        if call_id is not None:
            block["id"] = call_id
        return Piece(block, path, ((".argumentsText", f"{inner.path}.input"),))
    at = f"{inner.path}.arguments"
    extra = {**call.rest(), **{key: item for key, item in inner.rest().items() if key != "arguments"}}
    return tool_call(name, inner.text("arguments") or "", path, at, id=call_id, vendorFields=extra or None)


def _tools(draft: Draft) -> None:
    for value, path in draft.body.items("tools"):
        tool = Fields(value, path)
        if tool.text("type") in ("function", None):
            function(draft, tool.fields("function") or tool, path)
        else:
            hosted_tool(draft, value, path)
    for value, path in draft.body.items("functions"):
        function(draft, Fields(value, path), path)


def function(draft: Draft, tool: Fields, path: str) -> None:
    """Add a function tool; the same shape serves both OpenAI dialects."""
    draft.tool(
        tool.need_text("name"),
        path,
        description=tool.text("description"),
        strict=tool.flag("strict"),
        parameters_at=tool.at("parameters"),
        parameters=tool.object("parameters"),
        extra=tool.rest(),
    )


def hosted_tool(draft: Draft, value: Any, path: str) -> None:
    """Add a tool the vendor runs itself; credentials given to it are not part of any key."""
    tool = Fields(value, path)
    draft.ignore(tool.drop("authorization", "authorization_token", "headers"))
    kept = dict(tool.rest())
    custom = kept.get("custom")
    named = custom if isinstance(custom, dict) else kept
    name = named.get("name") or kept.get("server_label") or kept.get("type")
    draft.tool(as_text(name, f"{path}.type"), path, hosted=kept)


def _choice(draft: Draft) -> None:
    path = draft.body.at("tool_choice", "function_call")
    value = draft.body.take("tool_choice", "function_call")
    choose(draft, value, path)


def choose(draft: Draft, value: Any, path: str) -> None:
    """Set the tool choice from either OpenAI dialect."""
    if value is None:
        return
    if value in ("none", "auto", "required"):
        draft.choice(value, path)
        return
    function_name = None
    if isinstance(value, dict) and value.get("type") in ("function", None):
        inner = value.get("function")
        function_name = inner.get("name") if isinstance(inner, dict) else value.get("name")
    if isinstance(function_name, str):
        draft.choice("tool", path, names=[function_name])
    else:
        draft.choice("vendor", path, value=value)


def response_format(draft: Draft, value: Any, path: str, *, nested: str) -> None:
    """Set the form of the answer from ``response_format`` or ``text.format``."""
    if value is None:
        return
    given = Fields(value, path)
    kind = given.text("type")
    if kind == "text":
        draft.answer_form("text", path, value=given.rest())
    elif kind == "json_object":
        draft.answer_form("json", path, value=given.rest())
    elif kind == "json_schema":
        inner = Fields(given.take(nested), f"{path}.{nested}") if nested else given
        draft.answer_form(
            "json",
            inner.path,
            schema=inner.object("schema"),
            name=inner.text("name"),
            strict=inner.flag("strict"),
            value=inner.rest(),
        )
    else:
        draft.answer_form("vendor", path, value=value)

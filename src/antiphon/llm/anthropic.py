"""Anthropic messages -> canonical request."""

from __future__ import annotations

from typing import Any

from antiphon.llm._blocks import (
    Piece,
    digest_of_base64,
    media_block,
    text_piece,
    tool_call,
    vendor_piece,
    with_vendor_fields,
)
from antiphon.llm._draft import Draft
from antiphon.llm._read import Fields, as_list, wrong
from antiphon.llm.openai_chat import hosted_tool

_CHOICES = {"auto": "auto", "none": "none", "any": "required"}


def read(draft: Draft) -> None:
    """Move everything from the body into *draft*."""
    body = draft.body
    system = body.take("system")
    if system:
        draft.say("system", _content(draft, system, "$.system"), "$.system")
    if not body.has("messages"):
        raise wrong("$.messages", "a list of messages")
    for value, path in body.items("messages"):
        _message(draft, value, path)
    for value, path in body.items("tools"):
        _tool(draft, value, path)
    _choice(draft)
    _answer_form(draft)
    draft.number("temperature", body, "temperature")
    draft.number("topP", body, "top_p")
    draft.number("topK", body, "top_k")
    draft.integer("maxOutputTokens", body, "max_tokens")
    path = body.at("stop_sequences")
    draft.set("stop", body.texts("stop_sequences"), path)
    _servers(draft)


def _message(draft: Draft, value: Any, path: str) -> None:
    message = Fields(value, path)
    role = message.text("role")
    if role not in ("user", "assistant", "system"):
        raise wrong(f"{path}.role", "one of user, assistant")
    given = message.take("content")
    if given is None:
        raise wrong(f"{path}.content", "a string or a list of blocks")
    extra = message.rest()
    run: list[Piece] = []
    results = 0
    for block, at in _blocks(given, f"{path}.content"):
        if isinstance(block, dict) and block.get("type") == "tool_result" and role == "user":
            if run:
                draft.say(role, run, path, vendorFields=extra)
                run = []
            _result(draft, Fields(block, at), at)
            results += 1
        else:
            run.append(_piece(draft, block, at))
    if run or not results:
        draft.say(role, run, path, vendorFields=extra)


def _blocks(value: Any, path: str) -> list[tuple[Any, str]]:
    if isinstance(value, str):
        return [({"type": "text", "text": value}, path)] if value else []
    return [(block, f"{path}[{index}]") for index, block in enumerate(as_list(value, path))]


def _content(draft: Draft, value: Any, path: str) -> list[Piece]:
    return [_piece(draft, block, at) for block, at in _blocks(value, path)]


def _result(draft: Draft, block: Fields, path: str) -> None:
    draft.ignore(block.drop("cache_control"))
    block.drop("type")
    call_id = block.need_text("tool_use_id")
    given = block.take("content")
    pieces = [] if given is None else _content(draft, given, f"{path}.content")
    is_error = block.flag("is_error")
    draft.say("tool", pieces, path, toolCallId=call_id, isError=is_error, vendorFields=block.rest())


def _piece(draft: Draft, value: Any, path: str) -> Piece:
    block = Fields(value, path)
    draft.ignore(block.drop("cache_control"))
    kind = block.text("type")
    if kind == "text":
        return text_piece(block.text("text") or "", path, block.rest())
    if kind == "tool_use":
        name = block.need_text("name")
        call_id = block.need_text("id")
        arguments = block.take("input")
        extra = block.rest() or None
        return tool_call(name, arguments or {}, path, f"{path}.input", id=call_id, vendorFields=extra)
    if kind == "thinking":
        thought = {"type": "thinking", "text": block.text("thinking") or ""}
        signature = block.text("signature")
        if signature is not None:
            thought["signature"] = signature
        return Piece(with_vendor_fields(thought, block.rest()), path)
    if kind == "redacted_thinking":
        return Piece(with_vendor_fields({"type": "thinking", "encrypted": block.need_text("data")}, block.rest()), path)
    if kind in ("image", "document"):
        return _media(draft, block, path, kind)
    return vendor_piece({name: item for name, item in value.items() if name != "cache_control"}, path, draft.vendor)


def _media(draft: Draft, block: Fields, path: str, kind: str) -> Piece:
    at = f"{path}.source"
    source = Fields(block.take("source"), at)
    form = source.text("type")
    media_type = source.text("media_type")
    name = block.text("title")
    if form == "base64":
        found = media_block(kind, media_type=media_type, digest=digest_of_base64(source.take("data"), f"{at}.data"))
    elif form == "url":
        found = media_block(kind, media_type=media_type, url=source.need_text("url"))
    elif form == "file":
        found = media_block(kind, media_type=media_type, fileId=source.need_text("file_id"))
    elif form == "text" and kind == "document":
        found = media_block(kind, media_type=media_type, text=source.text("data") or "")
    else:
        found = {"type": kind}
        block = Fields({**block.rest(), "source": {"type": form, **source.rest()}}, path)
        source = Fields({}, at)
    if name is not None:
        found["name"] = name
    return Piece(with_vendor_fields(found, {**source.rest(), **block.rest()}), path)


def _tool(draft: Draft, value: Any, path: str) -> None:
    tool = Fields(value, path)
    draft.ignore(tool.drop("cache_control"))
    if tool.text("type") not in ("custom", None) or not tool.has("input_schema"):
        hosted_tool(draft, {name: item for name, item in value.items() if name != "cache_control"}, path)
        return
    draft.tool(
        tool.need_text("name"),
        path,
        description=tool.text("description"),
        strict=tool.flag("strict"),
        parameters_at=tool.at("input_schema"),
        parameters=tool.object("input_schema"),
        extra=tool.rest(),
    )


def _choice(draft: Draft) -> None:
    choice = draft.body.fields("tool_choice")
    if choice is None:
        return
    path = choice.path
    kind = choice.text("type")
    if kind in _CHOICES:
        draft.choice(_CHOICES[kind], path)
    elif kind == "tool":
        draft.choice("tool", path, names=[choice.need_text("name")])
    else:
        draft.choice("vendor", path, value={"type": kind, **choice.rest()})
        return
    draft.options(choice, "tool_choice.")


def _answer_form(draft: Draft) -> None:
    config = draft.body.fields("output_config")
    path = "$.output_format"
    value = draft.body.take("output_format")
    if config is not None:
        if value is None:
            path = "$.output_config.format"
            value = config.take("format")
        draft.options(config, "output_config.")
    if value is None:
        return
    given = Fields(value, path)
    if given.text("type") == "json_schema":
        draft.answer_form("json", path, schema=given.object("schema"), value=given.rest())
    else:
        draft.answer_form("vendor", path, value=value)


def _servers(draft: Draft) -> None:
    servers = []
    for value, path in draft.body.items("mcp_servers"):
        server = Fields(value, path)
        draft.ignore(server.drop("authorization_token"))
        servers.append(dict(server.rest()))
    if servers:
        draft.option("mcp_servers", servers, "$.mcp_servers")

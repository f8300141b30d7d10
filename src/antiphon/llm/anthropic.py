"""Anthropic messages -> canonical request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from antiphon.llm._draft import (
    Block,
    Draft,
    Fields,
    block_of,
    digest_of_base64,
    elements,
    shape_error,
    text_block,
    with_vendor_fields,
)

_CHOICES: Final = {"auto": "auto", "none": "none", "any": "required"}
_SETTINGS: Final = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "max_tokens": "maxOutputTokens",
    "stop_sequences": "stop",
}


def read(draft: Draft) -> None:
    """Move everything from the body into *draft*."""
    body = draft.body
    system = body.take("system")
    if system:
        draft.messages.append(draft.message("system", list(_content(draft, system, "$.system"))))
    if "messages" not in body.left:
        raise shape_error("$.messages", "a list of messages")
    for value, path in body.items("messages"):
        _message(draft, Fields(value, path))
    for value, path in body.items("tools"):
        _tool(draft, value, path)
    _choice(draft)
    _answer_form(draft)
    draft.settings(body, _SETTINGS)
    servers = [Fields(value, path) for value, path in body.items("mcp_servers")]
    for server in servers:
        server.drop("authorization_token")
    if servers:
        draft.option("mcp_servers", [server.left for server in servers])


def _message(draft: Draft, message: Fields) -> None:
    role = message.text("role")
    if role not in ("user", "assistant", "system"):
        raise shape_error(f"{message.path}.role", "one of user, assistant")
    content = message.take("content")
    path = f"{message.path}.content"
    if content is None:
        raise shape_error(path, "a string or a list of blocks")
    draft.add_turn(role, _content(draft, content, path, results=role == "user"), message.left)


def _content(draft: Draft, value: Any, path: str, *, results: bool = False) -> Iterator[Block]:
    """The blocks of a content; with *results*, each tool result becomes a message."""
    if isinstance(value, str):
        if value:
            yield text_block(value)
        return
    for item, at in elements(value, path):
        block = Fields(item, at)
        block.drop("cache_control")
        kind = block.text("type")
        if kind == "tool_result" and results:
            yield _result(draft, block)
        else:
            yield _block(draft, block, item, kind)


def _result(draft: Draft, block: Fields) -> dict[str, Any]:
    call_id = block.need_text("tool_use_id")
    given = block.take("content")
    blocks = [] if given is None else list(_content(draft, given, f"{block.path}.content"))
    is_error = block.flag("is_error")
    return draft.message("tool", blocks, call_id=call_id, is_error=is_error, extra=block.left)


def _block(draft: Draft, block: Fields, value: dict[str, Any], kind: str | None) -> Block:
    if kind == "text":
        return text_block(block.text("text") or "", block.left)
    if kind == "tool_use":
        name = block.need_text("name")
        call_id = block.need_text("id")
        arguments = block.take("input") or {}
        return draft.call(name, arguments, f"{block.path}.input", call_id, block.left)
    if kind == "thinking":
        thought = block_of("thinking", text=block.text("thinking") or "", signature=block.text("signature"))
        return with_vendor_fields(thought, block.left)
    if kind == "redacted_thinking":
        return with_vendor_fields({"type": "thinking", "encrypted": block.need_text("data")}, block.left)
    if kind in ("image", "document"):
        return _media(block, kind)
    return draft.vendor_block(_uncached(value), block.path)


def _uncached(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name != "cache_control"}


def _media(block: Fields, kind: str) -> Block:
    path = f"{block.path}.source"
    source = Fields(block.take("source"), path)
    form = source.text("type")
    media_type = source.text("media_type")
    name = block.text("title")
    content: dict[str, Any] = {}
    if form == "base64":
        content = {"digest": digest_of_base64(source.take("data"), f"{path}.data")}
    elif form == "url":
        content = {"url": source.need_text("url")}
    elif form == "file":
        content = {"fileId": source.need_text("file_id")}
    elif form == "text" and kind == "document":
        content = {"text": source.text("data") or ""}
    else:
        unknown = {"source": {"type": form, **source.left}}
        return with_vendor_fields(block_of(kind, name=name), block.left, unknown)
    found = block_of(kind, mediaType=media_type, name=name, **content)
    return with_vendor_fields(found, source.left, block.left)


def _tool(draft: Draft, value: Any, path: str) -> None:
    tool = Fields(value, path)
    tool.drop("cache_control")
    if tool.text("type") in ("custom", None) and "input_schema" in tool.left:
        draft.function(tool, "input_schema")
    else:
        draft.hosted_tool(_uncached(value), path)


def _choice(draft: Draft) -> None:
    choice = draft.body.fields("tool_choice")
    if choice is None:
        return
    kind = choice.text("type")
    if kind in _CHOICES:
        draft.choice(_CHOICES[kind])
    elif kind == "tool":
        draft.choice("tool", names=[choice.need_text("name")])
    else:
        draft.choice("vendor", value={"type": kind, **choice.left})
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
        draft.response_format("json", schema=given.object("schema"), value=given.left)
    else:
        draft.response_format("vendor", value=value)

"""OpenAI chat completions, OpenAI responses and everything that speaks these dialects -> canonical request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from antiphon.llm._draft import (
    Block,
    Draft,
    Fields,
    as_list,
    as_text,
    block_of,
    digest_of_base64,
    elements,
    located,
    shape_error,
    text_block,
    with_vendor_fields,
)

_RESPONSES_ROLES: Final = ("system", "developer", "user", "assistant")
_CHAT_ROLES: Final = (*_RESPONSES_ROLES, "tool", "function")
_ASKING_ROLES: Final = ("user", "system")
_TEXT_ROLES: Final = (*_ASKING_ROLES, "assistant")
_SETTINGS: Final = {"temperature": "temperature", "top_p": "topP", "seed": "seed", "stop": "stop"}
_RESPONSES_SETTINGS: Final = {**_SETTINGS, "max_output_tokens": "maxOutputTokens"}
_CHAT_SETTINGS: Final = {
    **_SETTINGS,
    "max_completion_tokens": "maxOutputTokens",
    "max_tokens": "maxOutputTokens",
    "top_k": "topK",
}


def read_chat(draft: Draft) -> None:
    """Move everything from the body of a chat completion into *draft*."""
    left = draft.body.left
    if "messages" not in left:
        raise shape_error("$.messages", "a list of messages")
    for index, value in enumerate(as_list(left.pop("messages"), "$.messages")):
        if type(value) is dict and len(value) == 2 and value.get("role") in _TEXT_ROLES:
            text = value.get("content")
            if type(text) is str:  # most of a conversation looks like this
                draft.messages.append({"role": value["role"], "content": text})
                continue
        _chat_message(draft, Fields(value, f"$.messages[{index}]"))
    tools = left.pop("tools", None)
    if tools is not None and tools != []:
        for value, path in elements(tools, "$.tools"):
            tool = Fields(value, path)
            if tool.text("type") in ("function", None):
                if "function" in tool.left:
                    tool = Fields(tool.left["function"], f"{path}.function")
                draft.function(tool, "parameters")
            else:
                draft.hosted_tool(value, path)
    if "functions" in left:
        for value, path in draft.body.items("functions"):
            draft.function(Fields(value, path), "parameters")
    if "tool_choice" in left or "function_call" in left:
        _choose(draft, draft.body.take("tool_choice", "function_call"))
    if "response_format" in left:
        _response_format(draft, left.pop("response_format"), "$.response_format", nested="json_schema")
    draft.settings(draft.body, _CHAT_SETTINGS)


def read_responses(draft: Draft) -> None:
    """The same for a request of the Responses API."""
    left = draft.body.left
    instructions = left.pop("instructions", None)
    if isinstance(instructions, str):
        if instructions:
            draft.messages.append({"role": "system", "content": instructions})
    elif instructions:
        draft.messages.append(draft.message("system", _content(draft, instructions, "$.instructions")))
    _input(draft, left.pop("input", None))
    tools = left.pop("tools", None)
    if tools is not None and tools != []:
        for value, path in elements(tools, "$.tools"):
            tool = Fields(value, path)
            if tool.text("type") == "function":
                draft.function(tool, "parameters")
            else:
                draft.hosted_tool(value, path)
    if "tool_choice" in left:
        _choose(draft, left.pop("tool_choice"))
    if "text" in left:
        text = Fields(left.pop("text"), "$.text")
        if "format" in text.left:
            _response_format(draft, text.left.pop("format"), "$.text.format", nested="")
        draft.options(text, "text.")
    draft.settings(draft.body, _RESPONSES_SETTINGS)


# -- chat messages ---------------------------------------------------------------------------------------------------


def _chat_message(draft: Draft, message: Fields) -> None:
    left = message.left
    role = _role(message, _CHAT_ROLES)
    content = left.pop("content", None)
    blocks = [] if content is None else _content(draft, content, f"{message.path}.content")
    if "reasoning_content" in left:
        blocks.insert(0, {"type": "thinking", "text": message.text("reasoning_content")})
    if "refusal" in left:
        blocks.append({"type": "refusal", "text": message.text("refusal")})
    if "tool_calls" in left:
        path = f"{message.path}.tool_calls"
        for index, call in enumerate(as_list(left.pop("tool_calls"), path)):
            blocks.append(_chat_call(draft, Fields(call, f"{path}[{index}]")))
    if "function_call" in left:
        old_call = Fields(left.pop("function_call"), f"{message.path}.function_call")
        blocks.append(draft.call(old_call.need_text("name"), old_call.text("arguments") or "", message.path, None))
    name = call_id = None
    if left:
        name, call_id = message.text("name"), message.text("tool_call_id")
    draft.messages.append(draft.message(role, blocks, name=name, call_id=call_id, extra=left))


def _role(message: Fields, roles: Sequence[str]) -> str:
    role: Any = message.left.pop("role", "")
    if role not in roles:
        raise shape_error(f"{message.path}.role", f"one of {', '.join(roles)}" if isinstance(role, str) else "a string")
    return "tool" if role == "function" else role


def _chat_call(draft: Draft, call: Fields) -> Block:
    kind = call.text("type") or "function"
    call_id = call.text("id")
    function = "custom" if kind == "custom" else "function"
    inner = Fields(call.left.pop(function, None), f"{call.path}.{function}")
    name = inner.need_text("name")
    if kind == "custom":
        return _custom_call(draft, name, inner, call_id)
    arguments = inner.text("arguments") or ""
    return draft.call(name, arguments, call.path, call_id, {**call.left, **inner.left})


def _custom_call(draft: Draft, name: str, given: Fields, call_id: str | None) -> Block:
    """A call whose argument is free text."""
    block = draft.call(name, {}, given.path, call_id)
    del block["arguments"]
    return {**block, "argumentsText": given.text("input") or "", "vendorFields": {"type": "custom"}}


# -- items of the Responses API --------------------------------------------------------------------------------------


def _input(draft: Draft, value: Any) -> None:
    if value is None:
        if draft.body.left.keys().isdisjoint(("prompt", "previous_response_id", "conversation")):
            raise shape_error("$.input", "a string or a list of items")
    elif isinstance(value, str):
        draft.messages.append({"role": "user", "content": value})
    else:
        items: _Items | None = None
        for index, item in enumerate(as_list(value, "$.input")):
            if type(item) is dict and len(item) == 2 and item.get("role") in _ASKING_ROLES:
                text = item.get("content")
                if type(text) is str:
                    if items is not None:
                        items.close()
                    draft.messages.append({"role": item["role"], "content": text})
                    continue
            if items is None:
                items = _Items(draft)
            items.add(item, f"$.input[{index}]")
        if items is not None:
            items.close()


class _Items:
    """Puts the items of one answer (reasoning, text, calls) back into one assistant message."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._blocks: list[Block] = []
        self._is_open = self._has_message = False

    def add(self, value: Any, path: str) -> None:
        item = Fields(value, path)
        kind = item.text("type") or "message"
        if kind == "message":
            self._message(item, path)
        elif kind == "reasoning":
            if any(block["type"] != "thinking" for block in self._blocks):
                self.close()  # reasoning opens the next answer
            self._answer(_thinking(item))
        elif kind in ("function_call", "custom_tool_call"):
            self._answer(self._call(item, path, kind))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            call_id = item.need_text("call_id")
            if "output" not in item.left:
                raise shape_error(f"{path}.output", "a string or a list of parts")
            self._tool(call_id, _content(self._draft, item.take("output"), f"{path}.output"))
        elif kind.endswith("_output"):
            self._tool(item.text("call_id"), [self._draft.vendor_block(value, path)])
        else:
            self._answer(self._draft.vendor_block(value, path))

    def close(self) -> None:
        """Close the open assistant message."""
        if self._is_open:
            self._draft.messages.append(self._draft.message("assistant", self._blocks))
            self._blocks, self._is_open, self._has_message = [], False, False

    def _message(self, item: Fields, path: str) -> None:
        role = _role(item, _RESPONSES_ROLES)
        blocks = _content(self._draft, item.take("content"), f"{path}.content")
        item.drop("id", "status")
        if role != "assistant" or item.left:
            self.close()
            self._draft.messages.append(self._draft.message(role, blocks, extra=item.left))
            return
        if self._has_message or any(block["type"] == "toolCall" for block in self._blocks):
            self.close()
        self._blocks += blocks
        self._is_open = self._has_message = True

    def _answer(self, block: Block) -> None:
        self._blocks.append(block)
        self._is_open = True

    def _tool(self, call_id: str | None, blocks: list[Block]) -> None:
        self.close()
        self._draft.messages.append(self._draft.message("tool", blocks, call_id=call_id))

    def _call(self, item: Fields, path: str, kind: str) -> Block:
        item.drop("id", "status")
        name = item.need_text("name")
        call_id = item.need_text("call_id")
        if kind == "function_call":
            arguments = item.text("arguments") or ""
            return self._draft.call(name, arguments, path, call_id, item.left)
        block = _custom_call(self._draft, name, item, call_id)
        return with_vendor_fields(block, item.left)


def _thinking(item: Fields) -> Block:
    summary = [as_text(Fields(part, at).take("text"), f"{at}.text") for part, at in item.items("summary")]
    texts = [as_text(Fields(part, at).take("text"), f"{at}.text") for part, at in item.items("content")]
    text = "".join(texts) if texts else None
    item.drop("status")
    encrypted, known = item.text("encrypted_content"), item.text("id")
    block = block_of("thinking", text=text, summary=summary or None, encrypted=encrypted, id=known)
    return with_vendor_fields(block, item.left)


# -- content ---------------------------------------------------------------------------------------------------------


def _content(draft: Draft, value: Any, path: str) -> list[Block]:
    """The blocks of a content: text, parts or nothing."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [text_block(value)]
    return [_part(draft, part, f"{path}[{index}]") for index, part in enumerate(as_list(value, path))]


def _part(draft: Draft, value: Any, path: str) -> Block:
    """One content part of either dialect; unknown types are kept as they are."""
    part = Fields(value, path)
    kind = part.text("type")
    if kind in ("text", "input_text", "output_text"):
        if kind == "output_text":
            part.drop("annotations", "logprobs")  # about the text, not part of what the model reads
        return text_block(part.text("text") or "", part.left)
    if kind == "refusal":
        return with_vendor_fields({"type": "refusal", "text": part.text("refusal") or ""}, part.left)
    if kind == "image_url":
        image = part.take("image_url")
        source = Fields({"url": image} if isinstance(image, str) else image, f"{path}.image_url")
        address, detail = source.need_text("url"), source.text("detail")
        block = located("image", address, f"{path}.image_url.url", detail=detail)
        return with_vendor_fields(block, source.left, part.left)
    if kind == "input_image":
        url, detail = part.text("image_url"), part.text("detail")
        if url is not None:
            block = located("image", url, f"{path}.image_url", detail=detail)
        else:
            block = block_of("image", fileId=part.need_text("file_id"), detail=detail)
        return with_vendor_fields(block, part.left)
    if kind == "input_audio":
        sound = Fields(part.take("input_audio"), f"{path}.input_audio")
        sound_format = sound.need_text("format")
        digest = digest_of_base64(sound.take("data"), f"{path}.input_audio.data")
        block = block_of("audio", mediaType=f"audio/{sound_format}", digest=digest)
        return with_vendor_fields(block, sound.left, part.left)
    if kind in ("file", "input_file"):
        source = Fields(part.take("file"), f"{path}.file") if kind == "file" else part
        return with_vendor_fields(_file(source), source.left, part.left)
    return draft.vendor_block(value, path)


def _file(source: Fields) -> Block:
    name, data, url = source.text("filename"), source.text("file_data"), source.text("file_url")
    path = f"{source.path}.file_data"
    if data is not None and not data.startswith("data:"):
        return block_of("document", digest=digest_of_base64(data, path), name=name)
    if data is not None:
        return located("document", data, path, name=name)
    if url is not None:
        return located("document", url, f"{source.path}.file_url", name=name)
    return block_of("document", fileId=source.need_text("file_id"), name=name)


# -- settings --------------------------------------------------------------------------------------------------------


def _choose(draft: Draft, value: Any) -> None:
    if value in ("none", "auto", "required"):
        draft.choice(value)
        return
    name = None
    if isinstance(value, dict) and value.get("type") in ("function", None):
        inner = value.get("function")
        name = inner.get("name") if isinstance(inner, dict) else value.get("name")
    if isinstance(name, str):
        draft.choice("tool", names=[name])
    else:
        draft.choice("vendor", value=value)


def _response_format(draft: Draft, value: Any, path: str, *, nested: str) -> None:
    """Set the format of the answer from ``response_format`` or ``text.format``."""
    given = Fields(value, path)
    kind = given.text("type")
    if kind == "text":
        draft.response_format("text", value=given.left)
    elif kind == "json_object":
        draft.response_format("json", value=given.left)
    elif kind == "json_schema":
        inner = Fields(given.take(nested), f"{path}.{nested}") if nested else given
        schema, name, strict = inner.object("schema"), inner.text("name"), inner.flag("strict")
        draft.response_format("json", schema=schema, name=name, strict=strict, value=inner.left)
    else:
        draft.response_format("vendor", value=value)

"""OpenAI responses -> canonical request."""

from __future__ import annotations

from typing import Any

from antiphon.llm._blocks import Piece, tool_call, vendor_piece
from antiphon.llm._draft import Draft
from antiphon.llm._read import Fields, as_list, as_text, wrong
from antiphon.llm.openai_chat import choose, content, function, hosted_tool, response_format

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def read(draft: Draft) -> None:
    """Move everything from the body into *draft*."""
    body = draft.body
    instructions = body.take("instructions")
    if instructions:
        draft.say("system", content(instructions, "$.instructions", draft.vendor), "$.instructions")
    _input(draft)
    for value, path in body.items("tools"):
        tool = Fields(value, path)
        if tool.text("type") == "function":
            function(draft, tool, path)
        else:
            hosted_tool(draft, value, path)
    choose(draft, body.take("tool_choice"), "$.tool_choice")
    text = body.fields("text")
    if text is not None:
        response_format(draft, text.take("format"), "$.text.format", nested="")
        draft.options(text, "text.")
    draft.number("temperature", body, "temperature")
    draft.number("topP", body, "top_p")
    draft.integer("maxOutputTokens", body, "max_output_tokens")
    draft.integer("seed", body, "seed")
    path = body.at("stop")
    draft.set("stop", body.texts("stop"), path)


def _input(draft: Draft) -> None:
    value = draft.body.take("input")
    if value is None:
        if not draft.body.has("prompt", "previous_response_id", "conversation"):
            raise wrong("$.input", "a string or a list of items")
        return
    if isinstance(value, str):
        draft.say("user", content(value, "$.input", draft.vendor), "$.input")
        return
    items = _Items(draft)
    for index, item in enumerate(as_list(value, "$.input")):
        items.add(item, f"$.input[{index}]")
    items.close()


class _Items:
    """Puts the items of one answer (reasoning, text, calls) back into one assistant message."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._pieces: list[Piece] = []
        self._path = ""
        self._has_message = False

    def add(self, value: Any, path: str) -> None:
        item = Fields(value, path)
        kind = item.text("type") or "message"
        if kind == "message":
            self._message(item, path)
        elif kind == "reasoning":
            self._answer(_thinking(item, path), path)
        elif kind in ("function_call", "custom_tool_call"):
            self._answer(self._call(item, path, kind), path)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._tool(item.need_text("call_id"), self._output(item.take("output"), path), path)
        elif kind.endswith("_output"):
            self._tool(item.text("call_id"), [vendor_piece(value, path, self._draft.vendor)], path)
        else:
            self._answer(vendor_piece(value, path, self._draft.vendor), path)

    def close(self) -> None:
        """End the assistant message that is open."""
        if self._path:
            self._draft.say("assistant", self._pieces, self._path)
            self._pieces, self._path, self._has_message = [], "", False

    def _message(self, item: Fields, path: str) -> None:
        said = item.text("role")
        role = _ROLES.get(said or "")
        if role is None:
            raise wrong(f"{path}.role", f"one of {', '.join(_ROLES)}")
        pieces = content(item.take("content"), f"{path}.content", self._draft.vendor)
        self._draft.ignore(item.drop("id", "status"))
        extra = item.rest()
        if role == "assistant" and not extra:
            if self._has_message or any(piece.block["type"] == "toolCall" for piece in self._pieces):
                self.close()
            self._path = self._path or path
            self._pieces += pieces
            self._has_message = True
            return
        self.close()
        if said == "developer":
            self._draft.say_as_developer(pieces, path, vendorFields=extra)
        else:
            self._draft.say(role, pieces, path, vendorFields=extra)

    def _answer(self, piece: Piece, path: str) -> None:
        if piece.block["type"] == "thinking" and any(old.block["type"] != "thinking" for old in self._pieces):
            self.close()  # reasoning opens the next answer
        self._path = self._path or path
        self._pieces.append(piece)

    def _tool(self, call_id: str | None, pieces: list[Piece], path: str) -> None:
        self.close()
        self._draft.say("tool", pieces, path, toolCallId=call_id)

    def _output(self, value: Any, path: str) -> list[Piece]:
        if value is None:
            raise wrong(f"{path}.output", "a string or a list of parts")
        return content(value, f"{path}.output", self._draft.vendor)

    def _call(self, item: Fields, path: str, kind: str) -> Piece:
        self._draft.ignore(item.drop("id", "status"))
        name = item.need_text("name")
        call_id = item.need_text("call_id")
        if kind == "function_call":
            arguments = item.text("arguments") or ""
            return tool_call(name, arguments, path, f"{path}.arguments", id=call_id, vendorFields=item.rest() or None)
        block = {
            "type": "toolCall",
            "name": name,
            "argumentsText": item.text("input") or "",
            "vendorFields": {"type": "custom", **item.rest()},
            "id": call_id,
        }
        return Piece(block, path, ((".argumentsText", f"{path}.input"),))


def _thinking(item: Fields, path: str) -> Piece:
    block: dict[str, Any] = {"type": "thinking"}
    summary = [as_text(Fields(part, at).take("text"), f"{at}.text") for part, at in item.items("summary")]
    texts = [as_text(Fields(part, at).take("text"), f"{at}.text") for part, at in item.items("content")]
    if texts:
        block["text"] = "".join(texts)
    if summary:
        block["summary"] = summary
    item.drop("status")
    for name, source in (("encrypted", "encrypted_content"), ("id", "id")):
        if (value := item.text(source)) is not None:
            block[name] = value
    if extra := item.rest():
        block["vendorFields"] = extra
    return Piece(block, path)

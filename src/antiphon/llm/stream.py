"""Reassembling a streamed answer: from its events, whole or interrupted, to one answer and its summary."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from antiphon.llm.response import count, data_of, dig, objects, summarise, text_of

__all__ = ["assemble_response", "assemble_stream", "sse_events"]


def assemble_stream(events: Iterable[Any], provider: str) -> dict[str, Any]:
    """The summary of a streamed answer; ``complete`` says whether it reached its end.

    Events are objects, or the text or bytes of a server-sent event stream, cut anywhere. Never raises: events of
    an unknown shape end up in ``raw``.
    """
    response, complete, seen = _assemble(events, provider)
    summary = summarise(response, provider)
    summary["complete"] = complete
    if summary["kind"] == "unknown":
        summary["raw"] = seen
    return summary


def assemble_response(events: Iterable[Any], provider: str) -> dict[str, Any]:
    """The answer that the provider would have given without streaming, as far as the events tell."""
    return _assemble(map(data_of, events), provider)[0]


def sse_events(chunks: Iterable[str | bytes]) -> Iterator[Any]:
    """The JSON data of server-sent events; chunks may be split anywhere, data that is not JSON is skipped."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pending = ""
    begun = False
    data: list[str] = []
    for chunk in chunks:
        text = chunk if isinstance(chunk, str) else decoder.decode(chunk)
        pending += text if begun else text.removeprefix("\ufeff")  # a byte order mark is no part of the stream
        begun = begun or text != ""
        *lines, pending = pending.replace("\r\n", "\n").split("\n")
        for line in lines:
            yield from _line(line.rstrip("\r"), data)
    yield from _line(pending.rstrip("\r"), data)
    yield from _line("", data)


def _line(line: str, data: list[str]) -> Iterator[Any]:
    if line.startswith("data:"):
        data.append(line[len("data:") :].removeprefix(" "))
    elif not line and data:
        text = "\n".join(data)
        data.clear()
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            return  # `[DONE]` and the like


def _objects(events: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """The events as objects, from any mixture of objects and raw stream."""
    raw: list[str | bytes] = []
    for event in events:
        if isinstance(event, dict):
            yield event
        elif isinstance(event, (str, bytes)):
            raw.append(event)
    for event in sse_events(raw):
        if isinstance(event, dict):
            yield event


class _Assembler:
    """Reassembles the events of one stream; ``complete`` is known after :meth:`response`."""

    def __init__(self) -> None:
        self.complete = False
        self.head: dict[str, Any] = {}
        self.parts: dict[int, dict[str, Any]] = {}

    def feed(self, event: dict[str, Any]) -> None:
        """Process the next event."""
        raise NotImplementedError

    def response(self) -> dict[str, Any]:
        """The answer, as far as the events tell."""
        raise NotImplementedError

    def in_order(self) -> list[dict[str, Any]]:
        """The parts in index order."""
        return [self.parts[index] for index in sorted(self.parts)]


def _assemble(events: Iterable[Any], provider: str) -> tuple[dict[str, Any], bool, list[Any]]:
    seen = list(_objects(events))
    make = _ASSEMBLERS.get(provider)
    if make is None:
        return {}, False, seen
    assembler = make()
    for event in seen:
        assembler.feed(event)
    return assembler.response(), assembler.complete, seen


class _OpenAIChat(_Assembler):
    def feed(self, event: dict[str, Any]) -> None:
        self.head.update((name, value) for name, value in event.items() if name != "choices" and value is not None)
        for part in objects(event.get("choices")):
            index = count(part.get("index")) or 0
            choice = self.parts.setdefault(index, {"index": index, "message": {}, "finish_reason": None})
            for delta in objects([part.get("delta")]):
                _grow_message(choice["message"], delta)
            if part.get("finish_reason") is not None:
                choice["finish_reason"] = part["finish_reason"]

    def response(self) -> dict[str, Any]:
        choices = self.in_order()
        for choice in choices:
            calls = choice["message"].get("tool_calls")
            if calls is not None:
                choice["message"]["tool_calls"] = [calls[place] for place in sorted(calls)]
        self.complete = bool(choices) and all(choice["finish_reason"] is not None for choice in choices)
        return {**self.head, "choices": choices} if choices or self.head else {}


def _grow_message(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            calls = message.setdefault(name, {})
            for part in objects(value):
                call = calls.setdefault(count(part.get("index")) or 0, {"function": {"name": "", "arguments": ""}})
                call.update((field, part[field]) for field in ("id", "type") if isinstance(part.get(field), str))
                for field in ("name", "arguments"):
                    call["function"][field] += text_of(dig(part, "function", field))
        elif isinstance(value, str) and name != "role":
            message[name] = text_of(message.get(name)) + value
        elif value is not None or name == "role":
            message[name] = value


class _OpenAIResponses(_Assembler):
    final: dict[str, Any] | None = None

    def feed(self, event: dict[str, Any]) -> None:
        kind = text_of(event.get("type"))
        response = event.get("response")
        if kind in ("response.completed", "response.incomplete", "response.failed") and isinstance(response, dict):
            self.final = response
            self.complete = kind != "response.failed"
        elif isinstance(response, dict):
            self.head = response
        index = count(event.get("output_index"))
        if index is None:
            return
        item = event.get("item")
        if isinstance(item, dict):
            self.parts[index] = {**item, "content": list(objects(item.get("content")))}
            return
        entry = self.parts.setdefault(index, {"type": "message", "content": []})
        delta = text_of(event.get("delta"))
        place = count(event.get("content_index")) or 0
        if kind == "response.output_text.delta":
            _grow(entry["content"], place, "output_text", "text", delta)
        elif kind == "response.refusal.delta":
            _grow(entry["content"], place, "refusal", "refusal", delta)
        elif kind == "response.function_call_arguments.delta":
            entry["arguments"] = text_of(entry.get("arguments")) + delta

    def response(self) -> dict[str, Any]:
        if self.final is not None:
            return self.final
        return {**self.head, "output": self.in_order()} if self.head or self.parts else {}


def _grow(parts: list[dict[str, Any]], index: int, kind: str, field: str, delta: str) -> None:
    index = max(0, min(index, 10_000))
    while len(parts) <= index:
        parts.append({"type": kind, field: ""})
    parts[index][field] = text_of(parts[index].get(field)) + delta


class _Anthropic(_Assembler):
    _TEXT: Final = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}

    def __init__(self) -> None:
        super().__init__()
        self._json: dict[int, str] = {}

    def feed(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        index = count(event.get("index")) or 0
        delta, usage = event.get("delta"), event.get("usage")
        if kind == "message_start" and isinstance(event.get("message"), dict):
            self.head = dict(event["message"])
        elif kind == "content_block_start" and isinstance(event.get("content_block"), dict):
            self.parts[index] = dict(event["content_block"])
        elif kind == "content_block_delta":
            self._delta(index, delta)
        elif kind == "message_delta":
            if isinstance(delta, dict):
                self.head.update(delta)
            if isinstance(usage, dict):
                before = self.head.get("usage")
                self.head["usage"] = {**(before if isinstance(before, dict) else {}), **usage}
        elif kind == "message_stop":
            self.complete = True

    def _delta(self, index: int, delta: Any) -> None:
        kind = text_of(dig(delta, "type"))
        block = self.parts.setdefault(index, {"type": "tool_use" if kind == "input_json_delta" else "text"})
        if kind == "input_json_delta":
            self._json[index] = self._json.get(index, "") + text_of(dig(delta, "partial_json"))
        elif kind in self._TEXT:
            field = self._TEXT[kind]
            block[field] = text_of(block.get(field)) + text_of(dig(delta, field))

    def response(self) -> dict[str, Any]:
        if not self.head and not self.parts:
            return {}
        for index, text in self._json.items():
            try:
                self.parts[index]["input"] = json.loads(text or "{}")
            except (ValueError, RecursionError):
                self.parts[index]["input"] = text  # interrupted inside: what there was of it
        return {**self.head, "content": self.in_order()}


class _Gemini(_Assembler):
    def feed(self, event: dict[str, Any]) -> None:
        self.head.update((name, value) for name, value in event.items() if name != "candidates")
        for part in objects(event.get("candidates")):
            candidate = self.parts.setdefault(count(part.get("index")) or 0, {"content": {"parts": []}})
            candidate["content"]["parts"] += objects(dig(part, "content", "parts"))
            candidate.update((name, value) for name, value in part.items() if name != "content")

    def response(self) -> dict[str, Any]:
        candidates = self.in_order()
        ended = bool(candidates) and all(dig(candidate, "finishReason") for candidate in candidates)
        self.complete = ended or dig(self.head, "promptFeedback", "blockReason") is not None
        return {**self.head, "candidates": candidates} if candidates or self.head else {}


_ASSEMBLERS: Final[dict[str, type[_Assembler]]] = {
    "openai-chat": _OpenAIChat,
    "openai-responses": _OpenAIResponses,
    "anthropic": _Anthropic,
    "gemini": _Gemini,
}

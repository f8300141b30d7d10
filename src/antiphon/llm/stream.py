"""Putting a streamed answer back together: from its events, whole or broken off, to one answer and its account."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from antiphon.llm.response import count, dig, objects, summarise, text_of

__all__ = ["assemble_response", "assemble_stream", "sse_events"]


def assemble_stream(events: Iterable[Any], provider: str) -> dict[str, Any]:
    """The summary of a streamed answer; ``complete`` says whether it came to its end.

    Events are objects, or the text or bytes of a server-sent event stream, cut anywhere. Never raises: what nobody
    knows ends up in ``raw``.
    """
    response, complete, seen = _assemble(events, provider)
    summary = summarise(response, provider)
    summary["complete"] = complete
    if summary["kind"] == "unknown":
        summary["raw"] = seen
    return summary


def assemble_response(events: Iterable[Any], provider: str) -> dict[str, Any]:
    """The answer the provider would have given without streaming, as far as the events tell."""
    return _assemble(events, provider)[0]


def sse_events(chunks: Iterable[str | bytes]) -> Iterator[Any]:
    """The JSON data of server-sent events; chunks may be cut anywhere, data that is not JSON is left out."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pending = ""
    data: list[str] = []
    for chunk in chunks:
        pending += chunk if isinstance(chunk, str) else decoder.decode(chunk)
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
    """The events as objects, whatever mixture of objects and raw stream they come in."""
    raw: list[str | bytes] = []
    for event in events:
        if isinstance(event, dict):
            yield event
        elif isinstance(event, (str, bytes)):
            raw.append(event)
    for event in sse_events(raw):
        if isinstance(event, dict):
            yield event


class _Assembler(Protocol):
    complete: bool

    def feed(self, event: dict[str, Any]) -> None: ...

    def response(self) -> dict[str, Any]: ...


def _assemble(events: Iterable[Any], provider: str) -> tuple[dict[str, Any], bool, list[Any]]:
    seen = list(_objects(events))
    make = _ASSEMBLERS.get(provider)
    if make is None:
        return {}, False, seen
    assembler = make()
    for event in seen:
        assembler.feed(event)
    return assembler.response(), assembler.complete, seen


class _OpenAIChat:
    def __init__(self) -> None:
        self.complete = False
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._calls: dict[int, dict[int, dict[str, Any]]] = {}

    def feed(self, event: dict[str, Any]) -> None:
        self._head.update((name, value) for name, value in event.items() if name != "choices" and value is not None)
        for part in objects(event.get("choices")):
            index = count(part.get("index")) or 0
            choice = self._choices.setdefault(index, {"index": index, "message": {}, "finish_reason": None})
            message = choice["message"]
            for name, value in (objects([part.get("delta")]) or [{}])[0].items():
                if name == "tool_calls":
                    self._feed_calls(index, objects(value))
                elif name == "role":
                    message["role"] = value
                elif isinstance(value, str):
                    message[name] = text_of(message.get(name)) + value
                elif value is not None:
                    message[name] = value
            if part.get("finish_reason") is not None:
                choice["finish_reason"] = part["finish_reason"]

    def _feed_calls(self, choice: int, deltas: list[dict[str, Any]]) -> None:
        calls = self._calls.setdefault(choice, {})
        for delta in deltas:
            call = calls.setdefault(count(delta.get("index")) or 0, {"function": {"name": "", "arguments": ""}})
            for name in ("id", "type"):
                if isinstance(delta.get(name), str):
                    call[name] = delta[name]
            for name in ("name", "arguments"):
                call["function"][name] += text_of(dig(delta, "function", name))

    def response(self) -> dict[str, Any]:
        for index, calls in self._calls.items():
            self._choices[index]["message"]["tool_calls"] = [calls[place] for place in sorted(calls)]
        choices = [self._choices[index] for index in sorted(self._choices)]
        self.complete = bool(choices) and all(choice["finish_reason"] is not None for choice in choices)
        return {**self._head, "choices": choices} if choices or self._head else {}


class _OpenAIResponses:
    def __init__(self) -> None:
        self.complete = False
        self._final: dict[str, Any] | None = None
        self._start: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}

    def feed(self, event: dict[str, Any]) -> None:
        kind = text_of(event.get("type"))
        response = event.get("response")
        if kind in ("response.completed", "response.incomplete", "response.failed") and isinstance(response, dict):
            self._final = response
            self.complete = kind != "response.failed"
        elif isinstance(response, dict):
            self._start = response
        index = count(event.get("output_index"))
        if index is None:
            return
        item = event.get("item")
        if isinstance(item, dict):
            self._items[index] = {**item, "content": list(objects(item.get("content")))}
            return
        entry = self._items.setdefault(index, {"type": "message", "content": []})
        delta = text_of(event.get("delta"))
        if kind == "response.output_text.delta":
            _grow(entry["content"], count(event.get("content_index")) or 0, "output_text", "text", delta)
        elif kind == "response.refusal.delta":
            _grow(entry["content"], count(event.get("content_index")) or 0, "refusal", "refusal", delta)
        elif kind == "response.function_call_arguments.delta":
            entry["arguments"] = text_of(entry.get("arguments")) + delta

    def response(self) -> dict[str, Any]:
        if self._final is not None:
            return self._final
        if not self._start and not self._items:
            return {}
        return {**self._start, "output": [self._items[index] for index in sorted(self._items)]}


def _grow(parts: list[dict[str, Any]], index: int, kind: str, field: str, delta: str) -> None:
    while len(parts) <= min(index, 10_000):
        parts.append({"type": kind, field: ""})
    part = parts[min(index, 10_000)]
    part[field] = text_of(part.get(field)) + delta


class _Anthropic:
    _TEXT: Final = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}

    def __init__(self) -> None:
        self.complete = False
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._json: dict[int, str] = {}

    def feed(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        index = count(event.get("index")) or 0
        if kind == "message_start" and isinstance(event.get("message"), dict):
            self._message = dict(event["message"])
        elif kind == "content_block_start" and isinstance(event.get("content_block"), dict):
            self._blocks[index] = dict(event["content_block"])
        elif kind == "content_block_delta":
            self._delta(index, event.get("delta"))
        elif kind == "message_delta":
            if isinstance(event.get("delta"), dict):
                self._message.update(event["delta"])
            if isinstance(event.get("usage"), dict):
                before = self._message.get("usage")
                self._message["usage"] = {**(before if isinstance(before, dict) else {}), **event["usage"]}
        elif kind == "message_stop":
            self.complete = True

    def _delta(self, index: int, delta: Any) -> None:
        kind = text_of(dig(delta, "type"))
        block = self._blocks.setdefault(index, {"type": "tool_use" if kind == "input_json_delta" else "text"})
        if kind == "input_json_delta":
            self._json[index] = self._json.get(index, "") + text_of(dig(delta, "partial_json"))
        elif kind in self._TEXT:
            field = self._TEXT[kind]
            block[field] = text_of(block.get(field)) + text_of(dig(delta, field))

    def response(self) -> dict[str, Any]:
        if not self._message and not self._blocks:
            return {}
        for index, text in self._json.items():
            try:
                self._blocks[index]["input"] = json.loads(text or "{}")
            except (ValueError, RecursionError):
                self._blocks[index]["input"] = text  # broken off inside: what there was of it
        return {**self._message, "content": [self._blocks[index] for index in sorted(self._blocks)]}


class _Gemini:
    def __init__(self) -> None:
        self.complete = False
        self._head: dict[str, Any] = {}
        self._candidates: dict[int, dict[str, Any]] = {}

    def feed(self, event: dict[str, Any]) -> None:
        self._head.update((name, value) for name, value in event.items() if name != "candidates")
        for part in objects(event.get("candidates")):
            index = count(part.get("index")) or 0
            candidate = self._candidates.setdefault(index, {"content": {"parts": []}})
            candidate["content"]["parts"] += objects(dig(part, "content", "parts"))
            candidate.update((name, value) for name, value in part.items() if name != "content")

    def response(self) -> dict[str, Any]:
        candidates = [self._candidates[index] for index in sorted(self._candidates)]
        ended = bool(candidates) and all(dig(candidate, "finishReason") for candidate in candidates)
        self.complete = ended or dig(self._head, "promptFeedback", "blockReason") is not None
        return {**self._head, "candidates": candidates} if candidates or self._head else {}


_ASSEMBLERS: Final[dict[str, type[_Assembler]]] = {
    "openai-chat": _OpenAIChat,
    "openai-responses": _OpenAIResponses,
    "anthropic": _Anthropic,
    "gemini": _Gemini,
}

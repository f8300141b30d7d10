"""A short, vendor-neutral account of a model's answer; the answer itself is recorded as it came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from antiphon.canonical import parse_json
from antiphon.errors import CanonicalError
from antiphon.llm._dig import count, dig, objects, texts
from antiphon.llm.refusal import envelope_kind, response_dialect

__all__ = ["summarise", "told"]

Told = tuple[dict[str, int | None], Any]
"""Usage and stop reason."""


def summarise(response: Any, provider: str | None = None) -> dict[str, Any]:
    """What a model said: ``{kind, text, toolCalls, usage, stopReason, refusal}``; with ``raw`` if the shape is unknown.

    ``inputTokens`` includes cached tokens and ``outputTokens`` includes reasoning, for every provider.

    >>> answer = {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}
    >>> summarise(answer, "openai-chat")["text"]
    'Hello'
    """
    kind, reason = envelope_kind(response, provider)
    summary: dict[str, Any] = {
        "kind": kind,
        "text": "",
        "toolCalls": [],
        "usage": {"inputTokens": None, "outputTokens": None},
        "stopReason": None,
        "refusal": reason,
    }
    dialect = response_dialect(response, provider)
    if dialect is not None and isinstance(response, dict):
        _SAID[dialect](response, summary)
        summary["usage"], summary["stopReason"] = _TOLD[dialect](response)
    if kind == "unknown":
        summary["raw"] = response
    return summary


def told(response: dict[str, Any], provider: str | None = None) -> Told:
    """Usage and stop reason of an answer, as :func:`summarise` gives them."""
    dialect = response_dialect(response, provider)
    return ({"inputTokens": None, "outputTokens": None}, None) if dialect is None else _TOLD[dialect](response)


def call_entry(name: Any, arguments: Any, call_id: Any = None) -> dict[str, Any]:
    """One requested call; arguments that are not JSON stay text."""
    call: dict[str, Any] = {"name": texts(name)}
    if isinstance(call_id, str):
        call["id"] = call_id
    if isinstance(arguments, str):
        try:
            call["arguments"] = parse_json(arguments) if arguments else {}
        except CanonicalError:
            call["argumentsText"] = arguments
    else:
        call["arguments"] = {} if arguments is None else arguments
    return call


def _total(*counts: Any) -> int | None:
    known = [number for value in counts if (number := count(value)) is not None]
    return sum(known) if known else None


def _openai_chat(response: dict[str, Any], summary: dict[str, Any]) -> None:
    choice = dig(response, "choices", 0)
    message = dig(choice, "message")
    content = dig(message, "content")
    parts = "".join(texts(part.get("text")) for part in objects(content))
    summary["text"] = content if isinstance(content, str) else parts
    for call in objects(dig(message, "tool_calls")):
        inner = call.get("function") or call.get("custom")
        arguments = dig(inner, "arguments")
        given = arguments if arguments is not None else dig(inner, "input")
        summary["toolCalls"].append(call_entry(dig(inner, "name"), given, call.get("id")))


def _openai_chat_told(response: dict[str, Any]) -> Told:
    usage = response.get("usage")
    tokens = {
        "inputTokens": count(dig(usage, "prompt_tokens")),
        "outputTokens": count(dig(usage, "completion_tokens")),
    }
    return tokens, dig(response, "choices", 0, "finish_reason")


def _openai_responses(response: dict[str, Any], summary: dict[str, Any]) -> None:
    for item in objects(response.get("output")):
        if item.get("type") == "message":
            summary["text"] += "".join(
                texts(part.get("text")) for part in objects(item.get("content")) if part.get("type") == "output_text"
            )
        elif item.get("type") in ("function_call", "custom_tool_call"):
            given = item.get("arguments") if item.get("type") == "function_call" else item.get("input")
            summary["toolCalls"].append(call_entry(item.get("name"), given, item.get("call_id")))


def _openai_responses_told(response: dict[str, Any]) -> Told:
    usage = response.get("usage")
    tokens = {"inputTokens": count(dig(usage, "input_tokens")), "outputTokens": count(dig(usage, "output_tokens"))}
    return tokens, dig(response, "incomplete_details", "reason") or response.get("status")


def _anthropic(response: dict[str, Any], summary: dict[str, Any]) -> None:
    for block in objects(response.get("content")):
        if block.get("type") == "text":
            summary["text"] += texts(block.get("text"))
        elif block.get("type") == "tool_use":
            summary["toolCalls"].append(call_entry(block.get("name"), block.get("input"), block.get("id")))


def _anthropic_told(response: dict[str, Any]) -> Told:
    usage = response.get("usage")
    tokens = {
        "inputTokens": _total(
            dig(usage, "input_tokens"), dig(usage, "cache_creation_input_tokens"), dig(usage, "cache_read_input_tokens")
        ),
        "outputTokens": count(dig(usage, "output_tokens")),
    }
    return tokens, response.get("stop_reason")


def _gemini(response: dict[str, Any], summary: dict[str, Any]) -> None:
    candidate = dig(response, "candidates", 0)
    for part in objects(dig(candidate, "content", "parts")):
        if part.get("thought") is not True:
            summary["text"] += texts(part.get("text"))
        call = dig(part, "functionCall")
        if isinstance(call, dict):
            summary["toolCalls"].append(call_entry(call.get("name"), call.get("args"), call.get("id")))


def _gemini_told(response: dict[str, Any]) -> Told:
    usage = dig(response, "usageMetadata")
    tokens = {
        "inputTokens": count(dig(usage, "promptTokenCount")),
        "outputTokens": _total(dig(usage, "candidatesTokenCount"), dig(usage, "thoughtsTokenCount")),
    }
    stop = dig(response, "candidates", 0, "finishReason") or dig(response, "promptFeedback", "blockReason")
    return tokens, stop


def _bedrock(response: dict[str, Any], summary: dict[str, Any]) -> None:
    for block in objects(dig(response, "output", "message", "content")):
        summary["text"] += texts(block.get("text"))
        call = block.get("toolUse")
        if isinstance(call, dict):
            summary["toolCalls"].append(call_entry(call.get("name"), call.get("input"), call.get("toolUseId")))


def _bedrock_told(response: dict[str, Any]) -> Told:
    usage = response.get("usage")
    tokens = {
        "inputTokens": _total(
            dig(usage, "inputTokens"), dig(usage, "cacheReadInputTokens"), dig(usage, "cacheWriteInputTokens")
        ),
        "outputTokens": count(dig(usage, "outputTokens")),
    }
    return tokens, response.get("stopReason")


_SAID: Final = {
    "openai-chat": _openai_chat,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "bedrock": _bedrock,
}
_TOLD: Final[dict[str, Callable[[dict[str, Any]], Told]]] = {
    "openai-chat": _openai_chat_told,
    "openai-responses": _openai_responses_told,
    "anthropic": _anthropic_told,
    "gemini": _gemini_told,
    "bedrock": _bedrock_told,
}

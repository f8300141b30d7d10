"""A model's answer: whether it refused, and a short, vendor-neutral summary. The answer itself is recorded unchanged.

A refusal is read from the provider's own signals, never guessed from the wording (L4, D23):

| answer of          | counts as a refusal                                                                     |
|--------------------|-----------------------------------------------------------------------------------------|
| openai-chat        | ``message.refusal``, a refusal part, ``finish_reason: content_filter``, such an error   |
| openai-responses   | a refusal part, ``incomplete_details.reason: content_filter``, such an error            |
| anthropic          | ``stop_reason: refusal``                                                                |
| gemini             | ``promptFeedback.blockReason``, ``finishReason: SAFETY`` and its kin                    |
| bedrock            | ``stopReason: guardrail_intervened`` or ``content_filtered``, an intervened guardrail   |
| any                | an envelope ``{"kind": "refusal", …}``                                                  |

Nothing here fails on an answer of any shape: unexpected parts count as absent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from antiphon.canonical import parse_json
from antiphon.errors import CanonicalError

__all__ = ["EnvelopeKind", "envelope_kind", "outcome_of", "response_dialect", "summarise", "usage_and_stop"]

EnvelopeKind = Literal["valid", "refusal", "unknown"]
Verdict = tuple[EnvelopeKind, str | None]
Path = tuple[str | int, ...]
UsageAndStop = tuple[dict[str, int | None], Any]
"""Usage and stop reason."""

_UNKNOWN: Final[Verdict] = ("unknown", None)
_VALID: Final[Verdict] = ("valid", None)
_FILTER_CODES: Final = frozenset({"content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"})
_GEMINI_BLOCKS: Final = frozenset(
    "SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION"
    " MODEL_ARMOR".split()
)
_BEDROCK_BLOCKS: Final = frozenset({"guardrail_intervened", "content_filtered"})
_CAPITAL: Final = re.compile("[A-Z]")


def envelope_kind(response: Any, provider: str | None = None) -> Verdict:
    """``("valid", None)``, ``("refusal", reason)``, or ``("unknown", None)`` for an unknown shape.

    >>> envelope_kind({"stop_reason": "refusal", "content": [], "type": "message"}, "anthropic")
    ('refusal', 'refusal')
    """
    if not isinstance(response, dict):
        return _UNKNOWN
    explicit = _envelope(response) or _stopped(response)
    if explicit is not None:
        return explicit
    dialect = response_dialect(response, provider)
    return _UNKNOWN if dialect is None else _DIALECTS[dialect].verdict(response)


def response_dialect(response: Any, provider: str | None = None) -> str | None:
    """The provider whose shape an answer has: the given one, else detected; ``None`` for one that is no object."""
    if not isinstance(response, dict):
        return None
    if provider in _DIALECTS and provider != "bedrock":
        return provider
    is_converse = isinstance(dig(response, "output", "message"), dict)
    if provider == "bedrock" and is_converse:
        return provider  # it also passes other vendors' shapes through
    if isinstance(response.get("choices"), list):
        return "openai-chat"
    if isinstance(response.get("candidates"), list) or isinstance(dig(response, "promptFeedback"), dict):
        return "gemini"
    if isinstance(response.get("output"), list):
        return "openai-responses"
    if isinstance(response.get("content"), list) and "stop_reason" in response:
        return "anthropic"
    return "bedrock" if is_converse else None


def summarise(response: Any, provider: str | None = None) -> dict[str, Any]:
    """What a model said: ``{kind, text, toolCalls, usage, stopReason, refusal}``; with ``raw`` if the shape is unknown.

    ``inputTokens`` includes cached tokens and ``outputTokens`` includes reasoning, for every provider.

    >>> answer = {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}
    >>> summarise(answer, "openai-chat")["text"]
    'Hello'
    """
    kind, reason = envelope_kind(response, provider)
    summary: dict[str, Any] = {"kind": kind, "text": "", "toolCalls": []}
    dialect = response_dialect(response, provider)
    if dialect is not None:
        _DIALECTS[dialect].read(response, summary)
    summary["usage"], summary["stopReason"] = usage_and_stop(response, provider)
    summary["refusal"] = reason
    if kind == "unknown":
        summary["raw"] = response
    return summary


def usage_and_stop(response: Any, provider: str | None = None) -> UsageAndStop:
    """Usage and stop reason of an answer, as :func:`summarise` gives them."""
    dialect = response_dialect(response, provider)
    if dialect is None:
        return {"inputTokens": None, "outputTokens": None}, None
    shape = _DIALECTS[dialect]
    usage = dig(response, shape.usage)
    stop = None
    for path in shape.stop:
        stop = stop or dig(response, *path)
    return {"inputTokens": _total(usage, shape.tokens_in), "outputTokens": _total(usage, shape.tokens_out)}, stop


def data_of(response: Any) -> Any:
    """The data of a model's response, or chunk, that is an object of its SDK; anything else unchanged."""
    try:
        return response.model_dump(mode="json")
    except Exception:  # it has no such method, or fields without a JSON form
        return response


def outcome_of(response: Any, provider: str) -> tuple[str, dict[str, Any]]:
    """``ok`` or ``refusal``, and a summary of the response: usage, stop reason, refusal kind (D23)."""
    found = response if type(response) is dict else data_of(response)
    if type(found) is not dict and not isinstance(found, Mapping):
        return "ok", {}
    body = found if type(found) is dict else dict(found)
    kind, reason = envelope_kind(body, provider)
    usage, stop = usage_and_stop(body, provider)
    meta: dict[str, Any] = {"usage": usage, "stopReason": stop}
    return ("refusal", {**meta, "refusalReason": reason}) if kind == "refusal" else ("ok", meta)


def _total(usage: Any, names: tuple[str, ...]) -> int | None:
    known = [number for name in names if (number := count(dig(usage, name))) is not None]
    return sum(known) if known else None


# -- looking into an answer ------------------------------------------------------------------------------------------


def dig(value: Any, *path: str | int) -> Any:
    """The value at *path*, or ``None``; camelCase names are also found in snake_case, as some SDKs spell them."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, (list, tuple)) and -len(value) <= step < len(value) else None
        elif not isinstance(value, dict):
            return None
        elif step in value or step.islower():
            value = value.get(step)
        else:
            value = value.get(_CAPITAL.sub(r"_\g<0>", step).lower())
    return value


def text_of(value: Any) -> str:
    """*value* if it is text, else empty."""
    return value if isinstance(value, str) else ""


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list, else an empty one."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, (list, tuple)) else []


def count(value: Any) -> int | None:
    """*value* if it is a whole number of something."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _call(summary: dict[str, Any], name: Any, arguments: Any, call_id: Any) -> None:
    """Add a call that the model requested."""
    call: dict[str, Any] = {"name": text_of(name)}
    if isinstance(call_id, str):
        call["id"] = call_id
    summary["toolCalls"].append(call | arguments_of(arguments))


def arguments_of(given: Any) -> dict[str, Any]:
    """The arguments of a call that a model requested; text that is not JSON stays text."""
    if not isinstance(given, str):
        return {"arguments": {} if given is None else given}
    try:
        return {"arguments": parse_json(given) if given else {}}
    except CanonicalError:
        return {"argumentsText": given}


# -- any provider ----------------------------------------------------------------------------------------------------


def _envelope(response: dict[str, Any]) -> Verdict | None:
    """An explicit envelope, as used by structured hosts and mock programs."""
    kind = response.get("kind")
    if kind == "refusal" or (response.get("stopReason") == "refusal" and "output" not in response):
        for name in ("reason", "refusalReason", "refusalText", "refusal", "message"):
            if text_of(response.get(name)):
                return "refusal", response[name]
        return "refusal", "refusal"
    return _VALID if kind == "valid" else None


def _stopped(response: dict[str, Any]) -> Verdict | None:
    """A content filter's error body, or a guardrail's mark, around any vendor's shape."""
    error = response.get("error")
    if error is not None:
        for code in (dig(error, "code"), dig(error, "innererror", "code")):
            if isinstance(code, str) and code in _FILTER_CODES:
                return "refusal", code
    if response.get("amazon-bedrock-guardrailAction") == "INTERVENED":
        return "refusal", "guardrail_intervened"
    return None


# -- one provider each: verdict, then text and calls -----------------------------------------------------------------


def _chat_verdict(response: dict[str, Any]) -> Verdict:
    reasons = [_choice_reason(choice) for choice in objects(response.get("choices"))]
    if not reasons:
        return _UNKNOWN
    return _VALID if None in reasons else ("refusal", reasons[0])


def _choice_reason(choice: dict[str, Any]) -> str | None:
    message = choice.get("message")
    refusal = text_of(dig(message, "refusal"))
    if refusal:
        return refusal
    for part in objects(dig(message, "content")):
        if part.get("type") == "refusal":
            return text_of(part.get("refusal")) or "refusal"
    return "content_filter" if choice.get("finish_reason") == "content_filter" else None


def _read_chat(response: dict[str, Any], summary: dict[str, Any]) -> None:
    message = dig(response, "choices", 0, "message")
    content = dig(message, "content")
    summary["text"] = text_of(content) or "".join(text_of(part.get("text")) for part in objects(content))
    for call in objects(dig(message, "tool_calls")):
        inner = call.get("function") or call.get("custom")
        arguments = dig(inner, "arguments")
        given = arguments if arguments is not None else dig(inner, "input")
        _call(summary, dig(inner, "name"), given, call.get("id"))


def _responses_verdict(response: dict[str, Any]) -> Verdict:
    for item in objects(response.get("output")):
        for part in objects(item.get("content")):
            if part.get("type") == "refusal":
                return "refusal", text_of(part.get("refusal")) or "refusal"
    if dig(response, "incomplete_details", "reason") == "content_filter":
        return "refusal", "content_filter"
    ended_badly = response.get("status") in ("failed", "cancelled")
    return _VALID if isinstance(response.get("output"), list) and not ended_badly else _UNKNOWN


def _read_responses(response: dict[str, Any], summary: dict[str, Any]) -> None:
    for item in objects(response.get("output")):
        kind = item.get("type")
        if kind == "message":
            parts = [part for part in objects(item.get("content")) if part.get("type") == "output_text"]
            summary["text"] += "".join(text_of(part.get("text")) for part in parts)
        elif kind in ("function_call", "custom_tool_call"):
            given = item.get("arguments" if kind == "function_call" else "input")
            _call(summary, item.get("name"), given, item.get("call_id"))


def _anthropic_verdict(response: dict[str, Any]) -> Verdict:
    if response.get("stop_reason") == "refusal":
        details = response.get("stop_details")
        said = "".join(text_of(block.get("text")) for block in objects(response.get("content")))
        reason = text_of(dig(details, "explanation")) or text_of(dig(details, "category")) or said
        return "refusal", reason or "refusal"
    return _VALID if isinstance(response.get("content"), list) else _UNKNOWN


def _read_anthropic(response: dict[str, Any], summary: dict[str, Any]) -> None:
    for block in objects(response.get("content")):
        if block.get("type") == "text":
            summary["text"] += text_of(block.get("text"))
        elif block.get("type") == "tool_use":
            _call(summary, block.get("name"), block.get("input"), block.get("id"))


def _gemini_verdict(response: dict[str, Any]) -> Verdict:
    blocked = dig(response, "promptFeedback", "blockReason")
    if text_of(blocked) and blocked != "BLOCK_REASON_UNSPECIFIED":
        return "refusal", text_of(dig(response, "promptFeedback", "blockReasonMessage")) or blocked
    candidates = objects(response.get("candidates"))
    reasons = [text_of(dig(candidate, "finishReason")) for candidate in candidates]
    if not reasons:
        return _UNKNOWN
    if all(reason in _GEMINI_BLOCKS for reason in reasons):
        return "refusal", text_of(dig(candidates[0], "finishMessage")) or reasons[0]
    return _VALID


def _read_gemini(response: dict[str, Any], summary: dict[str, Any]) -> None:
    for part in objects(dig(response, "candidates", 0, "content", "parts")):
        if part.get("thought") is not True:
            summary["text"] += text_of(part.get("text"))
        call = dig(part, "functionCall")
        if isinstance(call, dict):
            _call(summary, call.get("name"), call.get("args"), call.get("id"))


def _bedrock_verdict(response: dict[str, Any]) -> Verdict:
    reason = text_of(response.get("stopReason"))
    return ("refusal", reason) if reason in _BEDROCK_BLOCKS else _VALID


def _read_bedrock(response: dict[str, Any], summary: dict[str, Any]) -> None:
    for block in objects(dig(response, "output", "message", "content")):
        summary["text"] += text_of(block.get("text"))
        call = block.get("toolUse")
        if isinstance(call, dict):
            _call(summary, call.get("name"), call.get("input"), call.get("toolUseId"))


class _Shape(NamedTuple):
    """How to read one provider's answers."""

    verdict: Callable[[dict[str, Any]], Verdict]
    read: Callable[[dict[str, Any], dict[str, Any]], None]
    tokens_in: tuple[str, ...]
    tokens_out: tuple[str, ...]
    stop: tuple[Path, ...]
    """Where to find the stop reason; the first one present counts."""
    usage: str = "usage"


_DIALECTS: Final = {
    "openai-chat": _Shape(
        _chat_verdict,
        _read_chat,
        ("prompt_tokens",),
        ("completion_tokens",),
        (("choices", 0, "finish_reason"),),
    ),
    "openai-responses": _Shape(
        _responses_verdict,
        _read_responses,
        ("input_tokens",),
        ("output_tokens",),
        (("incomplete_details", "reason"), ("status",)),
    ),
    "anthropic": _Shape(
        _anthropic_verdict,
        _read_anthropic,
        ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
        ("output_tokens",),
        (("stop_reason",),),
    ),
    "gemini": _Shape(
        _gemini_verdict,
        _read_gemini,
        ("promptTokenCount",),
        ("candidatesTokenCount", "thoughtsTokenCount"),
        (("candidates", 0, "finishReason"), ("promptFeedback", "blockReason")),
        "usageMetadata",
    ),
    "bedrock": _Shape(
        _bedrock_verdict,
        _read_bedrock,
        ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens"),
        ("outputTokens",),
        (("stopReason",),),
    ),
}

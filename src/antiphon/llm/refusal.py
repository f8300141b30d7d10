"""Whether a model answered or refused (L4, D23): read from the provider's own signals, never guessed from the wording.

| answer of          | counts as a refusal                                                                     |
|--------------------|-----------------------------------------------------------------------------------------|
| openai-chat        | ``message.refusal``, a refusal part, ``finish_reason: content_filter``, such an error   |
| openai-responses   | a refusal part, ``incomplete_details.reason: content_filter``, such an error            |
| anthropic          | ``stop_reason: refusal``                                                                |
| gemini             | ``promptFeedback.blockReason``, ``finishReason: SAFETY`` and its kin                    |
| bedrock            | ``stopReason: guardrail_intervened`` or ``content_filtered``, an intervened guardrail   |
| any                | an envelope ``{"kind": "refusal", …}``                                                  |
"""

from __future__ import annotations

from typing import Any, Final, Literal

from antiphon.llm._dig import dig, objects, texts

__all__ = ["EnvelopeKind", "envelope_kind", "response_dialect"]

EnvelopeKind = Literal["valid", "refusal", "unknown"]
Verdict = tuple[EnvelopeKind, str | None]

_UNKNOWN: Final[Verdict] = ("unknown", None)
_VALID: Final[Verdict] = ("valid", None)
_FILTER_CODES: Final = frozenset({"content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"})
_GEMINI_BLOCKS: Final = frozenset(
    {
        "SAFETY",
        "RECITATION",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
        "MODEL_ARMOR",
    }
)
_BEDROCK_BLOCKS: Final = frozenset({"guardrail_intervened", "content_filtered"})


def envelope_kind(response: Any, provider: str | None = None) -> Verdict:
    """``("valid", None)``, ``("refusal", reason)``, or ``("unknown", None)`` for a shape nobody knows.

    >>> envelope_kind({"stop_reason": "refusal", "content": [], "type": "message"}, "anthropic")
    ('refusal', 'refusal')
    """
    if not isinstance(response, dict):
        return _UNKNOWN
    explicit = _envelope(response) or _stopped(response)
    if explicit is not None:
        return explicit
    reader = _READERS.get(response_dialect(response, provider) or "")
    return reader(response) if reader is not None else _UNKNOWN


def response_dialect(response: Any, provider: str | None = None) -> str | None:
    """Which provider's shape an answer has: the one that was named, else the one it looks like."""
    if provider in _READERS and provider != "bedrock":
        return provider
    is_converse = isinstance(dig(response, "output", "message"), dict)
    if provider == "bedrock" and is_converse:
        return provider  # it also passes other vendors' shapes through
    if not isinstance(response, dict):
        return None
    if isinstance(response.get("choices"), list):
        return "openai-chat"
    if isinstance(response.get("candidates"), list) or isinstance(dig(response, "promptFeedback"), dict):
        return "gemini"
    if isinstance(response.get("output"), list):
        return "openai-responses"
    if isinstance(response.get("content"), list) and "stop_reason" in response:
        return "anthropic"
    return "bedrock" if is_converse else None


def _envelope(response: dict[str, Any]) -> Verdict | None:
    """An explicit envelope, as structured hosts and mock programs use it."""
    kind = response.get("kind")
    if kind == "refusal" or (response.get("stopReason") == "refusal" and "output" not in response):
        for name in ("reason", "refusalReason", "refusalText", "refusal", "message"):
            if texts(response.get(name)):
                return "refusal", response[name]
        return "refusal", "refusal"
    return _VALID if kind == "valid" else None


def _stopped(response: dict[str, Any]) -> Verdict | None:
    """An error body of a content filter, or a guardrail's mark, around any vendor's shape."""
    error = response.get("error")
    if error is not None:
        for code in (dig(error, "code"), dig(error, "innererror", "code")):
            if isinstance(code, str) and code in _FILTER_CODES:
                return "refusal", code
    if response.get("amazon-bedrock-guardrailAction") == "INTERVENED":
        return "refusal", "guardrail_intervened"
    return None


def _openai_chat(response: dict[str, Any]) -> Verdict:
    choices = objects(response.get("choices"))
    if not choices:
        return _UNKNOWN
    reasons = [_choice_reason(choice) for choice in choices]
    refused = [reason for reason in reasons if reason is not None]
    return ("refusal", refused[0]) if len(refused) == len(reasons) else _VALID


def _choice_reason(choice: dict[str, Any]) -> str | None:
    message = choice.get("message")
    refusal = texts(dig(message, "refusal"))
    if refusal:
        return refusal
    for part in objects(dig(message, "content")):
        if part.get("type") == "refusal":
            return texts(part.get("refusal")) or "refusal"
    return "content_filter" if choice.get("finish_reason") == "content_filter" else None


def _openai_responses(response: dict[str, Any]) -> Verdict:
    for item in objects(response.get("output")):
        for part in objects(item.get("content")):
            if part.get("type") == "refusal":
                return "refusal", texts(part.get("refusal")) or "refusal"
    if dig(response, "incomplete_details", "reason") == "content_filter":
        return "refusal", "content_filter"
    ended_badly = response.get("status") in ("failed", "cancelled")
    return _VALID if isinstance(response.get("output"), list) and not ended_badly else _UNKNOWN


def _anthropic(response: dict[str, Any]) -> Verdict:
    if response.get("stop_reason") == "refusal":
        details = response.get("stop_details")
        said = "".join(texts(block.get("text")) for block in objects(response.get("content")))
        return "refusal", texts(dig(details, "explanation")) or texts(dig(details, "category")) or said or "refusal"
    return _VALID if isinstance(response.get("content"), list) else _UNKNOWN


def _gemini(response: dict[str, Any]) -> Verdict:
    blocked = dig(response, "promptFeedback", "blockReason")
    if texts(blocked) and blocked != "BLOCK_REASON_UNSPECIFIED":
        return "refusal", texts(dig(response, "promptFeedback", "blockReasonMessage")) or blocked
    candidates = objects(response.get("candidates"))
    if not candidates:
        return _UNKNOWN
    reasons = [texts(dig(candidate, "finishReason")) for candidate in candidates]
    if all(reason in _GEMINI_BLOCKS for reason in reasons):
        return "refusal", texts(dig(candidates[0], "finishMessage")) or reasons[0]
    return _VALID


def _bedrock(response: dict[str, Any]) -> Verdict:
    reason = texts(response.get("stopReason"))
    return ("refusal", reason) if reason in _BEDROCK_BLOCKS else _VALID


_READERS: Final = {
    "openai-chat": _openai_chat,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "bedrock": _bedrock,
}

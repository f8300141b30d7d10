"""Any provider's request body -> the one canonical request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from antiphon.errors import ContractError, InvalidInput
from antiphon.llm import anthropic, gemini, openai
from antiphon.llm._draft import Draft

__all__ = ["DIALECTS", "Dialect", "canonical_request", "config_of"]

Dialect = Literal["openai-chat", "openai-responses", "anthropic", "gemini"]

DIALECTS: Final[dict[str, tuple[str, Callable[[Draft], None]]]] = {
    "openai-chat": ("openai", openai.read_chat),
    "openai-responses": ("openai", openai.read_responses),
    "anthropic": ("anthropic", anthropic.read),
    "gemini": ("google", gemini.read),
}
"""Dialect -> the vendor's id in keys, and the parser of its bodies."""


def canonical_request(
    body: dict[str, Any], *, provider: Dialect, model: str | None = None, vendor: str | None = None
) -> dict[str, Any]:
    """The vendor-neutral form of a request body, fit for both key recipes; shares unchanged parts with *body*.

    *model* is used if the body has none (Gemini and Bedrock name it in the URL); *vendor* replaces the vendor's id if
    another vendor serves the dialect.

    >>> canonical_request({"model": "m", "messages": [{"role": "user", "content": "hi"}]}, provider="openai-chat")
    {'model': 'm', 'provider': 'openai', 'messages': [{'role': 'user', 'content': 'hi'}], 'tools': []}
    """
    if provider not in DIALECTS:
        raise InvalidInput(f"The provider is one of {', '.join(DIALECTS)}, not {provider!r}.", path="provider")
    default_vendor, read = DIALECTS[provider]
    draft = Draft(body, vendor=vendor or default_vendor, model=model, camel=provider == "gemini")
    try:
        read(draft)
        return draft.done()
    except RecursionError:
        raise ContractError("The request is nested too deeply.", path="$") from None


def config_of(request: Mapping[str, Any], provider: Any) -> dict[str, Any]:
    """Model, provider, temperature and seed, as the determinism score reads them (K3)."""
    config = {"model_name": request.get("model"), "provider": provider}
    return config | {name: request[name] for name in ("temperature", "seed") if request.get(name) is not None}

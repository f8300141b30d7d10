"""Model providers of the host: one plain HTTP call, no retries of its own (D22)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from antiphon._workflow.mock import ProviderError
from antiphon.config.model import ProviderSection
from antiphon.errors import ConfigError, missing_extra

_ANTHROPIC_VERSION = "2023-06-01"
_DEFAULT_TOKENS = 1024


def body_of(dialect: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """The provider's own request for a canonical one."""
    body: dict[str, Any] = {"model": request["model"]}
    messages = [dict(message) for message in request["messages"]]
    if dialect == "anthropic":
        system = [str(one["content"]) for one in messages if one.get("role") == "system"]
        body["messages"] = [one for one in messages if one.get("role") != "system"]
        if system:
            body["system"] = "\n\n".join(system)
        body["max_tokens"] = request.get("maxOutputTokens", _DEFAULT_TOKENS)
        names = {"temperature": "temperature", "topP": "top_p", "topK": "top_k", "stop": "stop_sequences"}
    else:
        body["messages"] = messages
        names = {
            "temperature": "temperature",
            "topP": "top_p",
            "seed": "seed",
            "stop": "stop",
            "maxOutputTokens": "max_completion_tokens",
        }
        if "responseSchema" in request:
            schema = {"name": "answer", "schema": request["responseSchema"]}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
    body.update({theirs: request[ours] for ours, theirs in names.items() if ours in request})
    return body


async def send(name: str, provider: ProviderSection, request: Mapping[str, Any], *, key: str) -> Any:
    """Ask the provider once; *key* is its idempotency key (Layer 2)."""
    try:
        import httpx
    except ImportError:
        raise missing_extra("httpx", "httpx", f"The model provider {name!r}") from None
    secret = os.environ.get(provider.api_key_env, "") if provider.api_key_env else ""
    if provider.api_key_env and not secret:
        raise ConfigError(f"The environment variable {provider.api_key_env} of provider {name!r} is not set.")
    headers = {"Idempotency-Key": key}
    if provider.dialect == "anthropic":
        path = "/v1/messages"
        headers |= {"x-api-key": secret, "anthropic-version": _ANTHROPIC_VERSION}
    else:
        path = "/chat/completions"
        headers["Authorization"] = f"Bearer {secret}"
    url = provider.base_url.rstrip("/") + path
    try:
        async with httpx.AsyncClient(timeout=provider.timeout_s) as client:
            answer = await client.post(url, json=body_of(provider.dialect, request), headers=headers)
    except httpx.HTTPError as error:
        raise ProviderError(f"provider_{type(error).__name__.lower()}") from None
    if answer.status_code >= 400:
        raise ProviderError(f"provider_http_{answer.status_code}")
    try:
        return answer.json()
    except ValueError:
        raise ProviderError("provider_not_json") from None

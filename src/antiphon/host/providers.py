"""Model providers of the host: one plain HTTP call, no retries of its own (D22)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from antiphon.config.model import ProviderSection
from antiphon.errors import ConfigError
from antiphon.host.workflow.mock import ProviderError

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


Post = Callable[[str, bytes, Mapping[str, str], float], Awaitable[tuple[int, bytes]]]
"""(address, body, headers, seconds) -> (status, body); a transport failure is an ``OSError``."""


async def send(post: Post, name: str, provider: ProviderSection, request: Mapping[str, Any], *, key: str) -> Any:
    """Ask the provider once; *key* is its idempotency key (Layer 2)."""
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
    headers["Content-Type"] = "application/json"
    url = provider.base_url.rstrip("/") + path
    try:
        status, data = await post(url, orjson.dumps(body_of(provider.dialect, request)), headers, provider.timeout_s)
    except OSError:
        raise ProviderError("provider_unreachable") from None
    if status >= 400:
        raise ProviderError(f"provider_http_{status}")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise ProviderError("provider_not_json") from None

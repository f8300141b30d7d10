"""Model nodes of a workflow: called through the recorded boundary, checked against their schema (L1, D23, D24).

A provider call is one plain HTTP request without retries (D22). The mock provider gives its programmed answer, or else
the smallest instance of the schema.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
import orjson
from msgspec import Meta

from antiphon._recording.boundary import Boundary, error_payload
from antiphon._scope import RunScope
from antiphon.config.model import HostSection, ProviderSection
from antiphon.contract._base import decode
from antiphon.errors import AntiphonError, ConfigError, InvalidInput
from antiphon.host.workflow.nodes import NodeExecution, NodeFailed
from antiphon.host.workflow.schema import minimal, violation
from antiphon.llm.key import llm_cache_key, variant_digest
from antiphon.llm.response import envelope_kind, summarise

MOCK = "mock"
MAX_ATTEMPTS = 3
_ANTHROPIC_VERSION = "2023-06-01"
_DEFAULT_TOKENS = 1024
_TRUNCATED = frozenset({"max_tokens", "length"})
_OPTIONS = ("temperature", "topP", "topK", "seed", "stop")

Post = Callable[[str, bytes, Mapping[str, str], float], Awaitable[tuple[int, bytes]]]
"""(address, body, headers, seconds) -> (status, body); a transport failure is an ``OSError``."""


def request_of(visit: NodeExecution) -> dict[str, Any]:
    """The canonical request of a model node: the same fields on every host."""
    config, inputs = visit.node.config, visit.inputs
    messages = inputs.get("messages", config.get("messages"))
    if messages is None and isinstance(inputs.get("prompt", config.get("prompt")), str):
        messages = [{"role": "user", "content": inputs.get("prompt", config.get("prompt"))}]
    request: dict[str, Any] = {
        "provider": str(config.get("provider", MOCK)),
        "model": config.get("model"),
        "messages": messages,
    }
    if config.get("tools"):
        request["tools"] = config["tools"]
    request |= {name: config[name] for name in _OPTIONS if config.get(name) is not None}
    if config.get("maxTokens") is not None:
        request["maxOutputTokens"] = config["maxTokens"]
    schema = config.get("outputSchema")
    if isinstance(schema, dict):
        request["responseSchema"] = schema
        request["responseFormat"] = {"type": "json_schema", "schema": schema}
    return request


class ModelBoundary(msgspec.Struct, eq=False):
    """Calls models for the nodes of one run."""

    scope: RunScope
    settings: HostSection
    mock: MockProvider
    tenant: str
    post: Post
    known: dict[str, list[Any]] = {}
    """Answers that an interrupted run already has, by key; they are not requested again."""

    async def ask(self, visit: NodeExecution) -> dict[str, Any]:
        """The validated answer of a model node; a refusal, or an answer that never fits, fails it."""
        request = request_of(visit)
        schema = visit.node.config.get("outputSchema")
        node = visit.node.id
        attempts = int(visit.node.config.get("maxAttempts", MAX_ATTEMPTS))
        for attempt in range(1, attempts + 1):
            response = await self._once(visit, request, attempt)
            answer = _account(response, request["provider"])
            if answer["kind"] == "refusal":
                await visit.emit("envelope.refusal", _refusal(node, request, answer["refusal"]))
                raise NodeFailed("envelope_refusal", "The model refused to answer; it was not called again.")
            value, reason, wrong = _read(answer, schema)
            if reason is None:
                return value
            if reason == "truncation":
                await visit.emit("envelope.truncated", {"nodeId": node, "stopReason": answer["stopReason"]})
            if attempt < attempts:
                payload = {"nodeId": node, "attempt": attempt + 1, "reason": reason, "previousError": wrong}
                await visit.emit("envelope.retry.attempted", payload)
            else:
                payload = {"nodeId": node, "totalAttempts": attempt, "finalReason": reason, "finalError": wrong}
                await visit.emit("envelope.retry.exhausted", payload)
        raise NodeFailed("envelope_payload_invalid", f"No response matched the schema in {attempts} attempts.")

    async def _once(self, visit: NodeExecution, request: Mapping[str, Any], attempt: int) -> Any:
        recipe = self.settings.llm_key_recipe
        try:
            key = llm_cache_key(request, recipe=recipe)
        except InvalidInput as error:
            raise NodeFailed("invalid_input", error.message) from None
        payload = {
            "provider": request["provider"],
            "request": dict(request),
            "recipe": recipe,
            "variant": variant_digest(request),
            "nodeId": visit.node.id,
        }
        boundary = Boundary(self.scope, "llm", "llm", dict(request), payload=payload, digest=key, asynchronous=True)
        boundary.payload["key"] = boundary.digest
        earlier = self.known.get(boundary.digest)
        if earlier:
            return earlier.pop(0)
        await boundary.start()
        try:
            response = await self._send(visit, request, attempt)
        except AntiphonError as error:
            await boundary.finish("error", error=error_payload(error))
            raise NodeFailed(error.code, error.message) from None
        answer = _account(response, str(request["provider"]))
        outcome = "refusal" if answer["kind"] == "refusal" else "ok"
        meta = {"usage": answer["usage"], "stopReason": answer["stopReason"]}
        await boundary.finish(outcome, value=response, meta=meta)
        return response

    async def _send(self, visit: NodeExecution, request: Mapping[str, Any], attempt: int) -> Any:
        name = str(request["provider"])
        if name == MOCK:
            return self.mock.answer(self.tenant, visit.node.id, visit.node.config.get("outputSchema"))
        provider = self.settings.providers.get(name)
        if provider is None:
            known = ", ".join((MOCK, *self.settings.providers))
            raise NodeFailed("provider_unknown", f"The provider {name!r} is not configured. Known: {known}.")
        return await send(self.post, name, provider, request, key=visit.key(name, attempt - 1))


def _account(response: Any, provider: str) -> dict[str, Any]:
    """Kind, text, stop reason and usage of a response; the mock's has its own format."""
    if isinstance(response, dict) and "stopReason" in response and isinstance(response.get("content"), str):
        kind, reason = envelope_kind(response)
        return {
            "kind": "refusal" if kind == "refusal" else "valid",
            "text": response["content"],
            "stopReason": response["stopReason"],
            "usage": response.get("usage"),
            "refusal": reason,
        }
    return summarise(response, provider)


def _refusal(node: str, request: Mapping[str, Any], reason: Any) -> dict[str, Any]:
    payload = {"nodeId": node, "provider": request["provider"], "model": request["model"]}
    if isinstance(reason, str) and reason:
        payload["refusalText"] = reason
    return payload


def _read(answer: Mapping[str, Any], schema: Any) -> tuple[dict[str, Any], str | None, str | None]:
    """(value, reason it cannot be used, what is wrong with it); the last never quotes the answer."""
    if isinstance(answer["stopReason"], str) and answer["stopReason"] in _TRUNCATED:
        return {}, "truncation", "the answer was cut off"
    if not isinstance(schema, dict):
        calls = {"toolCalls": answer["toolCalls"]} if answer.get("toolCalls") else {}
        return {"text": answer["text"], **calls}, None, None
    try:
        value = orjson.loads(answer["text"])
    except orjson.JSONDecodeError:
        return {}, "parse-error", "the answer is not JSON"
    wrong = violation(value, schema)
    if wrong is not None:
        return {}, "schema-violation", wrong
    return (value if isinstance(value, dict) else {"value": value}), None, None


# -- providers -----------------------------------------------------------------------------------------------------


class ProviderError(AntiphonError):
    """The provider answered with an error."""

    def __init__(self, code: str) -> None:
        super().__init__(f"The provider answered with {code}.", code=code)


async def send(post: Post, name: str, provider: ProviderSection, request: Mapping[str, Any], *, key: str) -> Any:
    """Send one request to the provider; *key* is its idempotency key (Layer 2)."""
    secret = os.environ.get(provider.api_key_env, "") if provider.api_key_env else ""
    if provider.api_key_env and not secret:
        raise ConfigError(f"The environment variable {provider.api_key_env} of provider {name!r} is not set.")
    headers = {"Idempotency-Key": key}
    if provider.dialect == "anthropic":
        path = "/v1/messages"
        headers |= {"anthropic-version": _ANTHROPIC_VERSION, **({"x-api-key": secret} if secret else {})}
    else:
        path = "/chat/completions"
        if secret:
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


def body_of(dialect: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """A canonical request in the provider's format."""
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
    if request.get("tools"):
        body["tools"] = [_tool(dialect, tool) for tool in request["tools"]]
    body.update({theirs: request[ours] for ours, theirs in names.items() if ours in request})
    return body


def _tool(dialect: str, given: Any) -> Any:
    """A tool in the provider's format; canonical tools have a name, a description and parameters."""
    if not isinstance(given, Mapping):
        return given
    inner = given.get("function")
    tool = inner if isinstance(inner, Mapping) else given
    schema = tool.get("parameters", tool.get("input_schema"))
    found = {name: tool[name] for name in ("name", "description") if name in tool}
    if "name" not in found:
        return given
    if dialect == "anthropic":
        return {**found, "input_schema": schema if schema is not None else {"type": "object"}}
    strict = {"strict": tool["strict"]} if "strict" in tool else {}
    return {"type": "function", "function": {**found, **({} if schema is None else {"parameters": schema}), **strict}}


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One answer of the mock provider."""

    content: str | None = None
    stop_reason: Literal["end_turn", "max_tokens", "length", "stop_sequence", "safety"] = "end_turn"
    refusal_text: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    error_code: str | None = None


class Program(msgspec.Struct, frozen=True, rename="camel"):
    """What the mock provider answers for a node, one entry per call."""

    node_id: Annotated[str, Meta(min_length=1)]
    program: list[Entry]


class MockProvider:
    """Programs by tenant and node, with one entry per call of the provider."""

    def __init__(self) -> None:
        self._programs: dict[tuple[str, str], list[Entry]] = {}

    def program(self, tenant: str, body: Any) -> Program:
        """Replace the program of a node."""
        asked = decode(body, Program)
        self._programs[(tenant, asked.node_id)] = list(asked.program)
        return asked

    def reset(self, tenant: str) -> int:
        """Forget the programs of a tenant."""
        mine = [key for key in self._programs if key[0] == tenant]
        for key in mine:
            del self._programs[key]
        return len(mine)

    def staged(self, tenant: str, node: str) -> bool:
        """Whether the next call for this node is programmed."""
        return bool(self._programs.get((tenant, node)))

    def answer(self, tenant: str, node: str, schema: Any) -> dict[str, Any]:
        """The next response: an envelope of content, stop reason and usage."""
        program = self._programs.get((tenant, node))
        entry = program.pop(0) if program else Entry(content=orjson.dumps(minimal(schema)).decode())
        if entry.error_code is not None:
            raise ProviderError(entry.error_code)
        response: dict[str, Any] = {
            "content": entry.content or "",
            "stopReason": entry.stop_reason,
            "usage": {"inputTokens": entry.input_tokens, "outputTokens": entry.output_tokens},
        }
        if entry.refusal_text is not None or entry.stop_reason == "safety":
            response["kind"] = "refusal"
            response["refusalText"] = entry.refusal_text or "refused"
        return response

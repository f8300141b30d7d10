"""Which HTTP requests are model calls, and what of them is recorded. Knows no HTTP library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson

from antiphon._recording import model
from antiphon._recording.boundary import Boundary
from antiphon._scope import RunScope
from antiphon.ports import Answer

_PATHS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"/chat/completions$"), "openai-chat"),
    (re.compile(r"/responses$"), "openai-responses"),
    (re.compile(r"/v1/messages$"), "anthropic"),
    (re.compile(r"/models/(?P<model>[^/:]+):(?:generateContent|streamGenerateContent)$"), "gemini"),
)
_KEPT_HEADERS = ("content-type", "retry-after", "retry-after-ms", "x-should-retry", "request-id", "x-request-id")


class ModelCall(NamedTuple):
    """A request that asks a model."""

    provider: str
    body: dict[str, Any]
    stream: bool


def recognise(method: str, url: str, content: bytes) -> ModelCall | None:
    """The model call behind an HTTP request, or ``None``."""
    if method != "POST":
        return None
    path = urlsplit(url).path
    for pattern, provider in _PATHS:
        found = pattern.search(path)
        if found is None:
            continue
        try:
            body = orjson.loads(content)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(body, dict):
            return None
        if provider == "gemini":
            body = {"model": found["model"], **body}
            return ModelCall(provider, body, path.endswith("streamGenerateContent"))
        return ModelCall(provider, body, bool(body.get("stream")))
    return None


def outgoing(call: ModelCall) -> bytes:
    """The body as it goes to the provider."""
    body = call.body
    if call.provider == "gemini":
        body = {name: value for name, value in body.items() if name != "model"}
    return orjson.dumps(body)


def open_call(scope: RunScope, call: ModelCall, headers: Mapping[str, str], *, asynchronous: bool) -> Boundary:
    """The boundary of the call; a retry made by the SDK itself is noted, because it has another owner (D22)."""
    meta: dict[str, Any] = {"transport": "http"}
    retries = headers.get("x-stainless-retry-count")
    if retries and retries != "0":
        meta["sdkRetry"] = int(retries) if retries.isdigit() else retries
    return model.open_llm(scope, call.body, call.provider, asynchronous=asynchronous, stream=call.stream, **meta)


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The response headers an SDK looks at; no others are recorded."""
    return {name: headers[name] for name in _KEPT_HEADERS if name in headers}


def body_of(content: bytes) -> Any:
    """A response body as it is recorded: JSON where it is JSON, else text."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return {"$text": content.decode("utf-8", "replace")}


def content_of(value: Any) -> bytes:
    """The bytes an SDK is given for a recorded body."""
    if isinstance(value, dict) and set(value) == {"$text"}:
        return str(value["$text"]).encode()
    return orjson.dumps(value)


async def finish(boundary: Boundary, call: ModelCall, status: int, headers: Mapping[str, str], content: bytes) -> None:
    """Write the outcome of a response that came in one piece."""
    value = body_of(content)
    http = {"http": {"status": status, "headers": kept_headers(headers)}}
    if status >= 400:
        error = {"class": "", "code": f"http_{status}", "message": f"The provider answered {status}.", "status": status}
        await boundary.finish("error", error=error, value=value, meta=http)
        return
    outcome, meta = model.outcome_of(value, call.provider)
    await boundary.finish(outcome, value=value, meta={**meta, **http})


class Replayed(NamedTuple):
    """A recorded answer as an HTTP response."""

    status: int
    headers: dict[str, str]
    content: bytes | None
    chunks: list[bytes] | None


def replayed(answer: Answer, call: ModelCall) -> Replayed:
    """What the SDK is given in place of the provider's response."""
    if answer.chunks is not None:
        pieces = [piece_bytes(chunk) for chunk in answer.chunks]
        return Replayed(200, {"content-type": "text/event-stream"}, None, pieces)
    error = answer.error or {}
    status = (
        int(error.get("status", 500)) if answer.outcome == "error" and str(error.get("status", "")).isdigit() else 200
    )
    if answer.outcome == "error" and status == 200:
        status = 500
    value = answer.value if answer.value is not None else {"error": {"message": error.get("message", "")}}
    if call.stream and status == 200:
        return Replayed(200, {"content-type": "text/event-stream"}, None, [content_of(value)])
    return Replayed(status, {"content-type": "application/json"}, content_of(value), None)


def piece_text(data: bytes) -> Any:
    """A piece of a stream as it is recorded, byte-exact."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        import base64

        return {"$base64": base64.b64encode(data).decode()}


def piece_bytes(data: Any) -> bytes:
    """A recorded piece as bytes again."""
    if isinstance(data, dict) and "$base64" in data:
        import base64

        return base64.b64decode(data["$base64"])
    return data.encode() if isinstance(data, str) else orjson.dumps(data)

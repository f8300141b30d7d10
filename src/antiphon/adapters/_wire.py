"""Which HTTP requests are model calls and what is recorded of them, independent of any HTTP library."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from antiphon._drive import AFTER, was_cancelled
from antiphon._recording import model
from antiphon._recording.boundary import Boundary
from antiphon._scope import RunScope
from antiphon.canonical import writable_json
from antiphon.contract.events import ASKS_STREAM
from antiphon.llm.response import outcome_of
from antiphon.llm.stream import assemble_response, sse_events
from antiphon.ports import STREAM_ABANDONED, Answer

_PATHS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"/chat/completions/*$"), "openai-chat"),
    (re.compile(r"/responses/*$"), "openai-responses"),
    (re.compile(r"/v1/messages/*$"), "anthropic"),
    (re.compile(r"/(?:models|tunedModels|endpoints)/(?P<model>[^/:]+):(?P<verb>g|streamG)enerateContent/*$"), "gemini"),
)
_ERROR_HEADERS = ("content-type", "retry-after", "retry-after-ms", "x-should-retry")
"""The error headers that SDKs read."""
_RECORDED_HEADERS = re.compile(r"(x-)?request-id|(x|anthropic)-ratelimit-.+")
"""The headers that SDKs expose to their users, recorded for every response."""
_SHAPING = (
    "anthropic-version",
    "anthropic-beta",
    "openai-organization",
    "openai-project",
    "openai-beta",
    "openai-version",
    "x-goog-user-project",
    "api-version",
)
"""The request headers that affect the answer; no others are recorded."""
_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream"}
_INDENT = re.compile(r"[{\[]\n( {1,8})\S")
_ESCAPES = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")
_ESCAPED_BY_SOME = frozenset("<>&'`=\u2028\u2029\x7f")
"""Characters that Go, PHP, .NET and others escape in JSON although they need not."""
_MOST_ESCAPED = 16
_LONGEST_LAYOUT = 1024 * 1024


class Endpoint(NamedTuple):
    """A path of a model API."""

    provider: str
    model: str | None
    streams: bool


class ModelCall(NamedTuple):
    """A request that calls a model."""

    provider: str
    body: dict[str, Any]
    stream: bool


@lru_cache(maxsize=1024)
def endpoint_of(method: str, path: str) -> Endpoint | None:
    """The model endpoint of a path, decided before the body is read so that other traffic is left alone."""
    if method != "POST":
        return None
    for pattern, provider in _PATHS:
        found = pattern.search(path)
        if found is not None:
            named = found.groupdict()
            return Endpoint(provider, named.get("model"), named.get("verb") == "streamG")
    return None


def read_call(endpoint: Endpoint, content: bytes) -> ModelCall | None:
    """The model call in a request body; ``None`` if it is no JSON object that can be recorded."""
    try:
        body = writable_json(content)
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    if endpoint.provider == "gemini":  # its URL contains what others put in the body
        return ModelCall(endpoint.provider, {"model": endpoint.model, **body}, endpoint.streams)
    return ModelCall(endpoint.provider, body, bool(body.get("stream")))


def outgoing(call: ModelCall) -> bytes:
    """The body as sent to the provider."""
    body = call.body
    if call.provider == "gemini":
        body = {name: value for name, value in body.items() if name != "model"}
    return orjson.dumps(body)


def rewritten(scope: RunScope, call: ModelCall) -> tuple[ModelCall, bool]:
    """The call as an exploring replay wants it, and whether it changed."""
    body = dict(model.rewritten(scope, call.body, call.provider))
    return (call, False) if body == call.body else (call._replace(body=body), True)


def open_call(
    scope: RunScope, call: ModelCall, headers: Mapping[str, str], url: str, *, asynchronous: bool, send: Any = None
) -> Boundary:
    """The boundary of the call; a retry by the SDK itself is noted, because it has another owner (D22).

    *send* asks the provider without recording, for a replay that verifies its models.
    """
    meta: dict[str, Any] = {"transport": "http", "endpoint": model.service_url(_without_end(url))}
    if call.provider == "gemini":  # others put it in the body
        meta[ASKS_STREAM] = call.stream
    shaping = {name: headers[name] for name in _SHAPING if name in headers}
    if shaping:
        meta["requestHeaders"] = shaping
    retries = headers.get("x-stainless-retry-count")
    if retries and retries != "0":
        meta["sdkRetry"] = int(retries) if retries.isdigit() else retries
    return model.open_llm(
        scope, call.body, call.provider, asynchronous=asynchronous, stream=call.stream, send=send, **meta
    )


def _without_end(url: str) -> str:
    """The URL without trailing slashes in its path."""
    path, mark, query = url.partition("?")
    return path.rstrip("/") + mark + query


def body_of(content: bytes) -> Any:
    """The recorded form of a response body: JSON, or else text, or else its bytes as Latin-1 characters.

    This way all of it is text in which secrets can be found. JSON that is nested too deeply is text, too.
    """
    with suppress(ValueError):
        value = writable_json(content)
        if not is_marked(value):
            return value
    chunk = chunk_text(content)
    return {"$text": chunk} if isinstance(chunk, str) else {"$latin1": content.decode("latin-1")}


_MARKS = frozenset({"$text", "$latin1", "$base64"})


def is_marked(value: Any) -> bool:
    """Whether a value looks like a body that is not recorded as JSON; JSON that does is recorded as text."""
    return isinstance(value, dict) and len(value) == 1 and value.keys() <= _MARKS


def _read(content: bytes, value: Any) -> Any:
    """What a provider said in a body that is recorded as *value*."""
    if not is_marked(value):
        return value
    with suppress(ValueError, RecursionError):
        return json.loads(content)
    return None


def content_of(value: Any, layout: Mapping[str, Any] | None = None) -> bytes:
    """The bytes that an SDK gets for a recorded body."""
    if isinstance(value, dict) and set(value) == {"$text"}:
        return str(value["$text"]).encode()
    if isinstance(value, dict) and set(value) == {"$latin1"}:
        return str(value["$latin1"]).encode("latin-1", "replace")
    if isinstance(value, dict) and set(value) == {"$base64"}:  # the older recorded form
        return chunk_bytes(value)
    return orjson.dumps(value) if layout is None else laid_out(value, layout)


def laid_out(value: Any, layout: Mapping[str, Any]) -> bytes:
    """JSON with the provider's whitespace and escapes."""
    indent, end = layout.get("indent"), str(layout.get("end", ""))[:8].encode()
    indent = indent if indent in range(1, 9) else None
    if indent == 2 and not layout.get("ascii") and not layout.get("escaped"):
        return orjson.dumps(value, option=orjson.OPT_INDENT_2) + end
    between = (",", ": ") if indent is not None else (", ", ": ") if layout.get("spaced") else (",", ":")
    text = json.dumps(value, indent=indent, ensure_ascii=bool(layout.get("ascii")), separators=between)
    for char in str(layout.get("escaped", ""))[:_MOST_ESCAPED]:
        text = text.replace(char, "\\/" if char == "/" else f"\\u{ord(char):04x}")
    if layout.get("upper"):
        text = _ESCAPES.sub(lambda found: f"\\u{found[1].upper()}" if found[1] else found[0], text)
    return text.encode() + end


def layout_of(content: bytes, value: Any) -> dict[str, Any]:
    """The call metadata needed to reproduce the formatting of a JSON body, if any."""
    if not isinstance(value, (dict, list)) or len(content) > _LONGEST_LAYOUT or orjson.dumps(value) == content:
        return {}
    try:
        found = _layout(content.decode())
        return {"layout": found} if laid_out(value, found) == content else {}
    except (TypeError, ValueError, RecursionError):
        return {}


def _layout(content: str) -> dict[str, Any]:
    text = content.rstrip(" \r\n")
    codes = {code for code in _ESCAPES.findall(text) if code}
    found: dict[str, Any] = {"ascii": bool(codes) and text.isascii(), "end": content[len(text) :]}
    chars = sorted({chr(int(code, 16)) for code in codes} & _ESCAPED_BY_SOME)
    escaped = "".join(chars) + ("/" if "\\/" in text else "")
    if escaped:
        found["escaped"] = escaped
    if any(code != code.lower() for code in codes):
        found["upper"] = True
    inner = _INDENT.match(text)
    return found | ({"spaced": '": ' in text} if inner is None else {"indent": len(inner[1])})


def whole(call: ModelCall, content: bytes) -> Any:
    """A response body as one answer, even if it was a stream."""
    return assemble_response(sse_events([content]), call.provider) if call.stream else body_of(content)


def _recorded_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if _RECORDED_HEADERS.fullmatch(name.lower())}


def response_meta(status: int, headers: Mapping[str, str], *, stream: bool) -> dict[str, Any]:
    """The call metadata for status and headers of the response, if there is anything to record."""
    found = _recorded_headers(headers)
    usual = _EVENTS if stream else _JSON
    found |= {
        name: headers[name]
        for name in ("content-type", "location")
        if headers.get(name, usual.get(name)) != usual.get(name)
    }
    return ({"headers": found} if found else {}) | ({"httpStatus": status} if status != 200 else {})


def error_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The recorded headers of an error."""
    return {name: headers[name] for name in _ERROR_HEADERS if name in headers} | _recorded_headers(headers)


async def finish(
    boundary: Boundary,
    call: ModelCall,
    status: int,
    headers: Mapping[str, str],
    content: bytes,
    attempts: Mapping[str, int],
) -> None:
    """Record the outcome of a response that was not streamed."""
    value = body_of(content)
    if status >= 400:
        message = f"The provider answered {status}."
        error = {"class": "", "code": f"http_{status}", "message": message, "status": status}
        error["headers"] = error_headers(headers)
        await boundary.finish("error", error=error, value=value, meta={**attempts, **layout_of(content, value)})
        return
    outcome, meta = outcome_of(_read(content, value), call.provider)
    more = {**response_meta(status, headers, stream=call.stream), **attempts, **layout_of(content, value)}
    await boundary.finish(outcome, value=value, meta={**meta, **more})


class ReplayedModelResponse(NamedTuple):
    """A recorded answer as an HTTP response, or as chunks followed by the transport's exception."""

    status: int
    headers: dict[str, str]
    chunks: list[bytes]
    raises: Mapping[str, Any] | None = None
    """The recorded exception of the transport."""
    gaps: tuple[float, ...] = ()
    """Milliseconds before each chunk, if the replay keeps the timing."""
    left: bool = False
    """Whether the reader left the stream after these chunks."""
    given_up: float | None = None
    """Milliseconds until the reader's task was cancelled, if it was."""


def replayed(answer: Answer, call: ModelCall) -> ReplayedModelResponse:
    """The replacement for the provider's response."""
    error = answer.error or {}
    status, headers = answer.meta.get("httpStatus", 200), dict(answer.meta.get("headers") or {})
    if answer.chunks is not None:
        chunks = [chunk_bytes(chunk) for chunk in answer.chunks]
        gaps = tuple(answer.meta.get("gapsMs", ()))
        found = ReplayedModelResponse(status, {**_EVENTS, **headers}, chunks, gaps=gaps)
        if was_cancelled(answer.error):
            return found._replace(given_up=answer.meta.get(AFTER, 0))
        if error.get("code") == STREAM_ABANDONED:
            return found._replace(left=True)
        return found._replace(raises=error or None)
    content = content_of(answer.value, answer.meta.get("layout"))
    if answer.outcome == "error":
        failed = error.get("status")
        if isinstance(failed, int):
            headers = {str(name): str(value) for name, value in dict(error.get("headers") or {}).items()}
            return ReplayedModelResponse(failed, headers or _JSON, [content])
        return ReplayedModelResponse(0, {}, [], error)
    return ReplayedModelResponse(status, {**(_EVENTS if call.stream else _JSON), **headers}, [content])


def chunk_text(data: bytes) -> Any:
    """The recorded form of a stream chunk, byte for byte."""
    try:
        return data.decode()
    except UnicodeDecodeError:  # split within a character, or not text at all
        return {"$base64": base64.b64encode(data).decode()}


def chunk_bytes(data: Any) -> bytes:
    """The bytes of a recorded chunk."""
    if isinstance(data, dict) and "$base64" in data:
        return base64.b64decode(data["$base64"])
    return data.encode() if isinstance(data, str) else orjson.dumps(data)

"""Model calls recorded in a framework's own layer: the request in OpenAI's chat dialect, the response unchanged.

A call may pass through several such layers but is recorded once, by the outermost. Failures are recorded with
everything needed to raise them again (R7).
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, NamedTuple

import orjson

from antiphon._drive import drive
from antiphon._recording import model
from antiphon._recording.boundary import Boundary, error_payload
from antiphon._recording.streams import LiveStream, ReplayedStream, StreamLog, failure_of
from antiphon._scope import RunScope, current_scope
from antiphon.adapters._wire import error_headers
from antiphon.llm import response as llm_response
from antiphon.ports import Answer

NATIVE = "native"
"""The key of the framework's own format in a recorded response."""
_inside: ContextVar[bool] = ContextVar("antiphon_inside_model_call", default=False)


def recording_scope() -> RunScope | None:
    """The run that should record this model call; ``None`` outside a run or inside a call that is already recorded."""
    return None if _inside.get() else current_scope()


class recorded_here:  # noqa: N801 (used like a function)
    """Marks a live call as recorded, so that inner layers do not record it again."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = _inside.set(True)

    def __exit__(self, *_: object) -> None:
        _inside.reset(self._token)


class ModelCallSpec(NamedTuple):
    """One model call of a framework."""

    body: dict[str, Any]
    """The request, in *dialect*."""
    pack: Callable[[Any], dict[str, Any]]
    """Converts the framework's response to its recorded form."""
    unpack: Callable[[dict[str, Any]], Any]
    """… and back."""
    vendor: str | None = None
    dialect: str = "openai-chat"
    framework: str = ""
    outcome: Callable[[dict[str, Any]], tuple[str, dict[str, Any]]] | None = None
    """``ok`` or ``refusal``, usage and stop reason of a packed response; by default, read according to *dialect*."""
    settable: tuple[str, ...] = ()
    """What a replay may change: ``model``, ``temperature``, ``seed``, ``prompt``."""
    change: Callable[[dict[str, Any]], Callable[[], Any]] | None = None
    """Makes a call with changed fields of *body*."""
    endpoint: str | None = None
    """The model's endpoint, if the framework exposes it."""


class Codec(NamedTuple):
    """How a framework's stream is recorded."""

    encode: Callable[[Any], Any]
    """Converts a chunk to data."""
    decode: Callable[[Any], Any]
    """… and back."""
    whole: Callable[[list[Any]], Any]
    """Joins all chunks into one response."""
    parts: Callable[[Any], list[Any]]
    """Splits a response that was not streamed into the data of chunks."""


def ask(asking: Callable[[], ModelCallSpec], send: Callable[[], Any]) -> Any:
    """Make and record one synchronous call, or answer it from the replay; outside a run just make it."""
    scope = recording_scope()
    return send() if scope is None else drive(_ask(scope, asking(), send, asynchronous=False))


async def ask_async(asking: Callable[[], ModelCallSpec], send: Callable[[], Any]) -> Any:
    """The same for an asynchronous call."""
    scope = recording_scope()
    return await (send() if scope is None else _ask(scope, asking(), send, asynchronous=True))


async def _ask(scope: RunScope, asking: ModelCallSpec, send: Callable[[], Any], *, asynchronous: bool) -> Any:
    """Suspends only if *asynchronous*."""
    asking, send = _as_wanted(scope, asking, send)
    boundary = _open(scope, asking, send, asynchronous=asynchronous)
    answer = await boundary.answer()
    await boundary.start()
    if answer is not None:
        await boundary.give(answer)
        if answer.outcome == "error":
            raise raised_by_model(answer)
        return asking.unpack(answer.value)
    try:
        with recorded_here(), boundary.asking():
            response = send()
            if asynchronous:
                response = await response
    except BaseException as error:
        await boundary.finish("error", error=failure_payload(error))
        raise
    value = asking.pack(response)
    outcome, meta = outcome_of(value, asking.dialect) if asking.outcome is None else asking.outcome(value)
    await boundary.finish(outcome, value=value, meta=meta)
    return response


def stream(asking: Callable[[], ModelCallSpec], send: Callable[[], Iterator[Any]], codec: Codec) -> Iterator[Any]:
    """Read and record a synchronous stream, or answer it from the replay; outside a run just read it."""
    scope = recording_scope()
    yield from send() if scope is None else drive(_open_stream(scope, asking(), send, codec, asynchronous=False))


async def stream_async(
    asking: Callable[[], ModelCallSpec], send: Callable[[], AsyncIterator[Any]], codec: Codec
) -> AsyncIterator[Any]:
    """The same for an asynchronous stream."""
    scope = recording_scope()
    if scope is None:
        async for chunk in send():
            yield chunk
        return
    source: Any = aiter(await _open_stream(scope, asking(), send, codec, asynchronous=True))
    async with aclosing(source):
        async for chunk in source:
            yield chunk


async def _open_stream(
    scope: RunScope, asking: ModelCallSpec, send: Callable[[], Any], codec: Codec, *, asynchronous: bool
) -> LiveStream | ReplayedStream:
    asking, send = _as_wanted(scope, asking, send)
    boundary = _open(scope, asking, asynchronous=asynchronous, stream=True)
    answer = await boundary.answer()
    await boundary.start()
    if answer is not None:
        if answer.chunks is None and answer.outcome != "error":
            answer = answer._replace(chunks=codec.parts(asking.unpack(answer.value)))
        await boundary.give(answer)
        return ReplayedStream.of(answer, codec.decode, raised_by_model)
    return LiveStream(send, _FrameworkLog(boundary, asking, codec), recorded_here)


class _FrameworkLog(StreamLog):
    """Records the chunks of a framework's stream."""

    def __init__(self, boundary: Boundary, asking: ModelCallSpec, codec: Codec) -> None:
        super().__init__(boundary)
        self._asking = asking
        self._codec = codec

    def encode(self, chunk: Any) -> Any:
        return self._codec.encode(chunk)

    def failed(self, error: BaseException) -> dict[str, Any]:
        return failure_payload(error)

    def summary(self) -> tuple[str, Any, dict[str, Any]]:
        value = self._asking.pack(self._codec.whole(self.chunks))
        outcome, meta = outcome_of(value, self._asking.dialect)
        return outcome, value, meta


def _open(
    scope: RunScope,
    asking: ModelCallSpec,
    send: Callable[[], Any] | None = None,
    *,
    asynchronous: bool,
    stream: bool = False,
) -> Boundary:
    """The boundary of the call."""

    async def verify(body: Any) -> dict[str, Any]:  # asks the model for comparison
        assert send is not None
        response = send()
        return asking.pack(await response if asynchronous else response)

    meta: dict[str, Any] = {"settable": list(asking.settable)}
    if asking.endpoint:
        meta["endpoint"] = model.service_url(asking.endpoint)
    return model.open_llm(
        scope,
        asking.body,
        asking.dialect,
        asynchronous=asynchronous,
        stream=stream,
        send=None if send is None else verify,
        vendor=asking.vendor,
        from_framework=True,
        transport=asking.framework,
        **meta,
    )


def _as_wanted(
    scope: RunScope, asking: ModelCallSpec, send: Callable[[], Any]
) -> tuple[ModelCallSpec, Callable[[], Any]]:
    """The call with the model, temperature, seed or prompt that an exploring replay wants."""
    if scope.invoker is None:
        return asking, send
    body = dict(model.rewritten(scope, asking.body, asking.dialect, asking.vendor))
    if body == asking.body:
        return asking, send
    wanted = {name: value for name, value in body.items() if asking.body.get(name) != value}
    asked = {"prompt" if name in ("messages", "instructions", "system") else name for name in wanted}
    if getattr(scope.invoker, "answers_models", False):
        return asking._replace(body=body), send
    refused = sorted(asked - {*asking.settable})
    if refused or asking.change is None:
        raise model.not_settable(asking.framework, refused or sorted(asked))
    return asking._replace(body=body), asking.change(wanted)


def outcome_of(value: dict[str, Any], dialect: str) -> tuple[str, dict[str, Any]]:
    """``ok`` or ``refusal``, usage and stop reason of a response packed by this module."""
    if dialect != "openai-chat":
        return llm_response.outcome_of(value, dialect)
    choice = value["choices"][0]
    usage = value.get("usage") or {}
    counts = {"inputTokens": usage.get("prompt_tokens"), "outputTokens": usage.get("completion_tokens")}
    meta: dict[str, Any] = {"usage": counts, "stopReason": choice.get("finish_reason")}
    refusal = choice["message"].get("refusal")
    return ("refusal", {**meta, "refusalReason": refusal}) if refusal else ("ok", meta)


def chat_response(
    *,
    text: Any,
    calls: list[dict[str, Any]],
    native: Any,
    model_name: str | None = None,
    refusal: str | None = None,
    stop: str | None = None,
    usage: tuple[int | None, int | None] | None = None,
) -> dict[str, Any]:
    """A response in OpenAI's chat dialect, together with the framework's own format."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = calls
    if refusal:
        message["refusal"] = refusal
    response: dict[str, Any] = {"model": model_name, "choices": [{"index": 0, "message": message}], NATIVE: native}
    if stop:
        response["choices"][0]["finish_reason"] = stop
    if usage is not None:
        response["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return response


_NOWHERE = "https://recorded.invalid"


def failure_payload(error: BaseException) -> dict[str, Any]:
    """The recorded form of an exception; one that represents an HTTP response keeps status, body and headers."""
    found = error_payload(error)
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    for name, value in (("body", _body(error)), ("model", getattr(error, "model_name", None))):
        if value is not None and _is_json(value):
            found[name] = value
    if type(status) is int:
        found["status"] = status
        headers = getattr(getattr(error, "response", error), "headers", None)
        if headers:
            found["headers"] = error_headers(headers)
    return found


def _body(error: BaseException) -> Any:
    return getattr(error, "body", None) or getattr(error, "details", None)


def _is_json(value: Any) -> bool:
    try:
        return bool(orjson.loads(orjson.dumps(value)) == value)
    except TypeError:
        return False


def raised_by_model(answer: Answer) -> BaseException:
    """Rebuild a recorded exception if its class is loaded and can be instantiated, or else one that describes it."""
    error = answer.error or {}
    package, _, name = str(error.get("class", "")).rpartition(".")
    kind = getattr(sys.modules.get(package), name, None)
    make = _MAKERS.get(package.partition(".")[0])
    if make is not None and isinstance(kind, type) and issubclass(kind, Exception):
        for attempt in make(kind, error):
            try:
                made = attempt()
            except Exception:  # noqa: S112 (a class of the package that is made otherwise)
                continue
            if str(made) == error.get("message"):
                return made
    return failure_of(answer)


Attempts = Iterator[Callable[[], Exception]]
"""Ways to build an exception; the first that matches the recording is used."""


def _of_an_sdk(kind: Any, error: Mapping[str, Any]) -> Attempts:
    """``openai`` and ``anthropic``: an HTTP error status, a failed connection, or a timeout."""
    httpx2, message, body = sys.modules["httpx2"], error.get("message"), error.get("body")
    request = httpx2.Request("POST", _NOWHERE)
    if "status" in error:
        content = None if body is None else orjson.dumps(body)
        response = httpx2.Response(error["status"], headers=error.get("headers"), content=content, request=request)
        yield lambda: kind(message, response=response, body=body)
    yield lambda: kind(message=message, request=request)
    yield lambda: kind(request=request)


def _of_pydantic_ai(kind: Any, error: Mapping[str, Any]) -> Attempts:
    """An exception with a status is both an HTTP error and of a category; the category gives the class its name."""
    known = {"model_name": error.get("model"), "body": error.get("body")}
    if "status" in error:
        http = sys.modules["pydantic_ai.exceptions"].ModelHTTPError
        known |= {"status_code": error["status"], "headers": error.get("headers")}
        yield lambda: http.for_category(None if kind is http else kind, **known)
        yield lambda: http(**known)
    yield lambda: kind(model_name=error.get("model"), message=error.get("message"))


def _of_google(kind: Any, error: Mapping[str, Any]) -> Attempts:
    yield lambda: kind(error.get("status"), error.get("body"))


_MAKERS: dict[str, Callable[[Any, Mapping[str, Any]], Attempts]] = {
    "openai": _of_an_sdk,
    "anthropic": _of_an_sdk,
    "pydantic_ai": _of_pydantic_ai,
    "google": _of_google,
}

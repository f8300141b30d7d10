"""The language-model boundary: one request, one response or stream, written down and answered by a replay (L1, D18)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from antiphon._drive import AFTER, drive, until_cancelled, was_given_up
from antiphon._recording.boundary import Boundary, error_payload
from antiphon._recording.plain import piece_of
from antiphon._scope import RunScope
from antiphon.errors import CallFailed, InvalidInput, ReplayMiss, raised_again
from antiphon.llm.key import Recipe, llm_cache_key, variant_digest
from antiphon.llm.request import canonical_request
from antiphon.llm.response import envelope_kind, told
from antiphon.llm.stream import assemble_response
from antiphon.ports import Answer

RECIPE: Recipe = "rfc0041"
BROKEN_OFF = "stream_broken_off"
STREAM = {"stream": True}


def config_of(request: Mapping[str, Any], provider: str) -> dict[str, Any]:
    """Model, provider, temperature and seed, as the determinism score reads them (K3)."""
    config = {"model_name": request.get("model"), "provider": provider.partition("-")[0]}
    for name in ("temperature", "seed"):
        if request.get(name) is not None:
            config[name] = request[name]
    return config


def open_llm(
    scope: RunScope,
    request: Mapping[str, Any],
    provider: str,
    *,
    asynchronous: bool,
    stream: bool = False,
    send: Any = None,
    vendor: str | None = None,
    made_here: bool = False,
    **meta: Any,
) -> Boundary:
    """The boundary of one model call; a body that the mapping does not know is recorded as it is.

    *vendor* says who serves the model, where a framework speaks one dialect for all. A body that was *made_here* from
    a framework's request is recorded in its canonical form alone, which says the same.
    """
    body = request if type(request) is dict else dict(request)
    payload: dict[str, Any] = {"provider": provider, "providerRequest": body, "recipe": RECIPE}
    recorded = None
    if scope.invoker is not None and vendor is None:
        known = getattr(scope.invoker, "known_request", None)
        recorded = None if known is None else known(provider, body)
    digest: str | None = None
    canonical: dict[str, Any] = body
    if recorded is not None:  # a replay knows what this very body was mapped to
        canonical, digest = recorded["request"], recorded["digest"]
        payload["variant"], payload["request"] = recorded["variant"], canonical
    else:
        try:
            mapped = canonical_request(body, provider=provider, vendor=vendor)  # type: ignore[arg-type]
            digest = llm_cache_key(mapped, recipe=RECIPE)
            payload["variant"], payload["request"] = variant_digest(mapped), mapped
            canonical = mapped
        except (InvalidInput, ValueError) as error:
            payload["unmapped"] = str(error)
    if made_here and canonical is not body:
        del payload["providerRequest"]
    boundary = Boundary(scope, "llm", "llm", canonical, payload, digest, meta, asynchronous, stream, send, body)
    boundary.payload["key"] = boundary.digest
    return boundary


def outcome_of(response: Any, provider: str) -> tuple[str, dict[str, Any]]:
    """``ok`` or ``refusal``, and what is told about the response: usage, stop reason, refusal kind (D23)."""
    if type(response) is not dict and not isinstance(response, Mapping):
        return "ok", {}
    body = response if type(response) is dict else dict(response)
    kind, reason = envelope_kind(body, provider)
    usage, stop = told(body, provider)
    meta: dict[str, Any] = {"usage": usage, "stopReason": stop}
    if kind == "refusal":
        meta["refusalReason"] = reason
        return "refusal", meta
    return "ok", meta


def rewritten(scope: RunScope, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request as an exploring replay wants it: another model, temperature or prompt."""
    rewrite = getattr(scope.invoker, "rewrite", None)
    return request if rewrite is None else rewrite(dict(request))


def ask(scope: RunScope, request: Mapping[str, Any], send: Callable[[Any], Any], provider: str) -> Any:
    """One synchronous model call."""
    request = rewritten(scope, request)
    boundary = open_llm(scope, request, provider, asynchronous=False, stream=bool(request.get("stream")), send=send)
    answer = drive(boundary.answer())
    if answer is not None:
        return _given(boundary, answer, provider)
    boundary.start_now()
    try:
        response = send(dict(request))
    except BaseException as error:
        drive(boundary.finish("error", error=error_payload(error)))
        raise
    if isinstance(response, Iterator):
        return _stream(boundary, response, provider)
    outcome, meta = outcome_of(response, provider)
    drive(boundary.finish(outcome, value=response, meta=meta))
    return response


async def ask_async(scope: RunScope, request: Mapping[str, Any], send: Callable[[Any], Any], provider: str) -> Any:
    """One asynchronous model call."""
    request = rewritten(scope, request)
    boundary = open_llm(scope, request, provider, asynchronous=True, stream=bool(request.get("stream")), send=send)
    answer = await boundary.answer()
    if answer is not None:
        return await _given_async(boundary, answer, provider)
    await boundary.start()
    try:
        response = send(dict(request))
        if hasattr(response, "__await__"):
            response = await response
    except BaseException as error:
        await boundary.finish("error", error=error_payload(error))
        raise
    if hasattr(response, "__aiter__"):
        return _stream_async(boundary, response, provider)
    outcome, meta = outcome_of(response, provider)
    await boundary.finish(outcome, value=response, meta=meta)
    return response


def _stream(boundary: Boundary, source: Iterator[Any], provider: str) -> Iterator[Any]:
    chunks: list[Any] = []
    last = time.monotonic()
    try:
        for data in source:
            now = time.monotonic()
            boundary.chunk(data, (now - last) * 1000)
            last = now
            chunks.append(data)
            yield data
            drive(boundary.pulled())
    except BaseException as error:
        drive(boundary.finish("error", error=_broken(error, len(chunks)), value={"chunks": len(chunks)}, meta=STREAM))
        raise
    outcome, meta = _streamed(chunks, provider)
    drive(boundary.finish(outcome, value={"chunks": len(chunks)}, meta=meta))


async def _stream_async(boundary: Boundary, source: AsyncIterator[Any], provider: str) -> AsyncIterator[Any]:
    chunks: list[Any] = []
    last = time.monotonic()
    try:
        async for data in source:
            now = time.monotonic()
            boundary.chunk(data, (now - last) * 1000)
            last = now
            chunks.append(data)
            yield data
            await boundary.pulled()
    except BaseException as error:
        broken = _broken(error, len(chunks))
        await boundary.finish("error", error=broken, value={"chunks": len(chunks)}, meta=STREAM)
        raise
    outcome, meta = _streamed(chunks, provider)
    await boundary.finish(outcome, value={"chunks": len(chunks)}, meta=meta)


def _streamed(chunks: list[Any], provider: str) -> tuple[str, dict[str, Any]]:
    """A refusal may also come in pieces."""
    outcome, meta = outcome_of(assemble_response(chunks, provider), provider)
    return outcome, {**meta, **STREAM}


def _broken(error: BaseException, chunks: int) -> dict[str, Any]:
    """A stream that was not read to its end, or failed on the way, is recorded as such."""
    if isinstance(error, GeneratorExit):
        return {"class": "", "code": BROKEN_OFF, "message": f"The stream was not read after piece {chunks}."}
    return error_payload(error)


def _given(boundary: Boundary, answer: Answer, provider: str) -> Any:
    boundary.start_now()
    if answer.chunks is not None:
        return _stream(boundary, _pieces(answer), provider)
    if answer.outcome == "error":
        drive(boundary.finish("error", error=dict(answer.error or {}), value=answer.value))
        raise failure_of(answer)
    drive(boundary.finish(answer.outcome, value=answer.value, meta=dict(answer.meta)))
    return answer.value


async def _given_async(boundary: Boundary, answer: Answer, provider: str) -> Any:
    await boundary.start()
    if answer.chunks is not None:
        return _stream_async(boundary, _pieces_async(answer), provider)
    if answer.outcome == "error":
        await boundary.finish("error", error=dict(answer.error or {}), value=answer.value)
        raise failure_of(answer)
    await boundary.finish(answer.outcome, value=answer.value, meta=dict(answer.meta))
    return answer.value


def _pieces(answer: Answer) -> Iterator[Any]:
    """The recorded pieces, with their pauses where the replay asked for them, then what ended the stream."""
    for data, pause in zip_longest(answer.chunks or (), answer.meta.get("gapsMs", ())):
        if pause:
            time.sleep(pause / 1000)
        yield piece_of(data)
    _end(answer)


async def _pieces_async(answer: Answer) -> AsyncIterator[Any]:
    for data, pause in zip_longest(answer.chunks or (), answer.meta.get("gapsMs", ())):
        if pause:
            import asyncio

            await asyncio.sleep(pause / 1000)
        yield piece_of(data)
    if was_given_up(answer.error):
        await until_cancelled("llm", answer.meta.get(AFTER))
    _end(answer)


def _end(answer: Answer) -> None:
    if answer.outcome != "error":
        return
    if (answer.error or {}).get("code") == BROKEN_OFF:
        raise ReplayMiss(
            f"The recorded reader left this stream after piece {len(answer.chunks or ())}; now it reads on."
        )
    raise failure_of(answer)


def failure_of(answer: Answer) -> BaseException:
    """A recorded error of a model call, raised again."""
    error = answer.error or {}
    again = raised_again(error)
    if again is not None:
        return again
    return CallFailed(str(error.get("message", "")), code=str(error.get("code", "error")), recorded=dict(error))

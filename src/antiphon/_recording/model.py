"""The language-model boundary: one request, one response or stream, recorded and answered by a replay (L1, D18)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from antiphon._diff import with_article
from antiphon._drive import drive
from antiphon._recording.boundary import Boundary, error_payload
from antiphon._recording.plain import chunk_of, digest_of, note_class, with_classes
from antiphon._recording.streams import STREAM, LiveStream, ReplayedStream, StreamLog, failure_of
from antiphon._scope import RunScope
from antiphon.errors import InvalidInput
from antiphon.llm.key import Recipe, llm_cache_key, variant_digest
from antiphon.llm.request import canonical_request
from antiphon.llm.response import outcome_of
from antiphon.llm.stream import assemble_response

RECIPE: Recipe = "rfc0041"


def open_llm(
    scope: RunScope,
    request: Mapping[str, Any],
    provider: str,
    *,
    asynchronous: bool,
    stream: bool = False,
    send: Any = None,
    vendor: str | None = None,
    from_framework: bool = False,
    **meta: Any,
) -> Boundary:
    """The boundary of one model call; a body that cannot be mapped is recorded unchanged.

    *vendor* names who serves the model, for frameworks that use one dialect for all. A body made from the
    request of a framework (*from_framework*) is recorded only in its canonical form, which is equivalent.
    """
    body = request if type(request) is dict else dict(request)
    payload: dict[str, Any] = {"provider": provider, "providerRequest": body, "recipe": RECIPE}
    recorded = None
    if scope.invoker is not None and vendor is None:
        known = getattr(scope.invoker, "known_request", None)
        recorded = None if known is None else known(provider, body)
    digest: str | None = None
    canonical: dict[str, Any] = body
    if recorded is not None:  # a replay knows what this exact body was mapped to
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
    if from_framework and canonical is not body:
        del payload["providerRequest"]
    boundary = Boundary(
        scope, "llm", "llm", canonical, payload, digest, meta, asynchronous, stream, send, body, _digest_of(payload)
    )
    boundary.payload["key"] = boundary.digest
    if boundary.shown is not canonical and "variant" in payload and recorded is None:
        boundary.payload["variant"] = variant_digest(boundary.shown)
    return boundary


def _digest_of(payload: Mapping[str, Any]) -> Callable[[Any], str] | None:
    """How the digest of a canonical request is computed; a request that could not be mapped has none of its own."""
    return None if "unmapped" in payload else lambda request: llm_cache_key(request, recipe=RECIPE)


class OptionRefused(InvalidInput):
    """A replay was asked to change something that the agent's framework does not allow."""


def not_settable(framework: str, names: Sequence[str]) -> OptionRefused:
    """The error for options that a framework's model does not support."""
    given = ", ".join(f"--{name}" for name in names)
    return OptionRefused(
        f"The model of {with_article(framework)} agent cannot be given {given} by a replay.",
        hint="Change it in the agent's code and replay with --explore, or answer its model calls with --llm.",
        path=names[0] if names else "model",
    )


def service_url(url: str) -> str:
    """Where a model is served, without credentials, query and the part that all calls share: one text per service.

    >>> service_url("https://user:pw@api.example.com/v1/chat/completions?key=1")
    'https://api.example.com/v1'
    """
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    version = [item for item in parts.query.split("&") if item.startswith("api-version=")]
    path = _CALL.sub("", parts.path).rstrip("/")
    return f"{parts.scheme}://{place}{path}" + (f"?{version[0]}" if version else "")


_CALL = re.compile(r"/(?:chat/completions|responses|messages|models/[^/]+:\w+)$")


def rewritten(
    scope: RunScope, request: Mapping[str, Any], provider: str, vendor: str | None = None
) -> Mapping[str, Any]:
    """The request as changed by an exploring replay: another model, temperature or prompt; not before its fork."""
    invoker: Any = scope.invoker
    rewrite: Callable[[dict[str, Any]], Mapping[str, Any]] | None = getattr(invoker, "rewrite", None)
    if rewrite is None:
        return request
    body = dict(request)
    if invoker.fork_at is not None and invoker.has_before_fork(_request_digest(body, provider, vendor)):
        return request
    return rewrite(body)


def _request_digest(body: dict[str, Any], provider: str, vendor: str | None) -> str:
    try:
        mapped = canonical_request(body, provider=provider, vendor=vendor)  # type: ignore[arg-type]
        return llm_cache_key(mapped, recipe=RECIPE)
    except (InvalidInput, ValueError):
        return digest_of(body)


def ask(scope: RunScope, request: Mapping[str, Any], send: Callable[[Any], Any], provider: str) -> Any:
    """One synchronous model call."""
    return drive(ask_async(scope, request, send, provider, asynchronous=False))


async def ask_async(
    scope: RunScope,
    request: Mapping[str, Any],
    send: Callable[[Any], Any],
    provider: str,
    *,
    asynchronous: bool = True,
) -> Any:
    """One model call; a response that arrives in chunks is a stream. Suspends only if *asynchronous*."""
    request = rewritten(scope, request, provider)
    streams = bool(request.get("stream"))
    boundary = open_llm(scope, request, provider, asynchronous=asynchronous, stream=streams, send=send)
    answer = await boundary.answer()
    await boundary.start()
    if answer is not None:
        if answer.chunks is not None:
            answer = answer._replace(chunks=with_classes(answer.chunks, answer.meta))
            return _streaming(boundary, ReplayedStream.of(answer, chunk_of, failure_of))
        await boundary.give(answer)
        if answer.outcome == "error":
            raise failure_of(answer)
        return with_classes([answer.value], answer.meta)[0]
    try:
        with boundary.asking():
            response = send(dict(request))
            if asynchronous and hasattr(response, "__await__"):
                response = await response
    except BaseException as error:
        await boundary.finish("error", error=error_payload(error, held=True))
        raise
    if hasattr(response, "__aiter__") if asynchronous else isinstance(response, Iterator):
        return _streaming(boundary, response)
    outcome, meta = outcome_of(response, provider)
    note_class(meta, response)
    await boundary.finish(outcome, value=response, meta=meta)
    return response


class _CountedLog(StreamLog):
    """The chunks are the value; the end records only their number."""

    def __init__(self, boundary: Boundary) -> None:
        super().__init__(boundary, dict(STREAM))

    def took(self, chunk: Any) -> None:
        super().took(chunk)
        note_class(self._meta, chunk, len(self.chunks))

    def summary(self) -> tuple[str, Any, dict[str, Any]]:
        provider = str(self.boundary.payload["provider"])
        outcome, meta = outcome_of(assemble_response(self.chunks, provider), provider)
        return outcome, self.partial(), meta

    def partial(self) -> Any:
        return {"chunks": len(self.chunks)}


def _streaming(boundary: Boundary, source: Any) -> Iterator[Any] | AsyncIterator[Any]:
    stream = LiveStream(lambda: source, _CountedLog(boundary))
    return aiter(stream) if boundary.asynchronous else iter(stream)

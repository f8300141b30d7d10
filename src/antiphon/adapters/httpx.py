"""Transports for httpx and httpx2 that record and replay the model calls made through them.

>>> import openai, httpx2                                                       # doctest: +SKIP
>>> from antiphon.adapters.httpx import transport
>>> client = openai.OpenAI(http_client=httpx2.Client(transport=transport(module=httpx2)), max_retries=0)

Both libraries have the same interface, so the same code serves both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, TypeVar, cast

from antiphon._drive import drive
from antiphon._recording.boundary import Boundary, error_payload
from antiphon._recording.streams import STREAM, LiveStream, ReplayedStream, StreamLog, read_past_end
from antiphon._scope import RunScope
from antiphon.adapters import _mcp, _wire
from antiphon.adapters._model import recorded_here, recording_scope
from antiphon.adapters._requirements import require
from antiphon.adapters._retries import ATTEMPTS, retrying, transports
from antiphon.errors import CallFailed, InvalidInput, rebuild_exception
from antiphon.llm.response import outcome_of
from antiphon.llm.stream import assemble_response, assemble_stream, sse_events

_CODED = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})
_DONE = re.compile(rb"^data: ?\[DONE\]\s*\Z", re.MULTILINE)
"""The end of a stream in OpenAI's dialect; some servers send no finish reason before it."""
_STAINLESS = ("openai", "anthropic")
_KEPT = ("base_url", "headers", "params", "auth", "timeout", "cookies", "event_hooks", "follow_redirects")
"""What a wrapped HTTP client keeps."""
C = TypeVar("C")
_LISTENING_MS = 3_600_000
"""How long a replayed listening stream stays open."""
Send = Callable[[Any], Any]
"""Sends a request through the inner transport."""


def transport(inner: Any = None, *, module: ModuleType | str = "httpx") -> Any:
    """A synchronous transport around *inner* (a plain ``HTTPTransport`` by default)."""
    name = _name(module)
    return transports(name)[0](require(name).HTTPTransport() if inner is None else inner, handle)


def async_transport(inner: Any = None, *, module: ModuleType | str = "httpx") -> Any:
    """An asynchronous transport around *inner* (a plain ``AsyncHTTPTransport`` by default)."""
    name = _name(module)
    return transports(name)[1](require(name).AsyncHTTPTransport() if inner is None else inner, handle_async)


def client_options(
    inner: Any = None, *, module: ModuleType | str = "httpx", asynchronous: bool = False, retries: int = 0
) -> Any:
    """Keywords for a client of *module*: the recording transport, also for the environment's proxies.

    A client with an explicit transport ignores proxy settings, so they are applied here. A failed request is retried up
    to *retries* times, for a client whose own retries are off.
    """
    found = require(_name(module))
    plain = found.AsyncHTTPTransport if asynchronous else found.HTTPTransport

    def make(below: Any) -> Any:
        below = retrying(below, retries, module=_name(module), asynchronous=asynchronous)
        return (async_transport if asynchronous else transport)(below, module=module)

    options: dict[str, Any] = {"transport": make(plain() if inner is None else inner)}
    if inner is None:
        mounts = {place: make(plain(proxy=proxy)) for place, proxy in _proxies().items()}
        if mounts:
            options["mounts"] = mounts
    return options


def protect(client: C, *, inner: Any = None) -> C:
    """An ``httpx``/``httpx2`` client, or one of the OpenAI and Anthropic SDKs, with its model calls recorded.

    The same as ``antiphon.wrap``. *inner* is the transport to wrap; pass it if the client had its own.
    """
    return wrap(client, inner=inner)


def wrap(client: C, *, inner: Any = None) -> C:
    """The client with a recording transport; an unsupported client raises an error that says what to do.

    Works for the clients of ``openai`` and ``anthropic`` (synchronous and asynchronous, Azure included) and for
    ``httpx``/``httpx2`` clients. The SDK client's number of retries is kept, but they are made below the recording: a
    call that took three requests is one recorded call. *inner* is the transport to wrap; pass it if the client had its
    own.
    """
    package = type(client).__module__.partition(".")[0]
    if package in _STAINLESS:
        require(package)
        return cast(C, _wrap_stainless(client, inner))
    if package in ("httpx", "httpx2"):
        kept = {name: getattr(client, name) for name in _KEPT}
        return cast(C, _http_client(client, require(package), inner, **kept))
    if package == "google":
        hint = "Make it with: google.genai.Client(http_options=antiphon.adapters.google.http_options())"
    else:
        hint = "Give it an HTTP client with antiphon.adapters.httpx.transport(), or run it under: antiphon exec"
    raise InvalidInput(f"A client of {package or type(client).__name__} cannot be wrapped.", hint=hint)


def _http_client(client: Any, module: Any, inner: Any, retries: int = 0, **options: Any) -> Any:
    """A client of *module* with a recording transport; asynchronous if *client* is."""
    asynchronous = any(kind.__name__.startswith("Async") for kind in type(client).__mro__)
    kind = module.AsyncClient if asynchronous else module.Client
    return kind(**client_options(inner, module=module, asynchronous=asynchronous, retries=retries), **options)


def _wrap_stainless(client: Any, inner: Any) -> Any:
    options = {"timeout": client.timeout, "base_url": client.base_url, "follow_redirects": True}
    http = _http_client(client, require("httpx2"), inner, client.max_retries, **options)
    return client.with_options(http_client=http, max_retries=0)


def _proxies() -> dict[str, str | None]:
    """The environment's proxies by httpx URL pattern; ``None`` for hosts that bypass them."""
    from urllib.request import getproxies

    found = getproxies()
    routes: dict[str, str | None] = {}
    for scheme in ("http", "https", "all"):
        if found.get(scheme):
            address = found[scheme]
            routes[f"{scheme}://"] = address if "://" in address else f"http://{address}"
    if routes:
        for host in filter(None, (name.strip() for name in found.get("no", "").split(","))):
            if host == "*":
                return {}
            routes[_pattern(host)] = None
    return routes


def _pattern(host: str) -> str:
    """The httpx URL pattern of an entry in ``NO_PROXY``."""
    if "://" in host:
        return host
    if host.count(":") > 1 and "[" not in host:
        return f"all://[{host.partition('/')[0]}]"  # IPv6; httpx matches no networks
    return f"all://{host}" if ":" in host or host == "localhost" else f"all://*{host}"


def _name(module: ModuleType | str) -> str:
    name = module if isinstance(module, str) else module.__name__
    if name not in ("httpx", "httpx2"):
        raise InvalidInput(f"The module must be httpx or httpx2, not {name!r}.")
    return name


@cache
def _streams(module: ModuleType) -> tuple[Any, Any]:
    """Stream classes for live and replayed bodies; *module* checks their base class."""

    class Live(LiveStream, module.SyncByteStream, module.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, source: Any, response: Any, log: StreamLog) -> None:
            super().__init__(lambda: source, log)
            self._response = response

        def close(self) -> None:
            drive(self._log.end(GeneratorExit()))
            self._response.close()

        async def aclose(self) -> None:
            await self._log.end(GeneratorExit())
            await self._response.aclose()

    class ReplayedBody(ReplayedStream, module.SyncByteStream, module.AsyncByteStream):  # type: ignore[misc, name-defined]
        pass

    return Live, ReplayedBody


def handle(module: ModuleType, request: Any, send: Send) -> Any:
    """Handle one request of a synchronous client; *send* passes it to the inner transport."""
    scope = recording_scope()
    return send(request) if scope is None else drive(_RecordedExchange(module, request, send, scope, False).run())


async def handle_async(module: ModuleType, request: Any, send: Send) -> Any:
    """Handle one request of an asynchronous client."""
    scope = recording_scope()
    return await (send(request) if scope is None else _RecordedExchange(module, request, send, scope, True).run())


class _RecordedExchange:
    """One request of a client in a run; suspends only if the client is asynchronous."""

    def __init__(self, module: ModuleType, request: Any, send: Send, scope: RunScope, asynchronous: bool) -> None:
        self._module = module
        self._request = request
        self._transport = send
        self._scope = scope
        self._asynchronous = asynchronous

    async def run(self) -> Any:
        """The response to a model call or an MCP message; any other request is passed through."""
        request = self._request
        endpoint = _wire.endpoint_of(request.method, request.url.path)
        if endpoint is not None:
            call = _wire.read_call(endpoint, await self._read(request))
            return await (self._send(request) if call is None else self._model_call(call))
        if self._scope.invoker is not None and _mcp.is_listening(request.method, request.headers):
            return self._module.Response(405, request=request)
        if _mcp.looks_like_mcp(request.method, request.headers, request.extensions):
            asked = _mcp.read_request(await self._read(request))
            if asked is not None:
                return await self._mcp_message(asked)
        return await self._send(request)

    async def _send(self, request: Any) -> Any:
        response = self._transport(request)
        return await response if self._asynchronous else response

    async def _read(self, message: Any) -> bytes:
        content: bytes = await message.aread() if self._asynchronous else message.read()
        return content

    async def _whole(self, response: Any) -> bytes:
        """Read a response body; on failure close the response, because nobody else holds it."""
        try:
            return await self._read(response)
        except BaseException:
            if self._asynchronous:
                await response.aclose()
            else:
                response.close()
            raise

    async def _model_call(self, call: _wire.ModelCall) -> Any:
        """Answer from the replay, or else ask the provider."""
        call, changed = _wire.rewritten(self._scope, call)
        boundary = _wire.open_call(
            self._scope,
            call,
            self._request.headers,
            str(self._request.url),
            asynchronous=self._asynchronous,
            send=lambda body: self._verified(call),
        )
        answer = await boundary.answer()
        await boundary.start()
        if answer is not None:
            await boundary.give(answer)
            return self._given(_wire.replayed(answer, call))
        try:
            with recorded_here(), boundary.asking():
                response = await self._send(self._outgoing(call, changed))
            if call.stream and response.status_code < 400:
                return self._live(response, _HttpLog(boundary, call, response, _attempts(response)))
            with boundary.asking():
                content = await self._whole(response)
        except BaseException as error:
            await boundary.finish("error", error=error_payload(error))
            raise
        await _wire.finish(boundary, call, response.status_code, response.headers, content, _attempts(response))
        return self._again(response, _streams(self._module)[1]([content]))

    async def _verified(self, call: _wire.ModelCall) -> Any:
        """Ask the provider for comparison, without recording."""
        return _wire.whole(call, await self._whole(await self._send(self._outgoing(call, False))))

    async def _mcp_message(self, asked: _mcp.Request) -> Any:
        """Handle a message to an MCP server; a notification is just forwarded, or dropped in a replay."""
        module, request = self._module, self._request
        if asked.id is None and self._scope.invoker is not None:
            return module.Response(202, request=request)
        if asked.id is None or _mcp.is_guarded(self._scope, asked):
            return await self._send(request)
        boundary = _mcp.open_request(self._scope, asked, asynchronous=self._asynchronous)
        answer = await boundary.answer()
        await boundary.start()
        if answer is not None:
            await boundary.give(answer)
            found = _mcp.replayed(answer, asked)
            if found is None:
                raise self._exception(answer.error or {})
            headers = [(b"content-type", found.content_type.encode())]
            if not found.gaps and not found.stays:
                return module.Response(found.status, headers=headers, content=found.chunks[0], request=request)
            stream = _streams(module)[1](found.chunks, found.gaps, None, _LISTENING_MS if found.stays else None)
            return module.Response(found.status, headers=headers, stream=stream, request=request)
        try:
            with boundary.asking():
                response = await self._send(request)
                content = b"" if response.status_code < 400 else await self._whole(response)
        except BaseException as error:
            await boundary.finish("error", error=error_payload(error))
            raise
        if response.status_code >= 400:
            message = f"The server answered {response.status_code}."
            refused = {"class": "", "code": f"http_{response.status_code}", "message": message}
            said = _mcp.response_of(response.status_code, response.headers.get("content-type", ""), content)
            await boundary.finish("error", error=refused, value=said)
            return self._again(response, _streams(module)[1]([content]))
        return self._live(response, _mcp.McpLog(boundary, asked, response.headers.get("content-type", "")))

    def _outgoing(self, call: _wire.ModelCall, changed: bool) -> Any:
        """The request to send; streams are requested uncompressed, so that chunks can be recorded exactly."""
        request = self._request
        if not changed and not call.stream:
            return request
        left_out = (b"content-length", b"accept-encoding") if call.stream else (b"content-length",)
        headers = [(name, value) for name, value in request.headers.raw if name.lower() not in left_out]
        if call.stream:
            headers.append((b"accept-encoding", b"identity"))
        content = _wire.outgoing(call) if changed else request.content
        return self._module.Request(
            request.method, request.url, headers=headers, content=content, extensions=request.extensions
        )

    def _live(self, response: Any, log: StreamLog) -> Any:
        """The response, with its stream recorded as it is read."""
        source = response.stream
        if response.is_stream_consumed:  # JSON instead of a stream, already read by the retries
            source = self._module.ByteStream(response.content)
        elif response.headers.get("content-encoding", "identity") != "identity":  # compressed anyway
            source = response.aiter_bytes() if self._asynchronous else response.iter_bytes()
        return self._again(response, _streams(self._module)[0](source, response, log))

    def _again(self, response: Any, stream: Any) -> Any:
        """The response with a decoded body, so that the SDK reads what was recorded."""
        headers = [(name, value) for name, value in response.headers.raw if name.lower() not in _CODED]
        return self._module.Response(
            response.status_code, headers=headers, request=self._request, extensions=response.extensions, stream=stream
        )

    def _given(self, found: _wire.ReplayedModelResponse) -> Any:
        """The recorded response."""
        failure: BaseException | None = None if found.raises is None else self._exception(found.raises)
        if failure is not None and not found.chunks:
            raise failure
        if found.left:
            failure = read_past_end(len(found.chunks))
        stream = _streams(self._module)[1](found.chunks, found.gaps, failure, found.given_up)
        headers = [(name.encode(), value.encode()) for name, value in found.headers.items()]
        return self._module.Response(found.status, headers=headers, stream=stream, request=self._request)

    def _exception(self, recorded: Mapping[str, Any]) -> BaseException:
        """Rebuild the transport's exception, or a read error if that is not possible."""
        package, _, name = str(recorded.get("class", "")).rpartition(".")
        kind = self._module.ReadError
        if package.partition(".")[0] in ("httpx", "httpx2"):
            found = getattr(self._module, name, None)
            kind = found if isinstance(found, type) and issubclass(found, self._module.TransportError) else kind
        elif (again := rebuild_exception(recorded)) is not None and not isinstance(again, CallFailed):
            return again
        error: Exception = kind(str(recorded.get("message", "")), request=self._request)
        return error


def _attempts(response: Any) -> dict[str, int]:
    """The call metadata for retries, if there were any."""
    attempts = response.extensions.get(ATTEMPTS, 1)
    return {"attempts": attempts} if attempts > 1 else {}


class _HttpLog(StreamLog):
    """Records the bytes of a provider's stream."""

    def __init__(self, boundary: Boundary, call: _wire.ModelCall, response: Any, attempts: Mapping[str, int]) -> None:
        response_meta = _wire.response_meta(response.status_code, response.headers, stream=True)
        super().__init__(boundary, {**STREAM, **response_meta, **attempts})
        self._provider = call.provider

    def encode(self, chunk: bytes) -> Any:
        return _wire.chunk_text(chunk)

    def summary(self) -> tuple[str, Any, dict[str, Any]]:
        response = assemble_response(sse_events(self.chunks), self._provider)
        outcome, meta = outcome_of(response, self._provider)
        return outcome, response, meta

    def complete(self) -> bool:
        """Whether the answer was complete; some readers stop before the end of the stream."""
        summary = assemble_stream(self.chunks, self._provider)
        return bool(summary["complete"] or summary["stopReason"] or _DONE.search(b"".join(self.chunks)))

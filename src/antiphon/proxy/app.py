"""The proxy's ASGI application: authenticates a request, finds its run and upstream, and forwards it.

| path                          | meaning                                                                |
|-------------------------------|------------------------------------------------------------------------|
| ``/run/NAME/UPSTREAM/…``      | a request to an upstream, in the run NAME                              |
| ``/UPSTREAM/…``               | the same, in the run named by ``Antiphon-Run``, or one run per client  |
| ``/run/NAME``                 | ``GET``: report on its requests; ``DELETE``: end it, with a report     |
| ``/healthz``                  | liveness                                                               |
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import httpx

from antiphon._asgi import Disconnected, TooLarge, read_body
from antiphon.adapters import _mcp, _retries, _wire
from antiphon.adapters.httpx import async_transport
from antiphon.contract.spec import BreakerPolicy, DidNotHappen
from antiphon.decide.breaker import Refusal
from antiphon.errors import AntiphonError, InvalidInput, NotFound, ReplayMiss, StoreError
from antiphon.host.api_keys import KeyRing
from antiphon.host.http import CLOSING
from antiphon.host.http.endpoint import host_name, is_cross_site, is_loopback
from antiphon.ops.app import Antiphon
from antiphon.proxy.clients import Refused, Reply, Request, abort_on_disconnect, wait_for_disconnect
from antiphon.proxy.costs import Unrecorded, unrecorded
from antiphon.proxy.mcp import McpGuard, is_known
from antiphon.proxy.options import Breakers, ToolRules, deadline_of
from antiphon.proxy.runs import AnswerOrigin, Mode, OpenRun, Runs, answer_origin, run_name
from antiphon.proxy.sessions import SessionTransport
from antiphon.proxy.transport import UpstreamTransport
from antiphon.proxy.upstreams import Upstream, end_to_end_headers, headers_by_name, with_readable_encodings

log: logging.Logger = logging.getLogger("antiphon.proxy")

_MODEL = "antiphon_model"
"""Request extension: the model that the request calls."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
ANYONE = "local"
"""The client id of requests without a key; only local clients may send them."""


class Settings(NamedTuple):
    """The operator's settings."""

    upstreams: Mapping[str, Upstream]
    mode: Mode = "record"
    require_key: bool = False
    retries: int = 0
    timeout_s: float = 600.0
    """Read timeout for upstreams, in seconds."""
    connect_s: float = 10.0
    realtime: bool = False
    """Whether replayed streams keep their recorded timing."""
    max_body_bytes: int = 32 * 1024 * 1024
    max_connections: int = 1000
    grace_s: float = 10.0
    """Seconds that calls whose client has disconnected get to finish on shutdown."""
    lost_answer_s: float = 120.0
    """Seconds for which a lost answer of an MCP tool is kept for an equal call."""
    tools: Sequence[str] = ()
    """Rules for single MCP tools: ``server/tool:options``."""
    identity: tuple[str, ...] = ()
    """Fields of ``_meta`` that identify a call, besides our own."""
    breaker: BreakerPolicy | None = None
    """When the circuit breaker of a failing upstream opens."""


class Proxy:
    """The application."""

    def __init__(self, app: Antiphon, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self.runs: Runs = Runs(app, settings.mode, realtime=settings.realtime)
        self._transports: dict[str, _Transports] = {}
        self._keys: KeyRing | None = None
        policies = app.config.approvals.policies
        servers = [name for name, upstream in settings.upstreams.items() if upstream.mcp]
        window_s = settings.lost_answer_s
        rules = ToolRules(settings.tools, window_s=window_s, policies=policies, servers=servers)
        self._mcp = McpGuard(app, rules=rules, identity=settings.identity, timeout_s=settings.timeout_s)
        self._breakers = Breakers(settings.breaker, app.clock.monotonic)
        self._listening: set[asyncio.Timeout] = set()
        """Streams of MCP servers that have no end of their own."""
        self._closes = False
        self.ended: list[dict[str, Any]] = []
        """Reports of all runs, once the proxy has stopped."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _live(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        scope["state"][CLOSING] = self._end_listening
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    def _end_listening(self) -> None:
        """End the streams that would outlast the grace of other requests."""
        self._closes = True
        for limit in self._listening:
            limit.reschedule(asyncio.get_running_loop().time())

    async def stop(self) -> None:
        """End all runs and close all connections."""
        await self._mcp.stop(self._settings.grace_s)
        self.ended += await self.runs.end_all()
        for transports in self._transports.values():
            with contextlib.suppress(Exception):
                await transports.plain.aclose()

    # -- a request -----------------------------------------------------------------------------------------------

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        answer = Reply(send)
        try:
            await self._route(scope, receive, answer)
        except Disconnected:
            return
        except Refused as refused:
            await answer.refuse(refused)
        except ReplayMiss as miss:
            if isinstance(answer.run, OpenRun):
                answer.run.note_miss(miss)
            more = {"divergence": miss.data["divergence"]} if "divergence" in miss.data else {}
            await answer.refuse(Refused(422, "replay_miss", str(miss), **more))
        except StoreError as error:
            log.warning("the store failed: %s", error)
            text = "The store cannot be reached, so the request was not forwarded: it could not have been recorded."
            await answer.refuse(Refused(503, "store_unavailable", text))
        except AntiphonError as error:
            status = 404 if isinstance(error, NotFound) else 400 if isinstance(error, InvalidInput) else 422
            await answer.refuse(Refused(status, error.code, str(error)))
        except Exception:
            log.exception("a request failed")
            await answer.refuse(Refused(500, "internal_error", "Internal error; see the proxy's log."))

    async def _route(self, scope: Any, receive: Any, answer: Reply) -> None:
        if scope["method"] not in METHODS:  # CONNECT would open a tunnel; the meaning of others is unknown
            raise Refused(405, "method_not_allowed", f"The proxy forwards only {', '.join(METHODS)}.")
        named = headers_by_name(scope["headers"])
        if scope["raw_path"] == b"/healthz":  # probes have no key
            await answer.json(200, {"status": "ok", "mode": self._settings.mode})
            return
        client = await self._client(named)
        name, rest = _run_of(scope["raw_path"], named)
        if not rest.strip(b"/"):
            await self._about_run(scope["method"], client, name, answer)
        else:
            request = await self._read(scope, receive, named, client, name, rest)
            await self._serve(request, receive, answer)

    async def _serve(self, request: Request, receive: Any, answer: Reply) -> None:
        """Guard, record, replay or just forward a request for an upstream."""
        mode, transports = self._settings.mode, self._transports_to(request.upstream)
        if request.upstream.mcp:
            answer.mcp = request.body
            request = request._replace(said=self._mcp.check(request))
        asked = request.said
        known = request.upstream.mcp or request.asks is not None
        run: OpenRun | None = None
        if known and mode != "live":
            answer.run = run = await self.runs.open(request.client, request.run)
            run.requests += 1
            answer.headers.append((b"antiphon-run", run.run.id.encode()))
        recording = None if run is None else run.recording
        if asked is not None and asked.method == "tools/call" and is_known(recording, request.upstream.name, asked):

            async def send(after: str | None) -> Any:
                outgoing = self.outgoing(request if after is None else _resuming(request, after))
                exchange = functools.partial(transports.raw.handle_async_request, outgoing)
                return await self._breakers.guard((request.upstream.name, ""), exchange, _not_sent)

            await self._mcp.call(request, asked, send, None if run is None else run.scope, receive, answer)
        elif run is not None and request.upstream.mcp and mode != "replay" and (asked is None or asked.id is None):
            answer.headers.append((b"antiphon-recorded", b"no"))
            await self._forward(request, transports.plain, receive, answer)
        elif run is not None:
            if not request.upstream.mcp:
                self.runs.check_cost(run, _model_of(request))
            run.scope.adopt()
            await self._forward(request, transports.recording, receive, answer)
        elif known:
            await self._forward(request, transports.retrying, receive, answer)
        else:
            if mode == "replay":
                what = f"{request.method} {request.path.decode('latin-1')}"
                raise ReplayMiss(f"{what} is not a model call, so no recording answers it.")
            charged: Unrecorded | None = None
            if mode != "live":
                charged = self._with_costs(request)
                answer.headers.append((b"antiphon-recorded", b"no"))
            if charged is None:
                await self._forward(request, transports.plain, receive, answer)
            else:
                await self._charge(request, charged, transports.plain, receive, answer)

    def _with_costs(self, request: Request) -> Unrecorded | None:
        """The request if it counts towards the cost of its run; one that cannot be read is refused."""
        if self._app.config.loop.max_cost is None:
            return None
        with contextlib.suppress(ValueError, RecursionError):
            if _endpoint(request.method, request.path) is None:
                return unrecorded(request.method, unquote(request.path.decode("latin-1")), request.body)
        text = "The cost of runs is limited, and this request cannot be read: send a JSON object, not compressed."
        raise Refused(415, "unreadable_message", text)

    async def _charge(self, request: Request, charged: Unrecorded, transport: Any, receive: Any, answer: Reply) -> None:
        """Forward a request that is not recorded, and charge its run for it."""
        answer.run = run = await self.runs.open(request.client, request.run)
        run.requests += 1
        answer.headers.append((b"antiphon-run", run.run.id.encode()))
        self.runs.check_cost(run, charged.model)
        answer.captured_body = []
        headers = [header for header in request.headers if header[0].lower() != b"accept-encoding"]
        request = request._replace(headers=[*headers, (b"accept-encoding", b"identity")])
        try:
            await self._forward(request, transport, receive, answer)
        finally:
            if run.estimates is not None and answer.status is not None and answer.status < 400:
                run.estimates.charge(charged, _decoded(answer.captured_body, answer.encoding))

    async def _client(self, named: Mapping[str, str]) -> str:
        """Authenticate the client: by key, or as any local client if keys are not required."""
        token = named.get("antiphon-key")
        if token:
            if self._keys is None:
                journal = self._app.store.open_async()
                self._keys = KeyRing(journal, self._app.clock, default_tenant=self._app.tenant)
            principal = await self._keys.find(token)
            if principal is not None and principal.may("run") and principal.tenant == self._app.tenant:
                return principal.key_id
            raise Refused(401, "unauthenticated", "The key in Antiphon-Key is not valid here.")
        if self._settings.require_key:
            text = "A key is needed in the header Antiphon-Key. Create one with: antiphon apikeys create"
            raise Refused(401, "unauthenticated", text)
        if not is_loopback(host_name(named)):
            raise Refused(403, "wrong_host", "Without a key, the proxy can be reached only as localhost or 127.0.0.1.")
        if is_cross_site(named):
            raise Refused(403, "cross_site", "Without a key, the proxy does not answer pages from other sites.")
        return ANYONE

    async def _about_run(self, method: str, client: str, name: str | None, answer: Reply) -> None:
        if name is None:
            raise NotFound("No upstream is named.", hint=self._known())
        if method == "DELETE":
            await answer.json(200, await self.runs.end(client, name))
            return
        found = self.runs.get(client, name)
        if found is None or method != "GET":
            raise NotFound(f"No run {name!r} is open here.", hint="It opens with its first request.")
        await answer.json(200, found.report())

    def _known(self) -> str:
        return "Upstreams: " + ", ".join(f"/{name}" for name in self._settings.upstreams)

    async def _read(
        self, scope: Any, receive: Any, named: Mapping[str, str], client: str, run: str | None, rest: bytes
    ) -> Request:
        part, slash, path = rest.lstrip(b"/").partition(b"/")
        name = part.decode("latin-1")
        upstream = self._settings.upstreams.get(name)
        if upstream is None:
            raise NotFound(f"There is no upstream {name!r}.", hint=self._known())
        most = self._settings.max_body_bytes
        try:
            body = await read_body(receive, most, named.get("content-length", ""))
        except TooLarge:
            raise Refused(413, "payload_too_large", f"The body is larger than {most} bytes.") from None
        return Request(
            scope["method"],
            upstream,
            slash + path,
            scope["query_string"],
            scope["headers"],
            named,
            body,
            client,
            run,
            scope["state"]["connection"],
            None if upstream.mcp else _model_call(scope["method"], slash + path, body),
            deadline_of(named.get("antiphon-deadline"), self._settings.timeout_s),
        )

    # -- to the upstream -----------------------------------------------------------------------------------------

    def _transports_to(self, upstream: Upstream) -> _Transports:
        """The transports for an upstream; those of a replay send nothing."""
        found = self._transports.get(upstream.name)
        if found is None:
            settings = self._settings
            raw: Any = _ReplayOnlyTransport()
            if settings.mode != "replay":
                timeouts = {"connect_s": settings.connect_s, "read_s": settings.timeout_s}
                raw = UpstreamTransport(upstream.url, settings.max_connections, **timeouts)
            if upstream.mcp and settings.mode == "record-new":
                raw = SessionTransport(raw)
            plain = _with_breaker(raw, upstream.name, self._breakers)
            again = _retries.retrying(plain, 0 if upstream.mcp else settings.retries, module="httpx", asynchronous=True)
            recording = async_transport(again, module="httpx")
            found = self._transports[upstream.name] = _Transports(raw, plain, again, recording)
        return found

    def outgoing(self, request: Request) -> Any:
        """The request as sent to the upstream."""
        url = _parsed(request.upstream, request.path, request.query)
        known: dict[str, Any] = {_mcp.KNOWN: request.upstream.mcp}
        if self._settings.breaker is not None and not request.upstream.mcp:
            known[_MODEL] = _model_of(request)
        headers, body = with_readable_encodings(end_to_end_headers(request.headers)), httpx.ByteStream(request.body)
        outgoing = httpx.Request(request.method, url, headers=headers, stream=body, extensions=known)
        outgoing.read()  # in memory, so it can be recorded and resent
        return outgoing

    async def _forward(self, request: Request, transport: Any, receive: Any, answer: Reply) -> None:
        """Forward the request within the client's deadline, if there is one; listening ends when the proxy stops."""
        listens = _listens(request)
        if request.wait_s is None and not listens:
            await self._stream(request, transport, receive, answer)
            return
        limit = asyncio.timeout(0 if listens and self._closes else request.wait_s)
        try:
            async with limit:
                if listens:
                    self._listening.add(limit)
                await self._stream(request, transport, receive, answer)
        except TimeoutError:
            if listens and self._closes:
                if not answer.begun:
                    raise Refused(503, "stopping", "The proxy is stopping.", retry=True) from None
                await answer.finish()
                return
            if answer.begun:
                log.warning("a client's deadline passed during the response of %s", request.upstream.name)
                return
            text = f"The upstream {request.upstream.name} did not answer within {request.wait_s:g} s."
            raise Refused(504, "deadline_exceeded", text) from None
        finally:
            self._listening.discard(limit)

    async def _stream(self, request: Request, transport: Any, receive: Any, answer: Reply) -> None:
        """Send the request and stream the response back; stop both if the client disconnects."""
        outgoing = self.outgoing(request)
        origin = AnswerOrigin()
        answer_origin.set(origin)
        disconnect = asyncio.get_running_loop().create_task(wait_for_disconnect(receive))
        try:
            async with abort_on_disconnect(disconnect):
                response = await transport.handle_async_request(outgoing)
        except httpx.RequestError as error:
            disconnect.cancel()
            status = 504 if isinstance(error, httpx.TimeoutException) else 502
            text = f"The upstream {request.upstream.name} gave no answer that can be read: {type(error).__name__}."
            raise Refused(status, "upstream_unreachable", text, retry=True) from None
        except BaseException:
            disconnect.cancel()
            raise
        answer.headers.append((b"antiphon-source", origin.source.encode()))
        begins = request.said is not None and request.said.method == "initialize"
        if origin.source == "recording" and begins and self._settings.mode == "record-new":
            session = self._transports_to(request.upstream).raw.begin(outgoing)
            answer.headers.append((b"mcp-session-id", session.encode()))
        try:
            async with abort_on_disconnect(disconnect):
                headers = end_to_end_headers(response.headers.raw)
                if response.is_stream_consumed:  # already read and decoded by the retries
                    headers = [(name, value) for name, value in headers if name != b"content-encoding"]
                    await answer.start(response.status_code, headers, {})
                    await answer.chunk(response.content)
                else:
                    await answer.start(response.status_code, headers, response.headers)
                    async for chunk in response.stream:
                        await answer.chunk(chunk)
            await answer.finish()
        except Disconnected:
            await response.aclose()  # records that the reader left
            raise
        except httpx.RequestError as error:
            log.warning("the stream of %s broke off: %s", request.upstream.name, type(error).__name__)
        except ReplayMiss:
            log.warning("the recorded reader of %s left this stream here; this one reads on", request.upstream.name)
            raise
        finally:
            disconnect.cancel()
            with contextlib.suppress(Exception):
                await response.aclose()


class _Transports(NamedTuple):
    """The transports for one upstream, from the innermost outwards."""

    raw: Any
    plain: Any
    """With the circuit breaker."""
    retrying: Any
    recording: Any


def _with_breaker(inner: Any, upstream: str, breakers: Breakers) -> Any:
    """The transport with a circuit breaker per upstream and model."""

    def refused(refusal: Refusal) -> Exception:
        text = f"The upstream {upstream} failed too often; requests are held back for a while."
        return Refused(503, "circuit_open", text, after_ms=refusal.retry_after_ms)

    async def guarded(_: Any, request: Any, send: Any) -> Any:
        place = (upstream, request.extensions.get(_MODEL, ""))
        return await breakers.guard(place, functools.partial(send, request), refused)

    return _retries.transports("httpx")[1](inner, guarded)


@functools.lru_cache(maxsize=1024)
def _parsed(upstream: Upstream, path: bytes, query: bytes) -> Any:
    try:
        return httpx.URL(upstream.at(path, query))
    except httpx.InvalidURL:
        raise InvalidInput("The path cannot be forwarded.", path="path") from None


def _resuming(request: Request, after: str) -> Request:
    """The request that resumes a broken stream after an event."""
    left_out = (b"accept", b"content-type", b"last-event-id", b"mcp-method", b"mcp-name")
    headers = [(name, value) for name, value in request.headers if name.lower() not in left_out]
    headers += [(b"accept", b"text/event-stream"), (b"last-event-id", after.encode("latin-1"))]
    return request._replace(method="GET", headers=headers, body=b"")


def _decoded(chunks: list[bytes], encoding: str) -> list[bytes]:
    """A body without its content encoding, which a server may use although nobody asked for it."""
    if not encoding:
        return chunks
    try:
        return [httpx.Response(200, headers={"content-encoding": encoding}, content=b"".join(chunks)).content]
    except httpx.DecodingError:
        return chunks


def _not_sent(refusal: Refusal) -> Exception:
    return DidNotHappen("The server failed too often; calls are held back for a while, and this one was not sent.")


def _model_call(method: str, path: bytes, body: bytes) -> _wire.ModelCall | None:
    """The model call in a request; ``None`` if there is none or it cannot be read."""
    endpoint = _endpoint(method, path)
    return None if endpoint is None else _wire.read_call(endpoint, body)


@functools.lru_cache(maxsize=1024)
def _endpoint(method: str, path: bytes) -> _wire.Endpoint | None:
    return _wire.endpoint_of(method, unquote(path.decode("latin-1")))


def _listens(request: Request) -> bool:
    """Whether the answer is a stream of an MCP server that stays open."""
    if request.upstream.mcp and request.method == "GET":
        return "text/event-stream" in request.named.get("accept", "")
    return request.said is not None and request.said.method == _mcp.LISTEN


def _model_of(request: Request) -> str:
    """The model that the request calls; empty if it calls none."""
    model = None if request.asks is None else request.asks.body.get("model")
    return model if isinstance(model, str) else ""


class _ReplayOnlyTransport(httpx.AsyncBaseTransport):
    """The transport of a replay: raises :class:`ReplayMiss` instead of sending."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise ReplayMiss(f"{request.method} {request.url.path} cannot be answered from a recording.")


def _run_of(path: bytes, named: Mapping[str, str]) -> tuple[str | None, bytes]:
    """The run that a request names and the rest of its path."""
    name = named.get("antiphon-run")
    if path.startswith(b"/run/"):
        part, slash, rest = path[5:].partition(b"/")
        in_path, path = part.decode("latin-1"), slash + rest
        if name is not None and name != in_path:
            raise InvalidInput("Path and Antiphon-Run name different runs.", path="Antiphon-Run")
        name = in_path
    return None if name is None else run_name(name), path

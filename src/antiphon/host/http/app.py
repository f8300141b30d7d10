"""The ASGI application: routes to the use cases of the host, middleware, and the client for outgoing requests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import re
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon._gateway.ids import uuid7
from antiphon.config.wiring import ConfigLike, share_metrics
from antiphon.console import pages
from antiphon.errors import AntiphonError, missing_extra
from antiphon.host.discovery import self_test
from antiphon.host.events import one_line
from antiphon.host.host import Host
from antiphon.host.http import CLOSING, handlers
from antiphon.host.http.endpoint import error, failure, requires_role
from antiphon.host.http.handlers import SEAMS
from antiphon.host.logs import about
from antiphon.ops.app import Antiphon

log: logging.Logger = logging.getLogger("antiphon.host")
access: logging.Logger = logging.getLogger("antiphon.access")

SWITCH_S = 0.0001
"""The interpreter's switch interval, in place of Python's 5 ms, while a thread encodes a large document: a run of three
events takes the GIL some fifty times, in the event loop and after each store statement, and waits each time."""
_LARGEST = 16 * 1024 * 1024
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
"""Default headers; a response may set its own, as pages do."""
_QUIET = frozenset({"/healthz", "/livez", "/readyz", "/metrics"})
"""Polled every few seconds, so logged at debug level."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"})


def routes(*, test_seams: bool) -> list[Route]:
    """Every path of the API."""
    found = [
        Route("/.well-known/openwop", handlers.well_known),
        Route("/v1/openapi.json", handlers.api_document),
        Route("/livez", handlers.alive),
        Route("/healthz", handlers.alive),
        Route("/readyz", handlers.ready),
        Route("/metrics", handlers.metrics),
        Route("/v1/runs", requires_role("run", handlers.start_run), methods=["POST"]),
        Route("/v1/runs", requires_role("read", handlers.list_runs), methods=["GET"]),
        Route("/v1/runs/{run_id}:fork", requires_role("run", handlers.fork_run), methods=["POST"]),
        Route("/v1/runs/{run_id}", requires_role("read", handlers.get_run)),
        Route("/v1/runs/{run_id}/cancel", requires_role("run", handlers.cancel_run), methods=["POST"]),
        Route("/v1/runs/{run_id}/events", requires_role("read", handlers.events)),
        Route("/v1/runs/{run_id}/events/poll", requires_role("read", handlers.poll)),
        Route("/v1/me", requires_role("read", handlers.whoami)),
        Route("/v1/recordings", requires_role("read", handlers.list_recordings)),
        Route("/v1/recordings/{run_id}", requires_role("read", handlers.get_recording)),
        Route("/v1/recordings/{run_id}/events", requires_role("read", handlers.recorded_events)),
        Route("/v1/recordings/{run_id}/events/{seq}", requires_role("read", handlers.recorded_event)),
        Route("/v1/recordings/{run_id}/compare/{other_id}", requires_role("read", handlers.compare_recordings)),
        Route("/v1/matrices", requires_role("read", handlers.list_matrices)),
        Route("/v1/matrices/{matrix}", requires_role("read", handlers.get_matrix)),
        Route("/v1/golden", requires_role("read", handlers.list_golden)),
        Route("/v1/golden/{test}", requires_role("read", handlers.get_golden), methods=["GET"]),
        Route("/v1/golden/{test}", requires_role("admin", handlers.accept_golden), methods=["POST"]),
        Route("/v1/totals", requires_role("read", handlers.run_totals)),
        Route("/v1/inbox", requires_role("read", handlers.inbox)),
        Route("/v1/effects", requires_role("read", handlers.effects)),
        Route("/v1/health", requires_role("read", handlers.health)),
        Route("/v1/what-if", requires_role("read", handlers.what_if_limits)),
        Route("/v1/tools", requires_role("read", handlers.tools), methods=["GET"]),
        Route("/v1/calls", requires_role("run", handlers.call), methods=["POST"]),
        Route("/v1/webhooks", requires_role("run", handlers.create_webhook), methods=["POST"]),
        Route("/v1/webhooks", requires_role("read", handlers.list_webhooks), methods=["GET"]),
        Route("/v1/webhooks/{webhook_id}", requires_role("run", handlers.delete_webhook), methods=["DELETE"]),
        Route("/v1/approvals", requires_role("admin", handlers.list_approvals), methods=["GET"]),
        Route("/v1/approvals", requires_role("admin", handlers.decide_approvals), methods=["POST"]),
        Route("/v1/approvals/{approval}", requires_role("admin", handlers.get_approval), methods=["GET"]),
        Route("/v1/approvals/{approval}", requires_role("admin", handlers.decide_approval), methods=["POST"]),
        Route("/v1/approvals/{approval}/links", requires_role("admin", handlers.link_approval), methods=["POST"]),
        Route("/approve", handlers.open_link, methods=["GET", "POST"]),
        Route("/debug/tool-reliability", requires_role("admin", handlers.tool_reliability), methods=["POST"]),
        Route("/v1/admin/tool-reliability", requires_role("admin", handlers.tool_reliability), methods=["POST"]),
        Route("/v1/admin/audit", requires_role("admin", handlers.audit)),
        Route("/v1/admin/claims", requires_role("admin", handlers.list_claims)),
    ]
    if test_seams:
        found += [
            Route(f"{SEAMS}/llm-cache-key", requires_role("run", handlers.cache_key), methods=["POST"]),
            Route(f"{SEAMS}/mock-ai/program", requires_role("run", handlers.program), methods=["POST"]),
            Route(f"{SEAMS}/mock-ai/reset", requires_role("run", handlers.reset), methods=["POST"]),
            Route(
                f"{SEAMS}/idempotency/concurrent-claim",
                requires_role("run", handlers.concurrent_claim),
                methods=["POST"],
            ),
        ]
    return found


class Counters:
    """Request counts by method and status, which keeps the number of labels small."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.open = 0

    def count(self, method: str, status: int, seconds: float) -> None:
        known = method if method in _METHODS else "other"
        self._requests[(known, status)] += 1
        self._seconds[known] += seconds

    def render(self) -> str:
        """The counters in Prometheus text format."""
        name = f"{self._prefix}_http_requests_total"
        lines = [f"# HELP {name} Answered requests.", f"# TYPE {name} counter"]
        for (method, status), number in sorted(self._requests.items()):
            lines.append(f'{name}{{method="{method}",status="{status}"}} {number}')
        name = f"{self._prefix}_http_request_seconds_total"
        lines += [f"# HELP {name} Time spent answering.", f"# TYPE {name} counter"]
        lines += [f'{name}{{method="{method}"}} {seconds:.6f}' for method, seconds in sorted(self._seconds.items())]
        name = f"{self._prefix}_http_requests_open"
        lines += [f"# HELP {name} Requests being answered.", f"# TYPE {name} gauge", f"{name} {self.open}"]
        return "\n".join(lines) + "\n"


class RequestMiddleware:
    """Middleware for every request: id, security headers, counters, access log, and the limit per tenant."""

    def __init__(self, app: ASGIApp, counters: Counters) -> None:
        self.app = app
        self.counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        counters, begun = self.counters, time.perf_counter()
        status, size = 500, 0
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else uuid7()
        known: dict[str, Any] = scope.setdefault("state", {})
        token = about.set({"requestId": request_id})

        async def sent(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                said = {name for name, _ in headers}
                message["headers"] = [*headers, *(one for one in _HEADERS if one[0] not in said)]
            else:
                size += len(message.get("body", b""))
            await send(message)

        counters.open += 1
        try:
            await self.app(scope, receive, sent)
        finally:
            counters.open -= 1
            seconds = time.perf_counter() - begun
            counters.count(scope["method"], status, seconds)
            release = known.get("release")
            if release is not None:
                release()
            about.reset(token)
            self._log_access(scope, status, size, seconds, {"requestId": request_id, **known.get("about", {})})

    def _log_access(self, scope: Scope, status: int, size: int, seconds: float, who: Mapping[str, str]) -> None:
        path = scope["path"][:256]
        level = logging.WARNING if status >= 500 else logging.DEBUG if path in _QUIET else logging.INFO
        if access.isEnabledFor(level):
            said = {"method": scope["method"][:16], "path": path, "status": status, "bytes": size}
            fields = {"event": "http_request", **said, "durationMs": round(seconds * 1000, 3), **who}
            access.log(level, "%s %s %d", said["method"], path, status, extra=fields)


@functools.cache
def _trusted() -> Any:
    """The SSL context for outgoing connections, cached because loading the certificates is slow."""
    import httpx

    return httpx.create_ssl_context(trust_env=False)


async def post(
    url: str, body: bytes, headers: Mapping[str, str], seconds: float, *, address: str | None = None
) -> tuple[int, bytes]:
    """POST to a model provider or a subscriber without retries, redirects or proxies; return status and body.

    With *address*, connect to it whatever the name in *url* resolves to now; certificate and ``Host`` still use the
    name. A transport failure is an ``OSError``.
    """
    try:
        import httpx
    except ImportError:
        raise missing_extra("httpx", "httpx", "A model provider or webhook of the host") from None
    chunks: list[bytes] = []
    size = 0
    sent, extensions = dict(headers), {}
    trusted = _trusted() if _trusted.cache_info().currsize else await asyncio.to_thread(_trusted)
    try:
        if address is not None:
            named = httpx.URL(url)
            sent["Host"] = named.netloc.decode("ascii")
            extensions = {"sni_hostname": named.raw_host.decode("ascii")}
            url = str(named.copy_with(host=address))
        async with (
            httpx.AsyncClient(timeout=seconds, follow_redirects=False, trust_env=False, verify=trusted) as client,
            client.stream("POST", url, content=body, headers=sent, extensions=extensions) as answer,
        ):
            async for chunk in answer.aiter_bytes():
                size += len(chunk)
                if size > _LARGEST:
                    raise ConnectionError("the answer is too large")
                chunks.append(chunk)
            return answer.status_code, b"".join(chunks)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConnectionError(type(error).__name__) from error


def create(
    config: ConfigLike = None,
    *,
    app: Antiphon | None = None,
    bind: str | None = None,
    executes: bool = True,
    operator: str = "environment",
) -> Starlette:
    """The application; the host behind it starts and stops with the server.

    If it does not *execute*, it only shows and settles: it starts no runs, makes no calls and resumes nothing.
    *operator* names whoever holds the key from the environment, for the audit log.
    """
    base = app or Antiphon(config)
    settings = base.config.host

    @contextlib.asynccontextmanager
    async def life(application: Starlette) -> AsyncIterator[dict[str, Any]]:
        failed = await self_test(settings.llm_key_recipe)
        if failed:
            log.error("the self-test failed; replay support is not advertised: %s", "; ".join(failed))
        host = Host(base, post, operator)
        host.self_test_result = {"passed": not failed, "failed": failed}
        application.state.host = host
        await host.start(resume=executes)
        try:
            yield {CLOSING: host.begin_shutdown}
        finally:
            await host.stop()

    async def refused(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, HTTPException)
        text = {404: "No such endpoint.", 405: "This method is not allowed here."}
        code = {404: "not_found", 405: "method_not_allowed"}
        status = problem.status_code
        headers = dict(problem.headers or {})
        if status == 405:  # a path may have several routes, each with its own methods
            here = [route for route in table if route.matches(request.scope)[0] is not Match.NONE]
            headers["Allow"] = ", ".join(sorted({method for route in here for method in route.methods or ()}))
        return error(status, code.get(status, "http_error"), text.get(status, problem.detail), None, headers)

    async def failed_badly(request: Request, problem: Exception) -> Response:
        return failure(problem)

    table = routes(test_seams=settings.test_seams and executes)
    if not executes:
        table = [route for route in table if getattr(route.endpoint, "role", "") != "run"]
    application = Starlette(
        routes=[*table, *pages.routes()],
        lifespan=life,
        exception_handlers={HTTPException: refused, Exception: failed_badly},
    )
    application.state.bind = bind or settings.host
    application.state.counters = counters = Counters(base.config.telemetry.prefix)
    application.router.redirect_slashes = False
    application.add_middleware(RequestMiddleware, counters=counters)
    return application


def freeze_gc() -> None:
    """Exclude modules, routes and workflows from garbage collection: they live as long as the process.

    Each full collection scanned all of them and blocked the loop for 40 ms; large documents trigger such collections.
    """
    gc.collect()
    gc.freeze()


class Service:
    """The application run by ``antiphon serve``; a host that cannot start logs the reason in one line."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        said: set[str] = set()

        async def sent(message: Message) -> None:
            said.add(message["type"])
            if message["type"] == "lifespan.startup.complete":
                freeze_gc()
            await send({"type": message["type"]})  # without the traceback

        try:
            self._app = create()
            await self._app(scope, receive, sent)
        except Exception as problem:
            known = isinstance(problem, AntiphonError)
            reason = str(problem) if known else one_line(problem)
            log.critical(
                "the host could not %s: %s", "stop cleanly" if "lifespan.startup.complete" in said else "start", reason
            )
            log.debug("the cause", exc_info=problem)
            if not said:
                await send({"type": "lifespan.startup.failed"})


def service() -> Service:
    """The factory that the server imports in each of its workers."""
    sys.setswitchinterval(SWITCH_S)
    share_metrics()  # gateways of agents and tools share the host's metrics
    return Service()

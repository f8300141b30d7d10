"""The ASGI application: routes to the use cases of the host, middleware, and the client for outgoing requests."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.config.wiring import ConfigLike
from antiphon.errors import missing_extra
from antiphon.host.discovery import self_test
from antiphon.host.host import Host
from antiphon.host.http import handlers
from antiphon.host.http.endpoint import error, failure, guarded
from antiphon.host.http.handlers import SEAMS
from antiphon.ops.app import Antiphon

log = logging.getLogger("antiphon.host")

_LARGEST = 16 * 1024 * 1024
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_NO_STORE = (b"cache-control", b"no-store")
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"})


def routes(*, test_seams: bool) -> list[Route]:
    """Every path the host answers."""
    found = [
        Route("/.well-known/openwop", handlers.well_known),
        Route("/v1/openapi.json", handlers.api_document),
        Route("/healthz", handlers.alive),
        Route("/readyz", handlers.ready),
        Route("/metrics", handlers.metrics),
        Route("/v1/runs", guarded("run", handlers.start_run), methods=["POST"]),
        Route("/v1/runs", guarded("read", handlers.list_runs), methods=["GET"]),
        Route("/v1/runs/{run_id}:fork", guarded("run", handlers.fork_run), methods=["POST"]),
        Route("/v1/runs/{run_id}", guarded("read", handlers.get_run)),
        Route("/v1/runs/{run_id}/cancel", guarded("run", handlers.cancel_run), methods=["POST"]),
        Route("/v1/runs/{run_id}/events", guarded("read", handlers.events)),
        Route("/v1/runs/{run_id}/events/poll", guarded("read", handlers.poll)),
        Route("/v1/webhooks", guarded("run", handlers.create_webhook), methods=["POST"]),
        Route("/v1/webhooks", guarded("read", handlers.list_webhooks), methods=["GET"]),
        Route("/v1/webhooks/{webhook_id}", guarded("run", handlers.delete_webhook), methods=["DELETE"]),
        Route("/debug/tool-reliability", guarded("admin", handlers.tool_reliability), methods=["POST"]),
        Route("/v1/admin/tool-reliability", guarded("admin", handlers.tool_reliability), methods=["POST"]),
        Route("/v1/admin/audit", guarded("admin", handlers.audit)),
        Route("/v1/admin/claims", guarded("admin", handlers.claims)),
    ]
    if test_seams:
        found += [
            Route(f"{SEAMS}/llm-cache-key", guarded("run", handlers.cache_key), methods=["POST"]),
            Route(f"{SEAMS}/mock-ai/program", guarded("run", handlers.program), methods=["POST"]),
            Route(f"{SEAMS}/mock-ai/reset", guarded("run", handlers.reset), methods=["POST"]),
            Route(f"{SEAMS}/idempotency/concurrent-claim", guarded("run", handlers.concurrent_claim), methods=["POST"]),
        ]
    return found


class Counters:
    """Requests by method and status: few labels, whatever the paths are."""

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
        """Prometheus' text format."""
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


class SecurityHeaders:
    """Adds the headers, and counts requests."""

    def __init__(self, app: ASGIApp, counters: Counters) -> None:
        self.app = app
        self.counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        counters, begun = self.counters, time.perf_counter()
        status = 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), *_HEADERS]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append(_NO_STORE)
                message["headers"] = headers
            await send(message)

        counters.open += 1
        try:
            await self.app(scope, receive, sent)
        finally:
            counters.open -= 1
            counters.count(scope["method"], status, time.perf_counter() - begun)


async def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> tuple[int, bytes]:
    """POST to a model provider or a subscriber, without retries, redirects or proxies: status and body of the answer.

    A transport failure is an ``OSError``.
    """
    try:
        import httpx
    except ImportError:
        raise missing_extra("httpx", "httpx", "A model provider or webhook of the host") from None
    chunks: list[bytes] = []
    size = 0
    try:
        async with (
            httpx.AsyncClient(timeout=seconds, follow_redirects=False, trust_env=False) as client,
            client.stream("POST", url, content=body, headers=dict(headers)) as answer,
        ):
            async for chunk in answer.aiter_bytes():
                size += len(chunk)
                if size > _LARGEST:
                    raise ConnectionError("the answer is too large")
                chunks.append(chunk)
            return answer.status_code, b"".join(chunks)
    except httpx.HTTPError as error:
        raise ConnectionError(type(error).__name__) from error


def create(config: ConfigLike = None, *, app: Antiphon | None = None, bind: str | None = None) -> Starlette:
    """The application; the host behind it starts and stops with the server."""
    base = app or Antiphon(config)
    settings = base.config.host

    @contextlib.asynccontextmanager
    async def life(application: Starlette) -> AsyncIterator[None]:
        failed = await self_test(settings.llm_key_recipe)
        if failed:
            log.error("the self-test failed; replay support is not advertised: %s", "; ".join(failed))
        host = Host(base, post)
        host.claims = {"passed": not failed, "failed": failed}
        application.state.host = host
        await host.start()
        try:
            yield
        finally:
            await host.stop()

    async def refused(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, HTTPException)
        text = {404: "No such endpoint.", 405: "This method is not allowed here."}
        code = {404: "not_found", 405: "method_not_allowed"}
        status = problem.status_code
        headers = dict(problem.headers or {})
        return error(status, code.get(status, "http_error"), text.get(status, problem.detail), None, headers)

    async def failed_badly(request: Request, problem: Exception) -> Response:
        return failure(problem)

    application = Starlette(
        routes=list(routes(test_seams=settings.test_seams)),
        lifespan=life,
        exception_handlers={HTTPException: refused, Exception: failed_badly},
    )
    application.state.bind = bind or settings.host
    application.state.counters = counters = Counters(base.config.telemetry.prefix)
    application.add_middleware(SecurityHeaders, counters=counters)
    return application

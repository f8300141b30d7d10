"""The ASGI application: routes over the use cases of the host, and its one way out."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon.config.wiring import ConfigLike
from antiphon.errors import missing_extra
from antiphon.host.discovery import self_test
from antiphon.host.host import Host
from antiphon.host.http import admin, discovery, events, runs, seams
from antiphon.host.http.endpoint import error, failure, guarded
from antiphon.host.http.middleware import Careful, Counters
from antiphon.ops.app import Antiphon

log = logging.getLogger("antiphon.host")

SEAMS = "/v1/host/sample/test"
_LARGEST = 16 * 1024 * 1024


def routes(*, test_seams: bool) -> list[Route]:
    """Every path the host answers."""
    found = [
        Route("/.well-known/openwop", discovery.well_known),
        Route("/v1/openapi.json", discovery.api_document),
        Route("/healthz", discovery.alive),
        Route("/readyz", discovery.ready),
        Route("/metrics", discovery.metrics),
        Route("/v1/runs", guarded("run", runs.start), methods=["POST"]),
        Route("/v1/runs", guarded("read", runs.listing), methods=["GET"]),
        Route("/v1/runs/{run_id}:fork", guarded("run", runs.fork), methods=["POST"]),
        Route("/v1/runs/{run_id}", guarded("read", runs.snapshot)),
        Route("/v1/runs/{run_id}/cancel", guarded("run", runs.cancel), methods=["POST"]),
        Route("/v1/runs/{run_id}/events", guarded("read", events.events)),
        Route("/v1/runs/{run_id}/events/poll", guarded("read", events.poll)),
        Route("/v1/webhooks", guarded("run", events.create_webhook), methods=["POST"]),
        Route("/v1/webhooks", guarded("read", events.list_webhooks), methods=["GET"]),
        Route("/v1/webhooks/{webhook_id}", guarded("run", events.delete_webhook), methods=["DELETE"]),
        Route("/debug/tool-reliability", guarded("admin", admin.tool_reliability), methods=["POST"]),
        Route("/v1/admin/tool-reliability", guarded("admin", admin.tool_reliability), methods=["POST"]),
        Route("/v1/admin/audit", guarded("admin", admin.audit)),
        Route("/v1/admin/claims", guarded("admin", admin.claims)),
    ]
    if test_seams:
        found += [
            Route(f"{SEAMS}/llm-cache-key", guarded("run", seams.cache_key), methods=["POST"]),
            Route(f"{SEAMS}/mock-ai/program", guarded("run", seams.program), methods=["POST"]),
            Route(f"{SEAMS}/mock-ai/reset", guarded("run", seams.reset), methods=["POST"]),
            Route(f"{SEAMS}/idempotency/concurrent-claim", guarded("run", seams.concurrent_claim), methods=["POST"]),
        ]
    return found


async def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> tuple[int, bytes]:
    """POST to a model provider or a subscriber, without retries, redirects or proxies: status and body of the answer.

    A transport failure is an ``OSError``.
    """
    try:
        import httpx
    except ImportError:
        raise missing_extra("httpx", "httpx", "A model provider or webhook of the host") from None
    pieces: list[bytes] = []
    size = 0
    try:
        async with (
            httpx.AsyncClient(timeout=seconds, follow_redirects=False, trust_env=False) as client,
            client.stream("POST", url, content=body, headers=dict(headers)) as answer,
        ):
            async for piece in answer.aiter_bytes():
                size += len(piece)
                if size > _LARGEST:
                    raise ConnectionError("the answer is too large")
                pieces.append(piece)
            return answer.status_code, b"".join(pieces)
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
            log.error("the self-test failed, so the host claims less: %s", "; ".join(failed))
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
        text = {404: "There is nothing at this path.", 405: "This method is not allowed here."}
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
    application.add_middleware(Careful, counters=counters)
    return application

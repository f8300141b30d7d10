"""The ASGI application: routes over the use cases of :mod:`antiphon.host.host`, nothing else."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon.config.wiring import ConfigLike
from antiphon.host.discovery import self_test
from antiphon.host.host import Host
from antiphon.host.http import admin, discovery, events, runs, seams, webhooks
from antiphon.host.http.endpoint import error, failure, guarded
from antiphon.host.http.middleware import Careful, Counters
from antiphon.host.http.outbound import post
from antiphon.ops.app import Antiphon

log = logging.getLogger("antiphon.host")

SEAMS = "/v1/host/sample/test"


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
        Route("/v1/webhooks", guarded("run", webhooks.create), methods=["POST"]),
        Route("/v1/webhooks", guarded("read", webhooks.listing), methods=["GET"]),
        Route("/v1/webhooks/{webhook_id}", guarded("run", webhooks.delete), methods=["DELETE"]),
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

"""Runs: start, look, fork, cancel."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from antiphon.host import runs
from antiphon.host.api_keys import Principal
from antiphon.host.host import Host
from antiphon.host.http.endpoint import Json, body_of, idempotent, run_id_of
from antiphon.host.http.query import choice, integer
from antiphon.host.http_idempotency import Reply

STATUSES = ("running", "completed", "failed", "cancelled")


async def start(request: Request, host: Host, principal: Principal) -> Response:
    """``POST /v1/runs``."""
    body = await body_of(request, host)

    async def action(run_id: str, again: bool) -> Reply:
        return Reply(201, await runs.start_run(host, principal, body, run_id, again))

    return await idempotent(request, host, principal, "POST /v1/runs", body, action)


async def listing(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/runs``."""
    found = await runs.runs(
        host,
        principal,
        limit=integer(request, "limit", 50, 1, 200),
        before=request.query_params.get("before", "")[:128],
        status=choice(request, "status", STATUSES),
    )
    return Json(found)


async def snapshot(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/runs/{runId}``."""
    return Json(await runs.snapshot(host, principal, run_id_of(request)))


async def fork(request: Request, host: Host, principal: Principal) -> Response:
    """``POST /v1/runs/{runId}:fork``."""
    source = run_id_of(request)
    body = await body_of(request, host)

    async def action(run_id: str, again: bool) -> Reply:
        return Reply(201, await runs.fork_run(host, principal, source, body, run_id, again))

    return await idempotent(request, host, principal, f"POST /v1/runs/{source}:fork", body, action)


async def cancel(request: Request, host: Host, principal: Principal) -> Response:
    """``POST /v1/runs/{runId}/cancel``."""
    run_id = run_id_of(request)
    body = await body_of(request, host)

    async def action(_: str, again: bool) -> Reply:
        return Reply(200, await runs.cancel_run(host, principal, run_id))

    return await idempotent(request, host, principal, f"POST /v1/runs/{run_id}/cancel", body, action)

"""Events of runs: a stream (SSE), a JSON document, long polling, or webhooks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from antiphon.contract.events import RunManifest
from antiphon.host import runs
from antiphon.host.api_keys import Principal
from antiphon.host.events import document, follow
from antiphon.host.host import Host
from antiphon.host.http.endpoint import Json, body_of, idempotent, run_id_of
from antiphon.host.http.query import integer, whole
from antiphon.host.http_idempotency import Reply
from antiphon.host.run import HostRun
from antiphon.host.webhooks import Webhooks

KEEPALIVE_S = 15.0
_LOOK_S = 0.25
_LAST = 2**31


async def events(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/runs/{runId}/events``: a stream, unless the client prefers JSON."""
    run_id = run_id_of(request)
    seen = request.headers.get("last-event-id")
    last = -1 if seen is None or seen == "" else whole(seen, "Last-Event-ID", -1, _LAST)
    if _prefers_json(request.headers.get("accept", "")):
        return Json(await runs.events_after(host, principal, run_id, last))
    manifest = await host.visible(principal, run_id)
    if manifest is None:
        raise runs.not_found(run_id)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if request.method == "HEAD":
        return Response(media_type="text/event-stream", headers=headers)
    return StreamingResponse(_stream(host, manifest, last), media_type="text/event-stream", headers=headers)


def _prefers_json(accept: str) -> bool:
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return "application/json" in kinds and "text/event-stream" not in kinds


async def _stream(host: Host, manifest: RunManifest, last: int) -> AsyncIterator[bytes]:
    run = manifest.id
    reader = HostRun.reader(host, run, manifest.tenant)
    following = follow(
        reader, host.signals, run, is_local=lambda: run in host.running, look_s=_LOOK_S, idle_s=KEEPALIVE_S
    )
    yield b":connected\n\n"
    async for found in following:
        if not found:
            yield b":keepalive\n\n"
        for event in found:
            if event.sequence > last:
                data = orjson.dumps(document(run, event))
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (event.sequence, event.told.type.encode(), data)
        if host.closing:
            return


async def poll(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/runs/{runId}/events/poll``."""
    last = integer(request, "lastSequence", -1, -1, _LAST)
    timeout = integer(request, "timeout", 30, 1, 60)
    return Json(await runs.poll(host, principal, run_id_of(request), last, timeout))


# -- webhooks ----------------------------------------------------------------------------------------------------------


def _hooks(host: Host) -> Webhooks:
    if host.webhooks is None:
        raise runs.Rejected(
            501, "not_supported", "Webhooks are switched off. Switch them on with [host] webhooks = true."
        )
    return host.webhooks


async def create_webhook(request: Request, host: Host, principal: Principal) -> Response:
    """``POST /v1/webhooks``."""
    hooks, body = _hooks(host), await body_of(request, host)

    async def action(_: str, again: bool) -> Reply:
        return Reply(201, await hooks.create(principal.tenant, body), unkept=("secret",))

    return await idempotent(request, host, principal, "POST /v1/webhooks", body, action)


async def list_webhooks(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/webhooks``."""
    return Json({"webhooks": await _hooks(host).list(principal.tenant)})


async def delete_webhook(request: Request, host: Host, principal: Principal) -> Response:
    """``DELETE /v1/webhooks/{webhookId}``."""
    hook = request.path_params["webhook_id"]
    hooks = _hooks(host)

    async def action(_: str, again: bool) -> Reply:
        await hooks.delete(principal.tenant, hook)
        return Reply(204, None)

    return await idempotent(request, host, principal, f"DELETE /v1/webhooks/{hook}", {}, action)

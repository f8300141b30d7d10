"""Webhooks: subscribe, list, unsubscribe."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from antiphon.host.api_keys import Principal
from antiphon.host.host import Host
from antiphon.host.http.endpoint import Json, body_of, idempotent
from antiphon.host.http_idempotency import Reply
from antiphon.host.runs import Rejected
from antiphon.host.webhooks import Webhooks


def _hooks(host: Host) -> Webhooks:
    if host.webhooks is None:
        raise Rejected(501, "not_supported", "Webhooks are switched off. Switch them on with [host] webhooks = true.")
    return host.webhooks


async def create(request: Request, host: Host, principal: Principal) -> Response:
    """``POST /v1/webhooks``."""
    hooks, body = _hooks(host), await body_of(request, host)

    async def action(_: str, again: bool) -> Reply:
        return Reply(201, await hooks.create(principal.tenant, body), unkept=("secret",))

    return await idempotent(request, host, principal, "POST /v1/webhooks", body, action)


async def listing(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/webhooks``."""
    return Json({"webhooks": await _hooks(host).list(principal.tenant)})


async def delete(request: Request, host: Host, principal: Principal) -> Response:
    """``DELETE /v1/webhooks/{webhookId}``."""
    hook = request.path_params["webhook_id"]
    hooks = _hooks(host)

    async def action(_: str, again: bool) -> Reply:
        await hooks.delete(principal.tenant, hook)
        return Reply(204, None)

    return await idempotent(request, host, principal, f"DELETE /v1/webhooks/{hook}", {}, action)

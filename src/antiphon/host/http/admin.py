"""The admin endpoint: look, force, reset, flush, clear, resolve; each answer shows the state before and after (R13)."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import InvalidInput
from antiphon.host.api_keys import Principal
from antiphon.host.host import Host
from antiphon.host.http.endpoint import Json, body_of, idempotent
from antiphon.host.http.query import integer
from antiphon.host.http_idempotency import Reply
from antiphon.ops.admin import Admin, as_breaker_key

ACTIONS = ("status", "force_open", "reset", "flush", "clear", "resolve")
_TEXTS = ("tool", "context", "session", "prefix", "key", "reason", "verdict")


async def tool_reliability(request: Request, host: Host, principal: Principal) -> Response:
    """``POST /debug/tool-reliability`` and ``POST /v1/admin/tool-reliability``."""
    body = await body_of(request, host)
    action = body.get("action")
    if action not in ACTIONS:
        raise InvalidInput(f"'action' is one of {', '.join(ACTIONS)}.", path="$.action")
    for name in _TEXTS:
        if not isinstance(body.get(name, ""), str):
            raise InvalidInput(f"'{name}' is a string.", path=f"$.{name}")

    async def act(_: str, again: bool) -> Reply:
        admin = host.admin(principal)
        before = await admin.status()
        result = await _act(admin, str(action), body)
        await host.refresh_breakers(principal.tenant)
        after = before if action == "status" else await admin.status()
        return Reply(200, {"action": action, "result": result, "before": before, "after": after})

    return await idempotent(request, host, principal, f"POST admin {action}", body, act)


async def _act(admin: Admin, action: str, body: dict[str, Any]) -> Any:
    text = {name: str(body.get(name, "")) for name in _TEXTS}
    reason = text["reason"]
    if action == "force_open":
        for_ms = body.get("forMs")
        if for_ms is not None and (isinstance(for_ms, bool) or not isinstance(for_ms, int) or for_ms >= 2**53):
            raise InvalidInput("'forMs' is a number of milliseconds.", path="$.forMs")
        return await admin.force_open(as_breaker_key(text["tool"], text["context"]), reason, for_ms)
    if action == "reset":
        return await admin.reset(as_breaker_key(text["tool"], text["context"]), reason)
    if action == "flush":
        return await admin.flush(tool=text["tool"], session=text["session"], prefix=text["prefix"], reason=reason)
    if action == "clear":
        return await admin.clear(text["key"], reason)
    if action == "resolve":
        verdict: Any = text["verdict"]
        return await admin.resolve(text["key"], verdict, value=body.get("value"), reason=reason)
    return None


async def audit(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/admin/audit``: what operators of this tenant did."""
    return Json({"acts": await host.admin(principal).audit(limit=integer(request, "limit", 100, 1, 1000))})


async def claims(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/admin/claims``: claim records, never their results."""
    query = request.query_params
    found = await host.admin(principal).claims(
        tool=query.get("tool", "")[:256],
        session=query.get("session", "")[:256],
        state=query.get("state", "")[:16],
        prefix=query.get("prefix", "")[:64],
        limit=integer(request, "limit", 100, 1, 1000),
    )
    return Json({"claims": found})

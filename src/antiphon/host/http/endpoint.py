"""Requests and responses: bodies and queries with limits, flat errors, credentials, idempotency keys."""

from __future__ import annotations

import functools
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from antiphon._asgi import Disconnected, TooLarge, read_body
from antiphon._gateway.ids import uuid7
from antiphon.errors import AntiphonError, InvalidInput, NotFound, StoreError
from antiphon.host.api_keys import Principal, Role
from antiphon.host.fairness import FairCoroutine
from antiphon.host.host import Host, Rejected, not_found
from antiphon.host.http_idempotency import Action, KeyMismatch, Reply, StillRunning, once
from antiphon.host.logs import about
from antiphon.host.webhooks import TooManyWebhooks
from antiphon.host.wire import document_digest, from_json, to_json
from antiphon.ops.approvals import AlreadyDecided, SelfApproval

log: logging.Logger = logging.getLogger("antiphon.host")

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_RUN_ID = re.compile(r"[A-Za-z0-9._:@+~-]{1,200}")
"""Imported runs keep the ids given by other tools."""
_FORMS = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
"""Content types that a browser sends to other sites without a CORS preflight."""
_STATUSES: tuple[tuple[type[AntiphonError], int], ...] = (
    (AlreadyDecided, 409),
    (SelfApproval, 403),
    (NotFound, 404),
    (TooManyWebhooks, 429),
)
_NUMBER = re.compile(r"-?[0-9]{1,15}")


class Json(Response):
    """A JSON response."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


def error(status: int, code: str, message: str, details: Any = None, headers: dict[str, str] | None = None) -> Response:
    """The flat error envelope."""
    body: dict[str, Any] = {"error": code, "message": message}
    if details:
        body["details"] = details
    return Json(body, status, headers)


def failure(problem: Exception) -> Response:
    """The documented response to an exception; an unexpected one does not reveal its cause."""
    if isinstance(problem, Rejected):
        headers = {"Retry-After": "1"} if problem.status in (429, 503) else None
        return error(problem.status, problem.code, str(problem), problem.details, headers)
    if isinstance(problem, KeyMismatch):
        text = "This Idempotency-Key was used for another request. Use a new key for a new request."
        return error(409, "idempotency_key_mismatch", text)
    if isinstance(problem, StillRunning):
        text = "The first request under this Idempotency-Key is still being processed. Try again in a second."
        return error(409, "idempotency_in_flight", text, {"retryAfter": 1}, {"Retry-After": "1"})
    for kind, status in _STATUSES:
        if isinstance(problem, kind):
            return error(status, problem.code, str(problem))
    if isinstance(problem, InvalidInput):
        return error(400, problem.code, str(problem), {"path": problem.path} if problem.path else None)
    if isinstance(problem, StoreError):
        log.warning("the store failed: %s", problem)
        text = "The store failed. The change may or may not have been made: check before you try again."
        return error(503, "store_unavailable", text, None, {"Retry-After": "1"})
    if isinstance(problem, AntiphonError):
        return error(422, problem.code, str(problem))
    log.error("a request failed", exc_info=problem)
    return error(500, "internal_error", "Internal error; see the host's log.")


# -- credentials -----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def is_loopback(name: str) -> bool:
    """Whether an address or host name means this machine."""
    if name in ("localhost", ""):
        return name == "localhost"
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _token(request: Request) -> str | None:
    given = request.headers.get("authorization")
    if given is not None:
        scheme, _, token = given.partition(" ")
        return token.strip() if scheme.lower() == "bearer" else None
    return request.headers.get("x-api-key")


async def authenticate(host: Host, request: Request) -> Principal:
    """Authenticate a request; without keys, only loopback requests under a loopback name (against DNS rebinding)."""
    token = _token(request)
    if token:
        principal = await host.keys.find(token)
        if principal is not None:
            return principal
    elif not host.settings.auth and is_loopback(host_name(request.headers)):
        _refuse_cross_site(request)
        return Principal("anonymous", host.app.tenant, "admin")
    text = "A valid API key is needed: Authorization: Bearer <key>. Create one with: antiphon apikeys create"
    raise Rejected(401, "unauthenticated", text)


def _refuse_cross_site(request: Request) -> None:
    """Without keys, refuse requests from web pages open in a local browser."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if is_cross_site(request.headers) or (request.method not in ("GET", "HEAD") and kind in _FORMS):
        text = (
            "Without API keys, the host does not answer pages from other sites. Use a key, or a client on this machine."
        )
        raise Rejected(403, "cross_site", text)


def is_cross_site(headers: Mapping[str, str]) -> bool:
    """Whether the browser reports a cross-site request."""
    origin = headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc != headers.get("host")
    return foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def host_name(headers: Mapping[str, str]) -> str:
    """The host name that the client used for this machine."""
    name = headers.get("host", "")
    return name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() and not name.endswith("]") else name


# -- endpoints -------------------------------------------------------------------------------------------------------

Handler = Callable[[Request, Host, Principal], Coroutine[Any, Any, Response]]
Change = Callable[[Request, Host, Principal, dict[str, Any], str, bool], Awaitable[Reply]]
"""A handler that also gets the body, the id of the resource it creates, and whether it may already exist."""


def requires_role(role: Role, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that requires *role*; every failure becomes a flat error."""

    async def endpoint(request: Request) -> Response:
        host: Host = request.app.state.host
        try:
            principal = await authenticate(host, request)
            if not principal.may(role):
                raise Rejected(403, "forbidden", f"This needs a key with the role {role}; yours has {principal.role}.")
            request.state.release = host.admit(principal.tenant)
            add_log_fields(request, tenant=principal.tenant)
            return await FairCoroutine(handler(request, host, principal), host.loop_usage, principal.tenant)
        except Disconnected:
            return error(400, "client_disconnected", "The request is incomplete.")
        except Exception as problem:
            found = failure(problem)
            if found.status_code == 401:
                found.headers["WWW-Authenticate"] = "Bearer"
            return found

    endpoint.role = role  # type: ignore[attr-defined]  # what the table of routes says of itself
    return endpoint


def add_log_fields(request: Request, **fields: str) -> None:
    """Add *fields* to the log lines of the request from here on."""
    known = {**about.get(), **getattr(request.state, "about", {}), **fields}
    request.state.about = known
    about.set(known)


async def body_of(request: Request, host: Host) -> dict[str, Any]:
    """The JSON object in a request body; an empty body is an empty object."""
    limit = host.settings.max_body_bytes
    try:
        data = await read_body(request.receive, limit, request.headers.get("content-length", ""))
    except TooLarge:
        raise Rejected(413, "payload_too_large", f"The body is larger than {limit} bytes.") from None
    if not data:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Rejected(415, "unsupported_media_type", "Send JSON with Content-Type: application/json.")
    request.state.raw = data
    try:
        value = from_json(data)
    except ValueError as problem:
        raise Rejected(400, "invalid_json", f"The body cannot be read as JSON (RFC 8259, UTF-8): {problem}.") from None
    if not isinstance(value, dict):
        raise InvalidInput("The body must be a JSON object.", path="$")
    return value


def run_id_of(request: Request, name: str = "run_id") -> str:
    """The run id in a path; an invalid id is not looked up."""
    run_id: str = request.path_params[name]
    if not _RUN_ID.fullmatch(run_id):
        raise not_found(run_id)
    add_log_fields(request, runId=run_id)
    return run_id


def whole_number(text: str, name: str, low: int, high: int) -> int:
    """An integer between *low* and *high*."""
    if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise InvalidInput(f"'{name}' must be a whole number from {low} to {high}.", path=name)
    return int(text)


def integer(request: Request, name: str, default: int, low: int, high: int) -> int:
    """An integer from the query string."""
    text = request.query_params.get(name)
    return default if text is None else whole_number(text, name, low, high)


def choice(request: Request, name: str, allowed: Sequence[str]) -> str:
    """One of the *allowed* words from the query string, or an empty string."""
    text = request.query_params.get(name)
    if text is not None and text not in allowed:
        raise InvalidInput(f"'{name}' must be one of {', '.join(allowed)}.", path=name)
    return text or ""


def idempotency_key(request: Request) -> str | None:
    """The ``Idempotency-Key`` of a request, if it has one."""
    key = request.headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        text = "An Idempotency-Key must have 1 to 255 visible ASCII characters."
        raise Rejected(400, "idempotency_key_invalid", text)
    return key


def accepted(request: Request) -> list[str]:
    """The media types that a client accepts."""
    return [part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")]


async def idempotent(
    request: Request, host: Host, principal: Principal, endpoint: str, body: Any, action: Action
) -> Response:
    """Run *action* once per ``Idempotency-Key`` (Layer 1)."""
    key = idempotency_key(request)
    if key is None:
        reply = await action(uuid7(), False)
    else:
        reply = await once(
            host.journal,
            tenant=principal.tenant,
            workspace=host.app.workspace,
            endpoint=endpoint,
            key=key,
            digest=document_digest(body),
            action=action,
        )
    if reply.status == 204:
        return Response(status_code=204, headers=reply.headers)
    return Json(reply.body, reply.status, reply.headers)


def mutation(change: Change) -> Handler:
    """An endpoint that runs *change* once per ``Idempotency-Key``."""

    @functools.wraps(change)
    async def endpoint(request: Request, host: Host, principal: Principal) -> Response:
        body = {} if request.method == "DELETE" else await body_of(request, host)

        async def action(new: str, again: bool) -> Reply:
            return await change(request, host, principal, body, new, again)

        return await idempotent(request, host, principal, f"{request.method} {request.scope['path']}", body, action)

    return endpoint

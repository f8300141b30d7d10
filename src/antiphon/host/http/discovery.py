"""What needs no key: discovery, the OpenAPI document, health."""

from __future__ import annotations

import hashlib

import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from antiphon.errors import AntiphonError
from antiphon.host.discovery import discovery
from antiphon.host.host import Host
from antiphon.host.http.endpoint import Json, authenticate, error, failure, is_loopback
from antiphon.host.http.openapi import openapi

_MAX_AGE = "public, max-age=60"


def _cached(request: Request, document: object) -> Response:
    data = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": _MAX_AGE, "Capabilities-Etag": tag}
    wanted = [part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")]
    if tag in wanted or "*" in wanted:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type="application/json", headers=headers)


async def well_known(request: Request) -> Response:
    """``GET /.well-known/openwop``."""
    return _cached(request, discovery(request.app.state.host))


async def api_document(request: Request) -> Response:
    """``GET /v1/openapi.json``."""
    return _cached(request, openapi(seams=request.app.state.host.settings.test_seams))


async def alive(request: Request) -> Response:
    """``GET /healthz``: the process answers."""
    return Json({"status": "ok"})


async def ready(request: Request) -> Response:
    """``GET /readyz``: the store can be reached and new runs are taken."""
    host: Host = request.app.state.host
    if host.closing:
        return error(503, "shutting_down", "The host is shutting down.")
    try:
        await host.journal.ping()
    except AntiphonError:
        return error(503, "store_unavailable", "The store cannot be reached.")
    return Json({"status": "ready"})


async def metrics(request: Request) -> Response:
    """``GET /metrics``: open on a loopback address, with a key elsewhere."""
    host: Host = request.app.state.host
    try:
        if not is_loopback(str(request.app.state.bind)):
            await authenticate(host, request)
        text = request.app.state.counters.render() + host.metrics()
    except Exception as problem:
        return failure(problem)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

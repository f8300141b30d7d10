"""The OpenAPI document of the host, written by hand and tested against the routes."""

from __future__ import annotations

from typing import Any

from antiphon._version import __version__
from antiphon.host.http.schemas import SCHEMAS

_ERRORS = {
    400: "The request cannot be used; the message says which part.",
    401: "No valid API key.",
    403: "The key's role does not allow this.",
    404: "There is no such thing, or it belongs to another tenant.",
    408: "The body took too long to arrive.",
    409: "The Idempotency-Key belongs to another request, or its first request is still being processed.",
    410: "The source run is older than the replay window.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The request is well-formed and cannot be done.",
    501: "This host has the feature switched off.",
    503: "The host is shutting down or its store cannot be reached.",
}
_BODY = (400, 408, 413, 415)
_KEYED = (401, 403)
_RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "string"}}}
_REPLAYED = {
    "openwop-Idempotent-Replay": {
        "description": "`true` when this is the answer to an earlier request with the same key.",
        "schema": {"type": "string", "enum": ["true"]},
    }
}

Operation = dict[str, Any]


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(name: str, description: str, headers: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"description": description, "content": {"application/json": {"schema": _ref(name)}}}
    if headers:
        found["headers"] = headers
    return found


def _errors(*statuses: int) -> dict[str, Any]:
    return {
        str(status): _json("Error", _ERRORS[status], _RETRY if status in (409, 503) else None)
        for status in sorted({*statuses, 503})
    }


def _query(name: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": text}


_RUN_ID = {
    "name": "runId",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9._~-]+$"},
}
_IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    "description": "Makes the request safe to repeat: the first answer is given again for 24 hours.",
}


def _operation(
    name: str,
    summary: str,
    answers: dict[str, Any],
    *,
    body: str | None = None,
    body_required: bool = True,
    parameters: tuple[dict[str, Any], ...] = (),
    public: bool = False,
    tag: str = "runs",
) -> Operation:
    found: Operation = {"operationId": name, "summary": summary, "tags": [tag], "responses": answers}
    if parameters:
        found["parameters"] = list(parameters)
    if body is not None:
        content = {"application/json": {"schema": _ref(body)}}
        found["requestBody"] = {"required": body_required, "content": content}
    if public:
        found["security"] = []
    return found


def _cached(name: str) -> dict[str, Any]:
    headers = {header: {"schema": {"type": "string"}} for header in ("ETag", "Cache-Control")}
    return {"200": _json(name, "The document.", headers), "304": {"description": "Not changed since the given ETag."}}


_IF_NONE_MATCH = {"name": "If-None-Match", "in": "header", "required": False, "schema": {"type": "string"}}


def _public() -> dict[str, Any]:
    metrics = {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {
        "/.well-known/openwop": {
            "get": _operation(
                "discover",
                "What the host can do.",
                _cached("Discovery"),
                parameters=(_IF_NONE_MATCH,),
                public=True,
                tag="host",
            )
        },
        "/v1/openapi.json": {
            "get": _operation(
                "openapi", "This document.", _cached("Object"), parameters=(_IF_NONE_MATCH,), public=True, tag="host"
            )
        },
        "/healthz": {
            "get": _operation(
                "healthz", "The process answers.", {"200": _json("Status", "It does.")}, public=True, tag="host"
            )
        },
        "/readyz": {
            "get": _operation(
                "readyz",
                "The store can be reached.",
                {"200": _json("Status", "It can."), **_errors(503)},
                public=True,
                tag="host",
            )
        },
        "/metrics": {
            "get": _operation("metrics", "Metrics of this process.", {"200": metrics, **_errors(401)}, tag="host")
        },
    }


def _runs() -> dict[str, Any]:
    stream = {"text/event-stream": {"schema": {"type": "string"}}, "application/json": {"schema": _ref("Events")}}
    limit = _query("limit", {"type": "integer", "minimum": 1, "maximum": 200}, "How many.")
    before = _query("before", {"type": "string", "maxLength": 128}, "Older than this run.")
    status = _query("status", {"enum": ["running", "completed", "failed", "cancelled"]}, "Only these.")
    last = _query("lastSequence", {"type": "integer", "minimum": -1, "maximum": 2**31}, "Events after this one.")
    timeout = _query("timeout", {"type": "integer", "minimum": 1, "maximum": 60}, "Seconds to wait for news.")
    last_seen = {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"}}
    created = {"201": _json("Created", "The run is on disk and begins.", _REPLAYED)}
    forked = {"201": _json("Forked", "The fork is on disk and begins.", _REPLAYED)}
    mutating = (*_BODY, *_KEYED, 409)
    return {
        "/v1/runs": {
            "post": _operation(
                "startRun",
                "Start a workflow or an agent.",
                {**created, **_errors(*mutating, 404)},
                body="RunRequest",
                parameters=(_IDEMPOTENCY,),
            ),
            "get": _operation(
                "listRuns",
                "Runs of the tenant, newest first.",
                {"200": _json("Runs", "The runs."), **_errors(400, *_KEYED)},
                parameters=(limit, before, status),
            ),
        },
        "/v1/runs/{runId}": {
            "get": _operation(
                "getRun",
                "Where a run stands.",
                {"200": _json("RunSnapshot", "The snapshot."), **_errors(*_KEYED, 404)},
                parameters=(_RUN_ID,),
            )
        },
        "/v1/runs/{runId}:fork": {
            "post": _operation(
                "forkRun",
                "Replay a run, or branch off from it.",
                {**forked, **_errors(*mutating, 404, 410, 422)},
                body="ForkRequest",
                parameters=(_RUN_ID, _IDEMPOTENCY),
            )
        },
        "/v1/runs/{runId}/cancel": {
            "post": _operation(
                "cancelRun",
                "End a run.",
                {"200": _json("Cancelled", "The run is over, or will be soon.", _REPLAYED), **_errors(*mutating, 404)},
                body="Object",
                body_required=False,
                parameters=(_RUN_ID, _IDEMPOTENCY),
            )
        },
        "/v1/runs/{runId}/events": {
            "get": _operation(
                "streamEvents",
                "The events of a run as a stream (SSE), or as JSON for those who accept only that.",
                {"200": {"description": "The events.", "content": stream}, **_errors(400, *_KEYED, 404)},
                parameters=(_RUN_ID, last_seen),
            )
        },
        "/v1/runs/{runId}/events/poll": {
            "get": _operation(
                "pollEvents",
                "New events, as soon as there are some.",
                {"200": _json("Events", "The events."), **_errors(400, *_KEYED, 404)},
                parameters=(_RUN_ID, last, timeout),
            )
        },
    }


def _webhooks() -> dict[str, Any]:
    hook = {"name": "webhookId", "in": "path", "required": True, "schema": {"type": "string", "maxLength": 128}}
    mutating = (*_BODY, *_KEYED, 409, 501)
    return {
        "/v1/webhooks": {
            "post": _operation(
                "createWebhook",
                "Have events of live runs posted to an address.",
                {"201": _json("Webhook", "The subscription, with its secret."), **_errors(*mutating)},
                body="WebhookRequest",
                parameters=(_IDEMPOTENCY,),
                tag="webhooks",
            ),
            "get": _operation(
                "listWebhooks",
                "The tenant's subscriptions.",
                {"200": _json("Webhooks", "The subscriptions."), **_errors(*_KEYED, 501)},
                tag="webhooks",
            ),
        },
        "/v1/webhooks/{webhookId}": {
            "delete": _operation(
                "deleteWebhook",
                "End a subscription.",
                {"204": {"description": "Ended."}, **_errors(*mutating, 404)},
                parameters=(hook, _IDEMPOTENCY),
                tag="webhooks",
            )
        },
    }


def _admin() -> dict[str, Any]:
    def act(name: str) -> dict[str, Any]:
        return {
            "post": _operation(
                name,
                "Look at breakers and claims, or change them.",
                {
                    "200": _json("AdminAnswer", "The state before and after.", _REPLAYED),
                    **_errors(*_BODY, *_KEYED, 404, 409, 422),
                },
                body="AdminRequest",
                parameters=(_IDEMPOTENCY,),
                tag="admin",
            )
        }

    many = _query("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "How many.")
    words = tuple(_query(name, {"type": "string"}, "Only these.") for name in ("tool", "session", "state", "prefix"))
    return {
        "/debug/tool-reliability": act("debugToolReliability"),
        "/v1/admin/tool-reliability": act("toolReliability"),
        "/v1/admin/audit": {
            "get": _operation(
                "audit",
                "What operators did, newest first.",
                {"200": _json("Object", "The acts."), **_errors(400, *_KEYED)},
                parameters=(many,),
                tag="admin",
            )
        },
        "/v1/admin/claims": {
            "get": _operation(
                "claims",
                "Claim records, never their results.",
                {"200": _json("Object", "The records."), **_errors(400, *_KEYED)},
                parameters=(*words, many),
                tag="admin",
            )
        },
    }


def _seams() -> dict[str, Any]:
    def seam(name: str, summary: str, answer: str, body: str) -> dict[str, Any]:
        answers = {"200": _json(answer, "Done."), **_errors(*_BODY, *_KEYED)}
        return {"post": _operation(name, summary, answers, body=body, tag="test seams")}

    base = "/v1/host/sample/test"
    return {
        f"{base}/llm-cache-key": seam("llmCacheKey", "The key of a model request.", "CacheKey", "Object"),
        f"{base}/mock-ai/program": seam("programMock", "Program the mock provider.", "Object", "MockProgram"),
        f"{base}/mock-ai/reset": seam("resetMock", "Forget all programs.", "Object", "Object"),
        f"{base}/idempotency/concurrent-claim": seam(
            "concurrentClaim", "Many executors, one effect.", "Object", "Executors"
        ),
    }


def openapi(*, seams: bool) -> dict[str, Any]:
    """The document; test seams stand in it only where they are served."""
    paths = {**_public(), **_runs(), **_webhooks(), **_admin(), **(_seams() if seams else {})}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Antiphon host",
            "version": __version__,
            "description": "Runs that can be replayed, over HTTP. Every error is `{error, message, details?}`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": SCHEMAS,
        },
    }

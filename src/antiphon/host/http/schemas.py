"""JSON Schemas of what the host takes and gives."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string"}
_ID = {"type": "string", "minLength": 1, "maxLength": 128}
_OBJECT: dict[str, Any] = {"type": "object"}
_COUNT = {"type": "integer", "minimum": 0}
_TIME = {"type": "string", "format": "date-time"}
_STATUS = {
    "enum": [
        "pending",
        "running",
        "paused",
        "waiting-approval",
        "waiting-input",
        "waiting-external",
        "completed",
        "failed",
        "cancelling",
        "cancelled",
    ]
}


def _closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


def _open(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


_RUN_OPTIONS = {
    "inputs": _OBJECT,
    "configurable": _OBJECT,
    "metadata": _OBJECT,
    "tags": {"type": "array", "items": _TEXT},
}
_NEW = {"runId": _ID, "status": _STATUS, "eventsUrl": _TEXT, "statusUrl": _TEXT}

SCHEMAS: dict[str, Any] = {
    "Object": _OBJECT,
    "Error": _closed(
        ("error", "message"), error={**_TEXT, "minLength": 1}, message={**_TEXT, "minLength": 1}, details=_OBJECT
    ),
    "Status": _open(("status",), status=_TEXT),
    "Discovery": _open(
        ("protocolVersion", "supportedEnvelopes", "schemaVersions", "limits"),
        protocolVersion=_TEXT,
        supportedEnvelopes={"type": "array", "items": _TEXT},
        schemaVersions={"type": "object", "additionalProperties": _COUNT},
        limits={"type": "object", "additionalProperties": _COUNT},
        fixtures={"type": "array", "items": {**_TEXT, "minLength": 1}, "uniqueItems": True},
    ),
    "RunRequest": _open(("workflowId",), workflowId={**_TEXT, "minLength": 1}, **_RUN_OPTIONS),
    "ForkRequest": _open(
        ("mode",),
        mode={"enum": ["replay", "branch"]},
        fromSeq={"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
        runOptionsOverlay=_closed((), **_RUN_OPTIONS),
    ),
    "Created": _closed(("runId", "status", "eventsUrl", "statusUrl"), **_NEW),
    "Forked": _closed(
        ("runId", "sourceRunId", "fromSeq", "mode", "status", "eventsUrl"),
        **_NEW,
        sourceRunId=_ID,
        fromSeq=_COUNT,
        mode={"enum": ["replay", "branch"]},
    ),
    "Cancelled": _closed(("runId", "status"), runId=_ID, status=_STATUS),
    "RunSnapshot": _open(
        ("runId", "workflowId", "status"),
        runId=_ID,
        workflowId={**_TEXT, "minLength": 1},
        status=_STATUS,
        variables=_OBJECT,
        channels=_OBJECT,
        outputs=_OBJECT,
        createdAt=_TIME,
        finishedAt=_TIME,
        sourceRunId=_ID,
        mode={"enum": ["replay", "branch"]},
        fromSeq=_COUNT,
        activityIdentityRecipe=_TEXT,
        semanticRequestRecipe=_TEXT,
        error=_closed(("code", "message"), code=_TEXT, message=_TEXT, details=_OBJECT),
    ),
    "Runs": _closed(
        ("runs",),
        runs={
            "type": "array",
            "items": _closed(
                ("runId", "workflowId", "status", "createdAt"),
                runId=_ID,
                workflowId=_TEXT,
                status=_TEXT,
                createdAt=_TIME,
            ),
        },
    ),
    "RunEvent": _closed(
        ("eventId", "runId", "type", "payload", "timestamp", "sequence"),
        eventId=_ID,
        runId=_ID,
        nodeId=_ID,
        type=_TEXT,
        payload=_OBJECT,
        timestamp=_TIME,
        sequence=_COUNT,
    ),
    "Events": _closed(
        ("events", "isComplete"),
        events={"type": "array", "items": {"$ref": "#/components/schemas/RunEvent"}},
        isComplete={"type": "boolean"},
    ),
    "WebhookRequest": _open(
        ("url",),
        url={**_TEXT, "maxLength": 2048},
        events={"type": "array", "items": _TEXT},
    ),
    "Webhook": _closed(
        ("webhookId", "url", "events"),
        webhookId=_ID,
        url=_TEXT,
        events={"type": "array", "items": _TEXT},
        secret=_TEXT,
    ),
    "Webhooks": _closed(("webhooks",), webhooks={"type": "array", "items": _OBJECT}),
    "AdminRequest": _open(
        ("action",),
        action={"enum": ["status", "force_open", "reset", "flush", "clear", "resolve"]},
        tool=_TEXT,
        context=_TEXT,
        session=_TEXT,
        prefix=_TEXT,
        key=_TEXT,
        reason=_TEXT,
        verdict={"enum": ["happened", "did-not-happen"]},
        value={},
        forMs={"type": "integer", "minimum": 1},
    ),
    "AdminAnswer": _closed(
        ("action", "result", "before", "after"),
        action=_TEXT,
        result={"type": ["object", "null"]},
        before=_OBJECT,
        after=_OBJECT,
    ),
    "CacheKey": _closed(("cacheKey",), cacheKey={**_TEXT, "pattern": "^[0-9a-f]{64}$"}),
    "MockProgram": _open(
        ("nodeId", "program"),
        nodeId={**_TEXT, "minLength": 1},
        program={
            "type": "array",
            "items": _open(
                (),
                content={"type": ["string", "null"]},
                stopReason={"enum": ["end_turn", "max_tokens", "length", "stop_sequence", "safety"]},
                refusalText={"type": ["string", "null"]},
                inputTokens={"type": "integer", "minimum": 0},
                outputTokens={"type": "integer", "minimum": 0},
                errorCode={"type": ["string", "null"]},
            ),
        },
    ),
    "Executors": _open((), executors={"type": "integer", "minimum": 1, "maximum": 64}),
}

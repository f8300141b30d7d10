"""The handlers of all paths: documents and health, runs, events, webhooks, admin, and the test seams."""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Annotated, Any, Literal

import msgspec
import orjson
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from antiphon._drive import drive
from antiphon._gateway.ids import uuid7
from antiphon._version import __version__
from antiphon.canonical import parse_json
from antiphon.contract._base import decode
from antiphon.contract.envelope import ToolCallEnvelope
from antiphon.contract.events import RunManifest
from antiphon.contract.result import ToolResultEnvelope
from antiphon.errors import AntiphonError, InvalidInput
from antiphon.host import calls, recordings, runs
from antiphon.host.api_keys import Principal
from antiphon.host.discovery import discovery
from antiphon.host.events import document
from antiphon.host.host import Host, Rejected, tool_request
from antiphon.host.http.endpoint import (
    Json,
    accepted,
    authenticate,
    body_of,
    choice,
    error,
    failure,
    host_name,
    idempotency_key,
    idempotent,
    integer,
    is_loopback,
    mutation,
    run_id_of,
    whole_number,
)
from antiphon.host.http_idempotency import Reply
from antiphon.host.webhooks import Webhooks
from antiphon.host.wire import to_json
from antiphon.host.workflow.nodes import SIDE_EFFECT_TOOL, logical_invocation_id
from antiphon.llm.key import llm_cache_key
from antiphon.ops import matrix_result, verdicts
from antiphon.ops.admin import Admin, Resolution, as_breaker_key
from antiphon.ops.approval_page import ApprovalPage
from antiphon.ops.approvals import Approvals
from antiphon.ops.gateways import declared
from antiphon.ops.runs import summary
from antiphon.ops.what_if import TriedLimits

SEAMS = "/v1/host/sample/test"
KEEPALIVE_S = 15.0
LOOK_S = 0.5
"""How often an idle stream checks whether its key was revoked."""
_STATUSES = ("running", "completed", "failed", "cancelled")
_RECORDED = ("running", "completed", "failed", "cancelled", "interrupted")
_CLAIM_STATES = ("inflight", "done", "failed", "cancelled", "unknown")
_LAST = 2**31
_LONGEST_CURSOR = 160


# -- without a key ---------------------------------------------------------------------------------------------------


@functools.cache
def openapi(*, seams: bool) -> dict[str, Any]:
    """The OpenAPI document; it lists the test seams only if they are enabled."""
    found: dict[str, Any] = orjson.loads((files("antiphon.host.http") / "openapi.json").read_bytes())
    found["info"]["version"] = __version__
    _, parts = msgspec.json.schema_components(
        (ToolCallEnvelope, ToolResultEnvelope), ref_template="#/components/schemas/{name}"
    )
    found["components"]["schemas"] |= parts
    found["paths"] = {path: one for path, one in found["paths"].items() if seams or not path.startswith(SEAMS)}
    return found


def _cached(request: Request, content: object) -> Response:
    data = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "public, max-age=60", "Capabilities-Etag": tag}
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
    """``GET /livez`` (also ``/healthz``): the process answers, whatever the store does."""
    return Json({"status": "ok"})


async def ready(request: Request) -> Response:
    """``GET /readyz``: the store takes writes, its disk has free space, and new runs are accepted."""
    host: Host = request.app.state.host
    code, message = await host.not_ready()
    if code:
        return error(503, code, message, None, {"Retry-After": "1"})
    return Json({"status": "ready"})


async def metrics(request: Request) -> Response:
    """``GET /metrics``: open on a loopback address and under its name (against DNS rebinding), with a key elsewhere."""
    host: Host = request.app.state.host
    try:
        if not (is_loopback(str(request.app.state.bind)) and is_loopback(host_name(request.headers))):
            await authenticate(host, request)
        text = request.app.state.counters.render() + await host.metrics()
    except Exception as problem:
        return failure(problem)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


# -- runs ------------------------------------------------------------------------------------------------------------


@mutation
async def start_run(request: Request, host: Host, principal: Principal, body: Any, new: str, again: bool) -> Reply:
    """``POST /v1/runs``."""
    return Reply(201, await runs.start_run(host, principal, body, new, again))


async def list_runs(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/runs``."""
    found = await runs.runs(
        host,
        principal,
        limit=integer(request, "limit", 50, 1, 200),
        before=request.query_params.get("before", "")[:_LONGEST_CURSOR],
        status=choice(request, "status", _STATUSES),
    )
    return Json(found)


async def get_run(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/runs/{runId}``."""
    return Json(await runs.snapshot(host, principal, run_id_of(request)))


@mutation
async def fork_run(request: Request, host: Host, principal: Principal, body: Any, new: str, again: bool) -> Reply:
    """``POST /v1/runs/{runId}:fork``."""
    return Reply(201, await runs.fork_run(host, principal, run_id_of(request), body, new, again))


@mutation
async def cancel_run(request: Request, host: Host, principal: Principal, body: Any, new: str, again: bool) -> Reply:
    """``POST /v1/runs/{runId}/cancel``."""
    return Reply(200, await runs.cancel_run(host, principal, run_id_of(request)))


# -- events ----------------------------------------------------------------------------------------------------------


async def events(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/runs/{runId}/events``: a stream, unless the client prefers JSON."""
    run_id = run_id_of(request)
    seen = request.headers.get("last-event-id")
    last = whole_number(seen, "Last-Event-ID", -1, _LAST) if seen else -1
    kinds = accepted(request)
    as_json = "application/json" in kinds and "text/event-stream" not in kinds
    reveal = choice(request, "reveal", ("false", "true")) == "true"
    if reveal:
        if not principal.may("admin"):
            text = f"Originals are shown to keys with the role admin; yours has {principal.role}."
            raise Rejected(403, "forbidden", text)
        if not as_json:
            raise Rejected(400, "validation_error", "Originals come as JSON only: send Accept: application/json.")
    if as_json:
        return Json(await runs.events_after(host, principal, run_id, last, reveal=reveal))
    manifest = await host.visible(principal, run_id)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if request.method == "HEAD":
        return Response(media_type="text/event-stream", headers=headers)
    return StreamingResponse(_stream(host, principal, manifest, last), media_type="text/event-stream", headers=headers)


async def _stream(host: Host, principal: Principal, manifest: RunManifest, last: int) -> AsyncIterator[bytes]:
    yield b":connected\n\n"
    silent, pause = 0.0, min(LOOK_S, KEEPALIVE_S)
    try:
        async for found in host.follow(manifest, idle_s=pause):
            if not await host.keys.is_valid(principal):
                yield _sse_error("unauthenticated", "The API key of this stream was revoked.")
                return
            silent = 0.0 if found else silent + pause
            if silent >= KEEPALIVE_S:
                silent = 0.0
                yield b":keepalive\n\n"
            for event in found:
                if event.sequence > last:
                    data = to_json(document(manifest.id, event))
                    yield b"id: %d\nevent: %s\ndata: %s\n\n" % (event.sequence, event.body.type.encode(), data)
            if host.closing:
                return
    except AntiphonError as problem:
        yield _sse_error(problem.code, problem.message)


def _sse_error(code: str, message: str) -> bytes:
    return b"event: error\ndata: %s\n\n" % to_json({"error": code, "message": message})


async def poll(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/runs/{runId}/events/poll``."""
    last = integer(request, "lastSequence", -1, -1, _LAST)
    timeout = integer(request, "timeout", 30, 1, 60)
    return Json(await runs.poll(host, principal, run_id_of(request), last, timeout))


# -- recordings ------------------------------------------------------------------------------------------------------


async def whoami(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/me``: tenant and role of the key."""
    return Json({"tenant": principal.tenant, "role": principal.role, "key": principal.key_id, "version": __version__})


async def list_recordings(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/recordings``."""
    found = await recordings.recordings(
        host,
        principal,
        limit=integer(request, "limit", 50, 1, 200),
        before=request.query_params.get("before", "")[:_LONGEST_CURSOR],
        status=choice(request, "status", _RECORDED),
        text=request.query_params.get("text", "")[:200],
        tool=request.query_params.get("tool", "")[:200],
        content=request.query_params.get("content", "")[:200],
    )
    return Json(found)


async def get_recording(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/recordings/{runId}``."""
    return Json(summary(await recordings.visible(host, principal, run_id_of(request))))


async def recorded_events(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/recordings/{runId}/events``."""
    start, limit = integer(request, "start", 0, 0, _LAST), integer(request, "limit", 1_000, 1, 2_000)
    return Json(await recordings.lines(host, principal, run_id_of(request), start=start, limit=limit))


async def recorded_event(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/recordings/{runId}/events/{seq}``."""
    run_id = run_id_of(request)
    await recordings.visible(host, principal, run_id)
    return Json(
        await recordings.event(host, principal, run_id, whole_number(request.path_params["seq"], "seq", 0, _LAST))
    )


async def list_matrices(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/matrices``: those run from this machine, newest first."""
    app, limit = host.tenant(principal.tenant), integer(request, "limit", 20, 1, 100)
    return Json({"matrices": await host.in_thread(app.tenant, lambda: matrix_result.matrices(app, limit))})


async def get_matrix(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/matrices/{matrix}``."""
    app, wanted = host.tenant(principal.tenant), request.path_params["matrix"]
    return Json(await host.in_thread(app.tenant, lambda: matrix_result.one_matrix(app, wanted)))


async def list_golden(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/golden``: the last verdict of each golden test that ran on this machine, failed ones first."""
    return Json({"tests": await asyncio.to_thread(verdicts.verdicts, host.tenant(principal.tenant))})


async def get_golden(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/golden/{test}``: recording and replay side by side, and the runs that could be accepted."""
    app, wanted = host.tenant(principal.tenant), request.path_params["test"]
    return Json(await asyncio.to_thread(verdicts.verdict, app, wanted))


class Acceptance(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The body of a request to accept a run as the new recording."""

    run: Annotated[str, Meta(min_length=1, max_length=256)]
    digest: Annotated[str, Meta(max_length=64)] = ""
    reason: Annotated[str, Meta(max_length=500)] = ""
    dry_run: bool = False


@mutation
async def accept_golden(request: Request, host: Host, principal: Principal, body: Any, new: str, again: bool) -> Reply:
    """``POST /v1/golden/{test}``: replace the artifact of a golden test with a run."""
    asked = decode(body, Acceptance)
    options: dict[str, Any] = {name: getattr(asked, name) for name in ("run", "digest", "reason", "dry_run")}
    return Reply(200, await recordings.accept_golden(host, principal, request.path_params["test"], **options))


async def run_totals(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/totals``: tokens, cost and tools of some runs."""
    runs = [one for one in request.query_params.get("runs", "")[:16_384].split(",") if one][:200]
    return Json(await recordings.run_totals(host, principal, runs))


async def compare_recordings(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/recordings/{runId}/compare/{otherId}``."""
    every = choice(request, "all", ("true", "false")) == "true"
    other = run_id_of(request, "other_id")
    return Json(await recordings.comparison(host, principal, run_id_of(request), other, every=every))


async def inbox(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/inbox``: what waits for a person."""
    return Json(await recordings.inbox(host, principal, limit=integer(request, "limit", 1_000, 1, 1_000)))


async def effects(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/effects``: what was sent, by whom, how often it was suppressed, and who settled it."""
    found = await recordings.effects(
        host,
        principal,
        limit=integer(request, "limit", 50, 1, 200),
        before=request.query_params.get("before", "")[:_LONGEST_CURSOR],
        tool=request.query_params.get("tool", "")[:256],
        state=choice(request, "state", _CLAIM_STATES),
        count=choice(request, "count", ("true", "false")) == "true",
    )
    return Json(found)


async def health(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/health``: the health of tools, from their recorded attempts."""
    return Json(await recordings.tool_health(host, principal, tool=request.query_params.get("tool", "")[:256]))


async def what_if_limits(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/what-if``: the recorded attempts under tighter limits."""
    given = request.query_params
    limits = (("consecutive", 1_000), ("minCalls", 1_000), ("cooldownMs", 86_400_000), ("maxAttempts", 100))
    numbers = {name: whole_number(given[name], name, 1, most) for name, most in limits if given.get(name)}
    rate = whole_number(given["ratePercent"], "ratePercent", 1, 100) / 100 if given.get("ratePercent") else None
    wanted = TriedLimits(
        consecutive=numbers.get("consecutive"),
        rate=rate,
        min_calls=numbers.get("minCalls"),
        cooldown_ms=numbers.get("cooldownMs"),
        max_attempts=numbers.get("maxAttempts"),
    )
    return Json(await recordings.what_if_limits(host, principal, wanted))


# -- calls -----------------------------------------------------------------------------------------------------------


async def tools(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/tools``."""
    return Json(calls.tools(host, principal))


async def call(request: Request, host: Host, principal: Principal) -> Response:
    """``POST /v1/calls``: the result of the call, or its chunks as they arrive and then the result."""
    envelope = calls.with_key(await body_of(request, host), idempotency_key(request))
    made = calls.Call(host, principal, envelope)
    if "text/event-stream" not in accepted(request):
        return Json(await made.result())
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_call_stream(host, principal, made), media_type="text/event-stream", headers=headers)


async def _call_stream(host: Host, principal: Principal, made: calls.Call) -> AsyncIterator[bytes]:
    silent, pause = 0.0, min(LOOK_S, KEEPALIVE_S)
    try:
        async for kind, data in made.events(pause):
            if not await host.keys.is_valid(principal):
                yield _sse_error("unauthenticated", "The API key of this stream was revoked. The call goes on.")
                return
            silent = silent + pause if kind == "pause" else 0.0
            if silent >= KEEPALIVE_S:
                silent = 0.0
                yield b":keepalive\n\n"
            if kind != "pause":
                yield b"event: %s\ndata: %s\n\n" % (kind.encode(), to_json(data))
    except Rejected as problem:
        yield _sse_error(problem.code, problem.message)


# -- webhooks --------------------------------------------------------------------------------------------------------


def _webhooks(host: Host) -> Webhooks:
    if host.webhooks is None:
        text = "Webhooks are switched off. Switch them on with [host] webhooks = true."
        raise Rejected(501, "not_supported", text)
    return host.webhooks


@mutation
async def create_webhook(request: Request, host: Host, principal: Principal, body: Any, new: str, again: bool) -> Reply:
    """``POST /v1/webhooks``."""
    return Reply(201, await _webhooks(host).create(principal.tenant, body, new), unkept=("secret",))


async def list_webhooks(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/webhooks``."""
    return Json({"webhooks": await _webhooks(host).list(principal.tenant)})


@mutation
async def delete_webhook(request: Request, host: Host, principal: Principal, body: Any, new: str, again: bool) -> Reply:
    """``DELETE /v1/webhooks/{webhookId}``."""
    await _webhooks(host).delete(principal.tenant, request.path_params["webhook_id"])
    return Reply(204, None)


# -- admin -----------------------------------------------------------------------------------------------------------


class ClaimRef(msgspec.Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One of several claims to settle; the version ensures that it is the one the operator saw."""

    key: Annotated[str, Meta(min_length=1, max_length=128)]
    version: int | None = None
    verdict: str = ""


class OperatorAction(msgspec.Struct, kw_only=True, rename="camel"):
    """The body of an operator's request."""

    action: Literal["status", "force_open", "reset", "flush", "clear", "resolve", "reconcile"]
    tool: str = ""
    context: str = ""
    session: str = ""
    prefix: str = ""
    key: str = ""
    reason: str = ""
    verdict: str = ""
    value: Any = None
    for_ms: Annotated[int, Meta(lt=2**53)] | None = None
    claims: Annotated[list[ClaimRef], Meta(max_length=10_000)] = []
    dry_run: bool = False

    async def perform(self, host: Host, principal: Principal) -> Any:
        admin = host.admin(principal)
        if self.dry_run and self.action in ("flush", "clear"):
            raise InvalidInput(f"There is no dry run of {self.action}; nothing was changed.", path="$.dryRun")
        if self.action in ("force_open", "reset"):
            key = as_breaker_key(self.tool, self.context)
            if self.action == "reset":
                return await admin.reset(key, self.reason, dry_run=self.dry_run)
            return await admin.force_open(key, self.reason, self.for_ms, dry_run=self.dry_run)
        if self.action == "flush":
            return await admin.flush(tool=self.tool, session=self.session, prefix=self.prefix, reason=self.reason)
        if self.action == "clear":
            return await admin.clear(self.key, self.reason)
        if self.action == "reconcile":
            return await self._reconcile(host, principal)
        if self.action == "resolve" and self.claims:
            if self.verdict not in ("happened", "did-not-happen"):
                raise InvalidInput("The verdict must be 'happened' or 'did-not-happen'.", path="$.verdict")
            verdicts = [Resolution(one.key, self.verdict, self.value, one.version) for one in self.claims]
            return await admin.resolve_all(verdicts, reason=self.reason, dry_run=self.dry_run)
        if self.action == "resolve":
            options = {"value": self.value, "reason": self.reason, "dry_run": self.dry_run}
            return await admin.resolve(self.key, self.verdict, **options)
        return None

    async def _reconcile(self, host: Host, principal: Principal) -> dict[str, Any]:
        """Settle claims by their tools' ``reconcile`` if its answer is the one the operator saw before."""
        if not self.claims:
            raise InvalidInput("Name the claims to reconcile.", path="$.claims")
        asked = {(one.key, one.version): one for one in self.claims}
        app, keys = host.tenant(principal.tenant), {one.key for one in self.claims}
        found = await host.in_thread(
            principal.tenant, lambda: drive(Admin(app).evidence(declared(app.store), keys=keys))
        )
        said, verdicts, changed = [], [], []
        for claim in found:
            seen = asked.pop((claim["key"], claim["version"]), None) or asked.get((claim["key"], None))
            if seen is None:
                continue
            said.append(claim)
            if claim["verdict"] is None:
                continue
            if seen.verdict not in ("", claim["verdict"]):
                text = f"reconcile says {claim['verdict']} by now, not {seen.verdict}. Nothing was changed."
                changed.append({"key": claim["key"], "message": text})
                continue
            verdicts.append(Resolution(claim["key"], claim["verdict"], claim["value"], claim["version"]))
        for key, version in asked:
            if version is not None:
                changed.append({"key": key, "message": "The claim changed meanwhile. Nothing was changed."})
        admin = host.admin(principal)
        made = await admin.resolve_all(verdicts, reason=self.reason or "reconcile", dry_run=self.dry_run)
        refused = [*made.pop("refused", ()), *changed]
        shown = [{**claim, "value": admin.shown_value(claim["value"])} for claim in said]
        return {**made, **({"refused": refused} if refused else {}), "claims": shown}


async def tool_reliability(request: Request, host: Host, principal: Principal) -> Response:
    """``POST /v1/admin/tool-reliability``, also at ``/debug``: each answer shows the state before and after (R13)."""
    body = await body_of(request, host)
    asked = decode(body, OperatorAction)

    async def act(_: str, again: bool) -> Reply:
        admin = host.admin(principal)
        before = await admin.status()
        result = await asked.perform(host, principal)
        await host.refresh_breakers(principal.tenant)
        after = before if asked.action == "status" or asked.dry_run else await admin.status()
        return Reply(200, {"action": asked.action, "result": result, "before": before, "after": after})

    return await idempotent(request, host, principal, f"POST admin {asked.action}", body, act)


async def audit(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/admin/audit``: what operators of this tenant did."""
    return Json({"acts": await host.admin(principal).audit(limit=integer(request, "limit", 100, 1, 1000))})


async def list_claims(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/admin/claims``: claim records, never their results."""
    longest = {"tool": 256, "session": 256, "state": 16, "prefix": 64}
    wanted = {name: request.query_params.get(name, "")[:most] for name, most in longest.items()}
    limit = integer(request, "limit", 100, 1, 1000)
    return Json({"claims": await host.admin(principal).claims(**wanted, limit=limit)})


# -- approvals: calls that wait for a person ---------------------------------------------------------------------------

_APPROVAL_STATES = ("waiting", "approved", "denied", "withdrawn", "expired", "all")


class Decision(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The body of a decision."""

    decision: Literal["approve", "deny", "withdraw"]
    reason: Annotated[str, Meta(max_length=500)] = ""
    dry_run: bool = False


class Decisions(Decision):
    """The body of a decision on several approvals."""

    approvals: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(min_length=1, max_length=10_000)] = []


class Invitation(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The body of a request for a signed link."""

    to: Annotated[str, Meta(min_length=1, max_length=200)]
    may: Annotated[tuple[Literal["approve", "deny"], ...], Meta(min_length=1, max_length=2)] = ("approve", "deny")
    expires_in_s: Annotated[int, Meta(ge=1, le=31_536_000)] | None = None
    url: Annotated[str, Meta(max_length=1000)] = ""


async def list_approvals(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/approvals``: what waits for a person, with masked arguments."""
    state = choice(request, "state", _APPROVAL_STATES) or "waiting"
    tool, limit = request.query_params.get("tool", "")[:256], integer(request, "limit", 100, 1, 1000)
    return Json({"approvals": await host.approvals(principal, "").waiting(state=state, tool=tool, limit=limit)})


async def get_approval(request: Request, host: Host, principal: Principal) -> Response:
    """``GET /v1/approvals/{approval}``."""
    return Json(await host.approvals(principal, "").show(request.path_params["approval"][:64]))


@mutation
async def decide_approval(
    request: Request, host: Host, principal: Principal, body: Any, new: str, again: bool
) -> Reply:
    """``POST /v1/approvals/{approval}``: approve, deny or withdraw."""
    asked = decode(body, Decision)
    options: dict[str, Any] = {"reason": asked.reason, "dry_run": asked.dry_run}
    desk = _approvals_of(request, host, principal)
    return Reply(200, await desk.decide(request.path_params["approval"][:64], asked.decision, **options))


@mutation
async def link_approval(request: Request, host: Host, principal: Principal, body: Any, new: str, again: bool) -> Reply:
    """``POST /v1/approvals/{approval}/links``: a signed link for deciding an approval; it is shown once."""
    asked = decode(body, Invitation)
    made = await _approvals_of(request, host, principal).link(
        request.path_params["approval"][:64],
        to=asked.to,
        may=asked.may,
        expires_in_s=asked.expires_in_s,
        url=asked.url,
    )
    return Reply(201, made, unkept=("url",))


async def open_link(request: Request) -> ApprovalPage:
    """``GET`` and ``POST /approve``: the page of a signed link, authorised by its token instead of a key."""
    host: Host = request.app.state.host
    return ApprovalPage(host.app, host.approvals_for_link)


@mutation
async def decide_approvals(
    request: Request, host: Host, principal: Principal, body: Any, new: str, again: bool
) -> Reply:
    """``POST /v1/approvals``: approve, deny or withdraw several at once."""
    asked = decode(body, Decisions)
    if not asked.approvals:
        raise InvalidInput("Name the approvals.", path="$.approvals")
    options: dict[str, Any] = {"reason": asked.reason, "dry_run": asked.dry_run}
    return Reply(
        200, await _approvals_of(request, host, principal).decide_all(asked.approvals, asked.decision, **options)
    )


def _approvals_of(request: Request, host: Host, principal: Principal) -> Approvals:
    client = "" if request.client is None else request.client.host
    return host.approvals(principal, f"HTTP from {client or 'an unknown address'}")


# -- test seams: only behind an explicit switch, and with a key like everything else (L8) ------------------------------


async def cache_key(request: Request, host: Host, principal: Principal) -> Response:
    """``…/llm-cache-key``: the key of a request under the configured recipe; anything not in the recipe is noise."""
    await body_of(request, host)
    try:
        body = parse_json(getattr(request.state, "raw", b"{}"))
        if not isinstance(body, dict):
            raise InvalidInput("The body must be a JSON object.")
        key = llm_cache_key(body, recipe=host.settings.llm_key_recipe)
    except InvalidInput as problem:
        return error(400, "invalid_argument", str(problem), {"path": problem.path})
    return Json({"cacheKey": key})


class Executors(msgspec.Struct):
    """The body of a request for many executors of one effect."""

    executors: Annotated[int, Meta(ge=1, le=64)] = 2


async def program(request: Request, host: Host, principal: Principal) -> Response:
    """``…/mock-ai/program``: set the next answers of the mock provider for a node, replacing earlier ones."""
    asked = host.mock.program(principal.tenant, await body_of(request, host))
    return Json({"nodeId": asked.node_id, "entries": len(asked.program)})


async def reset(request: Request, host: Host, principal: Principal) -> Response:
    """``…/mock-ai/reset``: delete all programs of the tenant."""
    await body_of(request, host)
    return Json({"forgotten": host.mock.reset(principal.tenant)})


async def concurrent_claim(request: Request, host: Host, principal: Principal) -> Response:
    """``…/idempotency/concurrent-claim``: many executors of one logical effect; one delivers it."""
    executors = decode(await body_of(request, host), Executors).executors
    run = uuid7()

    async def execute() -> tuple[str, bool]:
        minted = logical_invocation_id(principal.tenant, run, "effect", 0, SIDE_EFFECT_TOOL)
        envelope = tool_request(SIDE_EFFECT_TOOL, {"nodeId": "effect"}, run, minted, attempts=1, elapsed_ms=10_000)
        result = await host.tenant(principal.tenant).async_gateway.execute(envelope)
        return minted, result.status == "success" and not result.from_cache

    outcomes = await asyncio.gather(*(execute() for _ in range(executors)))
    found = {
        "logicalInvocationId": outcomes[0][0],
        "mintedIds": [minted for minted, _ in outcomes],
        "attempted": executors,
        "delivered": sum(delivered for _, delivered in outcomes),
    }
    return Json(found)

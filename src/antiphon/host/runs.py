"""Starting, forking, following and cancelling runs over HTTP: the use cases behind the endpoints (L5, L8, RFC 0140)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from antiphon._gateway.owner import owner_token
from antiphon._recording.manifest import package_versions
from antiphon.contract._base import decode
from antiphon.contract.events import RunManifest
from antiphon.errors import AntiphonError, InvalidInput
from antiphon.host.api_keys import Principal
from antiphon.host.events import SequencedEvent, document, iso
from antiphon.host.host import KIND, Host, HostRun, Rejected, request_cancel
from antiphon.host.recordings import MAX_RUNS_SEARCHED, cursor_after
from antiphon.host.workflow.model import Workflow, initial_variables
from antiphon.host.workflow.nodes import ACTIVITY_RECIPE
from antiphon.host.workflow.state import TERMINAL, WorkflowEvent, fold
from antiphon.llm.key import V2_STAMP
from antiphon.ports import Cursor

_CANCEL_WAIT_S = 2.0
_POLL_LOOK_S = 0.5
_LEAST_PAGE = 100


class Options(msgspec.Struct, kw_only=True):
    """The options of a run."""

    inputs: dict[str, Any] | None = None
    tags: list[str] | None = None
    metadata: dict[str, Any] | None = None
    configurable: dict[str, Any] | None = None

    def given(self) -> dict[str, Any]:
        """The options that are set."""
        return {name: value for name in Options.__struct_fields__ if (value := getattr(self, name)) is not None}


class Start(Options, rename="camel"):
    """The body of a request to start a run."""

    workflow_id: Annotated[str, Meta(min_length=1)]


class Overlay(Options, forbid_unknown_fields=True):
    """What a branch changes."""


class Fork(msgspec.Struct, kw_only=True, rename="camel"):
    """The body of a request to fork a run."""

    mode: Literal["replay", "branch"]
    from_seq: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    run_options_overlay: Overlay | None = None

    def overlay(self) -> dict[str, Any]:
        """What a branch changes; a replay changes nothing."""
        found = {} if self.run_options_overlay is None else self.run_options_overlay.given()
        if self.mode == "branch" and self.from_seq is None:
            text = "A branch needs 'fromSeq': the number of the first event to execute again."
            raise InvalidInput(text, path="$.fromSeq")
        if found and self.mode == "replay":
            text = "A replay cannot change options: 'runOptionsOverlay' must be empty."
            raise InvalidInput(text, path="$.runOptionsOverlay")
        return found


# -- starting ------------------------------------------------------------------------------------------------------


async def start_run(
    host: Host, principal: Principal, body: Mapping[str, Any], run_id: str, again: bool = False
) -> dict[str, Any]:
    """Create a run on disk and start it; *again* says that it may already exist."""
    asked = decode(body, Start)
    workflow_id, started = asked.workflow_id, asked.given()
    workflow = host.workflows.get(workflow_id)
    if workflow is None:
        known = sorted(host.workflows)
        raise Rejected(
            404, "workflow_not_found", f"This host has no workflow {workflow_id!r}.", {"available": known[:50]}
        )
    initial_variables(workflow, started.get("inputs", {}))
    event = WorkflowEvent("run.started", {"workflowId": workflow.id, "inputs": {}, **started})
    manifest = _manifest(host, principal.tenant, workflow, run_id)
    await _create(host, manifest, workflow, [event], again)
    return _created(manifest)


def _manifest(host: Host, tenant: str, workflow: Workflow, run_id: str, **more: Any) -> RunManifest:
    return RunManifest(
        id=run_id,
        name=workflow.id,
        status="running",
        started_at_ms=host.app.clock.now_ms(),
        tenant=tenant,
        workspace=host.app.workspace,
        packages=package_versions(),
        graph_digest=host.digests[workflow.id],
        tags={
            "kind": KIND,
            "owner": owner_token(),
            "executor": host.lease.owner,
            "recipe": host.settings.llm_key_recipe,
        },
        **more,
    )


async def _create(
    host: Host,
    manifest: RunManifest,
    workflow: Workflow,
    events: Sequence[WorkflowEvent],
    again: bool,
    prefix: tuple[RunManifest, int] | None = None,
) -> None:
    """Write the first events, then the manifest that makes them a run, then execute.

    *prefix*: the run that the events come from, and its row with the last of them.
    """
    if again:
        if await host.journal.manifest(manifest.id) is not None:
            await host.resume_orphans()  # an earlier request with this key got this far
            return
        await host.journal.delete_run(manifest.id)  # it may have left events
    host.check_capacity(manifest.tenant)
    run = HostRun(host, manifest, workflow, events, new=True)
    if prefix is not None:
        await run.learn_values(*prefix)
    rows = await run.rows_of([(event, number) for number, event in enumerate(events)])
    manifest = run.manifest = run.recorder.with_key(manifest)
    await host.journal.append(manifest.id, rows)
    await host.journal.open_run(manifest)
    run.log_start()
    if not run.is_replay and len(events) == 1:
        host.deliver(manifest, [(events[0], 0)], run.masked)
    host.launch(run)


def _created(manifest: RunManifest) -> dict[str, Any]:
    base = f"/v1/runs/{manifest.id}"
    return {"runId": manifest.id, "status": "pending", "eventsUrl": f"{base}/events", "statusUrl": base}


# -- forking -------------------------------------------------------------------------------------------------------


async def fork_run(
    host: Host, principal: Principal, source_id: str, body: Mapping[str, Any], run_id: str, again: bool = False
) -> dict[str, Any]:
    """A new run that begins with the events ``[0, fromSeq)`` of another and continues from there."""
    asked = decode(body, Fork)
    mode, start, overlay = asked.mode, asked.from_seq or 0, asked.overlay()
    source = await host.visible(principal, source_id)
    _check_retention(host, source, start)
    workflow = host.workflows.get(source.name)
    if workflow is None:
        raise Rejected(
            422, "workflow_unavailable", f"This host no longer has the workflow {source.name!r} of the source run."
        )
    recorded = await HostRun.reader(host, source.id, source.tenant, source).more()
    if start >= len(recorded):
        raise Rejected(
            422,
            "fork_point_invalid",
            f"The source run has the events 0 to {len(recorded) - 1}; fromSeq {start} is out of range.",
            {"sourceRunId": source.id, "fromSeq": start, "events": len(recorded)},
        )
    events = [event.body for event in recorded[: max(start, 1)]]
    if mode == "branch":
        _check_branch(recorded[: max(start, 1)], overlay)
        if overlay:
            events[0] = WorkflowEvent("run.started", {**events[0].payload, **_merged(events[0].payload, overlay)})
            initial_variables(workflow, events[0].payload.get("inputs", {}))
    manifest = _manifest(
        host,
        source.tenant,
        workflow,
        run_id,
        seal=source.seal,
        source_run=source.id,
        replay={"mode": mode, "fromSeq": start},
    )
    prefix = source, recorded[len(events) - 1].row
    await _create(host, manifest, workflow, events, again, prefix)
    return {**_created(manifest), "sourceRunId": source.id, "fromSeq": start, "mode": mode}


def _merged(payload: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name, value in overlay.items():
        before = payload.get(name)
        merged[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return merged


def _check_branch(events: Sequence[SequencedEvent], overlay: Mapping[str, Any]) -> None:
    """Refuse a branch that would send pseudonyms in its effects because the originals cannot be read."""
    later = [event for event in events if event.redacted and event.sequence > 0]
    if later or (events[0].redacted and "inputs" not in overlay):
        raise Rejected(
            422,
            "fork_point_redacted",
            "The recorded values hold pseudonyms for secrets or personal data whose originals cannot be read, and a "
            "branch would send those. "
            "Branch from 0 with the inputs in runOptionsOverlay.",
        )


def _check_retention(host: Host, source: RunManifest, start: int) -> None:
    window = retention_seconds(host)
    oldest = host.app.clock.now_ms() - window * 1000
    if source.started_at_ms < oldest:
        raise Rejected(
            410,
            "replay_range_expired",
            f"The source run is older than the {window} seconds this host keeps runs for replay.",
            {"sourceRunId": source.id, "fromSeq": start, "boundary": iso(oldest)},
        )


def retention_seconds(host: Host) -> int:
    """The replay window: the shorter of the host's own and the run log's (L7)."""
    return int(min(host.settings.retention_seconds, host.config.record.retention_days * 86_400))


# -- looking -------------------------------------------------------------------------------------------------------


async def snapshot(host: Host, principal: Principal, run_id: str) -> dict[str, Any]:
    """The state of a run, computed from its events."""
    manifest = await host.visible(principal, run_id)
    events = await HostRun.reader(host, run_id, principal.tenant).more()
    workflow = host.workflows.get(manifest.name)
    last = events[-1] if events else None
    status = TERMINAL.get(last.body.type, "running") if last is not None else "pending"
    local = host.running.get(run_id)
    if status == "running" and local is not None and local.runner.cancel_reason is not None:
        status = "cancelling"
    found: dict[str, Any] = {
        "runId": manifest.id,
        "workflowId": manifest.name,
        "status": status,
        "variables": _variables(workflow, events),
        "channels": {},
        "createdAt": iso(manifest.started_at_ms),
        "activityIdentityRecipe": ACTIVITY_RECIPE,
        "semanticRequestRecipe": recipe_name(manifest.tags.get("recipe", "")),
    }
    if last is not None and status in TERMINAL.values():
        found["finishedAt"] = iso(last.at_ms)
        if "error" in last.body.payload:
            error = last.body.payload["error"]
            found["error"] = {name: error[name] for name in ("code", "message", "details") if name in error}
        if last.body.payload.get("outputs"):
            found["outputs"] = last.body.payload["outputs"]
    if manifest.source_run is not None and isinstance(manifest.replay, dict):
        found |= {"sourceRunId": manifest.source_run, **manifest.replay}
    return found


def _variables(workflow: Workflow | None, events: Sequence[SequencedEvent]) -> dict[str, Any]:
    """The variables of a run; empty if its log does not match the current workflow of that name."""
    try:
        return {} if workflow is None else fold(workflow, (event.body for event in events)).variables
    except (AntiphonError, KeyError, TypeError, ValueError):
        return {}


def recipe_name(recipe: str) -> str:
    """The name under which a run records the recipe of its keys."""
    return V2_STAMP if recipe == "semantic-request-v2" else recipe


async def runs(host: Host, principal: Principal, *, limit: int, before: str, status: str) -> dict[str, Any]:
    """The tenant's runs, newest first, and the cursor for the next page; skips recordings and replays.

    A request examines a limited number of runs, so a page may be short although others follow.
    """
    place = await cursor_after(host, principal, before)
    mine: list[RunManifest] = []
    seen = 0
    size = max(limit * 2, _LEAST_PAGE)
    while len(mine) <= limit and seen < MAX_RUNS_SEARCHED:
        page = await host.journal.runs(tenant=principal.tenant, limit=size, before=place, status=status)
        mine += [manifest for manifest in page if manifest.tags.get("kind") == KIND]
        seen += len(page)
        place = Cursor.of_run(page[-1]) if len(page) == size else None
        if place is None:
            break
    shown = mine[:limit]
    if len(mine) > limit:
        place = Cursor.of_run(shown[-1])
    return {
        "runs": [
            {
                "runId": manifest.id,
                "workflowId": manifest.name,
                "status": manifest.status,
                "createdAt": iso(manifest.started_at_ms),
            }
            for manifest in shown
        ],
        "next": None if place is None else str(place),
    }


async def events_after(
    host: Host, principal: Principal, run_id: str, last: int, *, reveal: bool = False
) -> dict[str, Any]:
    """The events after number *last* as documents, and whether the run is over.

    If masked values are *revealed*, the access is written to the audit log.
    """
    manifest = await host.visible(principal, run_id)
    if reveal:
        if host.tenant(principal.tenant).keys.key_of(manifest) is None:
            text = "The originals of this run are not kept, or were sealed with the key of another store."
            raise Rejected(409, "originals_unavailable", text)
        await host.admin(principal).looked_at_originals(run_id)
    events = await HostRun.reader(host, run_id, principal.tenant, manifest if reveal else None).more()
    over = bool(events) and events[-1].body.type in TERMINAL
    return {"events": [document(run_id, event) for event in events if event.sequence > last], "isComplete": over}


async def poll(host: Host, principal: Principal, run_id: str, last: int, timeout_s: float) -> dict[str, Any]:
    """New events as soon as there are any, or none after *timeout_s*."""
    manifest = await host.visible(principal, run_id)
    until = time.monotonic() + timeout_s
    async with contextlib.aclosing(host.follow(manifest, idle_s=min(timeout_s, _POLL_LOOK_S))) as following:
        async for found in following:
            if not await host.keys.is_valid(principal):
                raise Rejected(401, "unauthenticated", "The API key of this request was revoked.")
            over = bool(found) and found[-1].body.type in TERMINAL
            new = [document(run_id, event) for event in found if event.sequence > last]
            if new or over or host.closing or (not found and time.monotonic() >= until):
                return {"events": new, "isComplete": over}
    return {"events": [], "isComplete": True}


# -- cancelling ----------------------------------------------------------------------------------------------------


async def cancel_run(host: Host, principal: Principal, run_id: str) -> dict[str, Any]:
    """Request cancellation of a run; a run that is over is left unchanged."""
    manifest = await host.visible(principal, run_id)
    if manifest.status == "running":
        await request_cancel(host, manifest)
        local = host.running.get(run_id)
        if local is not None:
            local.cancel("cancelled by request")
            if local.task is not None:
                await asyncio.wait((local.task,), timeout=_CANCEL_WAIT_S)
    found = await snapshot(host, principal, run_id)
    status = found["status"] if found["status"] in TERMINAL.values() else "cancelling"
    return {"runId": run_id, "status": status}

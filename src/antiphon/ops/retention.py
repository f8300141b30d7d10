"""Deleting what is no longer needed. The advertised replay window is never undercut (L7)."""

from __future__ import annotations

from typing import Any

import orjson

from antiphon._gateway.owner import certainly_dead
from antiphon.contract.events import RunManifest, spilled
from antiphon.ops.app import Antiphon
from antiphon.ops.progress import Progress, each, silent
from antiphon.ops.runs import all_runs, events_of, is_audit, real_status, summary

_DAY_MS = 86_400_000


def _size(app: Antiphon, run: str) -> int:
    return sum(len(orjson.dumps(event.payload)) + 200 for event in events_of(app, run))


def collect(
    app: Antiphon,
    *,
    older_than_days: float | None = None,
    keep: int | None = None,
    max_bytes: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Delete runs by age, count and size; without any of these, those past the retention window."""
    now = app.clock.now_ms()
    window_days = app.config.record.retention_days
    if older_than_days is None and keep is None and max_bytes is None:
        older_than_days = window_days
    runs = [manifest for manifest in all_runs(app) if not is_audit(manifest)]
    doomed: dict[str, RunManifest] = {}
    if older_than_days is not None:
        limit = now - older_than_days * _DAY_MS
        doomed |= {m.id: m for m in runs if (m.finished_at_ms or m.started_at_ms) < limit}
    if keep is not None:
        doomed |= {m.id: m for m in runs[max(0, keep) :]}
    if max_bytes is not None:
        used = 0
        sizes = ((manifest, _size(app, manifest.id)) for manifest in runs)
        for manifest, size in progress(sizes, len(runs), "measuring, runs"):
            used += size
            if used > max_bytes:
                doomed[manifest.id] = manifest
    protected = 0
    if not force:
        edge = now - window_days * _DAY_MS
        old = {m.id: m for m in doomed.values() if (m.finished_at_ms or m.started_at_ms) < edge}
        protected, doomed = len(doomed) - len(old), old
    deleted = [manifest for manifest in doomed.values() if real_status(manifest) != "running"]
    if not dry_run:
        each(lambda manifest: app.journal.delete_run(manifest.id), deleted, progress, "deleting, runs")
    return {
        "dryRun": dry_run,
        "runs": [summary(manifest) for manifest in deleted],
        "protected": protected,
        "retentionDays": window_days,
        "blobs": 0 if dry_run else _unused_blobs(app, progress),
        "claims": 0 if dry_run else app.journal.sweep(),
    }


def _unused_blobs(app: Antiphon, progress: Progress) -> int:
    """Delete payloads that neither a run nor a claim refers to any more.

    A payload is kept before the event that names it is written: while anything runs, nothing is deleted.
    """
    blobs = app.blobs
    if blobs is None:
        return 0
    found = list(blobs.refs(app.tenant))
    if not found or _busy(app):
        return 0
    used: set[str] = set()
    runs = list(all_runs(app))
    for refs in progress((_refs(app, manifest.id) for manifest in runs), len(runs), "looking for payloads, runs"):
        used |= refs
    for record in app.journal.list(tenant=app.tenant, limit=1_000_000):
        if isinstance(record.payload_ref, str):
            used.add(record.payload_ref.removeprefix("sealed+"))
    dead = [ref for ref in found if ref not in used]
    if not dead or _busy(app):
        return 0
    each(lambda ref: blobs.delete(app.tenant, ref), dead, progress, "deleting, payloads")
    return len(dead)


def _refs(app: Antiphon, run: str) -> set[str]:
    """The payloads that the events of a run refer to."""
    return {ref for event in events_of(app, run) for ref in spilled(event).values()}


def _busy(app: Antiphon) -> bool:
    """Whether a run is open or a call in flight."""
    running = app.journal.runs(tenant=app.tenant, status="running", limit=1_000)
    if any(real_status(manifest) == "running" for manifest in running):
        return True
    claims = app.journal.list(tenant=app.tenant, state="inflight", limit=1_000)
    return any(not certainly_dead(claim.owner) for claim in claims)

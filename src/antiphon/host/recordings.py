"""All recorded runs of a tenant, whoever recorded them: the use cases behind the console."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

import orjson

from antiphon.contract.events import RunManifest
from antiphon.errors import InvalidInput
from antiphon.host.api_keys import Principal
from antiphon.host.host import Host, not_found
from antiphon.ops import verdicts
from antiphon.ops.compare import compare
from antiphon.ops.gateways import declared
from antiphon.ops.health import health
from antiphon.ops.lines import line
from antiphon.ops.runs import is_audit, load_recording, one_event, real_status, summary
from antiphon.ops.traffic import count_by_claim, totals
from antiphon.ops.what_if import TriedLimits, what_if
from antiphon.ports import Cursor
from antiphon.redact._pointers import viewed
from antiphon.scoring.html import report_view

MAX_RUNS_SEARCHED = 2_000
"""Runs that one request examines; the answer says where the next request continues."""
MAX_EVENTS_READ = 20_000
"""Events that one request reads to search for a tool or text, or to add up tokens."""
_PAGE = 200
COMPARED = 50_000
"""The longest run that the host compares, in events; the command line has no such limit."""
UNFINISHED = 1_000
"""Unfinished runs that the inbox examines, per status."""
SLOW_S, CACHE_FACTOR, LONGEST_REST_S = 0.25, 10, 30.0
"""A search for them that took longer than ``SLOW_S`` is repeated only after ``CACHE_FACTOR`` times as long."""


async def visible(host: Host, principal: Principal, run_id: str) -> RunManifest:
    """The manifest of a run of the principal's tenant; any other is not found."""
    manifest = await host.journal.manifest(run_id)
    if manifest is None or manifest.tenant != principal.tenant or is_audit(manifest):
        raise not_found(run_id)
    return manifest


async def cursor_after(host: Host, principal: Principal, before: str) -> Cursor | None:
    """Where a list of runs continues, given a cursor or a run of the principal's tenant."""
    place = Cursor.parse(before)
    return Cursor.of_run(await visible(host, principal, before)) if before and place is None else place


async def recordings(
    host: Host,
    principal: Principal,
    *,
    limit: int,
    before: str,
    status: str,
    text: str,
    tool: str = "",
    content: str = "",
) -> dict[str, Any]:
    """Matching runs, newest first, and the cursor for the next page; a request examines a limited number of runs.

    A run whose id equals *text* comes first, however old it is. ``searched`` says how many runs were examined.

    *tool* and *content* are searched for in the events, of which a request reads a limited number.
    """
    found: list[dict[str, Any]] = []
    wanted, seen = text.casefold(), 0
    place = await cursor_after(host, principal, before)
    inside = _EventSearch(host, tool, content)
    said = "" if status == "interrupted" else status  # a killed run never said how it ended
    given = text.strip()
    named = await host.journal.manifest(given) if given.isprintable() and given and place is None else None
    if named is not None and named.tenant == principal.tenant and _fits(named, "", status) and await inside.has(named):
        found.append(summary(named))
    while seen < MAX_RUNS_SEARCHED:
        size = min(limit + 1, _PAGE) if not (wanted or status or tool or content) else _PAGE
        page = await host.journal.runs(tenant=principal.tenant, limit=size, before=place, status=said)
        for manifest in page:
            seen, place = seen + 1, Cursor.of_run(manifest)
            if manifest.id != given and _fits(manifest, wanted, status) and await inside.has(manifest):
                found.append(summary(manifest))
            if len(found) >= limit or inside.read >= MAX_EVENTS_READ:
                return {"runs": found, "next": str(place), "searched": seen}
        if len(page) < size:
            return {"runs": found, "next": None, "searched": seen}
    return {"runs": found, "next": str(place), "searched": seen}


class _EventSearch:
    """Searches the events of runs for a tool and for text; masked values are not found."""

    def __init__(self, host: Host, tool: str, content: str) -> None:
        self._host = host
        self._tool = tool.casefold()
        self._content = orjson.dumps(content.casefold()).decode()[1:-1]  # as encoded in JSON
        self.read = 0

    async def has(self, manifest: RunManifest) -> bool:
        if self._tool:
            calls = await self._host.traffic.of(manifest)
            self.read += calls.next
            if not any(self._tool in call.name.casefold() for call in calls.found.values()):
                return False
        return not self._content or await self._says(manifest)

    def _in(self, payload: Any) -> bool:
        return self._content in orjson.dumps(payload).decode().casefold()

    async def _says(self, manifest: RunManifest) -> bool:
        start = 0
        while events := await self._host.journal.events(manifest.id, start=start, limit=1_000):
            start = events[-1].seq + 1
            self.read += len(events)
            for event in events:
                if self._in(event.payload) and self._in(viewed(event).payload):
                    return True
        return False


async def run_totals(host: Host, principal: Principal, runs: Sequence[str]) -> dict[str, Any]:
    """Tokens, cost and tools of runs; beyond a number of events, the rest is left to the next request."""
    found: dict[str, Any] = {}
    read = 0
    prices = host.tenant(principal.tenant).config.prices
    for run in runs:
        manifest = await host.journal.manifest(run)
        if manifest is None or manifest.tenant != principal.tenant or is_audit(manifest):
            continue
        known = host.traffic.known(run)
        calls = await host.traffic.of(manifest)
        found[run] = totals(list(calls.found.values()), prices)
        read += calls.next - known
        if read >= MAX_EVENTS_READ:
            break
    return {"totals": found}


def _fits(manifest: RunManifest, text: str, status: str) -> bool:
    if is_audit(manifest) or (status and real_status(manifest) != status):
        return False
    return not text or manifest.id.casefold().startswith(text) or any(text in part for part in _searched(manifest))


def _searched(manifest: RunManifest) -> list[str]:
    return [part.casefold() for part in (manifest.name, manifest.entry or "", manifest.source_run or "")]


async def lines(host: Host, principal: Principal, run_id: str, *, start: int, limit: int) -> dict[str, Any]:
    """Events from number *start*, without payloads, and whether the run had ended before they were read."""
    manifest = await visible(host, principal, run_id)
    over = real_status(manifest) != "running"
    events = await host.journal.events(run_id, start=start, limit=limit)
    return {
        "events": [line(viewed(event)) for event in events],
        "next": events[-1].seq + 1 if events else start,
        "isComplete": over and len(events) < limit,
    }


async def event(host: Host, principal: Principal, run_id: str, seq: int) -> dict[str, Any]:
    """One complete event, with redacted values masked."""
    await visible(host, principal, run_id)
    app = host.tenant(principal.tenant)
    found = await host.in_thread(principal.tenant, lambda: one_event(app, run_id, seq))
    return found.to_wire()


async def accept_golden(
    host: Host, principal: Principal, wanted: str, *, run: str, digest: str, reason: str, dry_run: bool
) -> dict[str, Any]:
    """Replace the artifact of a golden test with a run and write an audit entry, or do a dry run."""
    _comparable(await visible(host, principal, run), f"antiphon export {run} -o FILE")
    app = host.tenant(principal.tenant)

    def work() -> dict[str, Any]:
        return verdicts.accept(app, wanted, run, digest=digest, dry_run=dry_run)

    done = await host.in_thread(principal.tenant, work)
    return done if dry_run else await host.admin(principal).accepted_recording(done, run, reason)


def _comparable(manifest: RunManifest, command: str) -> None:
    if manifest.events > COMPARED:
        said = f"Run {manifest.id} has {manifest.events} events; the host compares up to {COMPARED}."
        raise InvalidInput(said, hint=command)


async def comparison(host: Host, principal: Principal, run_id: str, other: str, *, every: bool) -> dict[str, Any]:
    """Two runs side by side, compared as by `antiphon diff`, with the data for the page."""
    manifests = [await visible(host, principal, one) for one in (run_id, other)]
    for manifest in manifests:
        _comparable(manifest, f"antiphon diff {run_id} {other}")
    app = host.tenant(principal.tenant)

    def work() -> dict[str, Any]:
        left, right = (load_recording(app, manifest) for manifest in manifests)
        data = compare(app, left, right, every=every)
        kept = ("sourceRun", "replayRun", "equal", "verdict", "verdictReasons", "ars", "hiddenIds")
        return {**{name: data[name] for name in kept if name in data}, "view": report_view(data)}

    return await host.in_thread(principal.tenant, work)


async def inbox(host: Host, principal: Principal, *, limit: int) -> dict[str, Any]:
    """What waits for a person: unknown outcomes, approvals, open breakers, failed golden tests, interrupted runs.

    At most *limit* of each, and the count; ``atLeast`` names the groups that may have more.
    """
    admin = host.approvals(principal, "")
    unknown, number = await admin.unsettled(limit)
    stopped, is_whole = await _interrupted(host, principal.tenant)
    groups: dict[str, list[Any]] = {
        "approvals": await admin.waiting(limit=None),
        "breakers": [one for one in await admin.breakers() if one["state"] not in ("CLOSED",)],
        "golden": await asyncio.to_thread(verdicts.failed, host.tenant(principal.tenant)),
        "interrupted": stopped,
    }
    return {
        "unknown": unknown,
        **{name: found[:limit] for name, found in groups.items()},
        "interrupted": [summary(one) for one in stopped[:limit]],
        "counts": {"unknown": number, **{name: len(found) for name, found in groups.items()}},
        "atLeast": [] if is_whole else ["interrupted"],
    }


async def _interrupted(host: Host, tenant: str) -> tuple[list[RunManifest], bool]:
    """Runs whose process is gone, newest first, and whether the list is complete.

    A slow search is cached, because some stores have to scan all runs.
    """
    until, seen = host.seen_interrupted.get(tenant, (0.0, ([], True)))
    began = monotonic()
    if began < until:
        return seen
    unfinished: list[RunManifest] = []
    is_whole = True
    for status in ("running", "interrupted"):
        found = await host.journal.runs(tenant=tenant, status=status, limit=UNFINISHED + 1)
        unfinished += found[:UNFINISHED]
        is_whole = is_whole and len(found) <= UNFINISHED
    stopped = [one for one in unfinished if not is_audit(one) and real_status(one) == "interrupted"]
    stopped.sort(key=lambda one: one.started_at_ms, reverse=True)
    ended = monotonic()
    if ended - began > SLOW_S:
        host.seen_interrupted[tenant] = ended + min((ended - began) * CACHE_FACTOR, LONGEST_REST_S), (stopped, is_whole)
    return stopped, is_whole


async def effects(
    host: Host, principal: Principal, *, limit: int, before: str, tool: str, state: str, count: bool
) -> dict[str, Any]:
    """The ledger: claims of all runs and machines, newest first, who settled them, and how often they were requested.

    *tool* matches part of the name; a request examines a limited number of claims. Only *count* counts requests, which
    means reading the newest runs; otherwise only claims are read.
    """
    admin = host.admin(principal)
    size = MAX_RUNS_SEARCHED if tool else limit
    searched = await admin.claims(state=state, limit=size + 1, before=before)
    fitting = [claim for claim in searched[:size] if tool.casefold() in claim["tool"].casefold()]
    found = fitting[:limit]
    last = found[-1] if len(fitting) > limit else searched[size - 1] if len(searched) > size else None
    settled = {act["key"]: act for act in reversed(await admin.audit(limit=10_000)) if act.get("key")}
    rows = []
    for claim in found:
        token, _, process = claim["owner"].rpartition("/")
        waits = claim["state"] == "unknown" or claim["approval"] == "waiting"
        act = None if waits else settled.get(claim["key"])
        by = {name: act.get(name) for name in ("act", "by", "atMs", "verdict", "reason")} if act else None
        rows.append({**claim, "process": process or token, "settledBy": by})
    answer: dict[str, Any] = {
        "effects": rows,
        "next": None if last is None else str(Cursor(last["fence"], last["key"])),
        "searched": min(len(searched), size),
    }
    if count:
        looked = await host.traffic.newest(principal.tenant)
        numbers = count_by_claim(looked.calls, (claim["key"] for claim in found))
        answer["effects"] = [{**row, **numbers[row["key"][:16]]} for row in rows]
        answer["looked"] = looked.to_wire()
    return answer


async def tool_health(host: Host, principal: Principal, *, tool: str) -> dict[str, Any]:
    """The health of tools: latency, retries and refusals over time, breakers, store, and claims in flight."""
    looked = await host.traffic.newest(principal.tenant)
    claims: dict[str, int] = {}
    for (_, state), number in (await host.journal.counts(principal.tenant)).items():
        claims[state] = claims.get(state, 0) + number
    store = await host.journal.ping()
    mark = (tool, looked.runs, looked.events, len(looked.calls))
    known = host.seen_health.get(principal.tenant)
    if known is None or known[0] != mark:
        known = mark, await asyncio.to_thread(health, looked.calls, tool=tool)
        host.seen_health[principal.tenant] = known
    shown = ("store", "version", "durable", "latencyMs")
    return {
        **known[1],
        "breakers": await host.admin(principal).breakers(),
        "claims": claims,
        "store": {name: store[name] for name in shown if name in store},
        "looked": looked.to_wire(),
    }


async def what_if_limits(host: Host, principal: Principal, wanted: TriedLimits) -> dict[str, Any]:
    """The recorded attempts under tighter limits, before and after."""
    looked = await host.traffic.newest(principal.tenant)
    found = await asyncio.to_thread(what_if, looked.calls, wanted, declared().get)
    return {**found, "looked": looked.to_wire()}

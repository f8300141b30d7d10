"""What an operator may do: inspect, force or reset breakers, settle or forget claims (R13).

Each act is one method of :class:`Admin`, written once: the host awaits it, a command completes it with ``drive``. Every
act that changes something is audited in its tenant's audit run as soon as it is done. If the entry cannot be written,
the act stands: the entry goes to the process log, and the answer says so (``notAudited``). Acts that only show
something write their entry first.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
import orjson

from antiphon._drive import drive
from antiphon._gateway import codec
from antiphon._gateway.context import CallContext
from antiphon._gateway.owner import certainly_dead, owner_token
from antiphon._gateway.result_store import masked
from antiphon._gateway.settlement import ARGUMENTS, NEVER_MS
from antiphon._gateway.tool import takes_two
from antiphon.config.wiring import fingerprints_of, sealer_of
from antiphon.contract._base import UNSET
from antiphon.contract.approval import approval_of, is_asking, split_note
from antiphon.contract.events import audit_manifest
from antiphon.contract.record import DedupeRecord, is_unsettled
from antiphon.contract.spec import DidNotHappen, Happened, ToolSpec
from antiphon.decide.breaker import RESET_REASON
from antiphon.decide.claim import RESOLVED, SERVED, is_resolution, is_unknown
from antiphon.errors import AntiphonError, InvalidInput, NotFound, StoreError
from antiphon.keys import params_digests
from antiphon.ops.gateways import declared
from antiphon.ops.resources import Resources
from antiphon.ops.runs import ReservedRun
from antiphon.ports import BreakerRow, Cursor, Journal, Settlement
from antiphon.stores._adapters import AsyncFromSync

log: logging.Logger = logging.getLogger("antiphon.ops")

TRIAL = "antiphon-doctor"
"""The tenant of the claim that a health check makes: it appears in nobody else's lists."""
_RESOLVED_TTL_MS = 30 * 86_400_000
_SCAN = 10_000
_SCAN_NAMES = 100_000
_LONGEST_REASON = 500
_FINGERPRINT = 16
_HIDDEN = "(sealed: it holds a secret that only its run knows)"
_KEY = 64


def as_breaker_key(tool: str, context: str | None = None) -> str:
    """The breaker that a request names: by tool (``namespace/name``), or by context (``dependency/…``, ``global``)."""
    if context:
        return context if context == "global" or "/" in context else f"dependency/{context}"
    if not tool:
        raise InvalidInput("Name a breaker: a tool, a dependency or global.", path="$.tool")
    if tool.startswith(("tool/", "dependency/")) or tool == "global":
        return tool
    return f"tool/{tool}" if "/" in tool else f"tool/tools/{tool}"


def tenants_of(app: Resources) -> list[str]:
    """The tenants with claims in the store, the application's own first."""
    return [app.tenant, *sorted(tenant for tenant in app.journal.tenants() if tenant not in (app.tenant, TRIAL))]


class Resolution(NamedTuple):
    """The verdict on one unknown outcome. With a version, only that version of the claim is settled."""

    key: str
    verdict: str
    value: Any = None
    version: int | None = None


Bulk = dict[str, Any]
"""How many were settled, which were refused and why, and whether it was a dry run."""


NOT_AUDITED = "notAudited"
"""Key of an answer that says why the completed act is not in the audit log."""


def refusal(error: AntiphonError) -> str:
    """Why one of several acts failed; if the store failed midway, the act may still have been carried out."""
    if not isinstance(error, StoreError):
        return str(error)
    log.warning("the store failed: %s", error)
    return "The store failed, so this may or may not have been done. Check it again."


def dry(dry_run: bool) -> dict[str, bool]:
    """What the answer to an act says if it was only tried."""
    return {"dryRun": True} if dry_run else {}


class Admin:
    """The acts of one operator on one tenant's state."""

    def __init__(self, app: Resources, journal: Journal | None = None, *, actor: str = "cli") -> None:
        """Without an asynchronous *journal* the acts use the synchronous one and never suspend."""
        self._journal = journal or AsyncFromSync(app.journal)
        self._clock = app.clock
        self._redactor = app._redactor
        self._named = frozenset(app.config.tools)
        self.tenant: str = app.tenant
        self.actor = actor
        self._workspace = app.workspace
        self._place = app.store.url
        self._fingerprints = fingerprints_of(app.config, app.store)
        self._sealer = sealer_of(app.config, app.store)

    # -- looking -----------------------------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """Breakers, and how many claims each tool has in each state."""
        counts = await self._journal.counts(self.tenant)
        claims: dict[str, dict[str, int]] = {}
        for (tool, state), number in sorted(counts.items()):
            claims.setdefault(tool, {})[state] = number
        return {"tenant": self.tenant, "breakers": await self.breakers(), "claims": claims}

    async def breakers(self) -> list[dict[str, Any]]:
        """The shared state of every breaker that ever changed; operators' acts before trips of single processes."""
        rows = await self._journal.load_breakers(self.tenant)
        return [self._breaker(row) for row in sorted(rows, key=lambda row: (row.name, row.key))]

    def _breaker(self, row: BreakerRow) -> dict[str, Any]:
        now = self._clock.now_ms()
        expired = bool(row.until_ms) and row.until_ms <= now
        state = row.state
        if expired and state in ("OPEN", "FORCED_OPEN"):
            state = "CLOSED" if state == "FORCED_OPEN" else "HALF_OPEN"
        return {
            "key": row.name,
            "state": state,
            "by": "process" if row.is_trip else "operator",
            "reason": row.reason,
            "epoch": row.epoch,
            "untilMs": None if not row.until_ms or expired else row.until_ms,
            "updatedAtMs": row.updated_at_ms,
        }

    async def claims(
        self,
        *,
        tool: str = "",
        session: str = "",
        state: str = "",
        prefix: str = "",
        limit: int = 100,
        before: str = "",
    ) -> list[dict[str, Any]]:
        """Claim records, newest first, without results. With *before* (``KEY@FENCE`` or a key): those after it.

        ``unknown`` is also a state: it selects every claim that needs settling, including those of lost workers that
        nobody has asked about since.
        """
        which = {"tool": tool, "session": session, "prefix": prefix}
        if state == "unknown":
            found = await self._unsettled(**which)
            if before:
                place = await self._place_of(before, found)
                found = [record for record in found if Cursor.of_record(record) < place]
        else:
            after = await self._place_of(before) if before else None
            found = await self._journal.list(tenant=self.tenant, state=state, limit=limit, before=after, **which)
        return await self._described_all(found[:limit])

    async def _place_of(self, before: str, listed: Sequence[DedupeRecord] = ()) -> Cursor:
        """Where a list continues: at a cursor, or after the last *listed* record of a key."""
        place = Cursor.parse(before)
        if place is not None:
            return place
        records = [record for record in listed if record.key == before]
        if not records:
            found = await self._journal.read(before)
            if found is None or found.current.tenant != self.tenant:
                raise NotFound(f"There is no claim {before[:_KEY]!r}; a cursor, KEY@FENCE, outlives its claim.")
            records = [found.current]
        return min(map(Cursor.of_record, records))

    async def unsettled(self, limit: int) -> tuple[list[dict[str, Any]], int]:
        """The newest claims that need settling, and how many there are."""
        found = await self._unsettled(tool="", session="", prefix="")
        return await self._described_all(found[:limit]), len(found)

    async def _unsettled(self, **which: str) -> list[DedupeRecord]:
        """Unknown outcomes, and writes in flight whose worker has died."""
        found = [record async for record in self._all(state="failed", **which) if is_unknown(record)]
        running = [record async for record in self._all(state="inflight", **which)]
        now = await self._now_ms(running)
        found += [record for record in running if self._abandoned(record, now)]
        found += [record for record in await self._earlier_unknown() if _fits(record, **which)]
        return sorted(found, key=Cursor.of_record, reverse=True)

    async def _all(self, **which: str) -> AsyncIterator[DedupeRecord]:
        """All current records that match, newest first."""
        before: Cursor | None = None
        while page := await self._journal.list(tenant=self.tenant, limit=_SCAN, before=before, **which):
            for record in page:
                yield record
            if len(page) < _SCAN:
                break
            before = Cursor.of_record(page[-1])

    async def _earlier_unknown(self, key: str = "") -> list[DedupeRecord]:
        """Unknown outcomes of calls that later calls have replaced: they still need settling."""
        return [record for record in await self._journal.earlier(tenant=self.tenant, key=key) if is_unsettled(record)]

    async def _now_ms(self, records: Sequence[DedupeRecord]) -> int:
        """The store's time, which decides when leases expire, if one of *records* is in flight; else the local time."""
        running = next((record for record in records if record.state == "inflight"), None)
        return self._clock.now_ms() if running is None else await self._now(running)

    async def _now(self, record: DedupeRecord) -> int:
        """The store's time."""
        found = await self._journal.read(record.key)
        return self._clock.now_ms() if found is None else found.now_ms

    def _unsealed_view(self, record: DedupeRecord, *, masks: bool = True) -> DedupeRecord:
        """The record with its arguments and key unsealed, or masked as an operator may see them."""
        key = self._unsealed(record, record.idempotency_key)
        given = record.idempotency_key if key is None else key.decode()
        if masks:
            hides = key is not None and self._redactor.redact(given) == given
            given = _HIDDEN if hides else self._sanitized(given)
        record = msgspec.structs.replace(record, idempotency_key=given)
        if record.arguments is UNSET:
            return record
        _, sealed = split_note(record.arguments)
        if not sealed.startswith("s2."):
            return msgspec.structs.replace(record, arguments=sealed)
        data, _, shown = (self._unsealed(record, sealed) or b"").partition(b"\n")
        arguments = masked(shown or data, self._redactor) if masks else data.decode()
        return msgspec.structs.replace(record, arguments=arguments)

    def _unsealed(self, record: DedupeRecord, sealed: str) -> bytes | None:
        """The sealed content of a record; ``None`` if nothing is sealed, it is damaged, or another key sealed it."""
        sealer = self._sealer() if sealed.startswith("s2.") else None
        if sealer is not None:
            with contextlib.suppress(StoreError):
                return bytes(sealer.unseal(sealed, context=record.key.encode()))
        return None

    def _abandoned(self, record: DedupeRecord, now_ms: int) -> bool:
        """A write whose worker stopped renewing its lease: the next equal call would find its outcome unknown."""
        return record.arguments is not UNSET and not is_asking(record) and not _is_held(record, now_ms)

    async def claim(self, key: str) -> dict[str, Any]:
        """One claim record, by its key, the fingerprint that logs show, or a unique prefix of either."""
        return (await self._described_all([await self._find(key)]))[0]

    async def _described_all(self, records: Sequence[DedupeRecord]) -> list[dict[str, Any]]:
        now = await self._now_ms(records)
        return [self._described(record, now) for record in records]

    def _described(self, record: DedupeRecord, now_ms: int) -> dict[str, Any]:
        prints = self._fingerprints
        fingerprint = prints.of(record.key) if prints.last else record.key[:_FINGERPRINT]
        kept = approval_of(record)
        return {
            **describe(self._unsealed_view(record), fingerprint),
            "lost": self._abandoned(record, now_ms),
            "approval": None if kept is None else kept.state(now_ms),
        }

    async def audit(self, *, limit: int = 100) -> list[dict[str, Any]]:
        """What operators did, newest first."""
        found = await self._audit().read()
        return [{"atMs": event.at_ms, **event.payload} for event in reversed(found[-limit:])]

    async def looked_at_originals(self, run: str) -> None:
        """Record that the originals of a run's masked values are being shown."""
        await self._note("reveal", {"run": run})

    async def accepted_recording(self, done: dict[str, Any], run: str, reason: str) -> dict[str, Any]:
        """Record that a golden artifact was replaced by a run."""
        return await self._done("accept", {"run": run, "path": done["path"], "reason": reason}, done)

    # -- breakers ----------------------------------------------------------------------------------------------------

    async def force_open(
        self, key: str, reason: str = "", for_ms: int | None = None, *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Hold a breaker open until it is reset, or for *for_ms*; every process follows within a second."""
        if for_ms is not None and for_ms <= 0:
            raise InvalidInput(
                "The duration of a forced state must be a positive number of milliseconds.", path="$.forMs"
            )
        until = 0 if for_ms is None else self._clock.now_ms() + for_ms
        text = reason or "forced by an operator"
        return await self._override("force_open", key, "FORCED_OPEN", until, text, dry_run)

    async def reset(self, key: str, reason: str = "", *, dry_run: bool = False) -> dict[str, Any]:
        """Close a breaker at once, with fresh counters. *dry_run* only reports what would happen."""
        text = f"{RESET_REASON}: {reason}" if reason else RESET_REASON
        return await self._override("reset", key, "CLOSED", 0, text, dry_run)

    async def _override(
        self, act: str, key: str, state: str, until: int, reason: str, dry_run: bool = False
    ) -> dict[str, Any]:
        reason = self._sanitized(reason)
        rows = await self._journal.load_breakers(self.tenant)
        await self._must_know(act, key, {row.name for row in rows})
        now = self._clock.now_ms()
        known = max((row.epoch for row in rows if row.name == key), default=0)
        epoch = max(known + 1, now // 1000)  # outranks what processes count, even after their rows are swept
        row = BreakerRow(key, state, epoch, until, reason, now, owner_token())
        if dry_run:
            states = [self._breaker(one)["state"] for one in rows if one.name == key]
            worst = next((one for one in ("FORCED_OPEN", "OPEN", "HALF_OPEN") if one in states), "CLOSED")
            return {**self._breaker(row), "before": worst, "dryRun": True}
        await self._journal.save_breaker(self.tenant, row)
        return await self._done(act, {"key": key, "reason": reason}, self._breaker(row))

    def _sanitized(self, reason: str) -> str:
        """A reason as every process, log and page may show it: on one line, without secrets."""
        clean = str(self._redactor.redact(reason))
        return "".join(one if one.isprintable() else " " for one in clean)[:_LONGEST_REASON]

    async def _must_know(self, act: str, key: str, rows: set[str]) -> None:
        """A misspelt name would open or close nothing; the operator must be told."""
        if key == "global" or key in rows:
            return
        if act == "force_open" and key.startswith("dependency/"):
            return  # dependencies exist in code only, so there is no way to check from here
        known = rows | {f"tool/{tool}" for tool, _ in await self._journal.counts(self.tenant)}
        for name, spec in declared().items():
            known |= {f"tool/{name}"} | ({f"dependency/{spec.dependency}"} if spec.dependency else set())
        known |= {f"tool/{name}" for name in self._named if "/" in name}
        if key in known or (key.startswith("tool/") and key.rpartition("/")[2] in self._named):
            return
        near = difflib.get_close_matches(key, known, 5, 0.5) or sorted(known)[:5]
        shown = ", ".join(name.removeprefix("tool/") for name in near) or "none"
        raise NotFound(
            f"There is no breaker {key.removeprefix('tool/')!r}: the store has neither state nor claims of it, and the "
            "configuration does not name it. Nothing was changed.",
            hint=f"Known: {shown}. To hold open a tool that was never called, "
            'set [tools."namespace/name"] forced_open = true.',
        )

    # -- claims ------------------------------------------------------------------------------------------------------

    async def clear(
        self, key: str, reason: str = "", *, in_flight: bool = False, unknown: bool = False
    ) -> dict[str, Any]:
        """Forget one claim: the next equal call runs. In flight or unknown, it needs *in_flight* or *unknown*."""
        record = await self._find(key)
        earlier = await self._earlier_unknown(record.key)
        runs = record.state == "inflight" and not in_flight
        if runs or ((is_unknown(record) or earlier) and not unknown):
            what, flag = ("in flight", "--in-flight") if runs else ("unknown", "--unknown")
            raise InvalidInput(
                f"The outcome of {record.key} is {what}, and an equal call would run. Nothing was changed.",
                hint=f"Resolve it (antiphon claims resolve), or clear it anyway with {flag}.",
                path="$.key",
            )
        cleared = await self._drop(record)
        for one in earlier:
            cleared |= one.version != record.version and await self._drop(one)
        about = {"key": record.key, "tool": record.tool, "reason": reason}
        return await self._done("clear", about, {"key": record.key, "cleared": cleared})

    async def _drop(self, record: DedupeRecord) -> bool:
        """Delete a record; one that a worker may still return to is replaced by a tombstone."""
        if record.state == "inflight" or is_unknown(record):
            tombstone = ("cleared", "An operator cleared this claim; the next equal call runs.", True, False)
            settlement = Settlement("cancelled", _RESOLVED_TTL_MS, error=tombstone, dispatched=False)
            return await self._journal.settle(record.key, record.version, settlement) is not None
        return await self._journal.clear(record.key, record.version)

    async def resolve(
        self,
        key: str,
        verdict: str,
        *,
        value: Any = None,
        has_value: bool = True,
        reason: str = "",
        version: int | None = None,
        in_flight: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Settle a claim with an unknown outcome: it happened (with *value*), or it did not.

        A resolution can be corrected until a call has been answered with it; that of a call that later calls have
        replaced is final. With *version* only that version of the record is settled. A claim whose worker still holds
        its lease is settled only with *in_flight*. *dry_run* makes every check and changes nothing.
        """
        if verdict not in ("happened", "did-not-happen"):
            raise InvalidInput("The verdict is 'happened' or 'did-not-happen'.", path="$.verdict")
        if verdict == "happened" and not has_value:
            raise InvalidInput(
                "Say what the call returned: duplicates are answered with it.",
                hint="--value JSON, or --no-value if it returns nothing.",
                path="$.value",
            )
        if verdict == "did-not-happen" and value is not None:
            raise InvalidInput(
                "A call that did not happen has no result. Nothing was changed.",
                hint="Leave the value out, or say that it happened.",
                path="$.value",
            )
        record, is_current = await self._to_settle(key, version)
        if record.error is not UNSET and record.error.code == SERVED[0]:
            raise InvalidInput(
                f"A call was already answered with the resolution of {record.key}. Nothing was changed.",
                hint="It is final. To let the next call run: antiphon claims clear.",
                path="$.key",
            )
        if record.state != "inflight" and not is_unknown(record) and not is_resolution(record):
            raise InvalidInput(
                f"The outcome of {record.key} is known: {record.state}.",
                hint="Only an unknown outcome is resolved; clear the claim to let the call run again.",
                path="$.key",
            )
        if record.state == "inflight" and not in_flight and _is_held(record, await self._now_ms([record])):
            raise InvalidInput(
                f"The call of {record.key} is running: its worker holds the lease. Nothing was changed.",
                hint="Wait until it settles or its lease expires. If its worker is certainly gone: --in-flight.",
                path="$.key",
            )
        error = RESOLVED if is_current else SERVED
        if verdict == "happened":
            settlement = Settlement("done", _RESOLVED_TTL_MS, payload=codec.encode(value), error=error)
        else:
            settlement = Settlement("cancelled", _RESOLVED_TTL_MS, dispatched=False, error=error)
        settled = None
        if version in (None, record.version):
            if dry_run:
                before = "unknown" if is_unknown(record) else record.state
                return {"key": record.key, "resolved": verdict, "before": before, "dryRun": True}
            settled = await self._journal.settle(record.key, record.version, settlement)
        if settled is None:
            raise InvalidInput("The claim changed in the meantime.", hint="Check the claim again, then decide.")
        about = {"key": record.key, "tool": record.tool, "verdict": verdict, "reason": reason}
        return await self._done("resolve", about, {"key": record.key, "resolved": verdict})

    async def resolve_all(
        self, verdicts: Sequence[Resolution], *, reason: str = "", in_flight: bool = False, dry_run: bool = False
    ) -> Bulk:
        """Settle several claims, each as :meth:`resolve` does; one that is refused does not stop the others."""
        resolved, refused = 0, []
        options: dict[str, Any] = {"reason": reason, "in_flight": in_flight, "dry_run": dry_run}
        unaudited: dict[str, str] = {}
        for one in verdicts:
            try:
                done = await self.resolve(one.key, one.verdict, value=one.value, version=one.version, **options)
                resolved += 1
                if NOT_AUDITED in done:
                    unaudited[NOT_AUDITED] = done[NOT_AUDITED]
            except (InvalidInput, NotFound, StoreError) as error:
                refused.append({"key": one.key, "message": refusal(error)})
        return {"resolved": resolved, **({"refused": refused} if refused else {}), **unaudited, **dry(dry_run)}

    async def evidence(
        self,
        specs: Mapping[str, ToolSpec],
        *,
        tool: str = "",
        session: str = "",
        prefix: str = "",
        keys: Collection[str] = (),
    ) -> list[dict[str, Any]]:
        """What the ``reconcile`` functions of the tools say about each unknown outcome; changes nothing.

        With *keys* only those are checked.
        """
        said = []
        for record in await self._unsettled(tool=tool, session=session, prefix=prefix):
            if keys and record.key not in keys:
                continue
            verdict, value, why = await _ask(specs.get(record.tool), self._unsealed_view(record, masks=False))
            shown = self._described(record, record.updated_at_ms)
            kept = ("key", "fingerprint", "tool", "arguments", "version")
            said.append({**{name: shown[name] for name in kept}, "verdict": verdict, "value": value, "why": why})
        return said

    def shown_value(self, value: Any) -> str | None:
        """A result as an operator may see it: JSON, secrets masked."""
        return None if value is None else masked(codec.encode(value), self._redactor)

    async def flush(
        self,
        *,
        tool: str = "",
        session: str = "",
        prefix: str = "",
        reason: str = "",
        in_flight: bool = False,
        unknown: bool = False,
    ) -> dict[str, Any]:
        """Forget all claims of a tool, a session or a key prefix; those in flight or unknown only on request."""
        if not (tool or session or prefix):
            raise InvalidInput("Specify what to flush: a tool, a session or a prefix of keys.", path="$")
        chosen = {"tool": tool, "session": session, "prefix": prefix}
        flushed, kept = 0, {"inFlight": 0, "unknown": 0}
        earlier = [record for record in await self._earlier_unknown() if _fits(record, **chosen)]
        in_doubt = set() if unknown else {record.key for record in earlier}
        for record in earlier if unknown else ():
            flushed += await self._drop(record)
        async for record in self._all(**chosen):
            if record.state == "inflight" and not in_flight:
                kept["inFlight"] += 1
            elif (is_unknown(record) and not unknown) or record.key in in_doubt:
                kept["unknown"] += 1
            else:
                flushed += await self._drop(record)
        about = {**chosen, "flushed": flushed, "kept": kept, "reason": reason}
        return await self._done("flush", about, {"flushed": flushed, **({"kept": kept} if any(kept.values()) else {})})

    async def _to_settle(self, key: str, version: int | None) -> tuple[DedupeRecord, bool]:
        """The record to settle, and whether it is the current one; later calls may have replaced an unknown outcome."""
        record = await self._find(key)
        earlier = await self._earlier_unknown(record.key)
        is_current = all(one.version != record.version for one in earlier)
        if version is not None:
            named = next((one for one in earlier if one.version == version), None)
            return (record, is_current) if named is None else (named, False)
        in_doubt = is_current and (is_unknown(record) or self._abandoned(record, await self._now_ms([record])))
        unknown = [*([record] if in_doubt else ()), *earlier]
        if len(unknown) > 1:
            calls = [f"{one.version} (call {one.request.tool_call_id or 'without id'})" for one in unknown]
            raise InvalidInput(
                f"{len(unknown)} calls of {record.key} have an unknown outcome. Nothing was changed.",
                hint=f"Name one by its version: --version N, one of {', '.join(calls)}",
                path="$.version",
            )
        return (unknown[0], in_doubt) if unknown else (record, is_current)

    async def _find(self, key: str) -> DedupeRecord:
        if not key:
            raise InvalidInput("Name a claim: its key or fingerprint.", path="$.key")
        found = await self._journal.read(key)
        if found is not None and found.current.tenant == self.tenant:
            return found.current
        matches = await self._journal.list(tenant=self.tenant, prefix=key, limit=2)
        if not matches and len(key) <= _FINGERPRINT:  # stores know only keys: recompute the fingerprints
            records = await self._journal.list(tenant=self.tenant, limit=_SCAN_NAMES)
            matches = [record for record in records if self._fingerprints.name(record.key, key)]
        if not matches:  # the current one may have expired before an unknown outcome that it replaced
            past = {record.key: record for record in await self._earlier_unknown()}
            matches = [one for name, one in past.items() if name.startswith(key) or self._fingerprints.name(name, key)]
        if not matches:
            where = f"Looked in {self._place}."
            raise NotFound(f"There is no claim {key!r}.", hint=f"{where} List them: antiphon claims list")
        if len(matches) > 1:
            raise NotFound(f"{key!r} matches several claims.", hint="Give more of the key.", code="ambiguous")
        return matches[0]

    # -- audit -------------------------------------------------------------------------------------------------------

    def _audit(self) -> ReservedRun:
        """The reserved run that records what operators of a tenant did."""
        return ReservedRun(self._journal, self._clock, audit_manifest(self.tenant, self._workspace))

    async def _note(self, act: str, detail: Mapping[str, Any]) -> None:
        """Write the audit entry before something is shown; if that fails, nothing is shown."""
        await self._audit().append("admin.act", self._line(act, detail))

    async def _done(self, act: str, detail: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        """Write the audit entry of a change; the *answer* says if that failed."""
        line = self._line(act, detail)
        try:
            await self._audit().append("admin.act", line)
        except StoreError as error:
            log.error("done, but not in the audit log (%s): %s", error, orjson.dumps(line).decode())
            return {**answer, NOT_AUDITED: error.code}
        return answer

    def _line(self, act: str, detail: Mapping[str, Any]) -> dict[str, Any]:
        """Who did it and for whom stays readable, even if these are mail addresses; the rest is masked."""
        given = {name: value for name, value in detail.items() if value not in ("", None)}
        if "reason" in given:
            given["reason"] = self._sanitized(given["reason"])
        clean: dict[str, Any] = orjson.loads(self._redactor.redact_bytes(orjson.dumps(given))[0])
        people = {"by": self.actor, **({"to": given["to"]} if "to" in given else {})}
        return {"act": act, **clean, **people}


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def _arguments(spec: ToolSpec, record: DedupeRecord) -> dict[str, Any] | None:
    """The arguments of an unknown call, if the record has them unchanged: their digest proves it."""
    try:
        params: dict[str, Any] = orjson.loads(_said(record)[1])
        digest = params_digests(params, spec)[1]
    except (ValueError, TypeError, AttributeError, AntiphonError):
        return None
    return params if digest == (record.request.params_digest_exact or record.request.params_digest) else None


async def _ask(spec: ToolSpec | None, record: DedupeRecord) -> tuple[str | None, Any, str]:
    """The verdict of a tool's ``reconcile``, its value, and the reason if there is no verdict."""
    if spec is None or spec.reconcile is None:
        return None, None, "the entry registers no such tool" if spec is None else "the tool has no reconcile function"
    params = _arguments(spec, record)
    if params is None:
        return None, None, "the record keeps its arguments masked, shortened, or in another type"
    request = record.request
    call_id = None if request.tool_call_id is UNSET else request.tool_call_id
    who = (request.request_id, call_id, request.session_key, request.actor_id)
    context = CallContext(record.tool, record.idempotency_key, record.fence, None, 0, *who)
    try:
        answer = spec.reconcile(*((params, context) if takes_two(spec.reconcile) else (params,)))
        if inspect.isawaitable(answer):
            with ThreadPoolExecutor(1) as pool:  # commands have no event loop
                answer = pool.submit(asyncio.run, _awaited(answer)).result()
    except Exception as error:
        return None, None, f"reconcile failed: {type(error).__name__}: {error}"
    if isinstance(answer, Happened):
        return "happened", answer.value, ""
    if isinstance(answer, DidNotHappen):
        return "did-not-happen", None, ""
    return None, None, "it cannot tell" if answer is None else f"reconcile returned {answer!r}"


def audit_before(app: Resources, act: str, detail: Mapping[str, Any]) -> None:
    """Audit something that is about to be done or shown and is not one of :class:`Admin`'s acts."""
    drive(Admin(app)._note(act, detail))


def audit_after(app: Resources, act: str, detail: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Audit a change that is not one of :class:`Admin`'s acts; returns the *answer*."""
    return drive(Admin(app)._done(act, detail, answer))


def _is_held(record: DedupeRecord, now_ms: int) -> bool:
    """Whether a claim in flight is leased to a worker that may be alive."""
    over = record.lock_until_ms is not UNSET and record.lock_until_ms <= now_ms
    return not over and not certainly_dead(record.owner)


def _fits(record: DedupeRecord, tool: str, session: str, prefix: str) -> bool:
    same = tool in ("", record.tool) and session in ("", record.request.session_key)
    return same and record.key.startswith(prefix)


def _said(record: DedupeRecord) -> tuple[str, str]:
    """The message of a record, and the masked arguments of its call."""
    message, _, arguments = ("" if record.error is UNSET else record.error.message).partition(ARGUMENTS)
    return message, arguments if record.arguments is UNSET else record.arguments


def describe(record: DedupeRecord, fingerprint: str) -> dict[str, Any]:
    """A claim record as an operator sees it."""
    message, arguments = _said(record)
    lasts = record.expires_at_ms - record.updated_at_ms < NEVER_MS
    return {
        "key": record.key,
        "fingerprint": fingerprint,
        "tool": record.tool,
        "state": "unknown" if is_unknown(record) else record.state,
        "session": record.request.session_key,
        "actor": record.request.actor_id,
        "requestId": record.request.request_id,
        "callId": None if record.request.tool_call_id is UNSET else record.request.tool_call_id,
        "idempotencyKey": record.idempotency_key,
        "arguments": arguments or None,
        "owner": record.owner,
        "dispatched": record.dispatched,
        "version": record.version,
        "fence": record.fence,
        "createdAtMs": record.created_at_ms,
        "updatedAtMs": record.updated_at_ms,
        "expiresAtMs": record.expires_at_ms if lasts else None,
        "leaseUntilMs": None if record.lock_until_ms is UNSET else record.lock_until_ms,
        "attempts": 0 if record.execution is UNSET else record.execution.attempt_count,
        "error": None if record.error is UNSET else {"code": record.error.code, "message": message},
    }


def usage(app: Resources) -> dict[str, Any]:
    """How many claim records there are, and what one costs the server if the store can tell."""
    measure = getattr(app.journal, "usage", None)
    if measure is None:
        return {"records": sum(app.journal.counts(app.tenant).values())}
    found = measure(app.tenant)
    records, each = int(found["records"]), float(found["bytesPerRecord"])
    return {"records": records, "bytesPerRecord": round(each), "bytes": round(records * each)}

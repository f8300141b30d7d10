"""The calls of recorded runs with their attempts: the data behind effects, health and what-if.

Runs are read once: the calls of a finished run are cached in memory, up to a limit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from antiphon._replay.recording import full_name
from antiphon.contract.events import Event, RunManifest
from antiphon.ops.costs import answered_by, cost_of, model_of, tokens_of
from antiphon.ops.runs import is_audit
from antiphon.ports import Attempt, Cursor, Journal

KEPT = 200_000
"""Cached calls."""
RUNS = 500
EVENTS = 50_000
"""How far back one query goes, in runs and in events."""
_BATCH = 1_000


class Call(NamedTuple):
    """One recorded call, finished or still open."""

    run: str
    process: str
    """The process that made it: breakers and budgets count per process."""
    kind: str
    name: str
    claim: str
    """The beginning of its claim key; empty if it has none."""
    started_ms: int
    effect: str | None
    ended_ms: int | None = None
    tries: tuple[Attempt, ...] = ()
    reused: bool = False
    """Answered from the record of another call."""
    code: str = ""
    """Of the error it ended with."""
    tokens: tuple[int, int] = (0, 0)
    usage: Any = None

    @property
    def suppressed(self) -> bool:
        """Whether it ended without being sent."""
        return self.ended_ms is not None and not self.tries


class TrafficSample(NamedTuple):
    """What was read: the calls, from how many runs and events, and whether that was everything."""

    calls: list[Call]
    runs: int
    events: int
    whole: bool

    def to_wire(self) -> dict[str, Any]:
        """How far back it was read."""
        times = [call.started_ms for call in self.calls]
        span = {"fromMs": min(times, default=None), "toMs": max(times, default=None)}
        return {"runs": self.runs, "events": self.events, "calls": len(self.calls), "isWhole": self.whole, **span}


class Calls:
    """The calls of a run, as far as its log was read."""

    def __init__(self, run: str, process: str = "") -> None:
        self._run = run
        self._process = process
        self.found: dict[str, Call] = {}
        self.next: int = 0
        self.over = False

    def add(self, events: Iterable[Event]) -> None:
        """Read on; payloads are dropped."""
        for event in events:
            self.next = event.seq + 1
            if event.call is None:
                continue
            if event.type == "call.started":
                self.found[event.call] = self._started(event)
            elif event.type == "call.finished" and event.call in self.found:
                self.found[event.call] = _ended(self.found[event.call], event)

    def _started(self, event: Event) -> Call:
        payload, meta = event.payload, event.meta
        kind = str(payload.get("kind", ""))
        return Call(
            run=self._run,
            process=self._process,
            kind=kind,
            name=model_of(payload) if kind == "llm" else full_name(payload),
            claim=str(meta.get("keyFingerprint", "")),
            started_ms=event.at_ms,
            effect=meta.get("effect"),
        )


def _ended(call: Call, event: Event) -> Call:
    meta, error = event.meta, event.payload.get("error")
    replayed = bool(answered_by(meta))
    reused = bool(meta.get("fromCache"))
    tries: tuple[Attempt, ...] = ()
    if isinstance(meta.get("tries"), list):
        tries = tuple(_try(one) for one in meta["tries"] if isinstance(one, Mapping))
    elif not reused and not replayed and meta.get("attempts", 1):
        took = meta.get("durationMs")
        began = event.at_ms - int(took) if isinstance(took, (int, float)) else call.started_ms
        tries = ((began, event.at_ms, "" if error is None else _code(error), False),)
    return call._replace(
        ended_ms=event.at_ms,
        tries=tries,
        reused=reused or replayed,
        code="" if error is None else _code(error),
        tokens=tokens_of(meta.get("usage")),
        usage=meta.get("usage"),
    )


def _code(error: Any) -> str:
    return str(error.get("code") or error.get("class") or "error") if isinstance(error, Mapping) else "error"


def _try(said: Mapping[str, Any]) -> Attempt:
    began, ended = (said.get(name) for name in ("startedAtMs", "finishedAtMs"))
    code = "" if said.get("status") == "success" else str(said.get("errorCode") or "error")
    return int(began or 0), int(ended or began or 0), code, bool(said.get("retriable"))


class Traffic:
    """The calls of the runs of one journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._kept: OrderedDict[str, Calls] = OrderedDict()
        self._size = 0

    async def newest(self, tenant: str) -> TrafficSample:
        """The calls of the newest runs, as far back as the limits allow; replays send nothing and are left out."""
        calls: list[Call] = []
        seen = used = read = 0
        before: Cursor | None = None
        while seen < RUNS and read < EVENTS:
            size = min(100, RUNS - seen)
            page = await self._journal.runs(tenant=tenant, limit=size, before=before)
            for manifest in page:
                seen, before = seen + 1, Cursor.of_run(manifest)
                if is_audit(manifest) or manifest.source_run is not None:
                    continue
                found = await self.of(manifest)
                used += 1
                calls += found.found.values()
                read += found.next
                if read >= EVENTS:
                    break
            else:
                if len(page) < size:
                    return TrafficSample(calls, used, read, True)
        return TrafficSample(calls, used, read, False)

    def known(self, run: str) -> int:
        """How many events of a run have been read."""
        kept = self._kept.get(run)
        return 0 if kept is None else kept.next

    async def of(self, manifest: RunManifest) -> Calls:
        """The calls of one run; events that were read before are not read again."""
        found = self._kept.pop(manifest.id, None) or Calls(manifest.id, manifest.tags.get("owner", ""))
        known = len(found.found)
        while not found.over and (batch := await self._journal.events(manifest.id, start=found.next, limit=_BATCH)):
            found.add(batch)
        found.over = manifest.status not in ("running", "interrupted")  # an interrupted one may continue
        self._kept[manifest.id] = found
        self._size += len(found.found) - known
        while self._size > KEPT and len(self._kept) > 1:
            self._size -= len(self._kept.popitem(last=False)[1].found)
        return found


def totals(calls: Sequence[Call], prices: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens and money of the model calls of a run, and the tools that it called."""
    models = [call for call in calls if call.kind == "llm"]
    priced = [prices.get(call.name) for call in models]
    cost = sum(cost_of(price, call.usage) for price, call in zip(priced, models, strict=True) if not call.reused)
    return {
        "inputTokens": sum(call.tokens[0] for call in models),
        "outputTokens": sum(call.tokens[1] for call in models),
        "cost": round(cost, 6) if any(price is not None for price in priced) else None,
        "tools": sorted({call.name for call in calls if call.kind != "llm"}),
        "calls": len(calls),
    }


# -- effects ---------------------------------------------------------------------------------------------------------


def count_by_claim(calls: Iterable[Call], claims: Iterable[str]) -> dict[str, dict[str, Any]]:
    """For each claim: how often it was requested, sent and not sent, and in which runs."""
    found: dict[str, dict[str, Any]] = {
        claim[:16]: {"asked": 0, "sent": 0, "suppressed": 0, "runs": []} for claim in claims
    }
    for call in calls:
        about = found.get(call.claim) if call.claim else None
        if about is None:
            continue
        about["asked"] += 1
        about["sent"] += bool(call.tries)
        about["suppressed"] += call.suppressed
        if call.run not in about["runs"] and len(about["runs"]) < 10:
            about["runs"].append(call.run)
    return found

"""Claims in one store, the run log in another: for fleets, Redis and PostgreSQL (or SQLite).

The order is claim, start event, dispatch, outcome event, settle. Whatever a crash leaves behind is repaired or
explicit: an outcome event without a settled claim is settled from the log once the lease has expired; a start event
without an outcome is an unknown (D3); a claim without a start event looks the same and is treated the same.

What a repair needs is in ``meta.claim`` of the outcome event: the fence, a fingerprint of the key (never the key, D21),
state, TTL and marks; the result itself is the event's own value. A value that the log redacted stays redacted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from antiphon.contract.events import EVENT_VERSION, Event
from antiphon.contract.record import UNKNOWN_CODE, DedupeRecord, RecordedAttempt
from antiphon.ports import (
    Attempt,
    Begun,
    Claimed,
    ClaimRequest,
    Existing,
    Journal,
    Records,
    Row,
    Settlement,
    Store,
    SyncJournal,
)
from antiphon.stores._adapters import AsyncFromSync, SyncFromAsync
from antiphon.stores._common import Settling, append_each, recorded_attempt, static_copy

Usage = Callable[[str], Any] | None
"""A store's method beyond the port that tells how much space a tenant's records use."""

Result = Literal["none", "value", "redacted"]


class _Payload(msgspec.Struct):
    value: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct, rename="camel", omit_defaults=False):
    """The body of an event whose payload is left as it is."""

    lane: str = "0"
    index: int = 0
    call: str | None = None
    parent: str | None = None
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    meta: dict[str, Any] = {}
    v: int = EVENT_VERSION


class _Claim(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """What ``meta.claim`` holds."""

    fence: int
    fingerprint: str
    state: str
    ttl_ms: int
    result: Result = "none"
    payload_ref: str | None = None
    payload_sealed: str | None = None
    error: tuple[str, str, bool, bool] | None = None
    attempts: tuple[RecordedAttempt, ...] = ()
    attempt_count: int = 0
    dispatched: bool = True


_body_of = msgspec.json.Decoder(_Body).decode
_payload_of = msgspec.json.Decoder(_Payload).decode
_encode = msgspec.json.Encoder().encode

_PAGE = 1000


class ComposedStore:
    """Two stores as one: *claims* keeps claims and breaker states, *log* keeps runs and their events.

    >>> from antiphon.stores import MemoryStore
    >>> ComposedStore(claims=MemoryStore(), log=MemoryStore()).url.count(" + ")
    1
    """

    in_process = False

    def __init__(self, *, claims: Store, log: Store) -> None:
        self.claims = claims
        self.log = log
        self._settling = Settling()

    def __repr__(self) -> str:
        return f"ComposedStore(claims={self.claims!r}, log={self.log!r})"

    @property
    def url(self) -> str:
        """Where both are, without secrets."""
        return f"{self.claims.url} + {self.log.url}"

    @property
    def seal_key(self) -> Any:
        """The seal key of the store that holds results, if it has one."""
        return getattr(self.claims, "seal_key", None)

    def open_sync(self) -> SyncComposedJournal:
        """A journal for threads."""
        return SyncComposedJournal(self.claims.open_sync(), self.log.open_sync(), self._settling)

    def open_async(self) -> Journal:
        """A journal for the running event loop."""
        return ComposedJournal(self.claims.open_async(), self.log.open_async(), self._settling)


class ComposedJournal:
    """Two journals as one."""

    def __init__(self, claims: Journal, log: Journal, settling: Settling | None = None) -> None:
        self._claims = claims
        self._log = log
        self._settling = Settling() if settling is None else settling
        self.durable: bool = claims.durable and log.durable
        self.usage: Usage = getattr(claims, "usage", None)
        self.alias = claims.alias
        self.renew = claims.renew
        self.forgotten = claims.forgotten
        self.wait = claims.wait
        self.clear = claims.clear
        self.counts = claims.counts
        self.tenants = claims.tenants
        self.load_breakers = claims.load_breakers
        self.save_breaker = claims.save_breaker
        self.subscribe_breakers = claims.subscribe_breakers
        self.open_run = log.open_run
        self.update_run = log.update_run
        self.append = log.append
        self.manifest = log.manifest
        self.runs = log.runs
        self.events = log.events
        self.delete_run = log.delete_run

    async def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Begun:
        answer = await self._claims.begin(_with_run(request, events))
        return await self._answered(request, answer, events)

    async def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Begun:
        answer = await self._claims.take_over(_with_run(request, events), version)
        return await self._answered(request, answer, events)

    async def _answered(self, request: ClaimRequest, answer: Begun, events: Sequence[Row]) -> Begun:
        if isinstance(answer, Existing):
            return await self._repaired(answer, request.identity)
        if events and isinstance(answer, Claimed):
            try:
                await self._append(events)
            except BaseException:  # without a start event nothing may be dispatched: release the claim
                release = Settlement("cancelled", request.template.ttl_ms, dispatched=False)
                await self._claims.settle(request.key, answer.version, release)
                raise
        return answer

    async def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        if events:
            rows = [*events[:-1], _noted(events[-1], key, version, settlement)]
            return await self._settling.run(
                key, version, rows, self._append, lambda: self._claims.settle(key, version, settlement)
            )
        if settlement.error is not None and settlement.error[0] == UNKNOWN_CODE:
            # A caller gives up on a worker that is gone. The worker may have got as far as the log.
            existing = await self._claims.read(key)
            if existing is not None and existing.current.version == version:
                settlement = await self._settlement_in_log(existing.current) or settlement
        return await self._claims.settle(key, version, settlement)

    async def _append(self, events: Sequence[Row]) -> None:
        await append_each(events, self._log.append)

    async def _repaired(self, answer: Existing, identity: str) -> Existing:
        """Settle a claim from the log if its worker got that far and its lease has expired."""
        current = answer.current
        lock = 0 if current.lock_until_ms is UNSET else current.lock_until_ms
        if current.state == "inflight" and lock <= answer.now_ms:
            settlement = await self._settlement_in_log(current)
            if settlement is not None:
                await self._claims.settle(current.key, current.version, settlement)
                answer = await self._claims.read(current.key, identity) or answer
        own = answer.own
        return Existing(_without_run(answer.current), None if own is None else _without_run(own), answer.now_ms)

    async def _settlement_in_log(self, record: DedupeRecord) -> Settlement | None:
        """How the holder of *record* ended, according to the run it belongs to."""
        run, mark, _ = record.owner.rpartition("@")
        start = 0
        while mark:
            events = await self._log.events(run, start=start, limit=_PAGE)
            for event in events:
                settlement = _settlement_in(event, record.key, record.version)
                if settlement is not None:
                    return settlement
            if len(events) < _PAGE:
                break
            start += _PAGE
        return None

    async def read(self, key: str, identity: str = "") -> Existing | None:
        answer = await self._claims.read(key, identity)
        return None if answer is None else await self._repaired(answer, identity)

    async def list(self, **which: Any) -> Records:
        return [_without_run(record) for record in await self._claims.list(**which)]

    async def earlier(self, **which: Any) -> Records:
        return [_without_run(record) for record in await self._claims.earlier(**which)]

    async def sweep(self, limit: int = 1000) -> int:
        return await self._claims.sweep(limit) + await self._log.sweep(limit)

    async def ping(self) -> Mapping[str, Any]:
        claims, log = await self._claims.ping(), await self._log.ping()
        latency = float(claims.get("latencyMs", 0.0)) + float(log.get("latencyMs", 0.0))
        durable = bool(claims["durable"] and log["durable"])
        return {"store": "composed", "durable": durable, "claims": claims, "log": log, "latencyMs": latency}

    async def close(self) -> None:
        try:
            await self._claims.close()
        finally:
            await self._log.close()


class SyncComposedJournal(SyncFromAsync):
    """Two synchronous journals as one."""

    def __init__(self, claims: SyncJournal, log: SyncJournal, settling: Settling | None = None) -> None:
        super().__init__(ComposedJournal(AsyncFromSync(claims), AsyncFromSync(log), settling))
        self.usage: Usage = getattr(claims, "usage", None)


def _with_run(request: ClaimRequest, events: Sequence[Row]) -> ClaimRequest:
    """The record's owner, ``RUN@TOKEN/PROCESS``, names the run that the claim's events go to."""
    if not events:
        return request
    return static_copy(request)._replace(token=f"{events[0].run}@{request.token}")


def _without_run(record: DedupeRecord) -> DedupeRecord:
    _, mark, owner = record.owner.rpartition("@")
    return msgspec.structs.replace(record, owner=owner) if mark else record


def _noted(row: Row, key: str, version: int, settlement: Settlement) -> Row:
    """The outcome event with the claim's end noted in its metadata."""
    body = _body_of(row.body)
    result: Result = "none"
    if settlement.payload is not None:
        unchanged = bytes(_payload_of(body.payload).value) == settlement.payload
        result = "value" if unchanged and not settlement.output_redacted else "redacted"
    claim = _Claim(
        fence=version,
        fingerprint=_fingerprint(key),
        state=settlement.state,
        ttl_ms=settlement.ttl_ms,
        result=result,
        payload_ref=settlement.payload_ref,
        payload_sealed=settlement.payload_sealed,
        error=settlement.error,
        attempts=tuple(map(recorded_attempt, settlement.attempts)),
        attempt_count=settlement.attempt_count,
        dispatched=settlement.dispatched,
    )
    body.meta = {**body.meta, "claim": claim}
    return row._replace(body=_encode(body))


def _settlement_in(event: Event, key: str, version: int) -> Settlement | None:
    """The end of the claim *version* of *key*, if *event* contains it."""
    noted_claim = event.meta.get("claim")
    if not isinstance(noted_claim, dict) or noted_claim.get("fence") != version:
        return None
    claim = msgspec.convert(noted_claim, _Claim)
    if claim.fingerprint != _fingerprint(key):
        return None
    has_result = claim.result != "none" and "value" in event.payload
    return Settlement(
        claim.state,
        claim.ttl_ms,
        payload=_encode(event.payload["value"]) if has_result else None,
        payload_ref=claim.payload_ref,
        payload_sealed=claim.payload_sealed,
        output_redacted=has_result and claim.result == "redacted",
        error=claim.error,
        attempts=tuple(map(_attempt_of, claim.attempts)),
        attempt_count=claim.attempt_count,
        dispatched=claim.dispatched,
    )


def _attempt_of(recorded: RecordedAttempt) -> Attempt:
    code = "" if recorded.error_code is UNSET else recorded.error_code
    return recorded.started_at_ms, recorded.finished_at_ms, code, recorded.retriable


def _fingerprint(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:16]

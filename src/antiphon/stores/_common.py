"""What the stores share: record shapes, version numbers, SQL from files, and outcomes that take two writes."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from antiphon.contract.events import EVENT_VERSION, Event, RunManifest
from antiphon.contract.record import (
    UNKNOWN_CODE,
    DedupeRecord,
    RecordedAttempt,
    RecordedError,
    RecordedExecution,
    RecordedRequest,
)
from antiphon.errors import StoreError, StoreVersionError
from antiphon.ports import ONLY_EVENTS, Attempt, ClaimRequest, Cursor, Row, Settlement, StaticClaimRequest

_log = logging.getLogger("antiphon.stores")
_reported: deque[bytes] = deque(maxlen=64)
"""Manifests that could not be read and have been reported."""

BREAKER_KEPT_MS = 86_400_000
"""How long a breaker's state is kept after its end; one without an end stays."""
_REMEMBERED = 1024
_NOTHING = (False, None)
_UPGRADE = "Upgrade Antiphon on this machine; the record was left as it is."


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a settlement adds to a claim record, apart from the payload's own bytes."""

    execution: RecordedExecution | UnsetType = UNSET
    payload_ref: str | UnsetType = UNSET
    payload_sealed: str | UnsetType = UNSET
    output_redacted: bool | UnsetType = UNSET
    error: RecordedError | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    """What a claim in flight says about its call; the settlement takes its place."""


class _StoredBody(msgspec.Struct, frozen=True, rename="camel"):
    """The stored half of an event: :class:`~antiphon.contract.events.EventBody` with its data decoded."""

    lane: str = "0"
    index: int = 0
    call: str | None = None
    parent: str | None = None
    payload: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    v: int = EVENT_VERSION


class _Versioned(msgspec.Struct, frozen=True):
    v: int = 1


class ClaimQuery(NamedTuple):
    """Which claims a list shows (see ``list`` of the port); an empty string means all."""

    tenant: str
    tool: str = ""
    session: str = ""
    prefix: str = ""
    state: str = ""
    limit: int = 100
    before: Cursor | None = None


class RunQuery(NamedTuple):
    """Which runs a list shows (see ``runs`` of the port); an empty string means all."""

    tenant: str
    prefix: str = ""
    name: str = ""
    status: str = ""
    limit: int = 50
    before: Cursor | None = None


NO_OUTCOME = Outcome()
_body_decoder = msgspec.json.Decoder(_StoredBody)
_manifest_decoder = msgspec.json.Decoder(RunManifest)
_version_decoder = msgspec.json.Decoder(_Versioned)


def next_version(previous: int, now_ms: int) -> int:
    """A version greater than *previous*, and than any issued in an earlier microsecond."""
    return max(previous + 1, now_ms * 1000)


def digests_of(params: bytes | tuple[str, str]) -> tuple[str, str]:
    """The digests of the parameters: normalised, and as given."""
    if isinstance(params, bytes):
        digest = sha256(params).hexdigest()
        return digest, digest
    return params


def recorded_request(request: ClaimRequest) -> RecordedRequest:
    """The request in the form of its record."""
    template, call_id = request.template, request.call_id
    digest, exact = digests_of(request.params)
    called = UNSET if call_id is None else call_id
    return RecordedRequest(
        template.session, template.actor, request.request_id, digest, request.identity, exact, called
    )


def static_copy(request: ClaimRequest) -> StaticClaimRequest:
    """A copy of the request that can be changed with ``_replace``."""
    return StaticClaimRequest(*(getattr(request, name) for name in StaticClaimRequest._fields))


def owner_of(request: ClaimRequest) -> str:
    """The record's ``owner``: which request holds the claim, and of which process."""
    return f"{request.token}/{request.template.owner}"


def recorded_attempt(attempt: Attempt) -> RecordedAttempt:
    """An attempt in the form of the record."""
    started, finished, error_code, retriable = attempt
    return RecordedAttempt(started, finished, "error" if error_code else "success", retriable, error_code or UNSET)


def outcome_of(settlement: Settlement) -> Outcome:
    """The record fields of a settlement."""
    error: RecordedError | UnsetType = UNSET
    if settlement.error is not None:
        code, message, terminal, retriable = settlement.error
        error = RecordedError(code=code, message=message, terminal=terminal, should_retriable=retriable)
    attempts = tuple(map(recorded_attempt, settlement.attempts))
    return Outcome(
        execution=RecordedExecution(attempt_count=settlement.attempt_count, attempts=attempts),
        payload_ref=UNSET if settlement.payload_ref is None else settlement.payload_ref,
        payload_sealed=UNSET if settlement.payload_sealed is None else settlement.payload_sealed,
        output_redacted=True if settlement.output_redacted else UNSET,
        error=error,
    )


def record_of(
    known: tuple[Any, ...], outcome: Outcome, payload: bytes | None, lock_until_ms: int | UnsetType, v: int
) -> DedupeRecord:
    """A record from its *known* values (its first fields, up to ``dispatched``), its outcome and its result.

    The fields are passed by position: so many keywords would cost five times as much.
    """
    return DedupeRecord(  # type: ignore[call-arg]
        *known,
        outcome.execution,
        UNSET if payload is None else Raw(payload),
        outcome.payload_ref,
        outcome.payload_sealed,
        outcome.output_redacted,
        outcome.error,
        lock_until_ms,
        v,
        outcome.arguments,
    )


def resettled(record: DedupeRecord, settlement: Settlement, version: int, now_ms: int) -> DedupeRecord:
    """A record with a different outcome, kept for as long as before."""
    outcome = outcome_of(settlement)
    return replace(
        record,
        state=settlement.state,
        version=version,
        updated_at_ms=now_ms,
        ttl_ms=settlement.ttl_ms,
        dispatched=settlement.dispatched,
        payload=UNSET if settlement.payload is None else Raw(settlement.payload),
        **{name: getattr(outcome, name) for name in outcome.__struct_fields__},
    )


def inflight_outcome(shown: str) -> Outcome:
    """What stands in place of the outcome while the claim is in flight."""
    return Outcome(arguments=shown) if shown else NO_OUTCOME


def must_be_kept(settlement: Settlement) -> bool:
    """Whether forgetting this outcome early could let its call happen twice (D3)."""
    state, _, payload, payload_ref, payload_sealed, _, error, _, _, dispatched = settlement
    if state == "done":
        return payload is None and payload_ref is None and payload_sealed is None
    if state == "failed":
        return error is not None and error[0] == UNKNOWN_CODE
    return dispatched


def check_version(what: str, found: int, known: int) -> None:
    """Refuse what a newer release wrote (D1): acting on a half-understood record could dispatch twice."""
    if found > known:
        raise StoreVersionError(f"{what} has format {found}; this release reads up to {known}.", hint=_UPGRADE)


def event_of(seq: int, row: Row) -> Event:
    """An event as it is read back."""
    try:
        body = _body_decoder.decode(row.body)
    except msgspec.ValidationError:
        _refuse_newer(row.body, f"Event {seq} of run {row.run!r}")
        raise
    check_version(f"Event {seq} of run {row.run!r}", body.v, EVENT_VERSION)
    place = (body.lane, body.index, body.call, body.parent)
    return Event(row.run, seq, row.type, row.at_ms, *place, body.payload, body.meta, body.v)


def manifest_of(document: bytes) -> RunManifest:
    """A stored manifest; one of a newer release is refused, not guessed at."""
    try:
        manifest = _manifest_decoder.decode(document)
    except msgspec.ValidationError:
        _refuse_newer(document, "The manifest of a run")
        raise
    return known_manifest(manifest)


def manifests_of(documents: Iterable[bytes]) -> list[RunManifest]:
    """Stored manifests, for a list: an unreadable one is left out and reported, and does not affect the others."""
    found: list[RunManifest] = []
    for document in documents:
        try:
            found.append(manifest_of(document))
        except (StoreVersionError, msgspec.MsgspecError) as error:
            if document not in _reported:
                _reported.append(document)
                _log.warning("a run is left out of the list, its manifest cannot be read: %s", error)
    return found


def is_wanted(manifest: RunManifest, which: RunQuery) -> bool:
    """Whether a list of runs has this one, for stores that look at each."""
    return (
        manifest.tenant == which.tenant
        and manifest.id.startswith(which.prefix)
        and which.name in ("", manifest.name)
        and which.status in ("", manifest.status)
        and (which.before is None or (manifest.started_at_ms, manifest.id) < which.before)
    )


def known_manifest(manifest: RunManifest) -> RunManifest:
    """The manifest, if this release knows its format."""
    check_version(f"The manifest of run {manifest.id!r}", manifest.v, EVENT_VERSION)
    return manifest


def _refuse_newer(document: bytes, what: str) -> None:
    check_version(what, _version_decoder.decode(document).v, EVENT_VERSION)


def named_queries(path: Path) -> dict[str, str]:
    """The statements of an SQL file, by the names in its ``-- name:`` lines."""
    queries: dict[str, str] = {}
    for part in path.read_text(encoding="utf-8").split("-- name:")[1:]:
        name, _, text = part.partition("\n")
        queries[name.strip()] = text.strip().rstrip(";")
    return queries


class Settling:
    """Ends a claim whose log and record are two writes: a repeated call does only what is left to do.

    All journals of a store share it: what a caller left is finished on another journal.

    The outcome event is written first, then the record: if the second write fails, the first can repair it. A log that
    cannot be written does not prevent the record from being settled: duplicates get the right answer, and the failure
    is raised afterwards.
    """

    __slots__ = ("_halfway",)

    def __init__(self) -> None:
        self._halfway: OrderedDict[tuple[str, int], tuple[bool, tuple[int | None] | None]] = OrderedDict()

    async def run(
        self,
        key: str,
        version: int,
        events: Sequence[Row],
        append: Callable[[Sequence[Row]], Awaitable[None]],
        settle: Callable[[], Awaitable[int | None]],
    ) -> int | None:
        """The new version, or ``None`` if fenced."""
        logged, settled = self._halfway.get((key, version), _NOTHING)
        failure: StoreError | None = None
        if not logged:
            try:
                await append(events)
                self._remember(key, version, True, settled)
            except StoreError as error:
                failure = error
        if settled is None:
            settled = (await settle(),)
        if failure is not None:
            self._remember(key, version, False, settled)
            failure.data = {**failure.data, ONLY_EVENTS: True}
            raise failure
        self._halfway.pop((key, version), None)
        return settled[0]

    def _remember(self, key: str, version: int, logged: bool, settled: tuple[int | None] | None) -> None:
        self._halfway[key, version] = (logged, settled)
        if len(self._halfway) > _REMEMBERED:
            self._halfway.popitem(last=False)


async def append_each(events: Sequence[Row], append: Callable[[str, Sequence[Row]], Awaitable[int]]) -> None:
    """Append each event to its run, those of one run together."""
    runs: dict[str, list[Row]] = {}
    for row in events:
        runs.setdefault(row.run, []).append(row)
    for run, rows in runs.items():
        await append(run, rows)


def fresh(error: Exception) -> Exception:
    """The same error for another caller: an exception object belongs to one traceback."""
    if isinstance(error, StoreError):
        return type(error)(error.message, hint=error.hint, code=error.code, **error.data)
    return error

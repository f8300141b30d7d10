"""Finding and reading runs: by id, unique prefix, ``latest`` or path (K8)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from antiphon._gateway.ids import uuid7
from antiphon._gateway.owner import owner_token
from antiphon._recording.recorder import whole
from antiphon.contract.events import Event, RunManifest
from antiphon.errors import InvalidInput, NotFound
from antiphon.ops.app import Antiphon
from antiphon.ops.sandbox import outside
from antiphon.ports import Clock, Journal, Row, SyncJournal

if TYPE_CHECKING:
    from antiphon._replay.recording import Recording
    from antiphon.redact import Redactor

LATEST = "latest"
_BATCH = 500
_PAGE = 100


def find_run(app: Antiphon, wanted: str | None) -> RunManifest:
    """The manifest of a run named by id, unique prefix, or ``latest`` (``None`` means the same)."""
    journal = app.journal
    if wanted is None or wanted == LATEST:
        for manifest in all_runs(app):
            if manifest.source_run is None and not is_audit(manifest):
                return manifest
        raise NotFound("There is no recorded run yet.", hint="Record one: antiphon run agent.py:main")
    exact = journal.manifest(wanted)
    if exact is not None and exact.tenant == app.tenant:
        return exact
    if not wanted.strip():
        raise InvalidInput("The run id is empty.")
    matches = [found for found in journal.runs(tenant=app.tenant, prefix=wanted, limit=10) if not is_audit(found)]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        newest = [found for found in journal.runs(tenant=app.tenant, limit=4) if not is_audit(found)][:3]
        last = ", ".join(f"{m.id} ({m.name})" for m in newest)
        hint = f"The latest: {last}. List them: antiphon runs" if last else "Nothing has been recorded yet."
        raise NotFound(f"There is no run {wanted!r}.", hint=hint)
    listed = ", ".join(f"{m.id} ({m.name})" for m in matches)
    raise NotFound(f"{wanted!r} matches several runs.", hint=f"Candidates: {listed}", code="ambiguous")


def is_audit(manifest: RunManifest) -> bool:
    """Whether this is the log of what operators did: kept like a run, but none that an agent made."""
    return manifest.tags.get("kind") == "audit"


def all_runs(app: Antiphon, **wanted: str) -> Iterator[RunManifest]:
    """The runs that fit, newest first, read page by page; the audit log among them."""
    before = ""
    while page := app.journal.runs(tenant=app.tenant, limit=_PAGE, before=before, **wanted):
        yield from page
        before = page[-1].id


def is_artifact(wanted: str) -> bool:
    """Whether *wanted* names a file rather than a run."""
    return wanted.endswith((".antiphon", ".kurral", ".json")) or Path(wanted).is_file()


def replay_manifest(app: Antiphon, source: RunManifest, kind: str, **more: Any) -> RunManifest:
    """A replay is itself a run, linked to its source (K1)."""
    return msgspec.structs.replace(
        source,
        id=uuid7(),
        started_at_ms=app.clock.now_ms(),
        source_run=source.id,
        tags={"owner": owner_token(), "replay": kind},
        **more,
    )


def load_recording(app: Antiphon, manifest: RunManifest) -> Recording:
    """The recording, ready to be asked; spilled payloads are brought back when they are needed."""
    from antiphon._replay.recording import Recording

    def brought_back(event: Event) -> Event:
        with outside():
            return whole(event, app.blobs, app.tenant)

    return Recording.load(manifest, _Outside(app.journal), brought_back)


class _Outside:
    """The log of a recording, read from inside a sandbox: the store may need the network."""

    def __init__(self, journal: SyncJournal) -> None:
        self._journal = journal

    def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> list[Event]:
        with outside():
            return self._journal.events(run, start=start, stop=stop, limit=limit)


def events_of(app: Antiphon, run: str, *, start: int = 0, stop: int | None = None) -> Iterator[Event]:
    """The events of a run in order, read in batches."""
    while batch := app.journal.events(run, start=start, stop=stop, limit=_BATCH):
        yield from batch
        start = batch[-1].seq + 1


class ReservedRun:
    """A run that no agent made: a log of what operators or the host changed. Every process reads on in it."""

    def __init__(self, journal: Journal, clock: Clock, manifest: RunManifest) -> None:
        self._journal = journal
        self._clock = clock
        self._manifest = manifest
        self._run = manifest.id
        self._next = 0
        self._read_at = float("-inf")

    async def read(self, *, at_most_every_s: float = 0.0) -> list[Event]:
        """What was appended since the last time; nothing if that was less than *at_most_every_s* ago."""
        now = time.monotonic()
        found: list[Event] = []
        if now - self._read_at < at_most_every_s:
            return found
        self._read_at = now
        while batch := await self._journal.events(self._run, start=self._next):
            self._next = batch[-1].seq + 1
            found += batch
        return found

    async def append(self, kind: str, payload: dict[str, Any], redactor: Redactor | None = None) -> None:
        """Write one change down."""
        now = self._clock.now_ms()
        await self._journal.open_run(msgspec.structs.replace(self._manifest, started_at_ms=now))
        body = orjson.dumps({"payload": payload, "meta": {}, "v": 1})
        if redactor is not None:
            body, _ = redactor.redact_bytes(body)
        await self._journal.append(self._run, (Row(self._run, kind, now, body),))

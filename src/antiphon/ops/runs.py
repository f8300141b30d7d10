"""Finding and reading runs: by id, unique prefix, ``latest`` or path (K8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon._recording.recorder import resolve
from antiphon.contract.events import Event, RunManifest
from antiphon.errors import InvalidInput, NotFound
from antiphon.ops.app import Antiphon
from antiphon.ops.fence import lifted
from antiphon.ports import SyncJournal

if TYPE_CHECKING:
    from antiphon._replay.recording import Recording

LATEST = "latest"
_BATCH = 500


def find_run(app: Antiphon, wanted: str | None) -> RunManifest:
    """The manifest of a run named by id, unique prefix, or ``latest`` (``None`` means the same)."""
    journal = app.journal
    if wanted is None or wanted == LATEST:
        return _latest(app)
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
    raise NotFound(f"{wanted!r} is the beginning of several runs.", hint=f"Candidates: {listed}", code="ambiguous")


def is_audit(manifest: RunManifest) -> bool:
    """Whether this is the log of what operators did: kept like a run, but none that an agent made."""
    return manifest.tags.get("kind") == "audit"


def _latest(app: Antiphon) -> RunManifest:
    """The newest run that is no replay of another."""
    before = ""
    while page := app.journal.runs(tenant=app.tenant, limit=100, before=before):
        for manifest in page:
            if manifest.source_run is None and not is_audit(manifest):
                return manifest
        before = page[-1].id
    raise NotFound("There is no recorded run yet.", hint="Record one: antiphon run agent.py:main")


def is_artifact(wanted: str) -> bool:
    """Whether *wanted* names a file rather than a run."""
    return wanted.endswith((".antiphon", ".kurral", ".json")) or Path(wanted).is_file()


def load_recording(app: Antiphon, manifest: RunManifest) -> Recording:
    """The recording, ready to be asked; spilled payloads are brought back when they are needed."""
    from antiphon._replay.recording import Recording

    def whole(event: Event) -> Event:
        payload = event.payload
        if any(isinstance(value, dict) and "$blob" in value for value in payload.values()):
            import msgspec

            with lifted():
                return msgspec.structs.replace(event, payload=resolve(payload, app.blobs, app.tenant))
        return event

    return Recording.load(manifest, _Outside(app.journal), whole)


class _Outside:
    """The log of a recording, read from inside a fenced replay: the store may need the network."""

    def __init__(self, journal: SyncJournal) -> None:
        self._journal = journal

    def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> list[Event]:
        with lifted():
            return self._journal.events(run, start=start, stop=stop, limit=limit)


def events_of(app: Antiphon, run: str, *, start: int = 0, stop: int | None = None) -> Iterator[Event]:
    """The events of a run in order, read in batches."""
    while batch := app.journal.events(run, start=start, stop=stop, limit=_BATCH):
        yield from batch
        start = batch[-1].seq + 1

"""Where exported runs are kept: a local folder, or an S3-compatible bucket that may be unreachable (K7).

An artifact for the bucket is first written to the outbox in the state folder and sent from there. So an interrupted
upload resumes where it stopped, nothing is lost while the bucket is unreachable, and the next upload sends what is
left.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from antiphon.blobs.local import LocalObjects, is_note
from antiphon.blobs.outbox import Outbox, OutboxBlobs
from antiphon.config.wiring import ensure_home, home, objects_of
from antiphon.contract.events import RunManifest
from antiphon.ops import Progress, silent
from antiphon.ops.app import Antiphon
from antiphon.ops.artifacts import Format, export_run
from antiphon.ops.bucket import address_of, is_remote, part_of

OUTBOX = "outbox/artifacts"
"""In the state folder: artifacts that have not reached the bucket yet."""
_outboxes: weakref.WeakKeyDictionary[Antiphon, Outbox] = weakref.WeakKeyDictionary()


class StoredArtifact(NamedTuple):
    """Where an artifact is now."""

    place: str
    """A path, or the address in the bucket."""
    bytes: int
    waiting: int = 0
    """Artifacts that have not reached the bucket yet, this one or earlier ones."""
    trouble: str = ""
    """Why they have not."""


def keep(
    app: Antiphon, manifest: RunManifest, form: Format = "antiphon", *, progress: Progress = silent
) -> StoredArtifact:
    """Export the run to the configured place; in a bucket it replaces an earlier artifact of that run."""
    if not is_remote(app):
        path = local_path(app, manifest, form)
        path.parent.mkdir(parents=True, exist_ok=True)
        return StoredArtifact(str(path), export_run(app, manifest, path, form, progress=progress))
    name = object_name(manifest, form)
    outbox = outbox_of(app)
    staged = ensure_home() / f"export-{os.getpid()}-{part_of(manifest.id)}.{form}"
    try:
        size = export_run(app, manifest, staged, form, progress=progress)
        outbox.put_file(name, staged)
    finally:
        staged.unlink(missing_ok=True)
    status = outbox.status()
    if status.pending and not status.trouble:  # the bucket answers: also send what earlier uploads left
        status = outbox.flush()
    return StoredArtifact(address_of(app, name), size, *status[::2])


def send_waiting(app: Antiphon) -> StoredArtifact:
    """Send what earlier uploads could not: artifacts, and large payloads if they go to the bucket."""
    outbox = outbox_of(app)
    blobs = app.blobs
    found = [box.flush() for box in (outbox, *([blobs.outbox] if isinstance(blobs, OutboxBlobs) else []))]
    trouble = next((status.trouble for status in found if status.trouble), "")
    return StoredArtifact(outbox.url, sum(one.bytes for one in found), sum(one.pending for one in found), trouble)


class Waiting(NamedTuple):
    """What is in the state folder because its bucket was unreachable."""

    what: str
    """``artifacts`` or ``payloads``."""
    number: int
    bytes: int
    oldest_ms: int
    """When the oldest one was put there."""


def waiting_uploads() -> list[Waiting]:
    """What has not arrived, even if no bucket is configured any more; sends nothing."""
    found = []
    for what in ("artifacts", "payloads"):
        folder = LocalObjects(home() / "outbox" / what)
        names = (name for name in folder.names() if what == "artifacts" or not is_note(name))
        facts = []
        for name in names:
            with suppress(FileNotFoundError):  # it has just arrived
                facts.append(folder.path(name).stat())
        if facts:
            oldest = min(stat.st_mtime for stat in facts)
            found.append(Waiting(what, len(facts), sum(stat.st_size for stat in facts), int(oldest * 1000)))
    return found


def outbox_of(app: Antiphon) -> Outbox:
    """The bucket for artifacts and its outbox; a long-lived process retries what is waiting."""
    found = _outboxes.get(app)
    if found is None:
        found = _outboxes[app] = Outbox(ensure_home() / OUTBOX, objects_of(app.config.artifacts))
    return found


def local_path(app: Antiphon, manifest: RunManifest, form: Format) -> Path:
    """``artifacts/<id>.antiphon``, or ``replay_runs/<id>.antiphon`` beside it for a replay."""
    folder = Path(app.config.artifacts.folder)
    if manifest.source_run is not None:
        folder = folder.with_name("replay_runs")
    return folder / f"{part_of(manifest.id)}.{form}"


def object_name(manifest: RunManifest, form: Format) -> str:
    """``{tenant}/{name}/{artifacts|replay_runs}/{yyyy}/{mm}/{id}.antiphon``; no name can escape its folder."""
    month = datetime.fromtimestamp(manifest.started_at_ms / 1000, UTC).strftime("%Y/%m")
    kind = "artifacts" if manifest.source_run is None else "replay_runs"
    return f"{part_of(manifest.tenant)}/{part_of(manifest.name)}/{kind}/{month}/{part_of(manifest.id)}.{form}"

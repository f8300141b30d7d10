"""Export and import of runs: ours and ``.kurral``. A failed import leaves the store as it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import orjson

from antiphon._drive import drive
from antiphon._gateway.ids import uuid7
from antiphon._recording import artifact, kurral
from antiphon._recording.spill import resolve
from antiphon.contract.events import Event, RunManifest
from antiphon.errors import ArtifactError, InvalidInput
from antiphon.ops.app import Antiphon
from antiphon.ops.runs import events_of
from antiphon.ports import Row

Format = Literal["antiphon", "kurral"]
Progress = Callable[[Iterable[Event]], Iterable[Event]]
_BATCH = 200
_MAX_KURRAL = 256 * 1024 * 1024


def whole_events(app: Antiphon, run: str) -> Iterator[Event]:
    """The events with their spilled payloads brought back: what a document that stands alone needs."""
    for event in events_of(app, run):
        yield msgspec.structs.replace(event, payload=drive(resolve(event.payload, app.blobs, app.tenant)))


def export_run(
    app: Antiphon, manifest: RunManifest, path: Path, kind: Format | None = None, *, progress: Progress | None = None
) -> int:
    """Write the run to *path*, all of it or nothing; returns the number of bytes."""

    def events() -> Iterable[Event]:
        found = whole_events(app, manifest.id)
        return found if progress is None else progress(found)

    form = kind or ("kurral" if path.suffix == ".kurral" else "antiphon")
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as out:
            if form == "kurral":
                document = kurral.to_kurral(manifest, events())
                out.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
            else:
                artifact.write_artifact(out, manifest, events)
            out.flush()
            os.fsync(out.fileno())
        partial.replace(path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}.") from None
    finally:
        partial.unlink(missing_ok=True)
    return path.stat().st_size


def import_artifact(app: Antiphon, path: Path) -> RunManifest:
    """Read an artifact into the store. The same artifact again is the same run; another of that id gets a new one."""
    if not path.exists():
        raise ArtifactError(f"There is no file {path}.", code="not_found")
    document = _kurral_document(path)
    if document is not None:
        manifest = kurral.manifest_of(document, tenant=app.tenant, workspace=app.workspace)
        events = list(kurral.events_of(document, manifest))
        return _store(app, manifest, events, altered=False)
    read = artifact.read_artifact(path)
    return _store(app, read.manifest, read.events(), altered=read.altered)


def _kurral_document(path: Path) -> dict[str, Any] | None:
    """The document if the file is a ``.kurral`` one, whatever it is called."""
    with path.open("rb") as file:
        start = file.read(4096)
    if path.suffix != ".kurral" and b'"kurral_id"' not in start:
        return None
    if path.stat().st_size > _MAX_KURRAL:
        raise ArtifactError(f"{path} is too large for a .kurral document.")
    try:
        document = orjson.loads(path.read_bytes())
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise ArtifactError(f"{path} is not JSON: {error}.") from None
    if not kurral.is_kurral(document):
        if path.suffix == ".kurral":
            raise ArtifactError(f"{path} is not a .kurral artifact.")
        return None
    return dict(document)


def _store(app: Antiphon, manifest: RunManifest, events: Iterable[Event], *, altered: bool) -> RunManifest:
    journal = app.journal
    tags = {"imported": manifest.tags.get("imported", "antiphon"), "importedId": manifest.id}
    if altered:
        tags["altered"] = "true"
    there = drive(journal.manifest(manifest.id))
    if there is not None and there.tenant == app.tenant and not altered and there.tags.get("altered") != "true":
        return there
    run_id = manifest.id if there is None else uuid7()
    made = msgspec.structs.replace(
        artifact.renamed(manifest, run_id, **tags), tenant=app.tenant, workspace=app.workspace, events=0
    )
    drive(journal.open_run(made))
    try:
        batch: list[Row] = []
        count = 0
        for event in events:
            batch.append(_row(event, run_id))
            count += 1
            if len(batch) >= _BATCH:
                drive(journal.append(run_id, batch))
                batch = []
        if batch:
            drive(journal.append(run_id, batch))
        made = msgspec.structs.replace(made, events=count)
        drive(journal.update_run(made))
    except BaseException:
        drive(journal.delete_run(run_id))
        raise
    return made


def _row(event: Event, run_id: str) -> Row:
    body = {
        "lane": event.lane,
        "index": event.index,
        "call": event.call,
        "parent": event.parent,
        "payload": event.payload,
        "meta": event.meta,
        "v": event.v,
    }
    return Row(run_id, event.type, event.at_ms, orjson.dumps(body))

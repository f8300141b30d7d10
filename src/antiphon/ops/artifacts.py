"""Export and import of runs: ours and ``.kurral``. A failed import leaves the store as it was."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import orjson

from antiphon._gateway.ids import uuid7
from antiphon._gateway.owner import certainly_dead, owner_token
from antiphon._recording import artifact, kurral
from antiphon._recording.artifact import BadJson, strict_loads
from antiphon._recording.recorder import whole
from antiphon._recording.run import OPEN_TAG, Run
from antiphon._recording.seals import RunKey
from antiphon.contract.events import OF_THE_STORE, SEALED, Event, RunManifest, sum_holds, summed
from antiphon.errors import ArtifactError, InvalidInput, NotFound
from antiphon.ops import bucket
from antiphon.ops.app import Antiphon
from antiphon.ops.progress import Progress, silent
from antiphon.ops.rekey import CannotRekey, rekeyed
from antiphon.ops.runs import events_of, find_run, is_artifact, load_recording, real_status
from antiphon.ports import Row

if TYPE_CHECKING:
    from antiphon._recording.recorder import Recorder
    from antiphon._replay.recording import Recording

Format = Literal["antiphon", "kurral"]
_BATCH = 200
_BATCH_BYTES = 4 * 1024 * 1024
_IMPORTING = "importing"
INCOMPLETE = "incomplete"
"""In the tags of an artifact that was made while work of its run went on."""
log: logging.Logger = logging.getLogger("antiphon.run")
_DIGEST = "importedDigest"
_MAX_KURRAL = 256 * 1024 * 1024


def whole_events(app: Antiphon, run: str) -> Iterator[Event]:
    """The events with their spilled payloads brought back: what a document that stands alone needs."""
    for event in events_of(app, run):
        yield _outside(whole(event, app.blobs, app.tenant))


def _outside(event: Event) -> Event:
    """The event as it may leave the store: without digests that were made from raw values (D36)."""
    if OF_THE_STORE.isdisjoint(event.meta):
        return event
    meta = {name: value for name, value in event.meta.items() if name not in OF_THE_STORE}
    made = msgspec.structs.replace(event, meta=meta)
    return summed(made) if sum_holds(event) else made


def export_run(
    app: Antiphon, manifest: RunManifest, path: Path, kind: Format | None = None, *, progress: Progress = silent
) -> int:
    """Write the run to *path*, all of it or nothing; returns the number of bytes.

    An artifact that is already there passes its key on, so that a diff of both shows changes only.
    """
    tags = {name: value for name, value in manifest.tags.items() if name != "owner"}  # a process of this machine
    if tags.pop(OPEN_TAG, None) is not None:
        if certainly_dead(manifest.tags.get("owner", "")):
            log.warning("run %s left work behind that ended with its process", manifest.id)
        else:
            tags[INCOMPLETE] = "work that the run started still goes on"
            log.warning("run %s is exported while work that it started goes on: it is marked incomplete", manifest.id)
    session = manifest.session
    if session:  # as it was given it lives in the store only
        session = app._redactor.redact(session, "session_id")
    manifest = msgspec.structs.replace(manifest, status=real_status(manifest), tags=tags, session=session)
    kept = None if manifest.seal else app.keys.kept.get(manifest.id)
    sealer = None if kept is None else app.keys.wrapping()
    if kept is not None and sealer is not None and any(SEALED in event.meta for event in events_of(app, manifest.id)):
        # the store ends with this process: its key goes with the artifact
        manifest = msgspec.structs.replace(manifest, seal=kept.wrap(sealer).to_wire())

    form = kind or ("kurral" if path.suffix == ".kurral" else "antiphon")
    own, wanted = app.keys.key_of(manifest), _key_there(app, path) if form == "antiphon" and manifest.seal else None
    if own is not None and wanted is not None and own.key != wanted.key:
        try:
            return _export(
                app, msgspec.structs.replace(manifest, seal=wanted.to_wire()), path, form, progress, (own, wanted)
            )
        except CannotRekey:
            log.info("run %s is exported under its own key: not every masked value is known", manifest.id)
    return _export(app, manifest, path, form, progress)


def _key_there(app: Antiphon, path: Path) -> RunKey | None:
    """The key of the artifact at *path*, if there is one and its key can be opened here."""
    found = manifest_at(path)
    return None if found is None or not found.seal else RunKey.of(found, app.keys.opening())


def manifest_at(path: Path) -> RunManifest | None:
    """The head of the artifact at *path*, if there is one."""
    try:
        return artifact.read_artifact(path).manifest if path.is_file() else None
    except (ArtifactError, OSError):
        return None


def _export(
    app: Antiphon,
    manifest: RunManifest,
    path: Path,
    form: Format,
    progress: Progress,
    keys: tuple[RunKey, RunKey] | None = None,
) -> int:
    def events() -> Iterable[Event]:
        found = whole_events(app, manifest.id)
        there = found if keys is None else rekeyed(app, *keys, found)
        return progress(there, manifest.events or None, "exporting, events")

    special = path.exists() and not path.is_file() and not path.is_dir()  # a pipe or a device keeps its place
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    if special:
        partial = Path(tempfile.gettempdir()) / f".antiphon-{manifest.id}.{os.getpid()}.part"
    try:
        with partial.open("wb") as out:
            if form == "kurral":
                document = kurral.to_kurral(manifest, events())
                out.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
            else:
                artifact.write_artifact(out, manifest, events)
            out.flush()
            os.fsync(out.fileno())
        size = partial.stat().st_size
        if special:
            with partial.open("rb") as made, path.open("wb") as out:
                shutil.copyfileobj(made, out)
        else:
            partial.replace(path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}.") from None
    finally:
        partial.unlink(missing_ok=True)
    return size


def import_artifact(app: Antiphon, path: Path, *, progress: Progress = silent) -> RunManifest:
    """Read an artifact into the store. The same artifact again is the same run; another of that id gets a new one."""
    document = _kurral_document(path)
    read = artifact.read_artifact(path) if document is None else _from_kurral(app, document, path)
    return _Import(app, read, progress).store()


def open_recording(app: Antiphon, wanted: Any, *, masked: bool = False) -> Recording:
    """The recording behind whatever names it; an artifact is imported first. *masked* leaves its originals sealed."""
    return load_recording(app, open_run(app, wanted), unseal=not masked)


def open_run(app: Antiphon, wanted: Any, *, progress: Progress = silent) -> RunManifest:
    """The run that *wanted* names: one in the store, or an artifact in a file or the bucket, which is imported."""
    if isinstance(wanted, Run):
        return find_run(app, wanted.id)
    if wanted is None:
        return find_run(app, None)
    name = str(wanted)
    if bucket.is_address(name):
        with bucket.fetched(app, name) as path:
            return import_artifact(app, path, progress=progress)
    if is_artifact(name):
        return import_artifact(app, Path(name), progress=progress)
    try:
        return find_run(app, name)
    except NotFound as error:
        if error.code == "ambiguous" or not bucket.is_remote(app):
            raise
        found = bucket.find(app, name)
        if found is None:
            error.hint = f"It is not in the bucket {bucket.address_of(app)} either. {error.hint or ''}".rstrip()
            raise
    with bucket.fetched(app, found.address) as path:
        return import_artifact(app, path, progress=progress)


def _from_kurral(app: Antiphon, document: dict[str, Any], path: Path) -> artifact.Document:
    """The document as the run it tells of; checked like an artifact of our own."""
    manifest = kurral.manifest_of(document, tenant=app.tenant, workspace=app.workspace)
    seal = artifact.Seal(manifest)
    events = []
    try:
        for number, event in enumerate(kurral.events_of(document, manifest)):
            events.append(artifact.check_event(seal.line(event), manifest.id, number, str(path)))
    except TypeError:
        raise ArtifactError(f"{path} is nested too deeply.") from None
    return artifact.Document(manifest, lambda: events, False, seal.digest, seal.count)


def _kurral_document(path: Path) -> dict[str, Any] | None:
    """The document if the file is a ``.kurral`` one, whatever it is called."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(4096)
        named = path.suffix == ".kurral"
        if not named and b'"kurral_id"' not in start:
            return None
        if size > _MAX_KURRAL:
            raise ArtifactError(f"{path} is too large for a .kurral document.")
        document = strict_loads(path.read_bytes())
    except FileNotFoundError:
        raise ArtifactError(f"There is no file {path}.", code="not_found") from None
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}.") from None
    except BadJson as error:
        raise ArtifactError(f"{path} is not a .kurral artifact: {error}.") from None
    if not kurral.is_kurral(document):
        if named:
            raise ArtifactError(f"{path} is not a .kurral artifact.")
        return None
    return dict(document)


class _Import(NamedTuple):
    """Brings a checked document into the store: all of it, or nothing."""

    app: Antiphon
    document: artifact.Document
    progress: Progress

    def store(self) -> RunManifest:
        run_id = self.document.manifest.id
        found = self._same(run_id)
        if isinstance(found, RunManifest):
            return found
        if found == "taken":
            mark = hashlib.sha256(f"{self.app.tenant}\0{self.document.digest}".encode()).hexdigest()[:12]
            run_id = f"{run_id[:180]}-{mark}"
            found = self._same(run_id)
            if isinstance(found, RunManifest):
                return found
            if found == "taken":
                run_id = uuid7()
        return self._write(run_id)

    def _same(self, run_id: str) -> RunManifest | Literal["free", "taken"]:
        """The run of this id if it is this very artifact; else whether the id can be used."""
        app = self.app
        there = app.journal.manifest(run_id)
        if there is None:
            return "free"
        if there.tenant != app.tenant:
            return "taken"
        if _IMPORTING in there.tags:
            if not certainly_dead(there.tags.get("owner", "")):
                return "taken"
            app.journal.delete_run(run_id)  # an import that was killed
            return "free"
        if there.tags.get(_DIGEST) == self.document.digest:
            return there
        seal = artifact.Seal(there)
        for event in whole_events(app, run_id):
            seal.line(event)
        return there if seal.digest == self.document.digest else "taken"

    def _write(self, run_id: str) -> RunManifest:
        app, document = self.app, self.document
        recorder = app.recorder(document.manifest, run_id=run_id)
        tags = {name: value for name, value in document.manifest.tags.items() if name not in ("owner", _IMPORTING)}
        tags |= {"imported": tags.get("imported", "antiphon"), "importedId": document.manifest.id}
        tags[_DIGEST] = document.digest
        if document.altered:
            tags["altered"] = "true"
        status = document.manifest.status
        made = msgspec.structs.replace(
            document.manifest,
            id=run_id,
            status="interrupted" if status == "running" else status,
            tags=tags,
            tenant=app.tenant,
            workspace=app.workspace,
        )
        made = recorder.clean_manifest(made)
        under_way = {**made.tags, _IMPORTING: "true", "owner": owner_token()}
        app.journal.open_run(msgspec.structs.replace(made, status="running", tags=under_way, events=0))
        try:
            made = msgspec.structs.replace(made, events=self._append(recorder))
            app.journal.update_run(made)
        except BaseException:
            app.journal.delete_run(run_id)
            raise
        return made

    def _append(self, recorder: Recorder) -> int:
        journal = self.app.journal
        batch: list[Row] = []
        count = size = 0
        for event in self.progress(self.document.events(), self.document.length, "importing, events"):
            row = recorder.take(event)
            batch.append(row)
            count += 1
            size += len(row.body)
            if len(batch) >= _BATCH or size >= _BATCH_BYTES:
                journal.append(recorder.run_id, batch)
                batch, size = [], 0
        if batch:
            journal.append(recorder.run_id, batch)
        return count

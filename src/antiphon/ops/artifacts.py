"""Export and import of runs in our own and other formats. A failed import leaves the store unchanged."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import orjson

from antiphon._gateway.ids import uuid7
from antiphon._gateway.owner import certainly_dead, owner_token
from antiphon._recording import artifact, atif, kurral, otel
from antiphon._recording.artifact import BadJson, strict_loads
from antiphon._recording.foreign import ImportedRun, hashed_id, merge_completeness
from antiphon._recording.run import OPEN_TAG, Run
from antiphon._recording.seals import RunKey
from antiphon.contract.events import OF_THE_STORE, SEALED, Event, RunManifest, is_reserved, sum_holds, summed
from antiphon.errors import AntiphonError, ArtifactError, InvalidInput, NotFound
from antiphon.ops import Progress, bucket, silent
from antiphon.ops.app import Antiphon
from antiphon.ops.rekey import CannotRekey, rekeyed
from antiphon.ops.runs import find_run, is_artifact, load_recording, real_status
from antiphon.ports import Row

if TYPE_CHECKING:
    from antiphon._recording.recorder import Recorder
    from antiphon._replay.recording import Recording

Format = Literal["antiphon", "kurral"]
_BATCH = 200
_BATCH_BYTES = 4 * 1024 * 1024
_IMPORTING = "importing"
INCOMPLETE = "incomplete"
"""In the tags of an artifact that was exported while its run was still doing work."""
log: logging.Logger = logging.getLogger("antiphon.run")
_DIGEST = "importedDigest"
_MAX_FOREIGN = 256 * 1024 * 1024
_START = 4096


def whole_events(app: Antiphon, run: str) -> Iterator[Event]:
    """The events with their spilled payloads restored: what a self-contained document needs."""
    for event in app.events(run):
        yield _outside(app.whole(event))


def _outside(event: Event) -> Event:
    """The event as it may leave the store: without digests of raw values (D36)."""
    if OF_THE_STORE.isdisjoint(event.meta):
        return event
    meta = {name: value for name, value in event.meta.items() if name not in OF_THE_STORE}
    made = msgspec.structs.replace(event, meta=meta)
    return summed(made) if sum_holds(event) else made


def export_run(
    app: Antiphon, manifest: RunManifest, path: Path, kind: Format | None = None, *, progress: Progress = silent
) -> int:
    """Write the run to *path* atomically; returns the number of bytes.

    If *path* holds an artifact, its key is kept, so that a diff of the two shows only real changes.
    """
    tags = {name: value for name, value in manifest.tags.items() if name != "owner"}  # a process of this machine
    if tags.pop(OPEN_TAG, None) is not None:
        if certainly_dead(manifest.tags.get("owner", "")):
            log.warning("run %s left work behind that ended with its process", manifest.id)
        else:
            tags[INCOMPLETE] = "work that the run started is still running"
            log.warning("run %s is exported while its work is still running: it is marked incomplete", manifest.id)
    session = manifest.session
    if session:  # only the store has it unredacted
        session = app._redactor.redact(session, "session_id")
    manifest = msgspec.structs.replace(manifest, status=real_status(manifest), tags=tags, session=session)
    kept = None if manifest.seal else app.keys.kept.get(manifest.id)
    if kept is not None and any(SEALED in event.meta for event in app.events(manifest.id)):
        sealer = app.keys.wrapping()  # the store ends with this process, so its key goes with the artifact
        if sealer is not None:
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
    """The key of the artifact at *path*, if there is one and its key can be unsealed here."""
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

    special = path.exists() and not path.is_file() and not path.is_dir()  # a pipe or a device is not replaced
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if special:
            descriptor, name = tempfile.mkstemp(prefix=".antiphon-", suffix=".part")
            os.close(descriptor)
            partial = Path(name)
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
    """Read an artifact into the store. Importing it again gives the same run; another run with its id gets a new id."""
    found = documents_in(app, path) or []
    if len(found) > 1:
        raise InvalidInput(
            f"{path} holds {len(found)} runs.", hint=f"Bring them into the store and name one: antiphon import {path}"
        )
    return _Import(app, found[0], progress).store()


def documents_in(app: Antiphon, path: Path, *, guess: bool = False) -> list[artifact.Document] | None:
    """The runs of a file in any format; writes nothing.

    A file found in a folder is a *guess*: the result is ``None`` if no format matches.
    """
    imported = _foreign(app, path)
    if imported is not None:
        return [_checked(app, one, path) for one in imported]
    if guess and path.suffix in _LOOSE:
        with path.open("rb") as file:
            if b'"format"' not in (start := file.read(_START)) or b'"antiphon"' not in start:
                return None
    return [artifact.read_artifact(path)]


def completeness_of(document: artifact.Document) -> dict[str, Any] | None:
    """How much of a run its format told; ``None`` for formats that tell everything."""
    for event in document.events() if document.foreign else ():
        if event.type == "import" and isinstance(event.payload.get("completeness"), dict):
            return dict(event.payload["completeness"])
    return None


class ImportResult:
    """The result of importing several files."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.failed: list[tuple[str, AntiphonError]] = []
        self.skipped: list[str] = []
        """Files in a folder whose format is unknown."""

    def completeness(self) -> dict[str, Any] | None:
        """Over all runs whose format tells less than ours; several files may describe the same run."""
        by_run = {one["run"]: one["completeness"] for one in self.runs if "completeness" in one}
        return {**merge_completeness(list(by_run.values())), "runs": len(by_run)} if by_run else None

    def to_wire(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "imported": self.runs,
            "failed": [
                {"file": name, "error": error.code, "message": error.message, "hint": error.hint}
                for name, error in self.failed
            ],
            "skipped": self.skipped,
            "completeness": self.completeness(),
        }


def import_all(
    app: Antiphon, names: Sequence[str], *, dry_run: bool = False, progress: Progress = silent
) -> ImportResult:
    """Import files, folders recursively, and artifacts of the bucket; failures are reported, the rest is imported."""
    done = ImportResult()
    many: list[tuple[str, bool]] = []
    for name in names:
        if not _is_folder(name):
            many.append((name, False))
            continue
        below = [path for path in sorted(Path(name).rglob("*")) if _is_candidate(path)]
        many += [(str(path), True) for path in below]
        if not below:
            done.failed.append((name, ArtifactError(f"There is no run below the folder {name}.")))
    for name, found in progress(many, len(many), "reading, files") if len(many) > 1 else many:
        try:
            _import_one(app, name, found, dry_run, done, progress if len(many) == 1 else silent)
        except (ArtifactError, NotFound, InvalidInput) as error:
            done.failed.append((name, error))
    return done


def _is_folder(name: str) -> bool:
    try:
        return Path(name).is_dir()
    except OSError:  # cannot be a file name
        return False


def _is_candidate(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return path.suffix in (*_LOOSE, ".antiphon", ".kurral") and path.is_file() and not hidden


def _import_one(app: Antiphon, name: str, found: bool, dry_run: bool, done: ImportResult, progress: Progress) -> None:
    path = Path(name)
    if bucket.is_address(name) or (bucket.is_remote(app) and not path.exists()):
        manifest = open_run(app, name, progress=progress)
        done.runs.append(_run_summary(name, manifest, None))
        return
    documents = documents_in(app, path, guess=found)
    if documents is None:
        done.skipped.append(name)
        return
    for document in documents:
        completeness = completeness_of(document)
        manifest = document.manifest if dry_run else _Import(app, document, progress).store()
        done.runs.append(
            _run_summary(name, manifest, None if completeness is None else app._redactor.redact(completeness))
        )


def _run_summary(name: str, manifest: RunManifest, completeness: Any) -> dict[str, Any]:
    extra = {} if completeness is None else {"completeness": completeness}
    return {"file": name, "run": manifest.id, "altered": manifest.tags.get("altered") == "true", **extra}


def open_recording(app: Antiphon, wanted: Any, *, masked: bool = False) -> Recording:
    """The recording that *wanted* names; an artifact is imported first. With *masked* its originals stay sealed."""
    return load_recording(app, open_run(app, wanted), unseal=not masked)


def open_run(app: Antiphon, wanted: Any, *, progress: Progress = silent) -> RunManifest:
    """The run that *wanted* names: in the store, or an artifact in a file or the bucket, which is imported."""
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


_ODD = (TypeError, ValueError, LookupError, AttributeError)
"""The errors that readers of other formats raise on malformed values."""


def _odd(path: Path, error: Exception) -> ArtifactError:
    return ArtifactError(f"{path} holds a value that cannot be read: {error}.", hint="Nothing of it was imported.")


def _checked(app: Antiphon, imported: ImportedRun, path: Path) -> artifact.Document:
    """A run in another format, checked like our own artifacts."""
    manifest = imported.manifest
    if app._redactor.redact(manifest.id) != manifest.id:  # ids are not masked: replace one that contains a secret
        manifest = msgspec.structs.replace(manifest, id=hashed_id(manifest.id, manifest.tags["imported"]))
    seal = artifact.Seal(manifest)
    events = []
    try:
        for number, event in enumerate(imported.events):
            line = orjson.dumps(artifact.wire_of(event))  # nothing is cut: what cannot be written is refused
            seal.take(line)
            events.append(artifact.check_event(line, manifest.id, number, str(path)))
    except _ODD as error:
        raise _odd(path, error) from error
    return artifact.Document(manifest, lambda: events, False, imported.digest or seal.digest, seal.count, foreign=True)


_MARKS = (b'"kurral_id"', b'"ATIF-v', b'"resourceSpans"')
_LOOSE = (".json", ".jsonl")
"""Files in any format: their first bytes need not identify it."""


def _foreign(app: Antiphon, path: Path) -> list[ImportedRun] | None:
    """The runs of a file in another format, whatever its name; ``None`` if no format matches."""
    named = path.suffix == ".kurral"
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(_START)
        marked = named or _is_marked(start)
        if not marked and (path.suffix not in _LOOSE or size > _MAX_FOREIGN):
            return None
        if size > _MAX_FOREIGN:
            raise ArtifactError(f"{path} is too large ({size} bytes) for a document of another format.")
        data = path.read_bytes()
    except FileNotFoundError:
        raise ArtifactError(f"There is no file {path}.", code="not_found") from None
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}.") from None
    tenant, workspace = app.tenant, app.workspace
    try:
        documents = _documents(data)
        first: Any = documents[0]
        if kurral.is_kurral(first):
            manifest = kurral.manifest_of(first, tenant=tenant, workspace=workspace)
            return [ImportedRun(manifest, kurral.events_of(first, manifest))]
        if atif.is_atif(first):
            return list(atif.runs_of(first, tenant=tenant, workspace=workspace))
        if otel.is_otlp(first):
            return list(otel.runs_of(documents, tenant=tenant, workspace=workspace))
    except BadJson as error:
        if not marked:
            return None
        kind = "a .kurral artifact" if named else "a trajectory or trace"
        raise ArtifactError(f"{path} is not {kind}: {error}.") from None
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error.message}", hint=error.hint) from None
    except RecursionError:
        raise ArtifactError(f"{path} is nested too deeply.") from None
    except _ODD as error:
        raise _odd(path, error) from error
    if named:
        raise ArtifactError(f"{path} is not a .kurral artifact.")
    return None


def _is_marked(start: bytes) -> bool:
    """Whether the start of a file shows another format; ours identifies itself in its first lines."""
    return any(mark in start for mark in _MARKS) and b'"format": "antiphon"' not in start


def _documents(data: bytes) -> list[Any]:
    """The document of a file, or one per line: collectors write one export per line."""
    try:
        return [strict_loads(data)]
    except BadJson:
        lines = [line for line in data.splitlines() if line.strip()]
        if len(lines) < 2 or not lines[0].rstrip().endswith(b"}"):
            raise
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(strict_loads(line))
        except BadJson as error:
            raise BadJson(f"line {number}: {error}") from None
    return found


class _Import(NamedTuple):
    """Imports a checked document into the store atomically."""

    app: Antiphon
    document: artifact.Document
    progress: Progress

    def store(self) -> RunManifest:
        run_id = self.document.manifest.id
        if is_reserved(run_id):  # whoever writes the file must not forge the logs of the host or the operators
            run_id = f"imported-{run_id[:180]}"
        mark = hashlib.sha256(f"{self.app.tenant}\0{self.digest}".encode()).hexdigest()[:12]
        for name in (run_id, f"{run_id[:180]}-{mark}"):
            found = self._same(name)
            if isinstance(found, RunManifest):
                return found
            if found == "free":
                return self._write(name)
        return self._write(uuid7())

    @property
    def digest(self) -> str:
        """Identifies this document; for an edited one the manifest counts too."""
        document = self.document
        if not document.altered:
            return document.digest
        return artifact.digest([document.digest, document.manifest.to_wire()])

    def _same(self, run_id: str) -> RunManifest | Literal["free", "taken"]:
        """The run with this id if it came from this very artifact; else whether the id is free."""
        app = self.app
        there = app.journal.manifest(run_id)
        if there is None:
            return "free"
        if there.tenant != app.tenant:
            return "taken"
        if _IMPORTING in there.tags:
            if not certainly_dead(there.tags.get("owner", "")):
                return "taken"
            app.journal.delete_run(run_id)  # from an import that was killed
            return "free"
        if there.tags.get(_DIGEST) == self.digest:
            return there
        seal = artifact.Seal(there)
        for event in whole_events(app, run_id):
            seal.line(event)
        return there if seal.digest == self.digest else "taken"

    def _write(self, run_id: str) -> RunManifest:
        app, document = self.app, self.document
        recorder = app.recorder(document.manifest, run_id=run_id)
        tags = {name: value for name, value in document.manifest.tags.items() if name not in ("owner", _IMPORTING)}
        tags |= {"imported": tags.get("imported", "antiphon"), "importedId": document.manifest.id}
        tags[_DIGEST] = self.digest
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
        under_way = {"imported": made.tags["imported"], _IMPORTING: "true", "owner": owner_token()}
        app.journal.open_run(msgspec.structs.replace(made, status="running", tags=under_way, events=0))
        try:
            made = msgspec.structs.replace(made, events=self._append(recorder))
            made = recorder.with_key(made)
            app.journal.update_run(made)
        except BaseException:
            app.journal.delete_run(run_id)
            raise
        return made

    def _append(self, recorder: Recorder) -> int:
        journal = self.app.journal
        take = recorder.import_foreign_event if self.document.foreign else recorder.import_event
        batch: list[Row] = []
        count = size = 0
        for event in self.progress(self.document.events(), self.document.length, "importing, events"):
            row = take(event)
            batch.append(row)
            count += 1
            size += len(row.body)
            if len(batch) >= _BATCH or size >= _BATCH_BYTES:
                journal.append(recorder.run_id, batch)
                batch, size = [], 0
        if batch:
            journal.append(recorder.run_id, batch)
        return count

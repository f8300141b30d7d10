"""Back up all local state while it is in use, and restore it.

The database first, then the blobs: records and events refer to blobs, never the other way round. The seal key is not
part of a backup: whoever has both can read what was sealed. It is copied elsewhere if the operator says where.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import orjson

from antiphon._seal import key_ids, sync, take_owner
from antiphon._version import __version__
from antiphon.config.wiring import home, seal_key_file
from antiphon.errors import InvalidInput, NotFound, StoreError
from antiphon.ops import Progress, each, silent
from antiphon.ops.app import Antiphon
from antiphon.ops.seal_keys import seal_keys
from antiphon.ops.storage import OUTBOX

FORM = 1
MANIFEST = "backup.json"
DATABASES = "databases"
FOLDERS = ("blobs", "outbox")
"""Parts of the state folder: large payloads, and what waits for the bucket."""
_UNFINISHED = ".restore-"


class Manifest(TypedDict):
    """A backup's manifest."""

    antiphonBackup: int
    version: str
    atMs: int
    databases: list[str]
    sealKeyIds: list[str]
    files: dict[str, str]
    """The digest of each file, by its name in the folder."""


def databases_of(app: Antiphon) -> list[Path]:
    """The SQLite files of the configured stores; other stores are backed up with their server's own tools."""
    store: Any = app.store
    parts = [store.claims, store.log] if hasattr(store, "claims") else [store]
    elsewhere = [part.url for part in parts if getattr(part, "path", None) is None]
    if elsewhere:
        raise InvalidInput(
            f"{' and '.join(elsewhere)}: this command backs up SQLite only. Nothing was written.",
            hint="Use the server's own tools: pg_dump or base backups, Redis persistence.",
        )
    return list(dict.fromkeys(Path(part.path) for part in parts))


def backup(app: Antiphon, target: Path, *, seal_key: Path | None = None, progress: Progress = silent) -> dict[str, Any]:
    """Write a consistent copy of the databases and the state folder to the new folder *target*."""
    sources = databases_of(app)
    for source in sources:
        if not source.exists():
            raise NotFound(f"There is no database {source}.", hint="Name the configuration: --config FILE")
    if target.exists() and any(target.iterdir()):
        raise InvalidInput(f"The folder {target} is not empty. Nothing was written.", hint="Name a new folder.")
    keys = seal_keys(app)
    if seal_key is not None:
        _refuse_inside(seal_key, target)
        if seal_key.exists():
            raise InvalidInput(f"{seal_key} exists. Nothing was written.", hint="Name a new file.")
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    files: dict[str, str] = {}
    names = {f"{DATABASES}/{number}-{source.name}": source for number, source in enumerate(sources)}
    copies = ((name, copy_database(source, target / name)) for name, source in names.items())
    size = sum(source.stat().st_size for source in sources) / 1e6
    files.update(progress(copies, len(names), f"copying {size:.1f} MB, databases"))
    for folder in FOLDERS:
        files.update(_copy_tree(home() / folder, target / folder, folder, progress))
    manifest: Manifest = {
        "antiphonBackup": FORM,
        "version": __version__,
        "atMs": app.clock.now_ms(),
        "databases": [str(source) for source in sources],
        "sealKeyIds": [*keys.known, *keys.missing],
        "files": files,
    }
    key_file = keys.file if keys.known else None
    copied = seal_key if key_file is not None else None
    if copied is not None and key_file is not None:
        _write_private(copied, key_file.read_bytes())
    partial = target / f"{MANIFEST}.part"
    _write_private(partial, orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
    partial.replace(target / MANIFEST)  # written last: a backup without it is incomplete
    size = sum((target / name).stat().st_size for name in files)
    return {
        "folder": str(target),
        "files": len(files),
        "bytes": size,
        "sealKeyFile": None if key_file is None else str(key_file),
        "sealKeyCopied": str(copied or "") or None,
        "warnings": [{"message": trouble.message, "hint": trouble.hint} for trouble in keys.troubles],
    }


def copy_database(source: Path, target: Path) -> str:
    """Write one consistent copy of a database in use: it blocks no writer and sees no partial transaction.

    Returns its digest.
    """
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        with (
            contextlib.closing(
                sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
            ) as reader,
            contextlib.closing(sqlite3.connect(target)) as writer,
        ):
            reader.backup(writer)
            writer.execute("PRAGMA journal_mode = DELETE")  # a single file, whatever side files the original has
            (found,) = writer.execute("PRAGMA quick_check").fetchone()
    except sqlite3.Error as error:
        raise StoreError(f"The database {source} cannot be copied: {error}.", hint="Run: antiphon doctor") from error
    if found != "ok":
        raise StoreError(f"The database {source} is damaged: {found}.", hint="Restore an earlier backup.")
    sync(target)
    return _digest(target)


def read_manifest(folder: Path) -> Manifest:
    """What the backup holds."""
    try:
        found: Any = orjson.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise NotFound(
            f"{folder} is not a complete backup: it has no {MANIFEST}.", hint="Name the folder of a backup."
        ) from None
    except ValueError:
        raise InvalidInput(f"{folder / MANIFEST} cannot be read.") from None
    form = found.get("antiphonBackup") if isinstance(found, dict) else None
    if form != FORM:
        raise InvalidInput(f"The backup has form {form}; this release knows {FORM}.", hint="Upgrade Antiphon.")
    try:
        return msgspec.convert(found, Manifest)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"The backup is damaged: {folder / MANIFEST} is not what was written ({error}). Nothing was restored.",
            hint="Restore another backup.",
        ) from None


def verify(folder: Path, *, progress: Progress = silent) -> Manifest:
    """Check that every file of a backup is present and unchanged; returns its manifest."""
    manifest = read_manifest(folder)
    each(lambda file: _check(folder, *file), manifest["files"].items(), progress, "checking, files")
    return manifest


def _check(folder: Path, name: str, digest: str) -> None:
    file = folder / name
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise InvalidInput(f"The backup names a file outside its folder: {name}.")
    if not file.is_file():
        raise InvalidInput(f"The backup is incomplete: {name} is missing. Nothing was restored.")
    if _digest(file) != digest:
        raise InvalidInput(f"The backup is damaged: {name} is not what was written. Nothing was restored.")


def restore(
    app: Antiphon, folder: Path, *, seal_key: Path | None = None, force: bool = False, progress: Progress = silent
) -> dict[str, Any]:
    """Restore a backup to where the configuration points. Existing files are moved aside, never deleted."""
    targets = databases_of(app)
    manifest = verify(folder, progress=progress)
    copies = sorted(name for name in manifest["files"] if name.startswith(f"{DATABASES}/"))
    if len(copies) != len(targets):
        raise InvalidInput(
            f"The backup has {len(copies)} databases, the configuration names {len(targets)}. Nothing was restored.",
            hint="Restore with the configuration that the backup was taken with.",
        )
    there = [target for target in targets if target.exists()]
    if there and not force:
        raise InvalidInput(
            f"A store already exists: {', '.join(map(str, there))}. Nothing was restored.",
            hint="Stop every process that uses it, then: antiphon restore FOLDER --force. What is there is kept aside.",
        )
    if seal_key is not None and not seal_key.is_file():
        raise NotFound(
            f"There is no seal key {seal_key}. Nothing was restored.", hint="Name its file, or leave it out."
        )
    key_file = seal_key_file(app.config, app.store)
    missing = _missing_keys(manifest, seal_key, key_file)
    if missing and not force:
        raise InvalidInput(
            f"Results were sealed with key {', '.join(missing)}, and that key is not here. Nothing was restored.",
            hint="Give its file: --seal-key FILE. Without it they cannot be read: --force restores the rest.",
        )
    _refuse_in_use(there)  # the operator has stopped everything else
    sources = {target.resolve(): folder / name for target, name in zip(targets, copies, strict=True)}
    waited: list[str] = []
    for name, digest in manifest["files"].items():
        if name.startswith(f"{OUTBOX}/"):
            waited.append(name)  # the bucket may have a newer one
        elif Path(name).parts[0] in FOLDERS and not _is_whole(home() / name, digest):
            sources[home() / name] = folder / name
    if seal_key is not None and key_file is not None:
        sources[key_file.resolve()] = seal_key
    try:
        moved = _replace_all(sources, f"before-restore-{app.clock.now_ms()}", progress)
    except OSError as error:
        raise StoreError(
            f"The backup cannot be restored: {error.strerror or error}. Nothing was changed: the store, the payloads "
            "and the seal key are as they were.",
            hint="Check free space and permissions, then run the command again.",
        ) from error
    return {
        "databases": [str(target) for target in targets],
        "takenAtMs": manifest["atMs"],
        "files": len(manifest["files"]),
        "movedAside": moved,
        "sealKeysMissing": missing,
        "artifactsNotRestored": waited,
    }


def _is_whole(payload: Path, digest: str) -> bool:
    """Whether a payload is present and is the one of the backup, or at least matches its own digest in its name."""
    try:
        found = _digest(payload)
    except OSError:  # missing, or its disk is damaged
        return False
    return found == digest or found.startswith(payload.name)


def _missing_keys(manifest: Manifest, given: Path | None, configured: Path | None) -> list[str]:
    file = given or configured
    known = key_ids(file) if file is not None and file.exists() else []
    return [one for one in manifest["sealKeyIds"] if one not in known]


def _refuse_in_use(databases: list[Path]) -> None:
    """Refuse while a process is in the middle of a write."""
    for database in databases:
        with contextlib.closing(sqlite3.connect(database, timeout=2)) as connection:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # leaves one file, replaceable atomically
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.DatabaseError as error:
                if "locked" in str(error):
                    raise StoreError(
                        f"{database} is in use: {error}. Nothing was restored.", hint="Stop every process that uses it."
                    ) from error


def _replace_all(sources: dict[Path, Path], stamp: str, progress: Progress) -> list[str]:
    """Replace each target by a copy of its source, all or none. Old files are kept aside; returns where.

    All copies are complete before the first target is replaced, and each target is replaced atomically. So a process
    that is killed leaves every file whole, either old or new.
    """
    for parent in {target.parent for target in sources}:
        for left in parent.glob(f"{_UNFINISHED}*"):  # from a restore that was killed
            left.unlink(missing_ok=True)
    with contextlib.ExitStack() as undo:
        ready: dict[Path, Path] = {}

        def prepare(target: Path) -> None:
            ready[target] = _copy_beside(sources[target], target)
            undo.callback(ready[target].unlink, missing_ok=True)

        each(prepare, sources, progress, "copying, files")
        moved = [aside for target, copy in ready.items() for aside in _replace(target, copy, stamp, undo)]
        for parent in {target.parent for target in sources}:
            sync(parent)
        undo.pop_all()
    return moved


def _replace(target: Path, copy: Path, stamp: str, undo: contextlib.ExitStack) -> list[str]:
    """Replace one file by its copy, and record in *undo* how to revert it; returns where the old one is kept."""
    # Unless it is hidden, a file in a folder of payloads would be taken for one and sent to the bucket.
    hidden = "." if any(home() / folder in target.parents for folder in FOLDERS) else ""
    aside = target.with_name(f"{hidden}{target.name}.{stamp}")
    there = target.exists()
    if there:
        os.link(target, aside)
        undo.callback(_put_back, aside, target)
    else:
        undo.callback(target.unlink, missing_ok=True)
    for suffix in ("-wal", "-shm"):  # of a database that was not closed: they would corrupt the new one
        old = target.with_name(target.name + suffix)
        if old.exists():
            undo.callback(_put_back, old.rename(f"{aside}{suffix}"), old)
    copy.replace(target)
    return [str(aside)] if there else []


def _put_back(aside: Path, target: Path) -> None:
    aside.replace(target)
    aside.unlink(missing_ok=True)  # replace() keeps both names if they are the same file


def _copy_beside(source: Path, target: Path) -> Path:
    """A complete copy next to *target*, with its source's timestamps, owned by the owner of the existing file."""
    _make_folder(target.parent)
    descriptor, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as out, source.open("rb") as stream:
            take_owner(out.fileno(), target if target.exists() else target.parent)
            shutil.copyfileobj(stream, out, 1 << 20)
            out.flush()
            found = os.fstat(stream.fileno())
            os.utime(out.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
            os.fsync(out.fileno())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def _make_folder(folder: Path) -> None:
    """Create it for this user only; root creates it for the owner of the parent folder."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)
    take_owner(folder, folder.parent)


def _copy_tree(source: Path, target: Path, name: str, progress: Progress) -> dict[str, str]:
    """Copy files that never change once written; those that vanish meanwhile were sent or collected."""
    files: dict[str, str] = {}
    paths = [file for file in sorted(source.rglob("*")) if not file.name.startswith(".") and file.is_file()]

    def copied(file: Path) -> None:
        relative = file.relative_to(source)
        with contextlib.suppress(FileNotFoundError):
            _copy_beside(file, target / relative).replace(target / relative)
            files[f"{name}/{relative.as_posix()}"] = _digest(target / relative)

    each(copied, paths, progress, f"copying {name}, files")
    return files


def _refuse_inside(file: Path, folder: Path) -> None:
    if folder.resolve() in file.resolve().parents:
        raise InvalidInput(
            "Keep the seal key elsewhere: whoever has it and the backup can read what was sealed. Nothing was written.",
            hint="Name a file outside the folder of the backup.",
        )


def _write_private(file: Path, data: bytes) -> None:
    descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

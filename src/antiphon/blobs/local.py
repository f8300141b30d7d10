"""Content addressing over any store of named objects (D31: within one tenant), and a local folder as one.

Files are written next to their place, flushed, and moved there atomically.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import quote

from antiphon.errors import ArtifactError, InvalidInput, NotFound, StoreUnavailable

PART_BYTES = 8 * 1024 * 1024
"""Larger objects are uploaded in parts."""
_REF = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_NAME = 120
_STORES = "stores"
_RENEWED = "-renewed"
_DAY_S = 86_400
_ASIDE = "aside"


class Objects(Protocol):
    """Stores bytes under names such as ``t=default/ab/abcd…``. Blocking; writes are atomic and durable."""

    @property
    def url(self) -> str:
        """Its location, without secrets."""

    def put_file(self, name: str, path: Path) -> None:
        """Store the content of a file without holding all of it in memory."""

    def get(self, name: str) -> bytes:
        """Raises :class:`~antiphon.errors.NotFound`."""

    def put_once(self, name: str, data: bytes) -> None:
        """Store *data* unless the object already exists (its name identifies its content)."""

    def move(self, name: str, to: str) -> None:
        """Rename the object, replacing an existing one with the new name. It always has one of the two names.

        Raises :class:`~antiphon.errors.NotFound`.
        """

    def delete(self, name: str) -> None:
        """Delete the object if it exists."""

    def written_ms(self, name: str) -> int:
        """When the object was written. Raises :class:`~antiphon.errors.NotFound`."""

    def names(self, prefix: str = "") -> Iterator[str]:
        """Names in the folder *prefix* (empty, or ending in ``/``)."""


class ContentBlobs:
    """Blobs over named objects.

    Several stores may keep their blobs in one place, where equal blobs are stored once. So each *store* that writes
    leaves a note there: unused blobs can only be determined if there is just one store. The note never changes: its age
    tells since when the store writes here. A second one is rewritten every day, for places that delete old objects.

    A writer whose blob already exists relies on it without leaving a trace, so no look at the store can tell that a
    blob may be deleted. One that seems unused is first *set aside*: it can still be read, but writers no longer find
    it. Then whoever relied on it before can be found, and the blob is put back or deleted. This needs no clock.
    """

    def __init__(self, objects: Objects, store: str = "") -> None:
        self.objects = objects
        self._store = store
        self._note = f"{_STORES}/{sha256(store.encode()).hexdigest()[:16]}"
        self._noted_day = 0

    @property
    def url(self) -> str:
        """Where the blobs are, without secrets."""
        return self.objects.url

    def put(self, tenant: str, data: bytes) -> str:
        digest = sha256(data).hexdigest()
        if self._store:
            self._leave_notes(int(time.time()) // _DAY_S)
        self.objects.put_once(_name(tenant, digest), data)
        return f"sha256:{digest}"

    def get(self, tenant: str, ref: str) -> bytes:
        digest = _digest(ref)
        name = _name(tenant, digest)
        for place in (name, f"{_ASIDE}/{name}", name):  # it may be put back meanwhile
            with contextlib.suppress(NotFound):
                data = self.objects.get(place)
                break
        else:
            raise NotFound(f"No blob {ref} of tenant {tenant!r} in {self.url}.")
        if sha256(data).hexdigest() != digest:
            raise ArtifactError(
                f"The blob {ref} in {self.url} is damaged: its content has another digest.",
                hint="Restore it from a backup; nothing was changed.",
            )
        return data

    def delete(self, tenant: str, ref: str) -> None:
        self.objects.delete(_name(tenant, _digest(ref)))

    def refs(self, tenant: str) -> Iterator[str]:
        """The blobs that writers find, without those set aside."""
        return self._refs(f"{tenant_folder(tenant)}/")

    def aside(self, tenant: str) -> Iterator[str]:
        """The blobs that are set aside."""
        return self._refs(f"{_ASIDE}/{tenant_folder(tenant)}/")

    def set_aside(self, tenant: str, ref: str) -> None:
        """Hide a blob from writers: the next one writes it again. :meth:`get` still finds it."""
        name = _name(tenant, _digest(ref))
        with contextlib.suppress(NotFound):  # another process was faster
            self.objects.move(name, f"{_ASIDE}/{name}")

    def put_back(self, tenant: str, ref: str) -> None:
        """Make a blob that was set aside visible to writers again."""
        name = _name(tenant, _digest(ref))
        try:
            self.objects.written_ms(name)  # written again meanwhile
        except NotFound:
            with contextlib.suppress(NotFound):  # another process was faster
                self.objects.move(f"{_ASIDE}/{name}", name)
        else:
            self.objects.delete(f"{_ASIDE}/{name}")

    def delete_aside(self, tenant: str, ref: str) -> None:
        """Delete a blob that was set aside; if it was written again meanwhile, the new one stays."""
        self.objects.delete(f"{_ASIDE}/{_name(tenant, _digest(ref))}")

    def _refs(self, folder: str) -> Iterator[str]:
        for name in self.objects.names(folder):
            ref = f"sha256:{name.rpartition('/')[2]}"
            if _REF.fullmatch(ref):
                yield ref

    def other_stores(self) -> list[str]:
        """The other stores that have written blobs here."""
        notes = [name for name in self.objects.names(f"{_STORES}/") if name.removesuffix(_RENEWED) != self._note]
        return sorted({self.objects.get(name).decode("utf-8", "replace").partition("\n")[0] for name in notes})

    def _leave_notes(self, day: int) -> None:
        if day != self._noted_day:
            self.objects.put_once(self._note, self._store.encode())
            self.objects.put_once(self._note + _RENEWED, f"{self._store}\n{day}".encode())
            self._noted_day = day

    def since_note(self, tenant: str, refs: Iterable[str]) -> list[str]:
        """Those of *refs* that were written since this store left its note; older ones may belong to any store."""
        found = []
        with contextlib.suppress(NotFound):  # no note
            since = self.objects.written_ms(self._note)
            for ref in refs:
                with contextlib.suppress(NotFound):  # deleted meanwhile
                    if self.objects.written_ms(_name(tenant, _digest(ref))) >= since:
                        found.append(ref)
        return found


def is_note(name: str) -> bool:
    """Whether an object next to blobs is a store's note and not a blob."""
    return name.startswith(f"{_STORES}/")


def tenant_folder(tenant: str) -> str:
    """A folder name for any tenant; no tenant name can escape its folder or collide with another."""
    quoted = quote(tenant, safe="")
    if len(quoted) > _LONGEST_NAME:
        return f"h={sha256(tenant.encode()).hexdigest()}"
    return f"t={quoted}"


def _name(tenant: str, digest: str) -> str:
    return f"{tenant_folder(tenant)}/{digest[:2]}/{digest}"


def _digest(ref: str) -> str:
    if not _REF.fullmatch(ref):
        raise InvalidInput(f"{ref!r} is not a reference to a blob.", path="ref")
    return ref.removeprefix("sha256:")


_UNFINISHED = ".unfinished"


class LocalObjects:
    """A folder. Unfinished writes of killed processes are removed after a day."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder: Path = Path(folder)
        self._ready = False

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def path(self, name: str) -> Path:
        """The path of an object."""
        parts = name.split("/")
        if not name or any(part in ("", ".", "..") or part.startswith(".") or "\0" in part for part in parts):
            raise InvalidInput(f"{name!r} cannot be the name of an object.", path="name")
        return self.folder.joinpath(*parts)

    def put(self, name: str, data: bytes) -> None:
        self._write(name, lambda file: file.write(data))

    def put_file(self, name: str, path: Path) -> None:
        import shutil

        with path.open("rb") as source:
            self._write(name, lambda file: shutil.copyfileobj(source, file, 1 << 20))

    def get(self, name: str) -> bytes:
        with self._reach(name):
            try:
                return self.path(name).read_bytes()
            except IsADirectoryError:
                raise FileNotFoundError from None

    def written_ms(self, name: str) -> int:
        with self._reach(name):
            return self.path(name).stat().st_mtime_ns // 1_000_000

    def put_once(self, name: str, data: bytes) -> None:
        try:
            if self.get(name) == data:
                return
        except NotFound:
            pass
        self.put(name, data)  # new, or damaged since it was written

    def move(self, name: str, to: str) -> None:
        with self._reach(name):
            _place(self.path(name), self.path(to))

    def delete(self, name: str) -> None:
        with contextlib.suppress(NotFound), self._reach(name):
            self.path(name).unlink()

    def names(self, prefix: str = "") -> Iterator[str]:
        top = self.path(prefix.rstrip("/")) if prefix else self.folder
        for folder, folders, files in os.walk(top):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            place = Path(folder).relative_to(self.folder)
            for name in sorted(files):
                if not name.startswith("."):
                    yield (place / name).as_posix()

    def _write(self, name: str, fill: Callable[[IO[bytes]], object]) -> None:
        target = self.path(name)
        unfinished = self.folder / _UNFINISHED / uuid.uuid4().hex
        try:
            self._prepare(unfinished.parent)
            try:
                with os.fdopen(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                    fill(file)
                    file.flush()
                    os.fsync(file.fileno())
                _place(unfinished, target)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise self._trouble(error) from error

    def _prepare(self, unfinished: Path) -> None:
        if self._ready and unfinished.is_dir():
            return
        unfinished.mkdir(parents=True, exist_ok=True, mode=0o700)
        oldest = time.time() - _DAY_S
        for left in unfinished.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another writer has completed it
                if left.stat().st_mtime < oldest:
                    left.unlink()
        self._ready = True

    @contextlib.contextmanager
    def _reach(self, name: str) -> Iterator[None]:
        """Raise what the file system says about an object as :class:`Objects` has it."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"No object {name!r} in {self.folder}.") from None
        except OSError as error:
            raise self._trouble(error) from error

    def _trouble(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(
            f"The folder {self.folder} cannot be used: {error.strerror or error}.",
            hint="Check free space and permissions. Stored objects are unaffected.",
        )


class LocalBlobs(ContentBlobs):
    """Blobs in a local folder; equal payloads of a tenant are stored once.

    >>> LocalBlobs("/var/lib/antiphon/blobs").url
    'file:///var/lib/antiphon/blobs'
    """

    def __init__(self, folder: str | os.PathLike[str], store: str = "") -> None:
        super().__init__(LocalObjects(folder), store)


def _place(source: Path, target: Path) -> None:
    """Rename a file so that its new name, and those of new folders above it, survive a power failure."""
    changed, folder = [target.parent], target.parent
    while not folder.exists():
        folder = folder.parent
        changed.append(folder)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    source.replace(target)
    for folder in changed:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

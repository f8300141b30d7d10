"""A virtual disk under the real SQLite store: writes that fail, are cut short or find no space, and failing fsyncs.

SQLite accesses its files through a table of functions (its VFS). Here that table is copied, and ``xWrite`` and
``xSync`` ask the disk first. Everything above is the production code and SQLite itself. If Python was built with an
SQLite that exports no symbols (a static build), there is no such disk, and the simulator uses SQLite without faults.
"""

from __future__ import annotations

import ctypes
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

DiskFault = Literal["write fails", "short write", "disk full", "fsync fails"]
FAULTS: tuple[DiskFault, ...] = ("write fails", "short write", "disk full", "fsync fails")

_FULL, _IOERR_WRITE, _IOERR_FSYNC = 13, 778, 1034
_SYNC_SLOT, _WRITE_SLOT, _OPEN_SLOT = 4, 2, 0
_METHODS = 18
"""Functions of a file in version 3 of the table."""

_Open = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
_Write = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _Vfs(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("functions", ctypes.c_void_p * 16),
    )


class _Methods(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int), ("functions", ctypes.c_void_p * _METHODS))


class Disk:
    """Whether the next write or fsync of a file below *folder* fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fails: Callable[[str], DiskFault | None] = lambda step: None
        """Called with ``write`` or ``fsync``; returns the fault, if any."""

    @contextmanager
    def failing(self, fails: Callable[[str], DiskFault | None]) -> Iterator[None]:
        """Use other faults temporarily."""
        before, self.fails = self.fails, fails
        try:
            yield
        finally:
            self.fails = before


class _Shim:
    """Our table of functions, and the original one below it."""

    def __init__(self, library: Any, disk: Disk) -> None:
        library.sqlite3_vfs_find.restype = ctypes.c_void_p
        library.sqlite3_vfs_find.argtypes = [ctypes.c_char_p]
        self._register = library.sqlite3_vfs_register
        self._register.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self._disk = disk
        self._base = library.sqlite3_vfs_find(None)
        base = _Vfs.from_address(self._base)
        self._prefix = str(disk.folder).encode()
        self._open_base = _Open(base.functions[_OPEN_SLOT])
        self._open = _Open(self._opened)
        self._tables: dict[int, tuple[_Methods, Any, Any]] = {}
        self._vfs = _Vfs.from_buffer_copy(base)
        self._vfs.name = b"antiphon-sim"
        self._vfs.functions[_OPEN_SLOT] = ctypes.cast(self._open, ctypes.c_void_p).value

    def use(self, yes: bool) -> None:
        """Whether connections opened from now on go through it."""
        self._register(ctypes.addressof(self._vfs) if yes else self._base, 1)

    def _opened(self, vfs: int, name: int | None, file: int, flags: int, out: int | None) -> int:
        code: int = self._open_base(self._base, name, file, flags, out)
        if code == 0 and name and ctypes.string_at(name).startswith(self._prefix):
            methods = ctypes.c_void_p.from_address(file)
            if methods.value:
                methods.value = ctypes.addressof(self._table(methods.value)[0])
        return code

    def _table(self, below: int) -> tuple[_Methods, Any, Any]:
        found = self._tables.get(below)
        if found is not None:
            return found
        table = _Methods.from_buffer_copy(_Methods.from_address(below))
        write_base = _Write(table.functions[_WRITE_SLOT])

        def write(file: int, data: int, amount: int, offset: int) -> int:
            fault = self._disk.fails("write")
            if fault is None:
                return int(write_base(file, data, amount, offset))
            if fault == "short write":
                write_base(file, data, amount // 2, offset)
            return _FULL if fault == "disk full" else _IOERR_WRITE

        def sync(file: int, flags: int) -> int:
            """Nothing is really flushed: there is no power failure here."""
            return 0 if self._disk.fails("fsync") is None else _IOERR_FSYNC

        kept = (_Write(write), _Sync(sync))
        table.functions[_WRITE_SLOT] = ctypes.cast(kept[0], ctypes.c_void_p).value
        table.functions[_SYNC_SLOT] = ctypes.cast(kept[1], ctypes.c_void_p).value
        self._tables[below] = (table, *kept)
        return self._tables[below]


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    memory = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
    return tempfile.TemporaryDirectory(prefix="antiphon-sim-", dir=memory if memory.is_dir() else None)


@cache
def the_disk() -> Disk:
    """The one of this process."""
    return Disk(Path(_folder().name).resolve())


@cache
def _shim() -> _Shim | None:
    import _sqlite3

    with suppress(AttributeError, OSError):
        return _Shim(ctypes.CDLL(_sqlite3.__file__), the_disk())
    return None


@contextmanager
def virtual_disk() -> Iterator[Disk]:
    """SQLite files that are opened inside the context below the disk's folder are on the virtual disk."""
    shim = _shim() if sqlite3.sqlite_version_info >= (3, 37) else None
    if shim is None:
        yield the_disk()
        return
    shim.use(True)
    try:
        yield the_disk()
    finally:
        shim.use(False)

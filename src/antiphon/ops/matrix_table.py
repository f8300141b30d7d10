"""The files of a matrix: its plan, and its growing table of rows."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec
import orjson

from antiphon._diff import plural
from antiphon.config.wiring import ensure_home
from antiphon.errors import InvalidInput
from antiphon.ops.cells import Row

log: logging.Logger = logging.getLogger("antiphon.matrix")

Metric = Literal["pass", "score"]
Cell = tuple[str, int, str]
"""Variant, sample and run."""
PLAN, TABLE = "plan.json", "table.jsonl"
_FOLDER, _LOCK = "matrix", "lock"
_BAD = b'"status":"error"'


class Variant(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is changed: model, temperature, seed, system prompt, model client or code. If nothing is: the baseline."""

    name: str
    model: str | None = None
    temperature: float | None = None
    seed: int | None = None
    prompt: str | None = None
    llm: str | None = None
    """``file.py:function`` that answers model requests."""
    entry: str | None = None
    """``file.py:function`` to run instead of the recorded entry point."""


class Document(msgspec.Struct, rename="camel", omit_defaults=True):
    """A plan as it is stored: everything that a second start needs."""

    id: str
    created_at_ms: int
    version: str
    store: str
    tenant: str
    workspace: str
    runs: list[str]
    variants: list[Variant]
    """The first one is the baseline of the others, if ``compares``."""
    compares: bool
    rounds: int
    stops: bool
    """Whether it stops as soon as all comparisons are decided."""
    code: dict[str, dict[str, Any]]
    entries: dict[str, str]
    """The entry point of each run, where they differ; ``""`` is the default."""
    metric: Metric = "pass"
    alpha: float = 0.05
    margin: float = 0.05
    min_ars: float | None = None
    budget: float | None = None
    max_calls: int | None = None
    order: int = 0
    salt: str = ""
    config: str | None = None
    sandbox: bool = True
    sizes: dict[str, int] = {}
    settings: dict[str, Any] = {}
    """What decides a verdict, as it was at the first start of the matrix."""

    @property
    def cells(self) -> int:
        """How many there can be at most."""
        return len(self.runs) * len(self.variants) * self.rounds


def folder_of(matrix_id: str = "") -> Path:
    """Where the plan and the table of a matrix are; without an id, where all matrices are."""
    return ensure_home() / _FOLDER / matrix_id


def document_in(folder: Path) -> Document | None:
    """The plan in a folder, if it can be read."""
    try:
        return msgspec.json.decode((folder / PLAN).read_bytes(), type=Document)
    except (OSError, msgspec.MsgspecError):
        return None


def cell_of(row: Row) -> Cell:
    """Which cell a row is about."""
    return row["variant"], row["sample"], row["run"]


class Table:
    """The rows, in a growing file. A cell that is retried gets another row: the last one counts."""

    def __init__(self, folder: Path, document: Document) -> None:
        self.path: Path = folder / TABLE
        self._document = document
        self._lanes = {one.name for one in document.variants}
        self._damaged: set[int] = set()
        self._file: Any = None
        self._lock: Any = None
        self._has_bad = False
        self.is_resumed: bool = False
        """Whether an earlier start of the matrix was interrupted, or ended without all of its cells."""

    def __enter__(self) -> Table:
        """Start writing; only one process at a time may."""
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _held(folder / _LOCK, self._document.id)
        self.is_resumed = (folder / PLAN).exists()
        if not self.is_resumed:
            _replace(folder / PLAN, [msgspec.json.encode(self._document)])
        if self.path.exists():
            self._tidy()
        if self._damaged:
            lines = plural(len(self._damaged), "line")
            log.warning("%s of %s cannot be read; these cells are computed again.", lines, self.path)
        self._file = self.path.open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._has_bad:
            self._tidy()
        self._lock.close()

    def _tidy(self) -> None:
        """Drop rows of cells that were retried, unreadable lines, and a partial last line."""
        kept = {cell_of(row): row for row in self}
        self._has_bad = any(row["status"] == "error" for row in kept.values())
        _replace(self.path, [orjson.dumps(row) + b"\n" for row in kept.values()])

    def __iter__(self) -> Iterator[Row]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            has_bad = any(_BAD in line for line in file)
            file.seek(0)
            if not has_bad:
                yield from self._rows(file)
                return
            last: dict[Cell, int] = {}  # of cells that failed
            count = 0
            for count, row in enumerate(self._rows(file), 1):
                if row["status"] == "error" or cell_of(row) in last:
                    last[cell_of(row)] = count
            file.seek(0)
            for number, row in enumerate(islice(self._rows(file), count), 1):
                if last.get(cell_of(row), number) == number:
                    yield row

    def _rows(self, file: Iterable[bytes]) -> Iterator[Row]:
        for number, line in enumerate(file):
            if not line.endswith(b"\n"):
                return
            row = self._row(line)
            if row is None:
                self._damaged.add(number)
            else:
                yield row

    def _row(self, line: bytes) -> Row | None:
        """The row of a line; ``None`` if it is not of this table."""
        try:
            row: Row = orjson.loads(line)
            return row if msgspec.convert(row, _Line).variant in self._lanes else None
        except (orjson.JSONDecodeError, msgspec.MsgspecError):
            return None

    def add(self, row: Row) -> None:
        """Append one row."""
        self._file.write(orjson.dumps(row) + b"\n")
        self._file.flush()


class _Line(msgspec.Struct):
    """What every row has."""

    run: str
    variant: str
    sample: int
    status: Literal["pass", "fail", "error"]
    reasons: list[str]
    score: float = 0.0
    calls: int = 0
    cost: float = 0.0


def _held(path: Path, matrix_id: str) -> Any:
    """A lock that only one process holds, until it closes the file or ends."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.close()
        raise InvalidInput(
            f"Another process is working on the matrix {matrix_id}. Nothing was changed.",
            hint=f"Wait until it ends, or stop it, then: antiphon matrix --resume {matrix_id}",
            code="matrix_busy",
        ) from None
    except OSError as error:  # a file system without locks
        log.warning("%s cannot be locked (%s); do not start a second process for this matrix.", path, error)
    return file


def _replace(path: Path, lines: Iterable[bytes]) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)

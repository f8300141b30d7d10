"""The write-ahead log gets its room before it is needed, and nothing depends on it."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon.ports import SyncJournal
from antiphon.stores import SQLiteStore
from antiphon.stores.sqlite import file as file_module
from antiphon.testing.journal_conformance import Harness, claimed, done

WRITER = """
import os, sys
from pathlib import Path
from tests.integration.stores.test_sqlite_wal import finish
from antiphon.stores import SQLiteStore
finish(SQLiteStore(Path(sys.argv[1])).open_sync(), 120)
os._exit(9)
"""


def finish(journal: SyncJournal, number: int) -> None:
    """So many claims, each settled: two commits each."""
    harness = Harness(lambda: SQLiteStore("unused"))
    for n in range(number):
        version = claimed(journal.begin(harness.request(f"key-{n}"))).version
        assert journal.settle(f"key-{n}", version, done()) is not None


def log_size(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


def test_the_log_does_not_grow_with_each_commit(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    journal = SQLiteStore(path).open_sync()
    finish(journal, 20)
    size = log_size(path)
    assert size > 2 << 20
    harness = Harness(lambda: SQLiteStore("unused"))
    for n in range(60):
        claimed(journal.begin(harness.request(f"more-{n}")))
    assert log_size(path) == size


def test_room_is_made_until_the_log_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "_WAL_STEP", 64 << 10)
    monkeypatch.setattr(file_module, "_WAL_ENOUGH", 300 << 10)
    path = tmp_path / "a.db"
    finish(SQLiteStore(path).open_sync(), 300)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*), sum(state = 'done') FROM claims").fetchone() == (300, 300)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_what_a_killed_process_committed_is_found_before_the_zeros(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    ended = subprocess.run([sys.executable, "-c", WRITER, str(path)], cwd=Path(__file__).parents[3], check=False)
    assert ended.returncode == 9
    assert log_size(path) > 2 << 20
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM claims WHERE state = 'done'").fetchone() == (120,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_commit_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def full(*arguments: Any) -> int:
        asked.append(1)
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "pwrite", full)
    finish(SQLiteStore(tmp_path / "a.db").open_sync(), 40)
    assert asked


def test_nobody_else_can_append_while_room_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise zeros could be put over what another process has just committed."""
    path = tmp_path / "a.db"
    refused: list[str] = []
    write = os.pwrite

    def watched(*arguments: Any) -> int:
        other = sqlite3.connect(path, timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError) as problem:
            other.execute("BEGIN IMMEDIATE")
        other.close()
        refused.append(str(problem.value))
        return write(*arguments)

    monkeypatch.setattr(os, "pwrite", watched)
    finish(SQLiteStore(path).open_sync(), 20)
    assert set(refused) == {"database is locked"}  # once, or twice where commits are slow


def test_where_no_commit_waits_for_the_disk_no_room_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    finish(SQLiteStore(path, "NORMAL").open_sync(), 40)
    assert log_size(path) < 1 << 20

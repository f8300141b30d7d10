"""R6: memory and SQLite keep every rule of a journal on the real clock; SQLite also across processes."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

import pytest

from antiphon.stores import MemoryStore, SQLiteStore
from antiphon.testing.journal_conformance import FACES, Face, JournalConformance


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("rule", JournalConformance.rules())
def test_memory(rule: str, face: Face) -> None:
    JournalConformance(MemoryStore, face).check(rule)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("rule", JournalConformance.rules(across_processes=True, newer_records=True))
def test_sqlite(rule: str, face: Face, tmp_path: Path) -> None:
    path = tmp_path / "antiphon.db"

    def make_newer(key: str) -> None:
        with sqlite3.connect(path, timeout=10) as connection:
            connection.execute("UPDATE claims SET v = 99 WHERE key = ?", (key,))
        connection.close()

    JournalConformance(partial(SQLiteStore, path), face, make_newer=make_newer).check(rule)

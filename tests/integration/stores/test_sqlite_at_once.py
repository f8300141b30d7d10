"""SQLite in one statement: the same answers, the same rows, and a log without gaps whatever comes between."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import StoreUnavailable
from antiphon.ports import Settlement
from antiphon.stores import SQLiteStore
from antiphon.stores.sqlite.file import DatabaseFile
from antiphon.stores.sqlite.store import ALL_NEW, SyncSQLiteJournal
from antiphon.testing.journal_conformance import Harness, claimed, done, existing, failed

TTL_MS = 3_600_000
SENT = done(b'"sent"', TTL_MS, attempts=((5, 7, "", False),))
REQUESTS: list[dict[str, Any]] = [
    {"params": b'{"to":"ada"}', "call_id": None},
    {"params": b'{"to":"ada"}', "call_id": 'toolu_"1"'},
    {"params": ("d" * 64, "e" * 64), "call_id": None, "request_id": 'r "1"\n'},
    {"params": b"x" * 10_000, "session": 'é "s"', "actor": "\\", "token": "t/1"},
]
SETTLEMENTS = [
    SENT,
    done(b'"sent"', TTL_MS),
    done(b'"sent"', TTL_MS, attempts=((1, 2, "refused", True), (3, 4, "", False)))._replace(attempt_count=2),
    done(None, TTL_MS, attempts=((5, 7, "", False),), payload_ref="sha256:x", output_redacted=True),
    done(None, TTL_MS, attempts=((5, 7, "", False),), payload_sealed="x", error=("boom", "it broke", True, False)),
]


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(lambda: SQLiteStore(tmp_path / "antiphon.db", "NORMAL"))


@pytest.fixture
def journal(tmp_path: Path, harness: Harness) -> SyncSQLiteJournal:
    journal = SQLiteStore(tmp_path / "antiphon.db", "NORMAL").open_sync()
    for n in range(ALL_NEW):  # from here on it does not look before it writes
        journal.begin(harness.request(f"warm-{n}"))
    return journal


@pytest.fixture
def at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Which steps of stores of this test were tried in one statement, and whether it did."""
    tried: list[bool] = []
    execute = DatabaseFile.execute_now

    def noted(self: DatabaseFile, *arguments: Any) -> bool:
        did = execute(self, *arguments)
        if self.path.is_relative_to(tmp_path):
            tried.append(did)
        return did

    monkeypatch.setattr(DatabaseFile, "execute_now", noted)
    return tried


def numbers(journal: SyncSQLiteJournal, run: str = "run") -> list[int]:
    return [event.seq for event in journal.events(run)]


def step(journal: SyncSQLiteJournal, harness: Harness, key: str, run: str = "run") -> int | None:
    """A claim and its outcome, each with an event."""
    version = claimed(journal.begin(harness.request(key), harness.rows(run, f"{key} started"))).version
    return journal.settle(key, version, SENT, harness.rows(run, f"{key} finished"))


def test_plain_steps_take_one_statement(journal: SyncSQLiteJournal, harness: Harness, at_once: list[bool]) -> None:
    version = claimed(journal.begin(harness.request("a"))).version
    assert journal.settle("a", version, SENT) is not None
    assert at_once == [True, True]
    journal.append("run", harness.rows("run", "first"))
    assert step(journal, harness, "b") is not None
    assert at_once == [True] * 4


def test_what_is_not_plain_does_not(journal: SyncSQLiteJournal, harness: Harness, at_once: list[bool]) -> None:
    journal.append("run", harness.rows("run", "first"))
    for n, settlement in enumerate((done(ttl_ms=60_000), failed(ttl_ms=TTL_MS), Settlement("cancelled", TTL_MS))):
        version = claimed(journal.begin(harness.request(f"k{n}"), harness.rows("run", "a", "b"))).version
        assert journal.settle(f"k{n}", version, settlement, harness.rows("run", "c")) is not None
        assert at_once == []
    assert numbers(journal) == list(range(10))


def test_a_journal_looks_first_until_many_claims_were_new(
    journal: SyncSQLiteJournal, harness: Harness, at_once: list[bool]
) -> None:
    claimed(journal.begin(harness.request("a")))
    existing(journal.begin(harness.request("a")))
    assert at_once == [True, False]
    for n in range(ALL_NEW):
        claimed(journal.begin(harness.request(f"again-{n}")))
    assert at_once == [True, False]
    claimed(journal.begin(harness.request("b")))
    assert at_once == [True, False, True]


@pytest.mark.parametrize("changes", REQUESTS)
def test_the_row_of_a_claim_is_the_same(
    journal: SyncSQLiteJournal, harness: Harness, at_once: list[bool], changes: dict[str, Any]
) -> None:
    claimed(journal.begin(harness.request("quick", 'é "1"', ttl_ms=TTL_MS, **changes)))
    journal._journal.won = 0
    claimed(journal.begin(harness.request("long", 'é "1"', ttl_ms=TTL_MS, **changes)))
    assert at_once == [True]
    assert _row(journal, "quick") == _row(journal, "long")


@pytest.mark.parametrize("settlement", SETTLEMENTS)
def test_the_row_of_an_outcome_is_the_same(
    journal: SyncSQLiteJournal, harness: Harness, at_once: list[bool], settlement: Settlement
) -> None:
    for key, events in (("quick", ()), ("long", harness.rows("run", "a", "b"))):
        version = claimed(journal.begin(harness.request(key))).version
        assert journal.settle(key, version, settlement, events) is not None
    assert at_once == [True, True, True]
    assert _row(journal, "quick") == _row(journal, "long")


def _row(journal: SyncSQLiteJournal, key: str) -> dict[str, Any]:
    """All that does not depend on key and time."""
    wire = existing(journal.read(key)).current.to_wire()
    for name in ("key", "idempotencyKey", "version", "fence", "createdAtMs", "updatedAtMs", "expiresAtMs"):
        wire.pop(name)
    wire.pop("lockUntilMs", None)
    query = "SELECT session, identity, request, owner, outcome, sweep_at_ms = expires_at_ms FROM claims WHERE key = ?"
    return wire | {"columns": journal._file.read(lambda connection: connection.execute(query, (key,)).fetchone())}


def test_claim_and_events_are_there_together(journal: SyncSQLiteJournal, harness: Harness) -> None:
    assert all(step(journal, harness, f"k{n}") for n in range(5))
    assert numbers(journal) == list(range(10))
    assert existing(journal.read("k3")).current.state == "done"


def test_a_key_that_is_there_leaves_no_event(journal: SyncSQLiteJournal, harness: Harness, at_once: list[bool]) -> None:
    step(journal, harness, "k")
    at_once.clear()
    existing(journal.begin(harness.request("k", "call-2"), harness.rows("run", "never")))
    assert at_once == [False]
    assert numbers(journal) == [0, 1]


def test_events_of_others_in_between_make_no_gap(
    journal: SyncSQLiteJournal, harness: Harness, tmp_path: Path, at_once: list[bool]
) -> None:
    """Another journal and another process append to the same run: its numbers stay without a gap (D19)."""
    other = SQLiteStore(tmp_path / "antiphon.db", "NORMAL").open_sync()
    for n in range(4):
        step(journal, harness, f"k{n}")
        other.append("run", harness.rows("run", "a", "b"))
        journal.append("run", harness.rows("run", "c"))
        step(journal, harness, f"other-{n}", "second")
    assert numbers(journal) == list(range(20))
    assert numbers(journal, "second") == list(range(8))
    assert True in at_once
    assert False in at_once


def test_a_step_that_was_undone_used_no_number(journal: SyncSQLiteJournal, harness: Harness) -> None:
    step(journal, harness, "before")
    existing(journal.begin(harness.request("before"), harness.rows("run", "lost")))
    journal._journal.won = ALL_NEW
    step(journal, harness, "after")
    assert numbers(journal) == [0, 1, 2, 3]


def test_a_guess_that_outlives_an_undone_step_would_be_caught(journal: SyncSQLiteJournal, harness: Harness) -> None:
    """The planted bug: where the run ends is kept although nothing was committed."""
    step(journal, harness, "before")
    journal._ends = {run: place + 2 for run, place in journal._ends.items()}
    step(journal, harness, "after")
    assert numbers(journal) != [0, 1, 2, 3]


def test_a_run_that_was_removed_begins_anew(journal: SyncSQLiteJournal, harness: Harness) -> None:
    step(journal, harness, "k")
    assert journal.delete_run("run")
    step(journal, harness, "k2")
    assert numbers(journal) == [0, 1]


def test_a_claim_that_is_somebody_elses_is_not_settled_but_told(
    journal: SyncSQLiteJournal, harness: Harness, at_once: list[bool]
) -> None:
    """A fenced settlement changes no record; what was seen of the call is in the log all the same (D7)."""
    version = claimed(journal.begin(harness.request("k"))).version
    journal.append("run", harness.rows("run", "started"))
    assert journal.settle("k", version - 1, SENT, harness.rows("run", "finished")) is None
    assert at_once == [True, False]
    assert existing(journal.read("k")).current.state == "inflight"
    assert numbers(journal) == [0, 1]


def test_a_locked_file_is_waited_for_or_reported(harness: Harness, tmp_path: Path, at_once: list[bool]) -> None:
    journal = SQLiteStore(tmp_path / "antiphon.db", "NORMAL", busy_timeout=0.05).open_sync()
    for n in range(ALL_NEW + 1):
        step(journal, harness, f"warm-{n}")
    other = sqlite3.connect(tmp_path / "antiphon.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    at_once.clear()
    with pytest.raises(StoreUnavailable):
        journal.begin(harness.request("k"), harness.rows("run", "started"))
    assert at_once == [False]
    other.execute("ROLLBACK")
    other.close()
    step(journal, harness, "k")
    assert numbers(journal) == list(range(20))

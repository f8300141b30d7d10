"""SQLite without a coroutine: the same answers, the same rows, and a log without gaps whatever comes between."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from antiphon._drive import drive
from antiphon.errors import StoreUnavailable
from antiphon.ports import Claimed, Existing
from antiphon.stores import SQLiteStore, _sqlite_log
from antiphon.stores import sqlite as sqlite_module
from antiphon.testing._bench import Bench, done, existing


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(lambda: SQLiteStore(tmp_path / "antiphon.db", "NORMAL"))


@pytest.fixture
def journal(tmp_path: Path, bench: Bench) -> Any:
    journal = SQLiteStore(tmp_path / "antiphon.db", "NORMAL").open_sync()
    for n in range(sqlite_module._ALL_NEW):  # from here on it does not look before it writes
        drive(journal.begin(bench.ask(f"warm-{n}")))
    return journal


def numbers(journal: Any, run: str = "run") -> list[int]:
    return [event.seq for event in drive(journal.events(run))]


def step(journal: Any, bench: Bench, key: str, run: str = "run") -> int | None:
    got = journal.begin_now(bench.ask(key), bench.rows(run, f"{key} started"))
    assert isinstance(got, Claimed)
    settled: int | None = journal.settle_now(
        key, got.version, done()._replace(ttl_ms=3_600_000), bench.rows(run, f"{key} finished")
    )
    return settled


def test_claim_and_events_are_there_together(journal: Any, bench: Bench) -> None:
    assert all(step(journal, bench, f"k{n}") for n in range(5))
    assert numbers(journal) == list(range(10))
    assert existing(drive(journal.read("k3"))).current.state == "done"


def test_a_key_that_is_there_is_answered_and_leaves_no_event(journal: Any, bench: Bench) -> None:
    step(journal, bench, "k")
    assert isinstance(journal.begin_now(bench.ask("k", "call-2"), bench.rows("run", "never")), Existing)
    assert numbers(journal) == [0, 1]


def test_events_of_others_in_between_make_no_gap(journal: Any, bench: Bench, tmp_path: Path) -> None:
    """Another journal and another process append to the same run: its numbers stay without a gap (D19)."""
    other = SQLiteStore(tmp_path / "antiphon.db", "NORMAL").open_sync()
    for n in range(4):
        step(journal, bench, f"k{n}")
        drive(other.append("run", bench.rows("run", "a", "b")))
        drive(journal.append("run", bench.rows("run", "c")))
        step(journal, bench, f"other-{n}", "second")
    assert numbers(journal) == list(range(20))
    assert numbers(journal, "second") == list(range(8))


def test_a_step_that_was_undone_used_no_number(journal: Any, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    step(journal, bench, "before")
    appended = _sqlite_log.append_next

    def interrupted(*arguments: Any) -> None:
        appended(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(_sqlite_log, "append_next", interrupted)
    with pytest.raises(KeyboardInterrupt):
        journal.begin_now(bench.ask("k"), bench.rows("run", "lost"))
    monkeypatch.undo()
    assert drive(journal.read("k")) is None
    step(journal, bench, "after")
    assert numbers(journal) == [0, 1, 2, 3]


def test_a_guess_that_outlives_an_undone_step_would_be_caught(journal: Any, bench: Bench) -> None:
    """The planted bug: where the run ends is kept although nothing was committed."""
    step(journal, bench, "before")
    journal._ends = {run: place + 2 for run, place in journal._ends.items()}
    step(journal, bench, "after")
    assert numbers(journal) != [0, 1, 2, 3]


def test_a_run_that_was_removed_begins_anew(journal: Any, bench: Bench) -> None:
    step(journal, bench, "k")
    assert drive(journal.delete_run("run"))
    step(journal, bench, "k2")
    assert numbers(journal) == [0, 1]


def test_a_claim_that_is_somebody_elses_is_not_settled_but_told(journal: Any, bench: Bench) -> None:
    """A fenced finalise changes no record; what was seen of the call is in the log all the same (D7)."""
    got = journal.begin_now(bench.ask("k"), bench.rows("run", "started"))
    assert journal.settle_now("k", got.version - 1, done(), bench.rows("run", "finished")) is None
    assert existing(drive(journal.read("k"))).current.state == "inflight"
    assert numbers(journal) == [0, 1]


def test_a_locked_file_is_waited_for_or_reported(bench: Bench, tmp_path: Path) -> None:
    journal: Any = SQLiteStore(tmp_path / "antiphon.db", "NORMAL", busy_timeout=0.05).open_sync()
    for n in range(sqlite_module._ALL_NEW + 1):
        step(journal, bench, f"warm-{n}")
    other = sqlite3.connect(tmp_path / "antiphon.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        journal.begin_now(bench.ask("k"), bench.rows("run", "started"))
    other.execute("ROLLBACK")
    other.close()
    step(journal, bench, "k")
    assert numbers(journal) == list(range(20))

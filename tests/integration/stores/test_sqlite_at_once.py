"""SQLite without a coroutine: the same answers, the same rows, and a log without gaps whatever comes between."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from antiphon._drive import drive
from antiphon.contract.record import DedupeRecord, RecordedAttempt, RecordedRequest
from antiphon.errors import StoreUnavailable
from antiphon.stores import SQLiteStore
from antiphon.stores import sqlite as sqlite_module
from antiphon.testing._bench import Bench, claimed, done, existing


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


class Form:
    """A tool, session and actor."""

    tool, session, session_json, actor_json = "tools/send", "s", b'"s"', b'"a"'
    ttl_ms, lease_ms, owner, tenant, workspace = 3_600_000, 30_000, "me", "default", "default"


def start(journal: Any, key: str, events: Any, identity: str = "call-1") -> int:
    version: int = journal.start_now(Form, (key, f"idem-{key}", "d" * 64, "e" * 64), identity, "r-1", events)
    return version


def finish(journal: Any, key: str, version: int, events: Any) -> int | None:
    settled: int | None = journal.finish_now(key, version, 3_600_000, b'"sent"', (5, 7), events)
    return settled


def step(journal: Any, bench: Bench, key: str, run: str = "run") -> int | None:
    """As a caller does it: what cannot be done at once is done the long way."""
    events = bench.rows(run, f"{key} started")
    version = start(journal, key, events) or claimed(drive(journal.begin(bench.ask(key), events))).version
    events = bench.rows(run, f"{key} finished")
    return finish(journal, key, version, events) or drive(journal.settle(key, version, done(), events))


def test_the_record_is_the_one_of_the_long_way(journal: Any, bench: Bench) -> None:
    """What is written as text here is what the contract says, byte for byte."""
    journal.start_now(Form, ("quick", "idem", "d" * 64, "e" * 64), 'é "1"', "r-1", ())
    ask = bench.ask("long")._replace(
        identity='é "1"',
        tool=Form.tool,
        tenant=Form.tenant,
        workspace=Form.workspace,
        idempotency_key="idem",
        ttl_ms=Form.ttl_ms,
        lease_ms=Form.lease_ms,
        owner=Form.owner,
        request=RecordedRequest(
            session_key="s",
            actor_id="a",
            request_id="r-1",
            params_digest="d" * 64,
            identity='é "1"',
            params_digest_exact="e" * 64,
        ),
    )
    drive(journal.begin(ask))
    attempt = RecordedAttempt(started_at_ms=5, finished_at_ms=7, status="success", retriable=False)
    final = done()._replace(ttl_ms=Form.ttl_ms, payload=b'"sent"', attempts=(attempt,), attempt_count=1)
    for _ in range(2):
        both = [existing(drive(journal.read(key))).current for key in ("quick", "long")]
        assert _timeless(both[0]) == _timeless(both[1])
        assert finish(journal, "quick", both[0].version, ())
        assert drive(journal.settle("long", both[1].version, final))


def _timeless(record: DedupeRecord) -> dict[str, Any]:
    wire = record.to_wire()
    for name in ("key", "version", "fence", "createdAtMs", "updatedAtMs", "expiresAtMs"):
        wire.pop(name)
    wire.pop("lockUntilMs", None)
    return wire


def test_claim_and_events_are_there_together(journal: Any, bench: Bench) -> None:
    assert all(step(journal, bench, f"k{n}") for n in range(5))
    assert numbers(journal) == list(range(10))
    assert existing(drive(journal.read("k3"))).current.state == "done"


def test_a_key_that_is_there_is_for_the_long_way_and_leaves_no_event(journal: Any, bench: Bench) -> None:
    step(journal, bench, "k")
    assert start(journal, "k", bench.rows("run", "never"), "call-2") == 0
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


def test_a_step_that_was_undone_used_no_number(journal: Any, bench: Bench) -> None:
    step(journal, bench, "before")
    assert start(journal, "before", bench.rows("run", "lost")) == 0
    assert finish(journal, "before", 1, bench.rows("run", "lost")) is None
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
    version = start(journal, "k", ()) or 0
    drive(journal.append("run", bench.rows("run", "started")))
    assert finish(journal, "k", version - 1, bench.rows("run", "finished")) is None
    assert numbers(journal) == [0]
    assert drive(journal.settle("k", version - 1, done(), bench.rows("run", "finished"))) is None
    assert existing(drive(journal.read("k"))).current.state == "inflight"
    assert numbers(journal) == [0, 1]


def test_a_locked_file_is_waited_for_or_reported(bench: Bench, tmp_path: Path) -> None:
    journal: Any = SQLiteStore(tmp_path / "antiphon.db", "NORMAL", busy_timeout=0.05).open_sync()
    for n in range(sqlite_module._ALL_NEW + 1):
        step(journal, bench, f"warm-{n}")
    other = sqlite3.connect(tmp_path / "antiphon.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert start(journal, "k", bench.rows("run", "started")) == 0
    with pytest.raises(StoreUnavailable):
        drive(journal.begin(bench.ask("k"), bench.rows("run", "started")))
    other.execute("ROLLBACK")
    other.close()
    step(journal, bench, "k")
    assert numbers(journal) == list(range(20))

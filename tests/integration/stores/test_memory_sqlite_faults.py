"""D1, D10: a SQLite file that is locked, full, read-only, damaged, foreign, newer or gone fails closed, and says so."""

from __future__ import annotations

import os
import resource
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antiphon import Gateway
from antiphon.errors import InvalidInput, StoreUnavailable, StoreVersionError
from antiphon.ports import SyncJournal
from antiphon.stores import SQLiteStore
from antiphon.stores.sqlite import schema
from antiphon.testing.journal_conformance import Harness, claimed, done, existing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "antiphon.db"


def opened(path: Path, **options: float) -> tuple[SyncJournal, Harness]:
    store = SQLiteStore(path, busy_timeout=options.get("busy_timeout", 5.0))
    return store.open_sync(), Harness(lambda: store)


def refused(path: Path, journal: SyncJournal, harness: Harness) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as caught:
        journal.begin(harness.request("k"))
    assert str(path) in caught.value.message
    assert caught.value.hint
    return caught.value


def test_the_file_and_its_folder_are_private(tmp_path: Path) -> None:
    path = tmp_path / ".antiphon" / "antiphon.db"
    journal, harness = opened(path)
    claimed(journal.begin(harness.request("k")))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(f"{path}-wal").stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert (path.parent / ".gitignore").read_text() == "*\n"
    journal.close()


def test_a_folder_that_was_there_is_left_as_it_is(path: Path) -> None:
    journal, _ = opened(path)
    journal.ping()
    assert not (path.parent / ".gitignore").exists()
    journal.close()


def test_a_missing_folder_above_is_not_invented(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "folder" / "a.db"
    journal, harness = opened(path)
    assert "No such file" in refused(path, journal, harness).message
    assert not (tmp_path / "no").exists()


def test_a_gateway_does_not_invent_it_either(tmp_path: Path) -> None:
    gateway = Gateway(store=f"sqlite:///{tmp_path}/no/such/a.db")
    charge = gateway.tool("charge", idempotent=False, key="order")(lambda order: "charged")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="No such file"):
            charge(order="a")
    assert not (tmp_path / "no").exists()


def test_a_folder_in_the_place_of_the_file(path: Path) -> None:
    path.mkdir()
    journal, harness = opened(path)
    refused(path, journal, harness)


def test_a_locked_file_is_waited_for_and_then_named(path: Path) -> None:
    journal, harness = opened(path, busy_timeout=0.2)
    held = claimed(journal.begin(harness.request("held")))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert "locked" in refused(path, journal, harness).message
    assert existing(journal.begin(harness.request("held"))).current.version == held.version, "reading still works"
    other.execute("ROLLBACK")
    other.close()
    claimed(journal.begin(harness.request("k")))
    journal.close()


def test_a_full_disk_loses_nothing_and_recovers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, harness = opened(path)
    held = claimed(journal.begin(harness.request("before"), harness.rows("run", "started")))
    journal.close()
    with sqlite3.connect(path) as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.close()
    limit = f"PRAGMA max_page_count = {pages}"

    class Limited(schema.Connection):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[arg-type]
            self.execute(limit)

    monkeypatch.setattr(schema, "Connection", Limited)
    try:
        big = done(b'"' + b"x" * 200_000 + b'"')
        with pytest.raises(StoreUnavailable, match="disk is full") as caught:
            journal.settle("before", held.version, big, harness.rows("run", "finished"))
        assert str(path) in caught.value.message
        assert existing(journal.read("before")).current.state == "inflight"
        assert [event.type for event in journal.events("run")] == ["started"], "nothing half-written"
    finally:
        monkeypatch.undo()
        journal.close()
    assert journal.settle("before", held.version, big, harness.rows("run", "finished")) is not None
    assert [event.seq for event in journal.events("run")] == [0, 1]
    journal.close()


def test_a_file_size_limit_is_an_outage_not_a_crash(path: Path) -> None:
    code = """
import resource, sys
from antiphon.errors import StoreUnavailable
from antiphon.stores import SQLiteStore
from antiphon.testing.journal_conformance import Harness, claimed, done
store = SQLiteStore(sys.argv[1]); journal = store.open_sync(); harness = Harness(lambda: store)
held = claimed(journal.begin(harness.request("k")))
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    journal.settle("k", held.version, done(b'"' + b"x" * 2_000_000 + b'"'))
except StoreUnavailable as error:
    print(error.data["reason"], journal.read("k").current.state)
"""
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    assert result.stdout.split()[1:] == ["inflight"], result.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_may_not_be_written_is_an_outage(path: Path, what: str) -> None:
    path = path.parent / "shared" / path.name
    path.parent.mkdir()
    journal, harness = opened(path)
    journal.ping()
    journal.close()
    for part in (path, path.parent):
        part.chmod(0o777 if part is path.parent else 0o666)
    (path if what == "file" else path.parent).chmod(0o444 if what == "file" else 0o555)
    pid = os.fork()
    if pid == 0:  # root may write anything: ask as nobody
        status = 1
        try:
            os.umask(0)
            for folder in reversed(path.parent.parents[:-1]):
                folder.chmod(folder.stat().st_mode | 0o111)
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            journal.begin(harness.request("k"))
        except StoreUnavailable as error:
            status = 0 if str(path) in error.message and error.data["reason"] in ("readonly", "cannot_open") else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\x00" + b"\xff" * 4000])
def test_a_damaged_file_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    journal, harness = opened(path)
    refused(path, journal, harness)
    assert path.read_bytes() == content


def test_a_page_damaged_while_in_use_is_an_outage(path: Path) -> None:
    journal, harness = opened(path)
    for n in range(50):
        claimed(journal.begin(harness.request(f"k{n}")))
    journal.close()
    content = bytearray(path.read_bytes())
    content[4096 * 2 :] = b"\xff" * (len(content) - 4096 * 2)
    path.write_bytes(content)
    assert "damaged" in refused(path, journal, harness).message


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    journal, harness = opened(path)
    assert "another program" in refused(path, journal, harness).message
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    connection.close()


def test_a_newer_schema_is_refused(path: Path) -> None:
    journal, harness = opened(path)
    journal.ping()
    journal.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = 99 WHERE name = 'schema'")
    connection.close()
    with pytest.raises(StoreVersionError, match="99"):
        journal.begin(harness.request("k"))


def test_a_file_removed_while_in_use_is_noticed(path: Path) -> None:
    journal, harness = opened(path)
    held = claimed(journal.begin(harness.request("k")))
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        name.unlink()
    time.sleep(0.005)  # writers look every few milliseconds
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        journal.settle("k", held.version, done())
    assert journal.settle("k", held.version, done()) is None, "the new file knows nothing of it"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    journal.close()


@pytest.mark.parametrize(
    ("arguments", "word"), [((":memory:",), "file"), (("",), "file"), (("a.db", "OFF"), "synchronous")]
)
def test_settings_that_cannot_work_are_refused(arguments: tuple[str, ...], word: str) -> None:
    with pytest.raises(InvalidInput, match=word):
        SQLiteStore(*arguments)

"""An interrupt leaves no transaction, no lock and no lost step of another thread behind, wherever it comes."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.stores.sqlite.file import DatabaseFile, Operation
from tests.interrupts import Interrupt

INSERT = "INSERT INTO meta (name, value) VALUES (?, ?)"


class Interrupted:
    """A connection in which an interrupt comes as soon as the statement *after* has been run."""

    def __init__(self, connection: sqlite3.Connection, after: str) -> None:
        self.connection = connection
        self.after = after
        self.look_at = 0.0
        self.writes = self

    def execute(self, statement: str, *values: Any) -> Any:
        done = self.connection.execute(statement, *values)
        if statement == self.after:
            self.after = ""
            raise KeyboardInterrupt
        return done

    def close(self) -> None:
        self.connection.close()
        if self.after == "close":
            self.after = ""
            raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


def _now(file: DatabaseFile) -> Any:
    return file.execute_now(INSERT, ("a", 1), INSERT, ("b", 2))


def _alone(file: DatabaseFile) -> Any:
    return file.write(Operation(lambda connection: connection.execute(INSERT, ("a", 1)).rowcount))


def _queued(file: DatabaseFile) -> Any:
    file.submit(Operation(lambda connection: connection.execute(INSERT, ("a", 1)).rowcount))
    return file.write_queued()


@pytest.fixture
def file(tmp_path: Path) -> DatabaseFile:
    return DatabaseFile(tmp_path / "claims.db", "FULL", 0.1)


@pytest.mark.parametrize("write", [_now, _alone, _queued])
def test_no_transaction_stays_open(write: Callable[[DatabaseFile], Any], file: DatabaseFile) -> None:
    file._idle.append(Interrupted(file.open(), "BEGIN IMMEDIATE"))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        write(file)
    assert not file._writer_lock.locked()
    other = sqlite3.connect(file.path, timeout=0.1, isolation_level=None)
    assert other.execute(INSERT, ("free", 1)).rowcount == 1
    other.close()


def test_a_closed_connection_is_not_used_again(file: DatabaseFile) -> None:
    file._idle.append(Interrupted(file.open(), "close"))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        file.close()
    assert _now(file)


def test_steps_of_others_are_done_once_wherever_their_leader_is_interrupted(tmp_path: Path) -> None:
    """Whoever writes for all is interrupted at each of its instructions in turn."""

    def insert(name: str) -> Operation:
        return Operation(lambda connection: connection.execute(INSERT, (name, 1)).rowcount)

    at, interrupted = 0, True
    file = DatabaseFile(tmp_path / "claims.db", "NORMAL", 5.0)
    file.open()
    while interrupted:
        at += 1
        told: list[Operation] = []
        other = insert(f"other {at}")
        other.deliver = told.append
        file.submit(other)
        mine = insert(f"mine {at}")
        interrupted = Interrupt(at, "sqlite/file.py").run(lambda mine=mine: file.write(mine))  # type: ignore[misc]
        after = threading.Thread(target=file.write, args=[insert(f"after {at}")], daemon=True)
        after.start()
        after.join(30)
        assert not after.is_alive(), f"the next one waits for ever after an interrupt at moment {at}"
        assert (other.done, other.error, bool(told)) == (True, None, True), at
        assert not file._queue
    assert at > 20
    names = [name for (name,) in file.open().execute("SELECT name FROM meta WHERE name LIKE '% %'")]
    assert {*names} >= {f"{who} {n}" for n in range(1, at + 1) for who in ("other", "after")}
    file.close()

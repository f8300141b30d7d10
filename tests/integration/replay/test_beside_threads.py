"""A strict replay in a process whose other threads go on with their work."""

from __future__ import annotations

import gc
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

import antiphon
from antiphon.ops.finalizers import living, living_kinds
from antiphon.stores import SQLiteStore


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Beside:
    """Does something again and again in a thread, until the block ends; the block fails if it failed."""

    def __init__(self, *steps: object) -> None:
        self._steps = steps
        self._over = threading.Event()
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, args=(step,)) for step in steps]

    def _work(self, step: object) -> None:
        while not self._over.is_set():
            try:
                step()  # type: ignore[operator]
            except BaseException as error:
                self.errors.append(error)
                return

    def __enter__(self) -> Beside:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        assert self.errors == []


def build() -> None:
    assert len(tuple([number] for number in range(60))) == 60


def agent(order: str) -> str:
    return f"{order} is on its way"


def test_tuples_that_other_threads_fill_are_not_touched(tmp_path: Path, quick_switches: None) -> None:
    """``tuple(generator)`` raises SystemError if somebody else holds the tuple meanwhile."""
    app = antiphon.Antiphon(store=SQLiteStore(tmp_path / "runs.db"))
    run = app.record(agent, "1042")
    with Beside(build):
        for _ in range(3):
            assert antiphon.replay(run.id, app=app, mode="strict", function=agent).passed


def test_a_database_that_another_thread_uses_is_guarded_once(tmp_path: Path, quick_switches: None) -> None:
    """Replacing the guard of a connection in use would wait for the thread that waits for the guard."""
    app = antiphon.Antiphon(store=SQLiteStore(tmp_path / "runs.db"))
    run = app.record(agent, "1042")
    mine = sqlite3.connect(tmp_path / "mine.db", check_same_thread=False, cached_statements=0)
    assert antiphon.replay(run.id, app=app, mode="strict", function=agent).passed

    with Beside(lambda: mine.execute("SELECT 1").fetchall()):
        for _ in range(3):
            assert antiphon.replay(run.id, app=app, mode="strict", function=agent).passed

    def writes(order: str) -> str:
        try:
            mine.execute("CREATE TABLE made (x)")
        except sqlite3.DatabaseError:
            return "refused"
        return "made"

    assert not antiphon.replay(run.id, app=app, mode="strict", function=writes).passed
    assert mine.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    mine.close()


def test_objects_are_picked_by_their_kind() -> None:
    class Mine:
        pass

    class Derived(Mine):
        pass

    made = [Mine(), Mine(), Derived()]
    assert living({Mine}) == made[:2]
    assert (living_kinds()[Mine], living_kinds()[Derived]) == (2, 1)


def test_only_the_first_replay_looks_for_open_databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at every object of the process: half a second beside a million of them."""
    app = antiphon.Antiphon(store=SQLiteStore(tmp_path / "runs.db"))
    run = app.record(agent, "1042")
    assert antiphon.replay(run.id, app=app, mode="strict", function=agent).passed
    mine = sqlite3.connect(tmp_path / "mine.db")
    look = Mock(return_value=[])
    monkeypatch.setattr(gc, "get_referrers", look)
    assert antiphon.replay(run.id, app=app, mode="strict", function=agent).passed
    mine.close()
    look.assert_not_called()

"""The sandbox of replayed code (D34)."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.errors import ReplayBlocked
from antiphon.ops import sandbox
from antiphon.ops.sandbox import outside, sandboxed
from tests.unit.replay.kit import memory_app

OUTSIDE = Path(__file__).parent


def _bind() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.bind(("127.0.0.1", 0))


ESCAPES: dict[str, Callable[[], Any]] = {
    "socket": _bind,
    "name lookup": lambda: socket.getaddrinfo("localhost", 80),
    "process": lambda: subprocess.run([sys.executable, "-c", "pass"], check=False),
    "shell": lambda: os.system("true"),
    "write": lambda: (OUTSIDE / "never.txt").write_text("x"),
    "append": lambda: (OUTSIDE / "never.txt").open("a"),
    "delete": lambda: (OUTSIDE / "never.txt").unlink(),
    "folder": lambda: (OUTSIDE / "never").mkdir(),
    "move": lambda: Path(tempfile.gettempdir(), "never").rename(OUTSIDE / "never.txt"),
    "link": lambda: (OUTSIDE / "never.txt").symlink_to("/etc/hosts"),
}


@pytest.mark.parametrize("escape", ESCAPES)
def test_what_would_touch_the_world_is_refused_and_listed(escape: str) -> None:
    with sandboxed() as tried, pytest.raises(ReplayBlocked):
        ESCAPES[escape]()
    assert len(tried) == 1
    assert not (OUTSIDE / "never.txt").exists()


def test_reading_and_temporary_files_are_open() -> None:
    with sandboxed() as tried:
        assert Path(__file__).read_text()
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "x").write_text("x")
        assert "antiphon-replay-" in folder
    assert tried == []
    assert not Path(folder).parent.exists()


def test_links_in_the_scratch_folder_are_its_own() -> None:
    with sandboxed() as tried:
        with tempfile.TemporaryDirectory() as folder:
            inside = Path(folder)
            (inside / "file").write_text("x")
            os.link(inside / "file", inside / "second name")
            (inside / "link").symlink_to(__file__)
            (inside / "link").rename(inside / "renamed")
            (inside / "file").replace(inside / "renamed")
            (inside / "left for the end").symlink_to(OUTSIDE)
            opened = os.open(inside, os.O_RDONLY)
            os.close(os.open("from an open folder", os.O_CREAT | os.O_WRONLY, dir_fd=opened))
            os.close(opened)
        assert not inside.exists()
    assert tried == []


def test_a_link_outside_may_not_be_removed_wherever_it_leads(tmp_path: Path) -> None:
    link = tmp_path / "link"
    with sandboxed() as tried, tempfile.TemporaryDirectory() as folder:
        with outside():
            link.symlink_to(folder)
        with pytest.raises(ReplayBlocked):
            link.unlink()
    assert len(tried) == 1
    assert link.is_symlink()


def test_a_folder_that_is_there_may_be_made_again() -> None:
    folder = os.open(OUTSIDE.parent, os.O_RDONLY)
    with sandboxed() as tried:
        OUTSIDE.mkdir(parents=True, exist_ok=True)
        with pytest.raises(FileExistsError):
            OUTSIDE.mkdir()
        with pytest.raises(FileExistsError):
            os.mkdir(OUTSIDE.name, dir_fd=folder)
        assert not tried
        with pytest.raises(ReplayBlocked):
            os.mkdir("never", dir_fd=folder)
    os.close(folder)


def test_the_temporary_folder_itself_is_closed(tmp_path: Path) -> None:
    with sandboxed() as tried, pytest.raises(ReplayBlocked, match=r"writing") as refused:
        (tmp_path / "never.txt").write_text("x")
    assert len(tried) == 1
    assert "sandbox.md" in refused.value.hint
    assert "--no-sandbox" in refused.value.hint


def test_a_folder_that_was_given_is_open(tmp_path: Path) -> None:
    with sandboxed(writable=[tmp_path]) as tried:
        (tmp_path / "x.txt").write_text("x")
    assert tried == []


def _look_up(refused: list[str]) -> None:
    try:
        socket.getaddrinfo("127.0.0.1", 80)
    except ReplayBlocked:
        refused.append("refused")
    else:
        refused.append("looked up")


def test_unmarked_work_is_refused_while_a_replay_runs_and_free_afterwards() -> None:
    found: list[str] = []
    asked, done = threading.Event(), threading.Event()

    def elsewhere() -> None:
        for _ in range(2):
            asked.wait()
            asked.clear()
            _look_up(found)
            done.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()  # before the replay
    with sandboxed() as tried:
        asked.set()
        done.wait()
        done.clear()
    asked.set()
    thread.join()
    assert found == ["refused", "looked up"]
    assert len(tried) == 1


def test_what_a_replay_starts_is_refused_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon._lineage.on_late", [])  # else it would fail this very session
    found: list[str] = []
    ended = threading.Event()

    def late() -> None:
        ended.wait()
        _look_up(found)

    with sandboxed() as tried:
        thread = threading.Thread(target=late)
        thread.start()
    ended.set()
    thread.join()
    assert found == ["refused"]
    assert tried == []
    socket.getaddrinfo("127.0.0.1", 80)


def test_another_run_of_the_process_is_free() -> None:
    app = memory_app()
    found: list[str] = []

    def other() -> None:
        with app.run("other"):
            _look_up(found)

    asked = threading.Event()

    def wait() -> None:
        asked.wait()
        other()

    thread = threading.Thread(target=wait)
    thread.start()
    with sandboxed() as tried:
        asked.set()
        thread.join()
    assert found == ["looked up"]
    assert tried == []


def test_a_gate_for_the_store_and_for_verified_models() -> None:
    with sandboxed(), outside():
        socket.getaddrinfo("127.0.0.1", 80)


def test_a_replay_reports_what_was_tried() -> None:
    app = memory_app()
    live = True

    def main() -> str:
        if not live:
            try:
                socket.getaddrinfo("example.test", 80)
            except ReplayBlocked:
                return "tried"
        return "tried"

    run = app.record(main)
    live = False
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert "example.test" in report["blocked"][0]["what"]
    assert [found["kind"] for found in report.divergences] == ["escape"]


def test_the_keyword_of_release_0_1_still_works() -> None:
    app = memory_app()
    with pytest.deprecated_call(match=r"sandbox="), pytest.raises(antiphon.errors.NotFound):
        antiphon.replay("none", app=app, fence=False)


def test_looking_for_open_databases_asks_no_proxy() -> None:
    """A lazy proxy loads what it stands for as soon as its ``__class__`` is asked for."""
    asked: list[str] = []

    class Proxy:
        def __getattribute__(self, name: str) -> object:
            asked.append(name)
            return object.__getattribute__(self, name)

    proxy = Proxy()
    sandbox._guard_databases()
    assert proxy is not None
    assert not asked


def test_an_open_database_of_a_class_of_its_own_is_guarded(tmp_path: Path) -> None:
    class Own(sqlite3.Connection):
        """As applications have them."""

    class Deeper(Own):
        """Of a class below."""

    for kind in (sqlite3.Connection, Own, Deeper):
        link = kind(tmp_path / f"{kind.__name__}.db", isolation_level=None)  # not by connect()
        link.execute("create table t (n)")
        with sandboxed() as tried, pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            link.execute("insert into t values (1)")
        assert tried
        link.close()


@pytest.mark.parametrize("check_same_thread", [True, False])
@pytest.mark.parametrize("since", ["before the first replay", "between two replays"])
def test_a_statement_that_was_prepared_between_two_replays_is_asked_about(
    check_same_thread: bool, since: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_others_wait", lambda: True)  # other tests may have left threads that run

    def connect(kind: Any) -> Any:
        return kind(tmp_path / "shop.db", isolation_level=None, check_same_thread=check_same_thread)

    def buy() -> None:
        shop.execute("INSERT INTO orders VALUES (1)")

    shop = connect(sqlite3.Connection)
    with sandboxed():
        pass
    if since == "between two replays":
        shop.close()
        shop = connect(sqlite3.connect)
    shop.execute("CREATE TABLE orders (n)")
    for _ in range(2):
        buy()  # and SQLite's module keeps the statement
        with sandboxed() as tried, pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            buy()
        assert len(tried) == 1
    assert shop.execute("SELECT count(*) FROM orders").fetchone() == (2,)
    shop.close()


def test_a_thread_that_runs_may_be_inside_of_sqlite_and_one_that_waits_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = {threading.get_ident(): sys._getframe()}
    monkeypatch.setattr(sys, "_current_frames", lambda: frames)
    assert sandbox._others_wait()
    waiting, go = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        go.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(30)
    monkeypatch.undo()
    until = time.monotonic() + 30
    while sys._current_frames()[thread.ident or 0].f_globals["__name__"] != "threading":
        assert time.monotonic() < until
    frames[1] = sys._current_frames()[thread.ident or 0]
    monkeypatch.setattr(sys, "_current_frames", lambda: frames)
    assert sandbox._others_wait()
    frames[2] = sys._getframe()
    assert not sandbox._others_wait()
    go.set()
    thread.join()

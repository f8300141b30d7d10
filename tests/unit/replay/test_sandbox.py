"""The sandbox of replayed code (D34)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.errors import ReplayBlocked
from antiphon.ops.sandbox import enter_process, leave_process, outside, sandboxed
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


@pytest.fixture(autouse=True)
def _scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary folder of its own: the checkout may itself lie in the machine's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize("escape", ESCAPES)
def test_what_would_touch_the_world_is_refused_and_listed(escape: str) -> None:
    with sandboxed() as tried, pytest.raises(ReplayBlocked):
        ESCAPES[escape]()
    assert len(tried) == 1
    assert not (OUTSIDE / "never.txt").exists()


def test_reading_and_the_temporary_folder_are_open() -> None:
    with sandboxed() as tried:
        assert Path(__file__).read_text()
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "x").write_text("x")
    assert tried == []


def test_another_context_is_not_in_the_sandbox() -> None:
    done: list[str] = []

    def elsewhere() -> None:
        socket.getaddrinfo("127.0.0.1", 80)
        done.append("looked up")

    with sandboxed():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert done == ["looked up"]


def test_the_process_fence_holds_threads_too() -> None:
    refused: list[type[BaseException]] = []

    def elsewhere() -> None:
        try:
            socket.getaddrinfo("127.0.0.1", 80)
        except ReplayBlocked as error:
            refused.append(type(error))

    with sandboxed("process") as tried:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert refused == [ReplayBlocked]
    assert len(tried) == 1
    socket.getaddrinfo("127.0.0.1", 80)


def test_a_gate_for_the_store_and_for_verified_models() -> None:
    with sandboxed(), outside():
        socket.getaddrinfo("127.0.0.1", 80)
    enter_process()
    try:
        with outside():
            socket.getaddrinfo("127.0.0.1", 80)
    finally:
        leave_process()


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

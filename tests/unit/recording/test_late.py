"""Events of a store in this process are written out when they are read: the same bytes, and nothing that came later."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from antiphon import Antiphon
from antiphon._recording.recorder import LateRow
from antiphon.contract.events import sum_holds
from antiphon.stores import MemoryStore, SQLiteStore

QUIET = {"telemetry": {"logs": False}}
SECRET = "sk-ant-api03-" + "aB3dE5fG7hJ9kL1mN" * 4


def record(app: Antiphon) -> Any:
    request = {"model": "m", "messages": [{"role": "user", "content": f"hi, {SECRET}"}], "seed": 2**70}
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}}], "n": {3, 1, 2}}
    with app.run("r") as run:
        run.llm(request, lambda _: answer)
        request["messages"][0]["content"] = "changed"  # type: ignore[index]
        answer["choices"][0]["message"]["content"] = "changed"  # type: ignore[index]
        run.llm({"model": "m", "messages": [{"role": "user", "content": "large " * 20_000}]}, lambda _: answer)
    return run


def told(run: Any) -> list[Any]:
    passing = ("sum", "durationMs", "sealed")
    return [
        (event.type, event.lane, event.index, event.payload, {k: v for k, v in event.meta.items() if k not in passing})
        for event in run.events()
        if event.type.startswith("call.")
    ]


def test_what_is_read_is_what_a_file_would_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda n: b"\x07" * n)
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    memory = record(Antiphon(QUIET, store=MemoryStore()))
    file = record(Antiphon(QUIET, store=SQLiteStore(tmp_path / "a.db")))
    large = 2  # a request that a file spills into a blob
    assert [event for n, event in enumerate(told(memory)) if n != large] == [
        event for n, event in enumerate(told(file)) if n != large
    ]
    assert all(sum_holds(event) for event in memory.events())
    assert "changed" not in str(told(memory)[:2])


def test_no_secret_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    assert SECRET not in str(told(record(Antiphon(QUIET, store=MemoryStore()))))


def test_a_row_shows_nothing_that_is_not_redacted() -> None:
    app = Antiphon(QUIET, store=MemoryStore())
    with app.run("r") as run:
        run.llm({"model": "m", "messages": [{"role": "user", "content": SECRET}]}, lambda _: {"answer": SECRET})
    rows = app.journal._runs[run.id].rows  # type: ignore[attr-defined]
    assert any(isinstance(row, LateRow) for row in rows)
    assert SECRET not in repr(rows)


def test_many_readers_find_the_same_bytes() -> None:
    app = Antiphon(QUIET, store=MemoryStore())
    with app.run("r") as run:
        for n in range(50):
            run.llm({"model": "m", "messages": [{"role": "user", "content": str(n)}]}, lambda _: {"choices": []})
    rows = app.journal._runs[run.id].rows  # type: ignore[attr-defined]
    assert any(isinstance(row, LateRow) for row in rows)
    found: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: found.append([row.body for row in rows])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(bodies == found[0] for bodies in found)

"""In a worker of an engine, the engine's event loop goes on while a replay runs, and is not blamed on it."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest

from antiphon import _lineage
from antiphon.ops import finalizers, sandbox
from antiphon.ops.cells import perform_in_engine


def test_only_threads_that_were_there_before_belong_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lineage, "engine_threads", weakref.WeakSet())
    there, stop = threading.Event(), threading.Event()
    seen: list[Any] = []
    replay = _lineage.Replay("a replay")

    def wait() -> None:
        there.set()
        stop.wait(10)
        seen.append(sandbox.held_by(None))

    loop = threading.Thread(target=wait)
    loop.start()
    there.wait(10)
    perform_in_engine([])
    monkeypatch.setattr(sandbox, "_running", [replay])
    stop.set()
    loop.join()
    other = threading.Thread(target=lambda: seen.append(sandbox.held_by(None)))
    other.start()
    other.join()
    assert seen == [None, replay]
    assert threading.current_thread() not in _lineage.engine_threads


def test_coroutines_of_the_engine_are_its_own_only_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made while a replay runs, so they look like ones that it left open."""
    names = {"__name__": "distributed.core"}
    assert not finalizers._is_foreign(names)
    monkeypatch.setattr(finalizers, "engine_threads", {1})
    assert finalizers._is_foreign(names)
    assert not finalizers._is_foreign({"__name__": "agent"})

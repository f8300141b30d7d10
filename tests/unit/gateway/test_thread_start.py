"""A store step that ends at a moment ends there, however late its thread starts."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from antiphon._gateway.threads import ThreadRunner, TimedOut


def test_a_thread_that_starts_late_has_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 60.0])  # a minute passes before the thread runs
    monkeypatch.setattr("antiphon._gateway.threads.time", SimpleNamespace(monotonic=lambda: next(moments)))
    over, began = threading.Event(), time.perf_counter()
    try:
        with pytest.raises(TimedOut):
            ThreadRunner(10).run_until(over.wait, 60.0)
        assert time.perf_counter() - began < 30
    finally:
        over.set()

"""R8: the result of an attempt that was given up is looked at after the call has written its own end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon._daemon import Latch
from antiphon._gateway import late as module
from antiphon._gateway.report import Reporter
from antiphon.contract.spec import RetryPolicy
from tests.unit.gateway.heard import PATIENCE_S, Face, Heard
from tests.unit.gateway.kit import Ears, Hold, Tally, in_thread

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def store() -> Iterator[Heard]:
    store = Heard()
    yield store
    store.repair()


def given_up(store: Heard) -> tuple[Face, Hold, Any, Ears]:
    """A call whose attempt took too long, and whose end is being written."""
    ears, hold = Ears(), Hold()
    face = Face("sync", store, reporter=Reporter(Tally(), (ears,)))

    def send(to: str) -> str:
        hold.wait_here()
        return "late"

    face.gateway.tool("send", idempotent=False, timeout=0.01, retry=ONCE)(send)
    store.freeze("settle")
    call = in_thread(lambda: face.execute(call_id="c1"))
    store.steps.until("settle")
    return face, hold, call, ears


def test_the_end_of_the_call_goes_first(store: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = threading.Event()

    class Waited(Latch):
        def wait(self, timeout_s: float | None = None) -> bool:
            waits.set()
            return super().wait(timeout_s)

    monkeypatch.setattr(module, "Latch", Waited)
    face, hold, call, ears = given_up(store)
    hold.go.set()
    assert waits.wait(PATIENCE_S)
    assert store.states == ["inflight"]
    closed = store.steps.count("close")
    store.thaw()
    assert call.result().code == "outcome_unknown"
    store.steps.until("close", closed + 1)
    store.steps.until_met(lambda: bool(ears.of("tool_call_late_result")))
    assert store.states == ["done"]
    assert face.execute(call_id="c1").content == "late"
    face.close()


def test_a_call_that_does_not_end_keeps_its_claim(store: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)
    face, hold, call, ears = given_up(store)
    hold.go.set()
    store.steps.until_met(lambda: bool(ears.of("tool_call_late_result")))
    (told,) = ears.of("tool_call_late_result")
    assert told["settled"] is False
    assert store.states == ["inflight"]
    store.thaw()
    assert call.result().code == "outcome_unknown"
    face.close()

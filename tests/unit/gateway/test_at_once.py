"""A plain call on SQLite is claimed and settled in one frame each; what is unusual goes the long way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon._drive import drive
from antiphon._gateway import straight
from antiphon.errors import StoreUnavailable
from antiphon.stores import SQLiteStore
from antiphon.stores import sqlite as sqlite_module

QUIET = {"telemetry": {"logs": False}, "retry": {"base_ms": 0}}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[antiphon.Gateway]:
    with antiphon.Gateway(store=SQLiteStore(tmp_path / "a.db", "NORMAL"), config=QUIET) as made:
        yield made


@pytest.fixture
def work(gateway: antiphon.Gateway) -> Callable[[int], int]:
    """A tool that has been called so often that its claims are taken for new."""

    @gateway.tool(idempotent=False)
    def work(n: int) -> int:
        if n < 0:
            raise KeyboardInterrupt
        return n

    for n in range(sqlite_module._ALL_NEW + 1):
        work(100 + n)
    return work


class Changed:
    """The journal with some of its steps changed."""

    def __init__(self, gateway: antiphon.Gateway, monkeypatch: pytest.MonkeyPatch, **steps: Any) -> None:
        self._journal = gateway.core.journal()
        vars(self).update(steps)
        monkeypatch.setattr(gateway.core, "journal", lambda: self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)


def states(gateway: antiphon.Gateway, n: int) -> list[str]:
    """The states of the newest *n* claims."""
    return [record.state for record in drive(gateway.core.journal().list(tenant="default", limit=n))]


def fails(error: BaseException) -> Callable[..., Any]:
    def step(*arguments: Any) -> Any:
        raise error

    return step


def test_it_is_taken(gateway: antiphon.Gateway, work: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, the others could pass on the long way."""
    monkeypatch.setattr(straight.Straight, "_claim", None)
    monkeypatch.setattr(straight.Straight, "_settle", None)
    assert [work(1), work(2)] == [1, 2]
    assert states(gateway, 2) == ["done", "done"]


def test_an_outage_before_the_call_fails_closed(
    gateway: antiphon.Gateway, work: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(states(gateway, 100))
    Changed(gateway, monkeypatch, start_now=fails(StoreUnavailable("gone")), begin=fails(AssertionError("asked twice")))
    with pytest.raises(StoreUnavailable, match="not made"):
        work(1)
    assert len(states(gateway, 100)) == before


def test_an_outage_after_the_call_is_tried_again(
    gateway: antiphon.Gateway, work: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    Changed(gateway, monkeypatch, finish_now=fails(StoreUnavailable("gone")))
    assert work(1) == 1
    assert states(gateway, 1) == ["done"]


def test_an_interrupt_while_asking_leaves_no_claim(
    gateway: antiphon.Gateway, work: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(states(gateway, 100))
    Changed(gateway, monkeypatch, start_now=fails(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        work(1)
    assert len(states(gateway, 100)) == before


def test_an_interrupt_while_settling_settles_first(
    gateway: antiphon.Gateway, work: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effect happened: the outcome is written before the interrupt goes on (D3)."""
    Changed(gateway, monkeypatch, finish_now=fails(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        work(1)
    assert states(gateway, 1) == ["done"]


def test_an_interrupted_tool_leaves_an_unknown_outcome(gateway: antiphon.Gateway, work: Callable[[int], int]) -> None:
    with pytest.raises(KeyboardInterrupt):
        work(-1)
    assert states(gateway, 1) == ["failed"]


def test_a_claim_that_was_taken_over_is_fenced(
    gateway: antiphon.Gateway, work: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal: Any = gateway.core.journal()
    fenced: list[Any] = []
    monkeypatch.setattr(type(gateway.core.telemetry), "fenced", lambda _, call: fenced.append(call))
    start = journal.start_now
    Changed(gateway, monkeypatch, start_now=lambda *asked: start(*asked) - 1)
    assert work(1) == 1
    assert (len(fenced), states(gateway, 1)) == (1, ["inflight"])


def test_a_forked_child_claims_in_its_own_name(gateway: antiphon.Gateway, work: Callable[[int], int]) -> None:
    work(1)
    child = os.fork()
    if not child:
        try:
            work(2)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    newest = drive(gateway.core.journal().list(tenant="default", limit=2))
    assert len({record.owner for record in newest}) == 2

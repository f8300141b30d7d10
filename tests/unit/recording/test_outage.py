"""L11: a run log that cannot be written is reported; the answer of a call that was made is never lost to it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from antiphon import Antiphon
from antiphon.errors import StoreUnavailable
from antiphon.ports import Row
from antiphon.stores import MemoryStore

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Trouble:
    """Lets so many writes through."""

    def __init__(self, run: Any, good: int) -> None:
        self.good = good
        self._write = run.scope.write
        run.scope.write = self

    def __call__(self, rows: Sequence[Row]) -> None:
        self.good -= 1
        if self.good < 0:
            raise StoreUnavailable("The disk is full.")
        self._write(rows)


def test_an_answer_is_worth_more_than_its_event(caplog: pytest.LogCaptureFixture) -> None:
    app = Antiphon(store=MemoryStore())
    with app.run("full disk") as run:
        Trouble(run, 1)
        with caplog.at_level(logging.ERROR, "antiphon.run"):
            assert run.llm(ASK, lambda body: {"answer": 42}) == {"answer": 42}
    assert [record.getMessage() for record in caplog.records if record.name == "antiphon.run"] == [
        "1 events of a call to llm are missing from the run log: The disk is full."
    ]
    assert [event.type for event in run.events()] == ["run.started", "call.started", "run.finished"]


def test_a_stream_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def send(body: Any) -> Iterator[Any]:
        yield from ({"choices": [{"index": 0, "delta": {"content": f"{n} "}}]} for n in range(3))

    app = Antiphon(store=MemoryStore())
    with app.run("full disk") as run, caplog.at_level(logging.ERROR, "antiphon.run"):
        Trouble(run, 1)
        assert len(list(run.llm({**ASK, "stream": True}, send))) == 3
    assert "4 events of a call to llm are missing" in caplog.text


def test_a_model_is_not_asked_if_the_start_cannot_be_written() -> None:
    asked: list[Any] = []
    app = Antiphon(store=MemoryStore())
    with app.run("full disk") as run:
        Trouble(run, 0)
        with pytest.raises(StoreUnavailable):
            run.llm(ASK, asked.append)
    assert asked == []

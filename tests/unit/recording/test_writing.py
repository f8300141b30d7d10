"""D19: which of the two ways of writing a recorded model call takes, and what recording takes to be on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon import Antiphon
from antiphon._recording.run import Run
from antiphon._scope import RunScope, Write, WriteAsync
from antiphon.errors import StoreUnavailable
from antiphon.ports import Row
from antiphon.stores import MemoryStore

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Log:
    """Notes the types of the events that each way writes."""

    def __init__(self, run: Run, *, in_memory: bool = False) -> None:
        self.blocking: list[str] = []
        self.awaited: list[str] = []
        self.away = False
        run.scope.write, run.scope.write_async, run.scope.in_memory = self.write, self.write_async, in_memory

    def write(self, rows: Sequence[Row]) -> None:
        self._check()
        self.blocking += [row.type for row in rows]

    async def write_async(self, rows: Sequence[Row]) -> None:
        self._check()
        self.awaited += [row.type for row in rows]

    def _check(self) -> None:
        if self.away:
            raise StoreUnavailable("The disk is full.")


def new_run() -> Run:
    return Antiphon(store=MemoryStore()).run("writing")


async def answer(body: Any) -> dict[str, Any]:
    return {"answer": 42}


async def pieces(body: Any) -> Any:
    for n in range(3):
        yield {"choices": [{"index": 0, "delta": {"content": f"{n} "}}]}


def test_synchronous_code_waits_for_the_log() -> None:
    with new_run() as run:
        log = Log(run)
        run.llm(ASK, lambda body: {"answer": 42})
        run.now()
        run.note("custom", {})
    assert log.blocking == ["call.started", "call.finished", "draw", "custom"]
    assert log.awaited == []


async def test_an_event_loop_is_not_blocked() -> None:
    async with new_run() as run:
        log = Log(run)
        await run.llm(ASK, answer)
        assert len([piece async for piece in await run.llm({**ASK, "stream": True}, pieces)]) == 3
    call = ["call.started", "call.finished"]
    assert [kind for kind in log.awaited if kind != "call.chunk"] == call * 2
    assert log.blocking == []


async def test_an_event_loop_writes_to_memory_at_once() -> None:
    async with new_run() as run:
        log = Log(run, in_memory=True)
        await run.llm(ASK, answer)
    assert log.blocking == ["call.started", "call.finished"]
    assert log.awaited == []


@pytest.mark.parametrize("in_memory", [True, False])
async def test_an_answer_in_an_event_loop_is_worth_more_than_its_event(
    in_memory: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with new_run() as run:
        log = Log(run, in_memory=in_memory)

        async def lose(body: Any) -> dict[str, Any]:
            log.away = True
            return await answer(body)

        with caplog.at_level(logging.ERROR, "antiphon.run"):
            assert await run.llm(ASK, lose) == {"answer": 42}
    assert "1 events of a call to llm are missing" in caplog.text


def test_a_run_that_is_not_recorded_writes_nothing() -> None:
    with new_run() as run:
        log = Log(run)
        run.scope.write = run.scope.write_async = None
        assert not run.scope.records
        assert run.llm(ASK, lambda body: {"answer": 42}) == {"answer": 42}
        run.now()
        run.note("custom", {})
    assert log.blocking == log.awaited == []


@pytest.mark.parametrize("which", ["write", "write_async"])
def test_one_way_of_writing_without_the_other_is_refused(which: str) -> None:
    async def write_async(rows: Sequence[Row]) -> None: ...

    write: Write | None = (lambda rows: None) if which == "write" else None
    other: WriteAsync | None = write_async if which == "write_async" else None
    given: Any = None
    with pytest.raises(ValueError, match="both"):
        RunScope(
            run_id="run",
            clock_ms=given,
            encode=given,
            write=write,
            write_async=other,
            chunks=given,
            compose=given,
            shown=given,
        )

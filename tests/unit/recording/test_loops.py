"""Runs of one event loop share its journal, and journals of one SQLite file its threads."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.errors import StoreUnavailable
from antiphon.stores import SQLiteStore


@pytest.fixture
def app(tmp_path: Path) -> antiphon.Antiphon:
    return antiphon.Antiphon(store=SQLiteStore(tmp_path / "runs.db"))


def counted(app: antiphon.Antiphon, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    open_async = app.store.open_async

    def opened() -> Any:
        made.append(open_async())
        return made[-1]

    monkeypatch.setattr(app.store, "open_async", opened)
    return made


async def send(request: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.01)
    return {"choices": [{"message": {"content": "on its way"}, "finish_reason": "stop"}]}


async def agent(number: int) -> int:
    request = {"model": "m-1", "messages": [{"role": "user", "content": f"where is {number}?"}]}
    await antiphon.current_run().llm(request, send)
    return number


def test_runs_that_overlap_share_a_journal(app: antiphon.Antiphon, monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(app, monkeypatch)

    async def work() -> list[Any]:
        return await asyncio.gather(*[app.record(agent, number) for number in range(8)])

    runs = asyncio.run(work())
    assert [run.output for run in runs] == list(range(8))
    assert len(made) == 1
    asyncio.run(work())
    assert len(made) == 2, "another loop, another journal"


def test_runs_one_after_the_other_leave_no_threads_behind(app: antiphon.Antiphon) -> None:
    async def work() -> None:
        for number in range(8):
            await app.record(agent, number)

    asyncio.run(work())
    threads = [thread.name for thread in threading.enumerate() if thread.name.endswith("runs.db")]
    assert len(threads) <= 2, threads


def test_a_run_whose_end_cannot_be_written_closes_its_journal(
    app: antiphon.Antiphon, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = counted(app, monkeypatch)

    def refused(journal: Any, run: str, rows: Any) -> int:
        raise StoreUnavailable("The disk is full.")

    async def work() -> None:
        run = app.run("full disk")
        with monkeypatch.context() as down:
            await run.__aenter__()
            await agent(1)
            down.setattr(type(app.journal), "append", refused)
            with pytest.raises(StoreUnavailable):
                await run.__aexit__(None, None, None)
        await app.record(agent, 2)

    asyncio.run(work())
    assert len(made) == 2, "a journal that was left open would have been used again"

"""Many at once: processes into one store, parallel calls of one run, calls inside of calls, calls without a run."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon import Antiphon
from antiphon.ops.runs import find_run, list_runs, timeline
from tests.integration.recording.kit import application, calls, stored

PROCESSES, RUNS = 4, 50


def record_many(app: Antiphon, process: int) -> None:
    @app.gateway.tool(idempotent=False)
    def work(process: int, run: int, step: int) -> str:
        return f"{process}.{run}.{step}"

    for number in range(RUNS):
        with app.run(f"p{process}r{number}", input={"args": [process, number]}) as run:
            for step in range(3):
                work(process=process, run=number, step=step)
            run.finish(f"{process}.{number}")


def test_processes_record_into_one_store(home: Path) -> None:
    app = application()
    children = []
    for process in range(PROCESSES):
        child = os.fork()
        if not child:
            code = 1
            try:
                record_many(app, process)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * PROCESSES
    runs = list_runs(app, status="completed", limit=1000)
    assert {run["name"] for run in runs} == {f"p{p}r{r}" for p in range(PROCESSES) for r in range(RUNS)}
    for run in runs:
        process, number = map(int, run["name"][1:].split("r"))
        events = stored(app, run["id"])
        assert len(events) == run["events"] == 8
        assert [event.payload["arguments"]["step"] for event, _ in calls(events)] == [0, 1, 2]
        for started, finished in calls(events):
            asked = started.payload["arguments"]
            assert (asked["process"], asked["run"]) == (process, number)
            assert finished.payload["value"] == f"{process}.{number}.{asked['step']}"
        assert events[-1].payload["output"] == f"{process}.{number}"


def test_two_hundred_parallel_calls_in_threads_keep_their_own_results(home: Path) -> None:
    app = application()

    @app.gateway.tool(idempotent=False)
    def double(n: int) -> int:
        time.sleep(0.001 * (n % 7))
        return 2 * n

    with app.run("threads") as run, ThreadPoolExecutor(16) as pool:
        waiting = [antiphon.submit(pool, double, n) for n in range(200)]
        assert [future.result() for future in waiting] == [2 * n for n in range(200)]
    pairs = list(calls(stored(app, run.id)))
    assert len(pairs) == 200
    assert all(end.payload["value"] == 2 * start.payload["arguments"]["n"] for start, end in pairs)
    assert len({start.call for start, _ in pairs}) == 200


async def test_two_hundred_parallel_calls_of_asyncio_keep_their_own_results(home: Path) -> None:
    app = application()

    @app.async_gateway.tool(idempotent=False)
    async def double(n: int) -> int:
        await asyncio.sleep(0.001 * (n % 7))
        return 2 * n

    async with app.run("tasks") as run:
        assert await asyncio.gather(*(double(n) for n in range(200))) == [2 * n for n in range(200)]
        asked = await asyncio.gather(*(run.llm(_ask(n), _answer) for n in range(50)))
    assert [response["n"] for response in asked] == list(range(50))
    pairs = list(calls(stored(app, run.id)))
    assert len(pairs) == 250
    for start, end in pairs:
        if start.payload["kind"] == "tool":
            assert end.payload["value"] == 2 * start.payload["arguments"]["n"]
        else:
            assert end.payload["value"]["n"] == start.payload["providerRequest"]["n"]


def _ask(n: int) -> dict[str, Any]:
    return {"model": "m", "n": n, "messages": [{"role": "user", "content": f"question {n}"}]}


async def _answer(request: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.001 * (request["n"] % 5))
    return {"n": request["n"], "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}}]}


def test_calls_inside_of_calls_keep_their_parent(home: Path) -> None:
    app = application()

    @app.gateway.tool(idempotent=False)
    def leaf(n: int) -> int:
        return n

    @app.gateway.tool(idempotent=False)
    def branch(n: int) -> list[int]:
        with ThreadPoolExecutor(4) as pool:
            waiting = [antiphon.submit(pool, leaf, 10 * n + part) for part in range(4)]
            return [leaf(n), *(future.result() for future in waiting)]

    with app.run("nested") as run, ThreadPoolExecutor(4) as pool:
        for future in [antiphon.submit(pool, branch, n) for n in range(5)]:
            future.result()
    events = stored(app, run.id)
    names = {event.call: event.payload for event in events if event.type == "call.started"}
    parents: Counter[int] = Counter()
    for event in events:
        if event.type == "call.started" and event.payload["name"] == "leaf":
            parent = names[event.parent]
            assert parent["name"] == "branch"
            asked = event.payload["arguments"]["n"]
            assert parent["arguments"]["n"] in (asked, asked // 10)
            parents[parent["arguments"]["n"]] += 1
    assert parents == dict.fromkeys(range(5), 5)
    tree = timeline(app, find_run(app, run.id))["timeline"]
    assert sorted(len(node["children"]) for node in tree) == [5] * 5


async def test_tasks_inside_of_calls_keep_their_parent(home: Path) -> None:
    app = application()

    @app.async_gateway.tool(idempotent=False)
    async def leaf(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @app.async_gateway.tool(idempotent=False)
    async def branch(n: int) -> list[int]:
        return list(await asyncio.gather(*(leaf(10 * n + part) for part in range(4))))

    async with app.run("nested") as run:
        await asyncio.gather(*(branch(n) for n in range(5)))
    events = stored(app, run.id)
    names = {event.call: event.payload for event in events if event.type == "call.started"}
    leaves = [event for event in events if event.type == "call.started" and event.payload["name"] == "leaf"]
    assert len(leaves) == 20
    assert all(names[leaf.parent]["arguments"]["n"] == leaf.payload["arguments"]["n"] // 10 for leaf in leaves)


def in_a_bare_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_call_of_a_thread_without_a_run_is_recorded_as_an_orphan(home: Path) -> None:
    app = application()

    @app.gateway.tool(idempotent=False)
    def work(n: int) -> int:
        return n

    with app.run("with an orphan") as run:
        work(1)
        in_a_bare_thread(lambda: work(2))
        in_a_bare_thread(lambda: run.llm(_ask(3), lambda body: {"n": 3}))
    events = stored(app, run.id)
    lanes = {start.lane for start, _ in calls(events) if start.lane != "0"}
    assert lanes == {"~orphan"}
    noted = [event for event in events if event.type == "decision" and event.payload["what"] == "orphan"]
    assert [event.payload["detail"]["name"] for event in noted] == ["tools/work"]
    marked = [start for start, _ in calls(events) if start.meta.get("orphan")]
    assert [start.payload["kind"] for start in marked] == ["llm"]


def test_a_thread_belongs_to_the_run_that_started_it(home: Path) -> None:
    app = application()

    @app.gateway.tool(idempotent=False)
    def work(n: int) -> int:
        return n

    with app.run("one") as one, app.run("two") as two:
        in_a_bare_thread(lambda: work(1))
    assert [len(list(calls(stored(app, run.id)))) for run in (one, two)] == [0, 1]


def test_a_call_that_could_belong_to_several_runs_is_reported(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = application()

    @app.gateway.tool(idempotent=False)
    def work(n: int) -> int:
        return n

    opened, done = threading.Event(), threading.Event()

    def older_than_the_runs() -> None:
        opened.wait()
        work(1)
        work(2)
        done.set()

    threading.Thread(target=older_than_the_runs).start()
    with caplog.at_level(logging.WARNING, "antiphon.run"), app.run("one") as one, app.run("two") as two:
        opened.set()
        done.wait()
    assert [event.type for run in (one, two) for event in stored(app, run.id)] == ["run.started", "run.finished"] * 2
    assert len([record for record in caplog.records if "outside of the 2 open runs" in record.getMessage()]) == 1

"""A call that its caller gave up (a timeout, a race of tasks) is given up again by a replay, in the same place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import antiphon
from tests.unit.replay.kit import memory_app, says


def request(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "q"}], **more}


async def never(body: Any) -> Any:
    await asyncio.Event().wait()


async def quick(body: Any) -> Any:
    return says("quick")


async def broken(body: Any) -> AsyncIterator[Any]:
    yield {"choices": [{"index": 0, "delta": {"content": "Hel"}}]}
    await asyncio.Event().wait()


def strictly(app: antiphon.Antiphon, main: Callable[[], Any]) -> antiphon.Report:
    run = app.record(main)
    assert run.status == "completed"
    return antiphon.replay(run, app=app, mode="strict", function=main, keep=False)


async def within(seconds: float, awaitable: Any) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await awaitable
    except TimeoutError:
        return "too late"


async def read(stream: AsyncIterator[Any]) -> list[Any]:
    return [piece async for piece in stream]


def test_a_model_that_was_too_slow() -> None:
    async def main() -> Any:
        run = antiphon.current_run()
        late = await within(0.01, run.llm(request("slow"), never))
        return [late, await run.llm(request("fast"), quick)]

    report = strictly(memory_app(), main)
    assert report.passed, report.text()


def test_the_loser_of_a_race() -> None:
    async def main() -> Any:
        run = antiphon.current_run()
        tasks = [asyncio.create_task(run.llm(request(name), send)) for name, send in (("a", never), ("b", quick))]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return [task.result() for task in done]

    report = strictly(memory_app(), main)
    assert report.passed, report.text()


def test_a_stream_that_got_stuck() -> None:
    async def main() -> Any:
        stream = antiphon.current_run().llm(request("slow", stream=True), broken)
        return await within(0.01, read(await stream))

    report = strictly(memory_app(), main)
    assert report.passed, report.text()


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_tool_that_was_too_slow(idempotent: bool) -> None:
    app = memory_app()

    @app.async_gateway.tool(idempotent=idempotent)
    async def look(q: str) -> str:
        return str(await never(q))

    @app.async_gateway.tool(idempotent=idempotent)
    async def pages(q: str) -> AsyncIterator[int]:
        yield 1
        await never(q)

    async def main() -> Any:
        return [await within(0.01, look("x")), await within(0.01, read(pages("x")))]

    report = strictly(app, main)
    assert report.passed, report.text()


@pytest.mark.parametrize("read", [0, 1])
def test_a_tool_stream_that_was_dropped(read: int) -> None:
    app = memory_app()

    @app.gateway.tool(idempotent=True)
    def pages(q: str) -> Iterator[int]:
        yield from (1, 2, 3)

    def main() -> Any:
        stream = pages("x")
        return [next(stream) for _ in range(read)]

    report = strictly(app, main)
    assert report.passed, report.text()


def test_a_caller_that_no_longer_gives_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon._drive._PATIENCE_MS", 1)
    app = memory_app()
    patience = 0.01

    @app.async_gateway.tool(idempotent=True)
    async def look(q: str) -> str:
        return str(await never(q))

    async def tool() -> Any:
        return await within(patience, look("x"))

    async def model() -> Any:
        return await within(patience, antiphon.current_run().llm(request("slow"), never))

    for main in (tool, model):
        patience = 0.01
        run = app.record(main)
        patience = 60.0
        report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
        assert not report.passed
        assert "this one was not cancelled" in report.text()


def test_code_that_waits_for_a_task_that_failed_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.ops.entry._LOOK_EVERY_S", 0.01)
    app = memory_app()
    question = "x"

    @app.async_gateway.tool(idempotent=True)
    async def look(q: str) -> str:
        return q

    async def main() -> Any:
        work: asyncio.Queue[str] = asyncio.Queue()

        async def worker() -> None:
            while True:
                await look(await work.get())
                work.task_done()

        task = asyncio.create_task(worker())
        work.put_nowait(question)
        await work.join()
        task.cancel()

    run = app.record(main)
    question = "y"
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert not report.passed
    assert "no answer for tool tools/look" in report.text()


def test_workers_of_a_queue_with_a_name_for_each_item() -> None:
    app = memory_app()
    order = [0, 1, 2, 3]

    @app.async_gateway.tool(idempotent=True)
    async def look(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def main() -> list[int]:
        left, found = list(order), []

        async def worker() -> None:
            while left:
                item = left.pop()
                with antiphon.branch(f"item {item}"):
                    found.append(await look(item) + await look(item + 10))

        await asyncio.gather(worker(), worker())
        return sorted(found)

    run = app.record(main)
    order = [2, 0, 3, 1]
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert report.passed, report.text()


def test_an_attempt_that_ran_out_of_time_does_so_again() -> None:
    app = memory_app()

    @app.async_gateway.tool(idempotent=True, timeout=0.01, retry={"max_attempts": 2, "base_ms": 0})
    async def look(n: int) -> int:
        return int(await never(n))

    async def main() -> list[str]:
        told = []
        for n in range(6):  # until the breaker opens within a call
            try:
                await look(n)
            except Exception as error:
                told.append(f"{type(error).__name__} {error}")
        return told

    run = app.record(main)
    assert {text.partition(" ")[0] for text in run.output} >= {"RetryExhausted", "CallTimeout", "CircuitOpen"}
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert report.passed, report.text()

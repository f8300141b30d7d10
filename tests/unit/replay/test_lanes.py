"""The order in which parallel work finishes never shows (D17)."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import antiphon
from antiphon._recording.run import Run
from antiphon.errors import ReplayMiss
from tests.unit.replay.kit import memory_app

REPEATS = 40


class World:
    """Tools whose answers take a different number of turns of the event loop each time."""

    def __init__(self) -> None:
        self.app = memory_app()
        self.chance = random.Random(7)
        self.executed = 0
        gateway = self.app.async_gateway

        @gateway.tool(idempotent=True, effect="read")
        async def search(q: str) -> dict[str, Any]:
            self.executed += 1
            await self.wait()
            return {"q": q, "nth": self.executed}

        @gateway.tool(idempotent=True, effect="read")
        async def outer(q: str) -> list[Any]:
            self.executed += 1
            parts = await asyncio.gather(search(q=f"{q}/1"), search(q=f"{q}/2"))
            return [*parts, antiphon.current_run().now().isoformat()]

        self.search, self.outer = search, outer

    async def wait(self) -> None:
        for _ in range(self.chance.randrange(6)):
            await asyncio.sleep(0)

    def check(self, main: Callable[[], Any], *, repeats: int = REPEATS) -> Run:
        """Record once, replay often: nothing is reported, nothing is executed."""
        run: Run = self.app.record(main)
        made = self.executed
        for number in range(repeats):
            self.chance.seed(number)
            report = antiphon.replay(run, app=self.app, mode="strict", function=main, keep=False)
            assert report.passed, report.text()
        assert self.executed == made
        return run


def test_gathered_tasks_that_draw_after_their_first_call() -> None:
    world = World()

    async def work(number: int) -> list[Any]:
        run = antiphon.current_run()
        await world.wait()
        first = await world.search(q=f"item {number}")
        at, name = run.now(), run.uuid4()
        await world.wait()
        second = await world.search(q=f"{first['q']} {name}")
        return [first, at.isoformat(), second, run.random()]

    async def main() -> list[Any]:
        order = list(range(6))
        world.chance.shuffle(order)
        done = await asyncio.gather(*(work(number) for number in order))
        return sorted(done, key=lambda entry: str(entry[0]["q"]))

    run = world.check(main)
    assert not _marks(run)


def test_task_group_with_nested_tools_and_lanes_below_lanes() -> None:
    world = World()

    async def work(number: int) -> Any:
        await world.wait()
        found = await world.outer(q=f"topic {number}")
        more = await asyncio.gather(*(world.search(q=f"{number}.{part}") for part in range(3)))
        return [found, more]

    async def main() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(number)) for number in range(4)]
            await world.search(q="meanwhile")
        return [task.result() for task in tasks]

    world.check(main, repeats=40)


def test_threads_that_carry_the_run() -> None:
    app = memory_app()
    gate = threading.Barrier(3)

    @app.gateway.tool(idempotent=True, effect="read")
    def look(n: int) -> int:
        return n * n

    def work(number: int) -> list[Any]:
        gate.wait(10)  # all at once, in whatever order the machine likes
        run = antiphon.current_run()
        squared = look(n=number)
        return [squared, str(run.uuid4()), look(n=squared + 10)]

    def main() -> list[Any]:
        with ThreadPoolExecutor(3) as pool:
            futures = [antiphon.submit(pool, work, number) for number in range(3)]
            done = [future.result() for future in futures]
            futures = list(pool.map(antiphon.wrap_context(work), range(3, 6)))
        return done + futures

    run = app.record(main)
    for _ in range(30):
        report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
        assert report.passed, report.text()


def test_a_thread_gets_no_lane_of_a_thread_that_is_gone() -> None:
    """Thread ids are given again; a lane is not."""
    app = memory_app()

    @app.gateway.tool(idempotent=True, effect="read")
    def look(n: int) -> int:
        return n

    def chain(depth: int) -> None:
        look(n=depth)
        if depth:
            carried = antiphon.wrap_context(chain)
            thread = threading.Thread(target=carried, args=(depth - 1,))
            thread.start()
            thread.join()

    run = app.record(chain, 3)
    lanes = {event.lane for event in run.events() if event.type == "call.started"}
    assert len(lanes) == 4


def _marks(run: Run) -> list[dict[str, Any]]:
    return [event.payload for event in run.events() if event.payload.get("what") == "ambiguous"]


def _alike(world: World, *, named: bool) -> Callable[[], Any]:
    async def work(number: int) -> Any:
        await world.wait()
        if not named:
            return await _ask(number)
        with antiphon.branch(f"worker {number}"):
            return await _ask(number)

    async def _ask(number: int) -> Any:
        await world.search(q="the same for all")
        return await world.search(q=f"mine is {number}")

    async def main() -> Any:
        return await asyncio.gather(*(work(number) for number in range(4)))

    return main


def test_lanes_that_look_alike_and_differ_are_marked_when_they_are_recorded() -> None:
    world = World()
    run = world.app.record(_alike(world, named=False))
    marks = _marks(run)
    assert len(marks) == 1
    assert len(marks[0]["detail"]["lanes"]) == 4


def test_a_divergence_in_a_marked_lane_says_how_to_settle_it() -> None:
    world = World()
    main = _alike(world, named=False)
    world.chance.seed(1)
    run = world.app.record(main)
    for number in range(2, 200):
        world.chance.seed(number)
        report = antiphon.replay(run, app=world.app, mode="strict", function=main, keep=False)
        if not report.passed:
            assert "antiphon.branch" in report.divergences[0]["note"]
            return
    pytest.fail("no order of arrival out of 200 differed")


def test_branches_settle_them() -> None:
    world = World()
    run = world.check(_alike(world, named=True))
    assert not _marks(run)


def test_lanes_that_look_alike_and_do_the_same_need_no_mark() -> None:
    app = memory_app()

    @app.async_gateway.tool(idempotent=True, effect="read")
    async def look(q: str) -> str:
        return q.upper()

    async def main() -> Any:
        return await asyncio.gather(*(look(q="x") for _ in range(5)))

    run = app.record(main)
    assert not _marks(run)


def test_a_prompt_or_interaction_tells_lanes_apart() -> None:
    world = World()

    async def work(number: int) -> Any:
        run = antiphon.current_run()
        await world.wait()
        run.prompt("ask", "Topic {n}", {"n": number})
        return await world.search(q="same"), await world.search(q=f"own {number}")

    async def main() -> Any:
        return await asyncio.gather(*(work(number) for number in range(4)))

    world.check(main)


def test_a_call_from_a_thread_without_the_run_is_an_orphan() -> None:
    app = memory_app()

    @app.gateway.tool(idempotent=True, effect="read")
    def look(n: int) -> int:
        return n

    def main() -> None:
        thread = threading.Thread(target=look, kwargs={"n": 1})
        thread.start()
        thread.join()

    run = app.record(main)
    assert [event.payload["what"] for event in run.events() if event.type == "decision"] == ["orphan"]
    assert antiphon.replay(run, app=app, mode="strict", function=main, keep=False).passed


def test_orphans_of_several_threads_have_no_order() -> None:
    app = memory_app()
    order = [0, 1, 2]

    @app.gateway.tool(idempotent=True, effect="read")
    def price(n: int) -> int:
        return n * 10

    @app.gateway.tool(idempotent=True, effect="read")
    def look(n: int) -> int:
        return price(n)

    def alone(n: int) -> None:
        with suppress(ReplayMiss):
            look(n)

    def main() -> None:
        for n in order:
            thread = threading.Thread(target=alone, args=(n,))
            thread.start()
            thread.join()

    run = app.record(main)
    order = [2, 0, 1]
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert report.passed, report.text()
    order = [2, 1]
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert "call.started tools/look did not happen" in report.text()
    asked = report["divergences"][0]["seq"]
    assert next(event.payload["arguments"] for event in run.events() if event.seq == asked) == {"n": 0}
    order = [2, 1, 5]
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert "no answer for tool tools/look" in report.text()

"""Threads, tasks, event loops, and tools that call themselves (D33)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from antiphon.errors import InFlight
from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import AsyncRig, Hold, Rig, eventually, in_thread, settle_down


def test_identical_parallel_calls_run_once_across_threads() -> None:
    rig = Rig()
    hold = Hold()
    script = rig.tool(hold.then("sent"))
    with ThreadPoolExecutor(16) as pool:
        calls = [pool.submit(rig.execute, call_id=f"c{n}") for n in range(16)]
        hold.until_reached()
        hold.go.set()
        results = [call.result(20) for call in calls]
    assert {result.content for result in results} == {"sent"}
    # a call that only arrives after the leader is done is a new call (D2); those that met it shared
    assert len(script) == 16 - sum(result.from_cache for result in results)


async def test_identical_parallel_tasks_run_once() -> None:
    rig = AsyncRig()
    calls: list[int] = []
    gate = asyncio.Event()

    @rig.gateway.tool("send", idempotent=False)
    async def send(to: str) -> int:
        calls.append(1)
        await gate.wait()
        return len(calls)

    tasks = [asyncio.ensure_future(rig.execute(call_id=f"c{n}")) for n in range(50)]
    await settle_down()
    gate.set()
    results = await asyncio.gather(*tasks)
    assert [result.content for result in results] == [1] * 50
    assert sum(result.from_cache for result in results) == 49
    assert len(calls) == 1


def test_one_gateway_in_many_event_loops() -> None:
    rig = AsyncRig()
    seen: list[int] = []

    @rig.gateway.tool("send", idempotent=False)
    async def send(to: str) -> str:
        await asyncio.sleep(0)
        seen.append(threading.get_ident())
        return to

    def one_loop(number: int) -> Any:
        async def main() -> Any:
            first = await rig.execute(call_id=f"c{number}", params={"to": str(number)})
            again = await rig.execute(call_id=f"c{number}", params={"to": str(number)})
            return first, again

        return asyncio.run(main())

    results = [thread.result() for thread in [in_thread(lambda n=n: one_loop(n)) for n in range(4)]]  # type: ignore[misc]
    results.append(one_loop(9))
    for first, again in results:
        assert (first.from_cache, again.from_cache) == (False, True)
    assert len(seen) == 5


def test_two_event_loops_share_one_execution() -> None:
    store = MemoryStore()
    rig = AsyncRig(store=store)
    hold = Hold()
    script = rig.tool(hold.then("sent"))
    leader = in_thread(lambda: asyncio.run(rig.execute(call_id="c1")))
    hold.until_reached()
    waiter = in_thread(lambda: asyncio.run(rig.execute(call_id="c2")))
    eventually(lambda: bool(store._journal.waiters), "the other loop does not wait")
    hold.go.set()
    assert (leader.result().content, waiter.result().content) == ("sent", "sent")
    assert len(script) == 1


def test_a_synchronous_and_an_asynchronous_gateway_share_a_store() -> None:
    store = MemoryStore()
    first, second = Rig(store=store), AsyncRig(store=store)
    one, two = first.tool("first"), second.tool("second")
    first.execute(call_id="c1")
    assert asyncio.run(second.execute(call_id="c1")).content == "first"
    assert (len(one), len(two)) == (1, 0)


# -- calling oneself ---------------------------------------------------------------------------------------------------


def test_a_tool_that_calls_itself_with_equal_arguments_is_refused_at_once() -> None:
    rig = Rig()
    depth: list[int] = []

    @rig.gateway.tool("send", idempotent=False)
    def send(to: str) -> str:
        depth.append(1)
        result = rig.execute(call_id=f"inner{len(depth)}")
        return f"{result.code}: {result.error.message}"

    text = rig.execute(call_id="c1").content
    assert text.startswith("in_flight: ")
    assert "called itself" in text
    assert len(depth) == 1


def test_other_arguments_and_other_tools_are_no_recursion() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=False)
    def down(n: int) -> int:
        return 0 if n == 0 else 1 + down(n - 1)

    assert down(5) == 5


def test_recursion_is_seen_through_other_tools_and_threads() -> None:
    rig = Rig()
    seen: list[str] = []

    @rig.gateway.tool(idempotent=False, timeout=5.0)
    def ping(n: int) -> str:
        return pong(n)

    @rig.gateway.tool(idempotent=False)
    def pong(n: int) -> str:
        try:
            return ping(n)
        except InFlight as error:
            seen.append(error.code)
            return "caught"

    assert ping(1) == "caught"
    assert seen == ["in_flight"]


async def test_recursion_is_seen_in_child_tasks() -> None:
    rig = AsyncRig()

    @rig.gateway.tool(idempotent=False)
    async def walk(n: int) -> str:
        try:
            return str(await asyncio.gather(walk(n)))
        except InFlight as error:
            return error.code

    assert await walk(1) == "in_flight"


def test_a_call_without_a_claim_may_call_itself() -> None:
    rig = Rig()
    depth: list[int] = []

    @rig.gateway.tool("send", idempotent=True)
    def send(to: str) -> int:
        depth.append(1)
        if len(depth) < 3:
            rig.execute(mode="disabled")
        return len(depth)

    assert rig.execute(mode="disabled").content == 3


def test_after_the_call_nothing_is_held() -> None:
    rig = Rig()
    rig.tool("one", "two")
    assert rig.execute(call_id="c1").content == "one"
    assert rig.execute(call_id="c2").content == "two"


async def test_a_task_that_a_call_leaves_behind_may_make_it_again() -> None:
    """It has inherited the context of a call that is over."""
    rig = AsyncRig()
    over, left = asyncio.Event(), list[asyncio.Task[str]]()

    async def again(n: int) -> str:
        await over.wait()
        return await poll(n)

    @rig.gateway.tool(idempotent=False)
    async def poll(n: int) -> str:
        if not left:
            left.append(asyncio.create_task(again(n)))
            return "first"
        return "second"

    assert await poll(1) == "first"
    over.set()
    assert await left[0] == "second"


def test_threads_of_different_calls_do_not_disturb_each_other() -> None:
    rig = Rig()

    @rig.gateway.tool("send", idempotent=False)
    def send(to: str) -> str:
        return to

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: rig.execute(params={"to": str(n)}, call_id=str(n)).content, range(400)))
    assert results == [str(n) for n in range(400)]
    assert len(rig.records(limit=1000)) == 400


def test_a_race_of_threads_for_one_intent_dispatches_once() -> None:
    for _ in range(20):
        rig = Rig()
        script = rig.tool("sent")
        barrier = threading.Barrier(8)

        def work(rig: Rig = rig, barrier: threading.Barrier = barrier) -> Any:
            barrier.wait()
            return rig.execute(key="k")

        results = [thread.result() for thread in [in_thread(work) for _ in range(8)]]
        assert len(script) == 1
        assert {result.content for result in results} == {"sent"}

"""D2: a call that is delivered twice at once, while an equal call ends, has one answer, whoever is faster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import AsyncRig, settle_down

Hook = Callable[[], Awaitable[None]]


class Staged:
    """A memory store whose steps can be held up: ``before`` holds what is awaited first."""

    url = "memory://staged"
    in_process = False

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.before: dict[str, Hook] = {}

    def open_sync(self) -> Any:
        return self.inner.open_sync()

    def open_async(self) -> Any:
        return _StagedJournal(self, self.inner.open_async())


class _StagedJournal:
    durable = False

    def __init__(self, store: Staged, inner: Any) -> None:
        self._store = store
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        step = getattr(self._inner, name)

        async def run(*args: Any, **kwargs: Any) -> Any:
            if name in self._store.before:
                await self._store.before[name]()
            return await step(*args, **kwargs)

        return run


class Stage:
    """A tool whose n-th call waits at the n-th gate and returns n; calls ``c1``, ``c2`` … are equal."""

    def __init__(self) -> None:
        self.store = Staged()
        self.rig = AsyncRig(self.store)
        self.store.inner = MemoryStore(clock=self.rig.clock)
        self.gates = {n: asyncio.Event() for n in range(1, 5)}
        self.entered = 0

        @self.rig.gateway.tool("send", idempotent=False)
        async def send(to: str) -> int:
            self.entered += 1
            mine = self.entered
            await self.gates[mine].wait()
            return mine

    async def deliver(self, identity: str) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(self.rig.execute(call_id=identity))
        await settle_down()
        return task


@pytest.fixture
async def stage() -> Stage:
    return Stage()


async def test_who_would_have_shared_waits_for_the_delivery_that_runs(stage: Stage) -> None:
    other = await stage.deliver("c1")
    first = await stage.deliver("c2")
    second: list[asyncio.Task[Any]] = []

    async def meanwhile() -> None:
        if not second:
            second.append(await stage.deliver("c2"))

    stage.store.before["alias"] = meanwhile
    stage.gates[1].set()
    await settle_down(100)
    assert (other.result().content, stage.entered) == (1, 2)
    assert not first.done()
    stage.gates[2].set()
    assert [(await task).content for task in (first, second[0])] == [2, 2]
    assert (await stage.rig.execute(call_id="c2")).content == 2
    assert stage.entered == 2


async def test_who_would_have_run_gets_the_answer_the_other_delivery_shared(stage: Stage) -> None:
    await stage.deliver("c1")
    first = await stage.deliver("c2")
    may_share = asyncio.Event()

    async def first_shares() -> None:
        may_share.set()
        await first

    async def until_the_second_is_about_to_run() -> None:
        await may_share.wait()

    stage.store.before = {"alias": until_the_second_is_about_to_run, "take_over": first_shares}
    stage.gates[1].set()
    await settle_down()
    second = await stage.deliver("c2")
    assert [(await task).content for task in (first, second)] == [1, 1]
    assert (await stage.rig.execute(call_id="c2")).content == 1
    assert stage.entered == 1


async def test_two_deliveries_that_share_share_the_same(stage: Stage) -> None:
    await stage.deliver("c1")
    first = await stage.deliver("c2")
    sharing = 0
    may_share = asyncio.Event()

    async def the_first_one_waits_for_the_second() -> None:
        nonlocal sharing
        sharing += 1
        if sharing == 1:
            await may_share.wait()
        else:
            may_share.set()
            await first

    stage.store.before["alias"] = the_first_one_waits_for_the_second
    stage.gates[1].set()
    await settle_down()
    third = await stage.deliver("c3")  # a new call: it runs
    second = await stage.deliver("c2")  # it finds that one in flight, and waits for it
    stage.gates[2].set()
    assert [(await task).content for task in (third, first, second)] == [2, 1, 1]
    assert (await stage.rig.execute(call_id="c2")).content == 1
    assert stage.entered == 2


async def test_an_answer_whose_record_is_cleared_at_that_moment_stands(stage: Stage) -> None:
    await stage.deliver("c1")
    first = await stage.deliver("c2")

    async def an_operator_clears() -> None:
        journal = stage.store.inner.open_async()
        for record in await journal.list(tenant="default"):
            await journal.clear(record.key)

    stage.store.before["alias"] = an_operator_clears
    stage.gates[1].set()
    assert (await first).content == 1
    assert stage.entered == 1

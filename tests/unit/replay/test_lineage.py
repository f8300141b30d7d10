"""What a run starts and does not wait for: recorded behind its end, answered or refused in a replay (D37, D38)."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

import antiphon
from antiphon._lineage import Replay
from antiphon.errors import ReplayMiss
from tests.unit.replay.kit import memory_app


class Shop:
    """An application whose tool says what it really did."""

    def __init__(self) -> None:
        self.app = memory_app()
        self.sent: list[str] = []
        self.refused: list[BaseException] = []

        @self.app.gateway.tool(idempotent=False, effect="write")
        def send(text: str) -> str:
            self.sent.append(text)
            return f"sent {text}"

        @self.app.async_gateway.tool(idempotent=False, effect="write")
        async def post(text: str) -> str:
            self.sent.append(text)
            return f"posted {text}"

        self.send, self.post = send, post

    def try_to_send(self, text: str, after: threading.Event | None = None) -> None:
        if after is not None:
            after.wait()
        try:
            self.send(text=text)
        except BaseException as error:
            self.refused.append(error)

    def replay(self, run: Any, function: Any) -> Any:
        return antiphon.replay(run, app=self.app, function=function, mode="strict", keep=False)


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_a_call_of_a_thread_after_the_end_is_an_addendum_and_is_answered(shop: Shop) -> None:
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def main() -> str:
        threads.append(threading.Thread(target=shop.try_to_send, args=("bye", ended)))
        threads[-1].start()
        return "queued"

    run = shop.app.record(main)
    assert run.manifest.tags["openWork"] == "1"
    ended.set()
    threads[0].join()
    assert shop.sent == ["bye"], shop.refused
    assert run.late_calls == 1
    kinds = [(event.type, bool(event.meta.get("afterEnd"))) for event in run.events()]
    assert kinds.index(("run.finished", False)) < kinds.index(("call.started", True))
    assert "openWork" not in shop.app.journal.manifest(run.id).tags  # type: ignore[union-attr]

    report = shop.replay(run, main)
    threads[1].join()
    assert report.passed, report.text()
    assert shop.sent == ["bye"]
    assert shop.refused == []


@pytest.mark.parametrize("change", ["dropped", "swapped", "added", "none"])
def test_what_comes_after_the_end_is_compared(shop: Shop, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.setattr("antiphon.ops.entry.GRACE_S", 0)
    threads: list[threading.Thread] = []
    ended, changed = threading.Event(), False

    def work() -> None:
        texts = ["a", "b"] if not changed or change != "swapped" else ["b", "a"]
        for text in texts + ["c"] * (changed and change == "added"):
            shop.try_to_send(text, ended)

    def main() -> str:
        if not changed or change != "dropped":
            threads.append(threading.Thread(target=antiphon.wrap_context(work)))
            threads[-1].start()
            if changed:
                threads[-1].join()
        return "queued"

    run = shop.app.record(main)
    ended.set()
    threads[0].join()
    assert run.late_calls == 2
    changed = True
    report = shop.replay(run, main)
    assert report.passed == (change == "none"), report.text()
    assert shop.sent == ["a", "b"]


def test_a_replay_in_this_process_does_not_wait_for_exit_handlers(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = []
    monkeypatch.setattr("atexit.register", handlers.append)
    monkeypatch.setattr("antiphon._lineage._patched", antiphon._lineage._patched - {"atexit"})

    def main() -> str:
        atexit.register(lambda: shop.send(text="bye"))
        return "done"

    run = shop.app.record(main)
    handlers[0]()
    assert run.late_calls == 1
    report = shop.replay(run, main)
    assert report.passed, report.text()
    handlers[1]()
    assert shop.sent == ["bye"]


def test_a_late_call_that_the_recording_lacks_is_refused_during_later_live_runs_too(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    starts = False
    threads: list[threading.Thread] = []
    told: list[str] = []

    def main() -> str:
        if starts:
            threads.append(threading.Thread(target=shop.try_to_send, args=("bye", ended)))
            threads[-1].start()
        return "queued"

    run = shop.app.record(main)
    starts = True

    def note(replay: Replay, what: str) -> None:
        told.append(what)

    monkeypatch.setattr("antiphon._lineage.on_late", [note])
    assert shop.replay(run, main).passed  # in this process it is told later; the command line waits for it
    with shop.app.run("live") as live:
        ended.set()
        threads[0].join()
        assert shop.send(text="mine") == "sent mine"
    assert [type(error) for error in shop.refused] == [ReplayMiss]
    assert shop.sent == ["mine"]
    assert len(told) == 1
    assert "send" in told[0]
    assert sum(event.type == "call.started" for event in live.events()) == 1


@pytest.mark.parametrize("kind", ["executor", "timer", "raw thread", "callback"])
def test_work_that_is_handed_over_carries_the_mark(shop: Shop, kind: str) -> None:
    import _thread

    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()  # its thread is older than the replay
    acts, done = False, threading.Event()

    def work() -> None:
        shop.try_to_send(kind)
        done.set()

    def main() -> str:
        if acts:
            if kind == "executor":
                pool.submit(work)
            elif kind == "timer":
                threading.Timer(0, work).start()
            elif kind == "raw thread":
                _thread.start_new_thread(work, ())
            else:
                asyncio.run(_soon(work))
            done.wait()
        return "ok"

    run = shop.app.record(main)
    acts = True
    report = shop.replay(run, main)
    assert not report.passed
    assert shop.sent == []
    assert "send" in report.divergences[0]["message"]
    assert pool.submit(lambda: shop.send(text="live")).result() == "sent live"  # the thread itself is free
    pool.shutdown()


async def _soon(work: Any) -> None:
    asyncio.get_running_loop().call_soon(work)
    await asyncio.sleep(0)


def test_a_run_that_replayed_code_opens_reaches_nothing(shop: Shop) -> None:
    acts = False

    def main() -> str:
        if acts:
            with shop.app.run("inner"):
                shop.try_to_send("inside")
        return "ok"

    run = shop.app.record(main)
    acts = True
    report = shop.replay(run, main)
    assert not report.passed
    assert shop.sent == []


# -- tasks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["dropped", "cancelled", "never awaited", "none"])
def test_dropped_awaits_and_cancelled_tasks_are_divergences(shop: Shop, change: str) -> None:
    changed = False

    async def side_effect() -> str:
        await asyncio.sleep(0)
        return await shop.post(text="x")

    async def main() -> str:
        if changed and change == "never awaited":
            side_effect()  # type: ignore[unused-coroutine]
            gc.collect()
            return "done"
        task = asyncio.create_task(side_effect())
        if changed and change == "dropped":
            return "done"
        if changed and change == "cancelled":
            await asyncio.wait([task])
            again = asyncio.create_task(side_effect())
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)
            return "done"
        await task
        return "done"

    run = shop.app.record(main)
    assert shop.sent == ["x"]
    changed = True
    if change == "never awaited":
        with pytest.warns(RuntimeWarning, match="never awaited"):
            report = shop.replay(run, main)
    else:
        report = shop.replay(run, main)
    assert report.passed == (change == "none"), report.text()
    assert shop.sent == ["x"]
    if change != "none":
        said = " ".join(found["message"] for found in report.divergences)
        assert {"dropped": "not awaited any more", "cancelled": "cancelled now"}.get(change, "never awaited") in said


@pytest.mark.parametrize("looks", ["done", "exception"])
def test_a_task_that_is_seen_to_be_done_need_not_be_awaited(shop: Shop, looks: str) -> None:
    """A replay answers at once, so that a task is done where the recording still had to wait for it."""
    replayed = False

    async def guard() -> str:
        for _ in range(0 if replayed else 9):
            await asyncio.sleep(0)
        return await shop.post(text="x")

    async def main() -> str:
        task = asyncio.create_task(guard())
        for _ in range(5):
            await asyncio.sleep(0)
        if looks == "done" and not task.done():
            await task
        if looks == "exception":
            try:
                task.exception()
            except asyncio.InvalidStateError:
                await task
        return "done"

    run = shop.app.record(main)
    replayed = True
    report = shop.replay(run, main)
    assert report.passed, report.text()


def test_a_task_that_a_finalizer_makes_is_no_divergence(shop: Shop) -> None:
    """As clients of SDKs do, which close themselves when the collector finds them."""
    kept: list[Any] = []

    class Client:
        async def aclose(self) -> None:
            await asyncio.sleep(0)

        def __del__(self) -> None:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().create_task(self.aclose())

    async def main() -> str:
        client = Client()
        if not kept:
            kept.append(client)
        del client
        return await shop.post(text="x")

    run = shop.app.record(main)
    report = shop.replay(run, main)
    assert report.passed, report.text()


def test_tasks_that_were_never_awaited_stay_so(shop: Shop) -> None:
    keep: set[Any] = set()

    async def background() -> str:
        return await shop.post(text="background")

    async def main() -> str:
        task = asyncio.create_task(background())
        keep.add(task)
        task.add_done_callback(keep.discard)
        await asyncio.sleep(0)
        async with asyncio.TaskGroup() as group:
            group.create_task(shop.post(text="a"))
        return "done"

    run = shop.app.record(main)
    assert sorted(shop.sent) == ["a", "background"]
    assert shop.replay(run, main).passed
    assert sorted(shop.sent) == ["a", "background"]


@pytest.mark.parametrize("dropped", [False, True])
def test_a_task_that_goes_on_after_the_end_is_waited_for(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, dropped: bool
) -> None:
    if dropped:
        monkeypatch.setattr("antiphon.ops.entry.GRACE_S", 0)
    changed = False

    async def background() -> str:
        for _ in range(5):
            await asyncio.sleep(0)
        return await shop.post(text="background")

    async def main() -> str:
        if not (changed and dropped):
            asyncio.get_running_loop().create_task(background())
        return await shop.post(text="now")

    run = shop.app.record(main)
    assert shop.sent == ["now", "background"]
    assert run.late_calls == 1
    changed = True
    report = shop.replay(run, main)
    assert report.passed != dropped, report.text()
    assert shop.sent == ["now", "background"]


@pytest.mark.parametrize("waits", [asyncio.Event.wait, anyio.Event.wait, asyncio.Queue.get])
def test_a_framework_that_cancels_its_own_wait_is_no_divergence(shop: Shop, waits: Any) -> None:
    """A replay answers sooner or elsewhere than the world: frameworks then cancel what they only wait with."""
    runs: list[bool] = []

    async def agent() -> str:
        event: Any = anyio.Event if "anyio" in waits.__module__ else asyncio.Event
        thing: Any = asyncio.Queue() if waits.__name__ == "get" else event()
        task = asyncio.create_task(getattr(thing, waits.__name__)())
        await asyncio.sleep(0)
        if runs:
            task.cancel()
        elif hasattr(thing, "set"):
            thing.set()
        else:
            thing.put_nowait(1)
        runs.append(True)
        await asyncio.wait([task])
        return "done"

    run = shop.app.record(agent)
    report = antiphon.replay(run, app=shop.app, mode="strict", function=agent, keep=False)
    assert report.passed, report.text()

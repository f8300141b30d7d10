"""Rules that need several processes: for stores that processes share."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from antiphon._drive import drive
from antiphon.ports import Claimed, Journal, Store
from antiphon.testing._harness import TTL_MS, Face, Harness, claimed, done, existing, must

PROCESSES, KEYS = 4, 25

_spawn = multiprocessing.get_context("spawn")


class ProcessRules(Harness):
    """One method per rule. The function that makes the store is pickled and called in each process."""

    async def process_rule_one_of_many_processes_begins(self, j: Journal) -> None:
        """Processes that race for the same keys: each key is claimed by exactly one."""
        won = self._race("begin")
        must(sorted(key for keys in won for key in keys) == list(range(KEYS)), f"each key once: {won}")

    async def process_rule_log_is_gap_free_across_processes(self, j: Journal) -> None:
        """Processes that write one run: every number once."""
        self._race("append")
        events = await j.events(self.key("run"), limit=10 * PROCESSES * KEYS)
        must([event.seq for event in events] == list(range(PROCESSES * KEYS)), "no gap, nothing twice")
        must(len({event.type for event in events}) == PROCESSES * KEYS, "nothing lost")

    async def process_rule_killed_between_claim_and_settle(self, j: Journal) -> None:
        """A claim whose process died stays claimed, is seen past its lease, and goes to exactly one successor."""
        here, there = _spawn.Pipe()
        child = _spawn.Process(target=_claim_and_hang, args=(self, there), daemon=True)
        child.start()
        version = here.recv()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        key = self.key()
        seen = existing(await j.begin(self.request(key, "call-2")))
        must((seen.current.state, seen.current.version) == ("inflight", version), "the claim outlives its process")
        events = await j.events(self.key("run"))
        must([event.type for event in events] == ["call.started"], "and so does the event written with it")
        successors = await self.together(
            j,
            [lambda journal, n=n: journal.take_over(self.request(key, f"next-{n}"), version) for n in range(4)],  # type: ignore[misc]
        )
        must(sum(isinstance(answer, Claimed) for answer in successors) == 1, "exactly one takes it over")
        must(await j.settle(key, version, done()) is None, "the dead one's version is fenced")

    async def process_rule_settle_in_another_process_wakes(self, j: Journal) -> None:
        """A waiter learns of a settlement in another process long before its own patience ends."""
        import time

        here, there = _spawn.Pipe()
        child = _spawn.Process(target=_claim_and_settle, args=(self, there), daemon=True)
        child.start()
        version = here.recv()
        here.send("settle soon")
        started = time.monotonic()
        await j.wait(self.key(), version, 60)
        must(time.monotonic() - started < 30, "it was woken")
        must(existing(await j.read(self.key())).current.state == "done", "because the claim is settled")
        child.join()

    def _race(self, what: str) -> list[list[int]]:
        pipes = [_spawn.Pipe() for _ in range(PROCESSES)]
        children = [
            _spawn.Process(target=_racer, args=(self, what, number, there), daemon=True)
            for number, (_, there) in enumerate(pipes)
        ]
        for child, (_, there) in zip(children, pipes, strict=True):
            child.start()
            there.close()  # so that the end of a process is the end of its pipe
        for here, _ in pipes:
            must(here.recv() == "ready", "a process did not start")
        for here, _ in pipes:
            here.send("go")
        results = [here.recv() for here, _ in pipes]
        for child in children:
            child.join()
        return results

    def __getstate__(self) -> dict[str, Any]:
        return {"make": self.make, "face": self.face, "name": self.name, "tenant": self.tenant}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, store=state["make"](), _advance=None)


def _racer(harness: ProcessRules, what: str, number: int, pipe: Connection) -> None:
    async def race() -> list[int]:
        journal = harness.open()
        await journal.ping()
        pipe.send("ready")
        pipe.recv()
        won = []
        for n in range(KEYS):
            if what == "begin":
                answer = await journal.begin(harness.request(harness.key(f"{n}"), f"call-{number}"))
                if isinstance(answer, Claimed):
                    won.append(n)
            else:
                await journal.append(harness.key("run"), harness.rows(harness.key("run"), f"{number}.{n}"))
        await journal.close()
        return won

    pipe.send(_run(harness.face, race))


def _claim_and_hang(harness: ProcessRules, pipe: Connection) -> None:
    async def claim() -> None:
        journal = harness.open()
        rows = harness.rows(harness.key("run"), "call.started")
        held = claimed(await journal.begin(harness.request(harness.key(), lease_ms=TTL_MS), rows))
        pipe.send(held.version)
        pipe.recv()  # for ever

    _run(harness.face, claim)


def _claim_and_settle(harness: ProcessRules, pipe: Connection) -> None:
    async def claim() -> None:
        journal = harness.open()
        held = claimed(await journal.begin(harness.request(harness.key())))
        pipe.send(held.version)
        pipe.recv()
        await harness.sleep(0.3)
        await journal.settle(harness.key(), held.version, done())
        await journal.close()

    _run(harness.face, claim)


def _run(face: Face, work: Callable[[], Any]) -> Any:
    if face == "sync":
        return drive(work())
    import asyncio

    return asyncio.run(work())


Make = Callable[[], Store]

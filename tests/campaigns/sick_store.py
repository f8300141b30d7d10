"""A server that freezes or is killed under load: deadlines, second dispatches, results in hand.

    python -m tests.campaigns.sick_store [--store redis|postgres] [--fault freeze|kill] [--face sync|async]

Prints one line of JSON per combination. Wanted: ``lateMs`` at most 250, ``doubles`` 0, ``inHandRecorded`` 100 %.
``lateOwnMs`` is the part of it in which this process had a core.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import sys
import threading
import time
from collections import Counter
from typing import Any

from antiphon import AsyncGateway, Gateway
from antiphon.stores import PostgresStore, RedisStore
from tests.servers import Postgres, Server, Valkey
from tests.ticks import Ticks
from tests.unit.gateway.kit import envelope

DEADLINE_S = 1.0
WORKERS = 8
PAUSE_S = 0.05
"""After a refusal: each refused order is delivered again in the end, to a store that writes every call to its disk."""


class Load:
    """Calls of several workers, each with a deadline, and what came of them."""

    def __init__(self, deadline_s: float, workers: int, ticks: Ticks) -> None:
        self.ticks = ticks
        self.late_own_s: list[float] = []
        self.deadline_s = deadline_s
        self.workers = workers
        self.effects: Counter[str] = Counter()
        self.answers: dict[str, Any] = {}
        self.late_s: list[float] = []
        self.stop = threading.Event()
        self.ids = itertools.count()
        self._lock = threading.Lock()

    def send(self, order: str) -> str:
        with self._lock:
            self.effects[order] += 1
        time.sleep(0.01)
        return f"sent {order}"

    async def send_async(self, order: str) -> str:
        with self._lock:
            self.effects[order] += 1
        await asyncio.sleep(0.01)
        return f"sent {order}"

    def wire(self, order: str, deadline_s: float) -> dict[str, Any]:
        return envelope(params={"order": order}, call_id=order, deadline_at_ms=int((time.time() + deadline_s) * 1000))

    def go_on(self, seconds: float, calls: int = 60) -> None:
        """Work for that long, and until there were enough calls on a busy machine, too."""
        until = time.monotonic() + seconds
        while time.monotonic() < until or (len(self.answers) < calls and time.monotonic() < until + 60):
            time.sleep(0.02)

    def took(self, order: str, began: float, result: Any) -> None:
        deadline = began + self.deadline_s
        late = time.monotonic() - deadline
        self.late_s.append(late)
        self.late_own_s.append(min(late, self.ticks.since(deadline)))
        self.answers[order] = result

    def work(self, gateway: Gateway) -> None:
        while not self.stop.is_set():
            order = f"o{next(self.ids)}"
            began = time.monotonic()
            self.took(order, began, gateway.execute(self.wire(order, self.deadline_s)))
            if not self.answers[order].ok:
                time.sleep(PAUSE_S)

    async def work_async(self, gateway: AsyncGateway) -> None:
        while not self.stop.is_set():
            order = f"o{next(self.ids)}"
            began = time.monotonic()
            self.took(order, began, await gateway.execute(self.wire(order, self.deadline_s)))
            if not self.answers[order].ok:
                await asyncio.sleep(PAUSE_S)


def _server(kind: str) -> Server:
    if kind == "redis":
        return Valkey(appendonly=True, appendfsync="always")
    return Postgres(settings={"fsync": "on", "synchronous_commit": "on"})


def _break(server: Server, fault: str, seconds: float) -> None:
    """Break the server under load, leave it so, and repair it."""
    time.sleep(0.7)
    (server.pause if fault == "freeze" else server.kill)()
    time.sleep(seconds)
    (server.resume if fault == "freeze" else server.start)()


def _settled(gateway: Any, patience_s: float = 60.0) -> None:
    leases = gateway._plans.leases
    until = time.monotonic() + patience_s
    while (leases.breaker.is_open or leases._unfinished) and time.monotonic() < until:
        time.sleep(0.02)


def run(
    kind: str, fault: str, face: str, seconds: float, deadline_s: float = DEADLINE_S, workers: int = WORKERS
) -> dict[str, Any]:
    """Break a server under load; the numbers."""
    with _server(kind) as server, Ticks() as ticks:
        load = Load(deadline_s, workers, ticks)
        store: Any = RedisStore(server.url) if kind == "redis" else PostgresStore(server.url)
        again: dict[str, Any] = {}
        if face == "sync":
            gateway = Gateway(store=store)
            gateway.tool("send", idempotent=False, effect="write")(load.send)
            gateway.execute(load.wire("warm", 30.0))
            threads = [threading.Thread(target=load.work, args=(gateway,)) for _ in range(load.workers)]
            for worker in threads:
                worker.start()
            _break(server, fault, seconds)
            load.go_on(1.0)
            load.stop.set()
            for worker in threads:
                worker.join()
            _settled(gateway)
            again = {order: gateway.execute(load.wire(order, 30.0)) for order in load.answers}
            gateway.close()
        else:
            asyncio.run(_async(load, store, server, fault, seconds, again))
    in_hand = [order for order, answer in load.answers.items() if answer.ok]
    not_recorded = [order for order in in_hand if answer_note(load.answers[order], "notRecorded")]
    return {
        "store": kind,
        "fault": fault,
        "face": face,
        "calls": len(load.answers),
        "deadlineMs": deadline_s * 1000,
        "lateMs": round(max(load.late_s) * 1000),
        "lateOwnMs": round(max(load.late_own_s) * 1000),
        "refusedAtOnceMs": round(
            sorted(
                late + deadline_s
                for late, answer in zip(load.late_s, load.answers.values(), strict=True)
                if not answer.ok
            )[len(load.answers) - len(in_hand) >> 1]
            * 1000,
            1,
        )
        if len(in_hand) < len(load.answers)
        else None,
        "doubles": sum(number > 1 for number in load.effects.values()),
        "notRecordedAtFirst": len(not_recorded),
        "inHandRecorded": f"{sum(again[order].from_cache for order in in_hand)}/{len(in_hand)}",
        "unknown": sum(1 for answer in again.values() if answer.code == "outcome_unknown"),
    }


def answer_note(answer: Any, name: str) -> Any:
    """What the metadata of an answer say."""
    metadata = getattr(answer.output, "metadata", None)
    return metadata.get(name) if isinstance(metadata, dict) else None


async def _async(load: Load, store: Any, server: Server, fault: str, seconds: float, again: dict[str, Any]) -> None:
    gateway = AsyncGateway(store=store)
    gateway.tool("send", idempotent=False, effect="write")(load.send_async)
    await gateway.execute(load.wire("warm", 30.0))
    workers = [asyncio.create_task(load.work_async(gateway)) for _ in range(load.workers)]
    await asyncio.to_thread(_break, server, fault, seconds)
    await asyncio.to_thread(load.go_on, 1.0)
    load.stop.set()
    await asyncio.gather(*workers)
    await asyncio.to_thread(_settled, gateway)
    for order in load.answers:
        again[order] = await gateway.execute(load.wire(order, 30.0))
    await gateway.close()


def main() -> int:
    """Every combination that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["redis", "postgres"])
    parser.add_argument("--fault", choices=["freeze", "kill"])
    parser.add_argument("--face", choices=["sync", "async"])
    parser.add_argument("--seconds", type=float, default=3.0)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    bad = 0
    for kind in [asked.store] if asked.store else ["redis", "postgres"]:
        for fault in [asked.fault] if asked.fault else ["freeze", "kill"]:
            for face in [asked.face] if asked.face else ["sync", "async"]:
                found = run(kind, fault, face, asked.seconds)
                print(json.dumps(found), flush=True)
                recorded, _, in_hand = found["inHandRecorded"].partition("/")
                bad += found["lateMs"] > 250 or found["doubles"] > 0 or recorded != in_hand
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

"""Signals and cancellations at random instructions of a call: no orphan, no false unknown, nothing twice.

    python -m tests.campaigns.signals [--count 10000] [--store sqlite|redis|postgres] [--face sync|async] [--seed 1]

A timer sends real signals to the main thread, whose handler raises ``KeyboardInterrupt`` at whatever instruction of
the gateway, the store or its client is reached; one in five is followed by a second one. In an event loop, tasks are
cancelled after a random number of steps, some of them twice. Then every call is delivered again.

Prints one line of JSON per combination, and the sum. Wanted: ``orphans`` (claims in flight of a living process),
``falseUnknowns`` (unknown outcomes of a tool that was never entered), ``doubles`` and ``held`` (leases that are still
renewed): 0.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from antiphon import AsyncGateway, Gateway
from antiphon.stores import MemoryStore, PostgresStore, RedisStore, SQLiteStore
from tests.interrupts import causes
from tests.servers import Postgres, Valkey
from tests.unit.gateway.kit import envelope

STORES = ("sqlite", "redis", "postgres")
FACES = ("sync", "async")
AT_ONCE = 20
LONGEST_WAIT_S = 60.0


class Shop:
    """Counts how often its tool was entered for an order."""

    def __init__(self) -> None:
        self.entered: Counter[str] = Counter()
        self.frames: set[str] = set()
        """Orders whose tool was interrupted at its first instruction: entered, before it could count."""

    def send(self, order: str) -> str:
        self.entered[order] += 1
        return f"sent {order}"

    async def send_async(self, order: str) -> str:
        self.entered[order] += 1
        await asyncio.sleep(0)
        return f"sent {order}"

    def interrupted_at(self, order: str, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is Shop.send.__code__:
                self.frames.add(order)
            frame = frame.f_back

    def was_entered(self, order: str) -> bool:
        return self.entered[order] > 0 or order in self.frames


def wire(order: str) -> dict[str, Any]:
    return envelope(params={"order": order}, call_id=order)


@contextlib.contextmanager
def store_of(kind: str) -> Iterator[Any]:
    """A store of its own, without waiting for disks: nothing is killed here."""
    if kind == "memory":
        yield MemoryStore()
    elif kind == "sqlite":
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a thread may still look at it
            yield SQLiteStore(Path(folder) / "claims.db", "NORMAL")
    elif kind == "redis":
        with Valkey() as server:
            yield RedisStore(server.url)
    else:
        with Postgres() as server:
            yield PostgresStore(server.url)


# -- threads ---------------------------------------------------------------------------------------------------------


class Alarm:
    """Sends this thread a signal after a random time, and perhaps a second one."""

    def __init__(self, chance: random.Random, shop: Shop) -> None:
        self.chance = chance
        self.shop = shop
        self.order = ""
        self.fired = 0
        self.span_s = 0.001
        self._again_s = 0.0

    def _handle(self, _: int, frame: FrameType | None) -> None:
        self.fired += 1
        self.shop.interrupted_at(self.order, frame)
        again, self._again_s = self._again_s, 0.0
        if again:
            signal.setitimer(signal.ITIMER_REAL, again)
        raise KeyboardInterrupt

    def __enter__(self) -> Alarm:
        self._before = signal.signal(signal.SIGALRM, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self.off()
        signal.signal(signal.SIGALRM, self._before)

    def set(self) -> None:
        self._again_s = self.chance.uniform(1e-5, 3e-4) if self.chance.random() < 0.2 else 0.0
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, self.chance.uniform(0.0, self.span_s)))

    def off(self) -> None:
        self._again_s = 0.0
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _interrupt_sync(gateway: Gateway, shop: Shop, count: int, chance: random.Random) -> tuple[list[str], int, int]:
    """Calls until so many signals came; the orders, the signals, and how many calls were interrupted."""
    orders: list[str] = []
    interrupted = 0

    def one(order: str, asked: dict[str, Any]) -> None:
        nonlocal interrupted
        try:
            alarm.set()
            gateway.execute(asked)
            alarm.off()
            alarm.span_s *= 0.9  # about three calls in four are interrupted, anywhere between begin and end
        except BaseException as error:  # a second one may have made something else of it inside a lock or a thread
            if not any(isinstance(one, KeyboardInterrupt) for one in causes(error)):
                raise
            interrupted += 1
            alarm.span_s *= 1.03
            alarm.off()

    with Alarm(chance, shop) as alarm:
        for warm in range(20):
            began = time.perf_counter()
            gateway.execute(wire(f"warm-{warm}"))
            alarm.span_s = 1.1 * (time.perf_counter() - began)
        while alarm.fired < count:
            order = f"o{len(orders)}"
            orders.append(order)
            alarm.order = order
            try:
                one(order, wire(order))
            except KeyboardInterrupt:  # the second one came so late
                alarm.off()
    return orders, alarm.fired, interrupted


# -- event loops -----------------------------------------------------------------------------------------------------


async def _interrupt_async(gateway: AsyncGateway, shop: Shop, count: int, chance: random.Random) -> Any:
    orders: list[str] = []
    sent = interrupted = 0

    async def one(order: str) -> None:
        nonlocal sent, interrupted
        task = asyncio.ensure_future(gateway.execute(wire(order)))
        by_time, steps = chance.random() < 0.5, chance.randrange(8)
        for cancel in range(2 if chance.random() < 0.2 else 1):
            if by_time or cancel:
                await asyncio.sleep(chance.uniform(0.0, 0.004 if not cancel else 0.002))
            else:
                for _ in range(steps):
                    await asyncio.sleep(0)
            if task.done():
                break
            sent += 1
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            interrupted += 1

    for warm in range(20):
        await gateway.execute(wire(f"warm-{warm}"))
    while sent < count:
        some = [f"o{len(orders) + n}" for n in range(AT_ONCE)]
        orders += some
        await asyncio.gather(*(one(order) for order in some))
    return orders, sent, interrupted


# -- what is left ----------------------------------------------------------------------------------------------------


def _settled(gateway: Any) -> int:
    """Leases that are still renewed once the process's own thread has done what was left to it."""
    leases = gateway._plans.leases
    until = time.monotonic() + LONGEST_WAIT_S
    while (leases._unfinished or leases._held or leases.breaker.is_open) and time.monotonic() < until:
        time.sleep(0.02)
    return len(leases._held) + len(leases._unfinished)


def _orphans(store: Any) -> set[str]:
    """Orders whose claim is in flight although nobody works on them."""
    journal = store.open_sync()
    try:
        found = journal.list(tenant="default", state="inflight", limit=100_000)
        return {record.request.tool_call_id or record.key for record in found}
    finally:
        journal.close()


def _judged(
    shop: Shop, orders: list[str], orphans: set[str], answers: dict[str, Any], before: set[str]
) -> Counter[str]:
    """*before*: the orders whose tool had been entered when they were delivered again."""
    counts: Counter[str] = Counter(orphans=len(orphans), falseUnknowns=0, doubles=0, refused=0)
    for order in orders:
        counts["doubles"] += shop.entered[order] > 1
        if order in orphans:
            continue
        answer = answers[order]
        unknown = answer.code == "outcome_unknown"
        counts["falseUnknowns"] += unknown and order not in before
        counts["unknowns"] += unknown
        counts["refused"] += not answer.ok and not unknown
    return counts


def run(kind: str, face: str, count: int, seed: int = 1) -> dict[str, Any]:
    """Interrupt calls of one face on one store; the numbers."""
    chance, shop, began = random.Random(f"{seed} {kind} {face}"), Shop(), time.monotonic()
    with store_of(kind) as store:
        if face == "sync":
            gateway = Gateway(store=store)
            gateway.tool("send", idempotent=False, effect="write")(shop.send)
            orders, sent, interrupted = _interrupt_sync(gateway, shop, count, chance)
            held, orphans = _settled(gateway), _orphans(store)
            before = {order for order in orders if shop.was_entered(order)}
            answers = {order: gateway.execute(wire(order)) for order in orders if order not in orphans}
            gateway.close()
        else:
            orders, sent, interrupted, held, orphans, before, answers = asyncio.run(_async(store, shop, count, chance))
    counts = _judged(shop, orders, orphans, answers, before)
    return {
        "store": kind,
        "face": face,
        "signals": sent,
        "calls": len(orders),
        "interrupted": interrupted,
        "neverEntered": len(orders) - len(before),
        "held": held,
        **counts,
        "seconds": round(time.monotonic() - began, 1),
    }


async def _async(store: Any, shop: Shop, count: int, chance: random.Random) -> Any:
    gateway = AsyncGateway(store=store)
    gateway.tool("send", idempotent=False, effect="write")(shop.send_async)
    orders, sent, interrupted = await _interrupt_async(gateway, shop, count, chance)
    held, orphans = await asyncio.to_thread(_settled, gateway), await asyncio.to_thread(_orphans, store)
    before = {order for order in orders if shop.was_entered(order)}
    answers = {order: await gateway.execute(wire(order)) for order in orders if order not in orphans}
    await gateway.close()
    return orders, sent, interrupted, held, orphans, before, answers


def is_bad(found: dict[str, Any]) -> bool:
    return any(found[name] for name in ("orphans", "falseUnknowns", "doubles", "held", "refused"))


def main() -> int:
    """Every combination that was asked for, and the sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=STORES)
    parser.add_argument("--face", choices=FACES)
    parser.add_argument("--count", type=int, default=10_000, help="signals and cancellations altogether")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda _: None  # a signal that came in a finalizer, where Python cannot raise it
    chosen = [
        (kind, face)
        for kind in ([asked.store] if asked.store else STORES)
        for face in ([asked.face] if asked.face else FACES)
    ]
    total: Counter[str] = Counter()
    bad = False
    for kind, face in chosen:
        found = run(kind, face, -(-asked.count // len(chosen)), asked.seed)
        print(json.dumps(found), flush=True)
        bad = bad or is_bad(found)
        total.update({name: number for name, number in found.items() if not isinstance(number, str)})
    print(json.dumps({"sum": {**total, "seconds": round(total["seconds"], 1)}}), flush=True)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())

"""D1, D2, D16: four processes with 64 callers each; every intent is dispatched once, and everybody gets its answer."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from typing import Any

from tests.faults.fleet_kit import Effects, envelope, fleet, open_async_gateway

PROCESSES, CALLERS, SHARED = 4, 64, 6


def _worker(url: str, effects: Effects, number: int, pipe: Connection) -> None:
    asyncio.run(_calls(url, effects, number, pipe))


async def _calls(url: str, effects: Effects, number: int, pipe: Connection) -> None:
    gateway = open_async_gateway(url, loop={"enabled": False})

    @gateway.tool(idempotent=False)
    async def charge(order: str) -> str:
        effects.add(f"charge:{order}")
        await asyncio.sleep(0.05)
        return f"charged by {number}"

    @gateway.tool(idempotent=True, reuse="session")
    async def look_up(name: str) -> str:
        effects.add(f"look_up:{name}")
        await asyncio.sleep(0.05)
        return f"seen by {number}"

    answers: dict[str, set[str]] = {}

    async def charged(order: str, call_id: str) -> None:
        result = await gateway.execute(envelope("charge", {"order": order}, call_id, key=order))
        assert result.status == "success", result.to_wire()
        answers.setdefault(f"charge:{order}", set()).add(result.output.content)  # type: ignore[union-attr]

    async def caller(n: int) -> None:
        for k in range(SHARED):
            await charged(f"shared-{k}", f"{number}.{n}.{k}")
            answers.setdefault(f"look_up:shared-{k}", set()).add(await look_up(f"shared-{k}"))
        await charged(f"own-{number}-{n}", f"own-{number}.{n}")

    async with gateway:
        await charged(f"warm-{number}", f"warm-{number}")
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        await asyncio.gather(*(caller(n) for n in range(CALLERS)))
    pipe.send(answers)


def test_identical_and_distinct_calls_of_a_fleet_are_dispatched_once(fleet_url: str, effects: Effects) -> None:
    with fleet(_worker, fleet_url, effects, size=PROCESSES) as workers:
        for worker in workers:
            worker.say("go")
        seen: list[dict[str, Any]] = [worker.hear(240) for worker in workers]
    counts = effects.counts()
    expected = {f"{tool}:shared-{k}" for tool in ("charge", "look_up") for k in range(SHARED)}
    expected |= {f"charge:own-{number}-{n}" for number in range(PROCESSES) for n in range(CALLERS)}
    expected |= {f"charge:warm-{number}" for number in range(PROCESSES)}
    assert set(counts) == expected
    assert set(counts.values()) == {1}, "nothing ran twice"
    for intent in (f"{tool}:shared-{k}" for tool in ("charge", "look_up") for k in range(SHARED)):
        assert len(set().union(*(answers[intent] for answers in seen))) == 1, "everybody got the same answer"

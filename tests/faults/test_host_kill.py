"""kill −9 of the host in the midst of 200 runs: each is finished or resumed, and no effect is dispatched twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.server import workflows
from tests.integration.server.harness import Client, Served

RUNS = 200
TOOL = '''
import os, time
import antiphon
from antiphon.stores import MemoryStore

gateway = antiphon.Gateway(store=MemoryStore())

@gateway.tool(idempotent=False, namespace="effects", effect="write")
def perform(number: int) -> dict:
    """Append a line, the way a payment provider would book a payment."""
    handle = os.open({book!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{{number}}\\n".encode())
    os.close(handle)
    time.sleep(0.01)
    return {{"number": number}}
'''


def _flow() -> dict[str, Any]:
    bound = {"number": {"type": "variable", "variableName": "number"}}
    nodes = [
        workflows.node("first", "core.conformance.hold", {"delayMs": 20}),
        workflows.node("effect", "tool:effects/perform", None, bound),
        workflows.node("last", "core.conformance.hold", {"delayMs": 20}),
    ]
    return workflows.workflow("booking", nodes, [workflows.variable("number", "number", required=True)])


async def _start(client: Client, number: int) -> str | None:
    body = {"workflowId": "booking", "inputs": {"number": number}}
    headers = {"Idempotency-Key": f"booking-{number:06d}-0123456789"}
    try:
        answer = await client.post("/v1/runs", json=body, headers=headers)
    except httpx.HTTPError:
        return None
    return str(answer.json()["runId"]) if answer.status_code == 201 else None


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_no_run_is_lost_and_no_effect_happens_twice(tmp_path: Path, workers: str) -> None:
    book = tmp_path / "book.txt"
    (tmp_path / "effects.py").write_text(TOOL.format(book=str(book)))
    config = tmp_path / "antiphon.toml"
    config.write_text(f'[host]\ntools = ["{tmp_path}/effects.py"]\n')
    served = Served(tmp_path, workflows.write(tmp_path / "flows", _flow()))
    words = ("--config", str(config), "--workers", workers)
    started: dict[int, str] = {}
    try:
        served.start(*words)
        for kill in range(3):
            async with served.client(limits=httpx.Limits(max_connections=32)) as client:
                wave = range(kill * RUNS // 4, (kill + 1) * RUNS // 4)
                tasks = {number: asyncio.create_task(_start(client, number)) for number in wave}
                while sum(task.done() for task in tasks.values()) < len(tasks) // 2:
                    await asyncio.sleep(0.005)
                served.kill()
                for number, task in tasks.items():
                    with contextlib.suppress(httpx.HTTPError):
                        if (run := await task) is not None:
                            started[number] = run
            served.start(*words)
        async with served.client(limits=httpx.Limits(max_connections=32)) as client:
            known = dict(started)
            for number in range(RUNS):  # every client asks again with its key
                run = None
                while run is None:
                    run = await _start(client, number)
                assert known.get(number, run) == run, "the same key gives the same run"
                started[number] = run
            ended = await asyncio.gather(*(client.ended(run, 60) for run in started.values()))
            kinds = Counter((one["status"], one.get("error", {}).get("code")) for one in ended)
            assert set(kinds) <= {("completed", None), ("failed", "outcome_unknown")}, kinds
            assert kinds[("completed", None)] > RUNS // 2
            listed = (await client.get("/v1/runs", params={"limit": 200})).json()["runs"]
            assert len(listed) == len(set(started.values())) == RUNS
        performed = Counter(int(line) for line in book.read_text().split())
        assert max(performed.values()) == 1, "an effect was dispatched twice"
        completed = {int(one["variables"]["number"]) for one in ended if one["status"] == "completed"}
        assert completed <= set(performed), "a run says it is complete without its effect"
        assert served.stop() in (0, -15)
    finally:
        if served.process is not None and served.process.poll() is None:
            served.kill()

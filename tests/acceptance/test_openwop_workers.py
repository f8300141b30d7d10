"""Several worker processes behind one port act as one host."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.server import workflows
from tests.integration.server.harness import observable, serving

KEYED = {"Idempotency-Key": "one-key-for-all-workers"}
START = {"workflowId": "conformance-idempotent", "inputs": {"nonce": "1"}}


async def test_workers_share_runs_keys_cancellations_and_stop_cleanly(tmp_path: Path) -> None:
    flows = workflows.write(tmp_path / "flows")
    with serving(tmp_path, flows, "--workers", "2") as served:
        async with served.client() as client:
            answers = await asyncio.gather(*(client.post("/v1/runs", json=START, headers=KEYED) for _ in range(24)))
            assert {answer.status_code for answer in answers} == {201}
            assert len({answer.json()["runId"] for answer in answers}) == 1
            runs = await asyncio.gather(*(client.run("conformance-phase4-nondet-tool") for _ in range(12)))
            assert {run["status"] for run in runs} == {"completed"}
            fork = await client.fork(runs[0]["runId"])
            await client.ended(fork)
            assert observable(await client.events(fork)) == observable(await client.events(runs[0]["runId"]))
        for _ in range(4):
            async with served.client() as client:  # a new connection may reach another worker
                run = await client.start("conformance-cancellable", {"delayMs": 30_000})
            async with served.client() as client:
                await client.post(f"/v1/runs/{run}/cancel")
                assert (await client.ended(run))["status"] == "cancelled"
        assert served.stop() in (0, -15)

"""The same host on PostgreSQL, on Redis, and on both together: runs, forks, keys, idempotency, resumption."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette

from antiphon.host.http.app import create
from tests.integration.server.harness import Client, in_process, observable

KEYED = {"Idempotency-Key": "the-same-everywhere-0123456789"}
START = {"workflowId": "conformance-idempotent", "inputs": {"nonce": "1"}}


@pytest.fixture(params=["postgres", "redis", "redis+postgres"])
def store(request: pytest.FixtureRequest, unique: str) -> dict[str, Any]:
    def postgres() -> str:
        return str(request.getfixturevalue("postgres_database"))

    def redis() -> str:
        return f"{request.getfixturevalue('valkey_url')}?antiphon_prefix={unique}"

    if request.param == "postgres":
        return {"url": postgres()}
    if request.param == "redis":
        return {"url": redis()}
    return {"claims": redis(), "log": postgres()}


@pytest.fixture
def application(store: dict[str, Any], folder: Path, unique: str) -> Callable[[], Starlette]:
    """Hosts on one store; the tenant is this test's own."""
    settings = {"store": store, "gateway": {"tenant": unique}, "host": {"workflows": str(folder), "test_seams": True}}
    return lambda: create(settings)


async def test_runs_forks_keys_and_resumption(application: Callable[[], Starlette], unique: str) -> None:
    async with in_process(application()) as client, in_process(application()) as other:
        runs = await asyncio.gather(*(client.run("conformance-phase4-nondet-tool") for _ in range(8)))
        assert {run["status"] for run in runs} == {"completed"}
        fork = await other.fork(runs[0]["runId"])
        await other.ended(fork)
        assert observable(await other.events(fork)) == observable(await client.events(runs[0]["runId"]))
        answers = await asyncio.gather(*(c.post("/v1/runs", json=START, headers=KEYED) for c in (client, other) * 5))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.json()["runId"] for answer in answers}) == 1
        effect = await client.run("conformance-replay-side-effect", {"delayMs": 1})
        assert effect["status"] == "completed"
        token, key = await client.host.keys.create(role="read", tenant=f"{unique}-other")
        await other.host.keys.refresh(0.0)
        headers = {"Authorization": f"Bearer {token}"}
        assert (await other.get("/v1/runs", headers=headers)).json() == {"runs": [], "next": None}
        await client.host.keys.revoke(key.id)
        await other.host.keys.refresh(0.0)
        assert (await other.get("/v1/runs", headers=headers)).status_code == 401
        await _resumed_by_the_other(client, other)


async def _resumed_by_the_other(client: Client, other: Client) -> None:
    run = await client.start("conformance-cancellable", {"delayMs": 800})
    await asyncio.sleep(0.2)
    local = client.host.running.pop(run)
    assert local.task is not None
    local.task.cancel()
    await asyncio.wait((local.task,))
    manifest = await client.host.journal.manifest(run)
    assert manifest is not None
    tags = {**manifest.tags, "executor": "gone.1.2.3/x"}
    await client.host.journal.update_run(msgspec.structs.replace(manifest, tags=tags))
    assert await other.host.resume_orphans() == 1
    assert (await client.ended(run))["status"] == "completed"
    assert [event["sequence"] for event in await client.events(run)] == [0, 1, 2, 3]

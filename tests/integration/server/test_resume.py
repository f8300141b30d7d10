"""Runs that outlive the process that began them; leases; redacted logs; graceful shutdown."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.host import worker_lease
from antiphon.host.host import Host
from tests.integration.server import workflows
from tests.integration.server.harness import Client, application, in_process, observable

DEAD = "0badb007.4026531836.999999.1"


async def _abandon(client: Client, run: str, executor: str = DEAD) -> None:
    """Make the run look as if its process had been killed."""
    host: Host = client.host
    local = host.running[run]
    assert local.task is not None
    local.task.cancel()
    await asyncio.wait((local.task,))
    host.running.pop(run, None)
    manifest = await host.journal.manifest(run)
    assert manifest is not None
    assert manifest.status == "running"
    await host.journal.update_run(msgspec.structs.replace(manifest, tags={**manifest.tags, "executor": executor}))


async def test_an_abandoned_run_is_resumed_where_it_was(client: Client) -> None:
    run = await client.start("conformance-replay-ordinal-loop", {"delayMs": 300})
    while len(await client.events(run)) < 6:
        await asyncio.sleep(0.02)
    before = observable(await client.events(run))
    await _abandon(client, run)
    assert await client.host.resume_orphans() == 1
    snapshot = await client.ended(run)
    assert snapshot["status"] == "completed"
    events = await client.events(run)
    assert observable(events)[: len(before)] == before
    assert [event["sequence"] for event in events] == list(range(13))
    fork = await client.fork(run)
    await client.ended(fork)
    assert observable(await client.events(fork)) == observable(events)


async def test_only_one_of_many_hosts_resumes(tmp_path: Path, folder: Path) -> None:
    async with in_process(application(tmp_path, folder)) as client:
        run = await client.start("conformance-cancellable", {"delayMs": 400})
        await asyncio.sleep(0.1)
        await _abandon(client, run)
        async with in_process(application(tmp_path, folder)) as other:
            found = await asyncio.gather(*(c.host.resume_orphans() for c in (client, other) * 4))
            assert sum(found) + len(other.host.running) >= 1
            assert (await client.ended(run))["status"] == "completed"
            types = [event["type"] for event in await client.events(run)]
            assert types == ["run.started", "node.started", "node.completed", "run.completed"]


async def test_a_run_of_a_living_process_is_left_alone(tmp_path: Path, folder: Path, client: Client) -> None:
    run = await client.start("conformance-cancellable", {"delayMs": 30_000})
    manifest = await client.host.journal.manifest(run)
    assert manifest is not None
    elsewhere = "another-host.1.2.3"
    tags = {**manifest.tags, "executor": elsewhere}
    client.host.running.pop(run)
    await client.host.journal.update_run(msgspec.structs.replace(manifest, tags=tags))
    key = worker_lease._worker_key(elsewhere)
    await client.host.journal.begin(worker_lease.claim_request("host/lease", key, key))
    assert await client.host.resume_orphans() == 0
    await client.host.journal.clear(key)
    assert await client.host.resume_orphans() == 1
    await client.post(f"/v1/runs/{run}/cancel")


async def test_a_process_that_lost_its_lease_writes_nothing(client: Client) -> None:
    run = await client.start("conformance-cancellable", {"delayMs": 200})
    await asyncio.sleep(0.05)
    client.host.lease._until = float("-inf")
    local = client.host.running[run]
    assert local.task is not None
    await asyncio.wait((local.task,))
    assert [event["type"] for event in await client.events(run)] == ["run.started", "node.started"]
    await client.host.lease._take()
    assert await client.host.resume_orphans() == 1
    assert (await client.ended(run))["status"] == "completed"


async def test_a_cancellation_reaches_another_process(tmp_path: Path, folder: Path, client: Client) -> None:
    async with in_process(application(tmp_path, folder)) as other:
        run = await client.start("conformance-cancellable", {"delayMs": 30_000})
        answer = await other.post(f"/v1/runs/{run}/cancel")
        assert answer.json()["status"] in ("cancelling", "cancelled")
        assert (await other.ended(run))["status"] == "cancelled"
        assert run not in client.host.running


@pytest.mark.parametrize("has_key", [True, False])
async def test_an_interrupted_run_with_masked_values_sends_originals_or_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch, has_key: bool
) -> None:
    body = {"workflowId": "conformance-cancellable", "inputs": {"delayMs": 500, "to": "ada@example.org"}}
    run = (await client.post("/v1/runs", json=body)).json()["runId"]
    await asyncio.sleep(0.05)
    await _abandon(client, run)
    if not has_key:
        monkeypatch.setattr("antiphon._recording.seals.KeyRing.key_of", lambda self, manifest: None)
    await client.host.resume_orphans()
    snapshot = await client.ended(run)
    assert snapshot["status"] == ("completed" if has_key else "failed")
    assert has_key or snapshot["error"]["code"] == "resume_redacted"


async def test_a_value_that_was_masked_before_the_interruption_stays_masked(tmp_path: Path) -> None:
    note = {"note": {"type": "variable", "variableName": "note"}}
    nodes = [
        workflows.node("wait", "core.delay", None, workflows.DELAY),
        workflows.node("tell", "core.identity", None, note),
    ]
    variables = [workflows.variable(name, "any") for name in ("delayMs", "password", "note")]
    folder = workflows.write(tmp_path / "flows", workflows.workflow("gate", nodes, variables))
    async with in_process(application(tmp_path, folder)) as client:
        inputs = {"delayMs": 300, "password": "swordfish", "note": "the gate opens with swordfish today"}
        run = await client.start("gate", inputs)
        while len(await client.events(run)) < 2:
            await asyncio.sleep(0.01)
        await _abandon(client, run)
        assert await client.host.resume_orphans() == 1
        snapshot = await client.ended(run)
        assert snapshot["status"] == "completed"
        shown = str([snapshot, await client.events(run)])
        assert "opens with [password:" in shown
        assert "swordfish" not in shown
    assert not [file for file in tmp_path.glob("host.db*") if b"swordfish" in file.read_bytes()]


async def test_a_model_is_not_asked_again_for_what_it_answered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.host.llm import ModelBoundary

    asked, right = 0, ModelBoundary._send

    async def counted(self: ModelBoundary, *arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return await right(self, *arguments)

    monkeypatch.setattr(ModelBoundary, "_send", counted)
    stuck = asyncio.Event()
    checked = ModelBoundary.ask

    async def ask(self: ModelBoundary, visit: Any) -> Any:
        value = await checked(self, visit)
        await asyncio.wait_for(stuck.wait(), 30)
        return value

    monkeypatch.setattr(ModelBoundary, "ask", ask)
    run = await client.start("conformance-phase4-replay-divergence")
    while asked == 0:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    await _abandon(client, run)
    stuck.set()
    await client.host.resume_orphans()
    assert (await client.ended(run))["status"] == "completed"
    assert asked == 1


@pytest.mark.parametrize("words", [10, 8_000, 40_000], ids=["short", "sealed in a blob", "in a blob"])
async def test_an_answer_is_given_as_it_was_however_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: int
) -> None:
    from antiphon.host.llm import ModelBoundary

    answered, checked = asyncio.Event(), ModelBoundary.ask

    async def ask(self: ModelBoundary, visit: Any) -> Any:
        value = await checked(self, visit)
        if not answered.is_set():
            answered.set()
            await asyncio.sleep(30)
        return value

    messages = {"messages": {"type": "static", "value": workflows.MESSAGES}}
    node = workflows.node("ask", "core.llm.chat", {"provider": "mock", "model": "mock-mini"}, messages)
    folder = workflows.write(tmp_path / "flows", workflows.workflow("long", [node]))
    text = "write to ada@example.org " + "so " * words
    async with in_process(application(tmp_path, folder)) as client:
        monkeypatch.setattr(ModelBoundary, "ask", ask)
        await client.program("ask", {"content": text})
        run = await client.start("long")
        await answered.wait()
        await _abandon(client, run)
        await client.host.resume_orphans()
        await client.ended(run)
        shown = await client.get(
            f"/v1/runs/{run}/events", params={"reveal": "true"}, headers={"Accept": "application/json"}
        )
        assert shown.json()["events"][-1]["payload"]["outputs"]["ask"]["text"] == text


@pytest.mark.parametrize("planted", [False, True], ids=["right", "planted bug: a new identity after a crash"])
async def test_an_effect_in_flight_is_not_dispatched_again(
    client: Client, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    from antiphon._gateway.ids import uuid7
    from antiphon.host.workflow.nodes import SIDE_EFFECT_TOOL, NodeExecution

    if planted:
        monkeypatch.setattr(NodeExecution, "key", lambda self, provider, call=0: uuid7())
    dispatched, leave = 0, asyncio.Event()

    async def effect(nodeId: str) -> dict[str, str]:
        nonlocal dispatched
        dispatched += 1
        await leave.wait()
        return {"nodeId": nodeId}

    gateway = client.host.tenant("default").async_gateway
    tool = gateway._plans.tools[SIDE_EFFECT_TOOL]
    effect.__module__, effect.__qualname__ = tool.origin  # as if its module had been loaded again
    gateway.register(effect, tool.spec)
    run = await client.start("conformance-replay-side-effect", {"delayMs": 1})
    while dispatched == 0:
        await asyncio.sleep(0.01)
    await _abandon(client, run)
    leave.set()
    await client.host.resume_orphans()
    snapshot = await client.ended(run)
    if planted:
        assert (dispatched, snapshot["status"]) == (2, "completed")
    else:
        assert (dispatched, snapshot["error"]["code"]) == (1, "outcome_unknown")


async def test_shutdown_lets_short_runs_end_and_leaves_long_ones(tmp_path: Path, folder: Path) -> None:
    async with in_process(application(tmp_path, folder, shutdown_grace_s=1.0)) as client:
        short = await client.start("conformance-delay", {"delayMs": 300})
        long = await client.start("conformance-cancellable", {"delayMs": 2_500})
        await asyncio.sleep(0.1)
    async with in_process(application(tmp_path, folder)) as client:
        assert [event["type"] for event in await client.events(short)][-1] == "run.completed"
        assert (await client.ended(long))["status"] == "completed"
        types = [event["type"] for event in await client.events(long)]
        assert types == ["run.started", "node.started", "node.completed", "run.completed"]


async def test_a_run_is_resumed_once_by_several_requests_at_once(client: Client) -> None:
    run = await client.start("conformance-cancellable", {"delayMs": 300})
    await asyncio.sleep(0.05)
    await _abandon(client, run, client.host.lease.owner)  # as after a write that the store refused
    found = await asyncio.gather(*(client.host.resume_orphans() for _ in range(4)))
    assert sum(found) == 1
    assert (await client.ended(run))["status"] == "completed"
    await asyncio.sleep(0.2)
    types = [event["type"] for event in await client.events(run)]
    assert types == ["run.started", "node.started", "node.completed", "run.completed"]


async def _pause(client: Client) -> None:
    """As if the process had been stopped for longer than its lease."""
    lease = client.host.lease
    lease._until = float("-inf")
    await client.host.journal.renew(lease._key, lease._version, 0)


async def test_a_worker_that_was_paused_leaves_its_runs_to_the_one_that_took_them_over(
    tmp_path: Path, folder: Path, client: Client
) -> None:
    run = await client.start("conformance-cancellable", {"delayMs": 900})
    await asyncio.sleep(0.05)
    await _pause(client)
    async with in_process(application(tmp_path, folder)) as other:
        assert run in other.host.running
        await client.host.lease._renew_once()
        assert client.host.lease.holds()
        while run in client.host.running:
            await asyncio.sleep(0.02)
        while run in other.host.running:
            await asyncio.sleep(0.02)
        types = [event["type"] for event in await other.events(run)]
        assert types == ["run.started", "node.started", "node.completed", "run.completed"]


async def test_a_worker_that_was_paused_goes_on_with_the_runs_that_nobody_took_over(client: Client) -> None:
    run = await client.start("conformance-cancellable", {"delayMs": 300})
    await asyncio.sleep(0.05)
    executing = client.host.running[run]
    await _pause(client)
    await client.host.lease._renew_once()
    assert (await client.ended(run))["status"] == "completed"
    assert executing.state.status == "completed"

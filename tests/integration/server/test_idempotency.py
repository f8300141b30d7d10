"""Layer 1: one request per Idempotency-Key. Layer 2: one effect per logical invocation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from antiphon.host import http_idempotency
from tests.integration.server.harness import Client, application, in_process

START = {"workflowId": "conformance-idempotent", "inputs": {"nonce": "1"}}
KEYED = {"Idempotency-Key": "0123456789-0123456789-abc"}


async def test_the_same_request_again_gives_the_first_answer(client: Client) -> None:
    first = await client.post("/v1/runs", json=START, headers=KEYED)
    again = await client.post("/v1/runs", json=START, headers=KEYED)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert first.headers.get("openwop-Idempotent-Replay") in (None, "false")
    assert again.headers["openwop-Idempotent-Replay"] == "true"
    reordered = b'{"inputs": {"nonce": "1"},   "workflowId": "conformance-idempotent"}'
    third = await client.post("/v1/runs", content=reordered, headers={**KEYED, "Content-Type": "application/json"})
    assert third.json() == first.json()


async def test_another_body_under_the_same_key_is_a_mismatch(client: Client) -> None:
    first = await client.post("/v1/runs", json=START, headers=KEYED)
    other = await client.post("/v1/runs", json={**START, "inputs": {"nonce": "2"}}, headers=KEYED)
    assert (other.status_code, other.json()["error"]) == (409, "idempotency_key_mismatch")
    assert first.json()["runId"] not in other.text


async def test_concurrent_starts_create_one_run(client: Client) -> None:
    answers = await asyncio.gather(*(client.post("/v1/runs", json=START, headers=KEYED) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["runId"] for answer in answers}) == 1
    assert sum("openwop-Idempotent-Replay" not in answer.headers for answer in answers) == 1
    assert len((await client.get("/v1/runs")).json()["runs"]) == 1


async def test_planted_bug_without_the_claim_two_runs_are_made(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon._gateway.ids import uuid7
    from antiphon.host.http import endpoint

    async def careless(journal: Any, *, action: http_idempotency.Action, **_: Any) -> http_idempotency.Reply:
        return await action(uuid7(), False)

    monkeypatch.setattr(endpoint, "once", careless)
    answers = await asyncio.gather(*(client.post("/v1/runs", json=START, headers=KEYED) for _ in range(4)))
    assert len({answer.json()["runId"] for answer in answers}) == 4


async def test_two_hosts_on_one_store_share_the_key(tmp_path: Path, folder: Path) -> None:
    async with (
        in_process(application(tmp_path, folder)) as one,
        in_process(application(tmp_path, folder)) as other,
    ):
        answers = await asyncio.gather(*(c.post("/v1/runs", json=START, headers=KEYED) for c in (one, other) * 5))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.json()["runId"] for answer in answers}) == 1


async def test_endpoints_and_tenants_do_not_share_keys(client: Client) -> None:
    from antiphon.host.api_keys import KeyRing

    ring: KeyRing = client.host.keys
    token, _ = await ring.create(role="run", tenant="other")
    mine = await client.post("/v1/runs", json=START, headers=KEYED)
    theirs = await client.post("/v1/runs", json=START, headers={**KEYED, "Authorization": f"Bearer {token}"})
    assert theirs.status_code == 201
    assert mine.json()["runId"] != theirs.json()["runId"]
    run = mine.json()["runId"]
    await client.ended(run)
    forked = await client.post(f"/v1/runs/{run}:fork", json={"mode": "replay"}, headers=KEYED)
    again = await client.post(f"/v1/runs/{run}:fork", json={"mode": "replay"}, headers=KEYED)
    assert forked.json() == again.json()
    assert again.headers["openwop-Idempotent-Replay"] == "true"
    cancelled = await client.post(f"/v1/runs/{run}/cancel", json={}, headers=KEYED)
    assert (cancelled.status_code, "openwop-Idempotent-Replay" in cancelled.headers) == (200, False)


async def test_refused_requests_do_not_use_up_the_key(client: Client) -> None:
    bad = await client.post("/v1/runs", json={"workflowId": "nobody"}, headers=KEYED)
    assert bad.status_code == 404
    worse = await client.post("/v1/runs", json={"workflowId": "conformance-idempotent"}, headers=KEYED)
    assert worse.status_code == 400
    good = await client.post("/v1/runs", json=START, headers=KEYED)
    assert (good.status_code, "openwop-Idempotent-Replay" in good.headers) == (201, False)


@pytest.mark.parametrize("given", ["", "a b", "ü", "x" * 256, "\x7f"])
async def test_bad_keys_are_refused(client: Client, given: str) -> None:
    answer = await client.post("/v1/runs", json=START, headers={b"idempotency-key": given.encode("latin-1")})
    assert (answer.status_code, answer.json()["error"]) == (400, "idempotency_key_invalid")


async def test_a_request_still_in_flight_answers_409(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.host import runs

    entered, leave = asyncio.Event(), asyncio.Event()
    right = runs.start_run

    async def slow(*arguments: Any) -> dict[str, Any]:
        entered.set()
        await leave.wait()
        return await right(*arguments)

    monkeypatch.setattr(runs, "start_run", slow)
    monkeypatch.setattr(http_idempotency, "_WAIT_S", 0.2)
    first = asyncio.create_task(client.post("/v1/runs", json=START, headers=KEYED))
    await entered.wait()
    second = await client.post("/v1/runs", json=START, headers=KEYED)
    assert (second.status_code, second.json()["error"]) == (409, "idempotency_in_flight")
    assert second.headers["retry-after"] == "1"
    assert second.json()["details"]["retryAfter"] == 1
    leave.set()
    assert (await first).status_code == 201
    assert (await client.post("/v1/runs", json=START, headers=KEYED)).json() == (await first).json()


async def test_a_request_whose_host_failed_is_taken_up_with_the_same_id(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from antiphon.host import runs

    right, made = runs.start_run, []

    async def breaks(*arguments: Any) -> dict[str, Any]:
        made.append((await right(*arguments))["runId"])
        raise RuntimeError("after the run was created")

    monkeypatch.setattr(runs, "start_run", breaks)
    assert (await client.post("/v1/runs", json=START, headers=KEYED)).status_code == 500
    monkeypatch.setattr(runs, "start_run", right)
    answer = await client.post("/v1/runs", json=START, headers=KEYED)
    assert answer.json()["runId"] == made[0]
    await client.ended(made[0])
    assert len((await client.get("/v1/runs")).json()["runs"]) == 1


@pytest.mark.parametrize("write", ["append", "open_run"])
async def test_a_start_that_the_store_refused_halfway_can_be_repeated(
    client: Client, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    from antiphon.errors import StoreUnavailable

    async def fails(*_: Any) -> None:
        raise StoreUnavailable("the store went away")

    with monkeypatch.context() as patch:
        patch.setattr(client.host.journal, write, fails)
        assert (await client.post("/v1/runs", json=START, headers=KEYED)).status_code == 503
    assert (await client.get("/v1/runs")).json()["runs"] == [], "a run has events"
    answer = await client.post("/v1/runs", json=START, headers=KEYED)
    assert answer.status_code == 201
    run = answer.json()["runId"]
    assert (await client.ended(run))["status"] == "completed"
    events = await client.events(run)
    assert [event["sequence"] for event in events] == list(range(len(events)))


async def test_the_key_itself_is_not_stored(client: Client, tmp_path: Path) -> None:
    secret = "my-very-own-idempotency-key-4711"
    await client.post("/v1/runs", json=START, headers={"Idempotency-Key": secret})
    await client.host.journal.ping()
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file


async def test_layer_two_one_effect_for_many_executors(client: Client) -> None:
    answer = await client.post("/v1/host/sample/test/idempotency/concurrent-claim", json={"executors": 16})
    found = answer.json()
    assert answer.status_code == 200
    assert (found["attempted"], found["delivered"]) == (16, 1)
    assert found["mintedIds"] == [found["logicalInvocationId"]] * 16
    for bad in (0, 65, True, "3"):
        answer = await client.post("/v1/host/sample/test/idempotency/concurrent-claim", json={"executors": bad})
        assert answer.status_code == 400

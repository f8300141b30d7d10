"""Runs over HTTP: start, snapshot, events, poll, cancel, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.contract.events import RunManifest
from antiphon.host import recordings
from tests.integration.server.harness import Client


async def test_a_run_is_created_executed_and_shown(client: Client) -> None:
    answer = await client.post("/v1/runs", json={"workflowId": "conformance-multi-node"})
    assert answer.status_code == 201
    created = answer.json()
    assert set(created) == {"runId", "status", "eventsUrl", "statusUrl"}
    run = created["runId"]
    snapshot = await client.ended(run)
    assert snapshot["status"] == "completed"
    assert snapshot["workflowId"] == "conformance-multi-node"
    events = await client.events(run)
    assert [event["type"] for event in events] == [
        "run.started",
        *["node.started", "node.completed"] * 3,
        "run.completed",
    ]
    assert [event["sequence"] for event in events] == list(range(8))
    assert [event.get("nodeId") for event in events[1:7]] == ["a", "a", "b", "b", "c", "c"]
    assert len({event["eventId"] for event in events}) == 8


async def test_a_failing_run_says_why(client: Client) -> None:
    snapshot = await client.run("conformance-failure")
    assert snapshot["status"] == "failed"
    assert snapshot["error"]["code"]
    assert snapshot["error"]["message"]
    events = await client.events(snapshot["runId"])
    assert [event["type"] for event in events][-2:] == ["node.failed", "run.failed"]
    assert events[-1]["payload"]["failedNodeId"] == "fail"


async def test_variables_come_from_inputs_and_defaults(client: Client) -> None:
    snapshot = await client.run("conformance-identity", {"payload": {"n": [1, 2.5, "drei", None]}})
    assert snapshot["variables"] == {"payload": {"n": [1, 2.5, "drei", None]}}
    assert snapshot["outputs"] == {"identity": {"payload": {"n": [1, 2.5, "drei", None]}}}


@pytest.mark.parametrize(
    "payload",
    [
        {"$blob": 5, "bytes": 1},
        {"$blob": "sha256:" + "0" * 64, "bytes": 1},
        {"masks": [["/a", 0, 1, "x"]], "sealed": "s2.00000000.AAAA", "blobs": {"payload": "sha256:" + "0" * 64}},
        {"text": "[secret:pin] [email:3f9a]", "$bytes": "x", "$literal": {}},
    ],
)
async def test_user_data_is_never_read_as_our_markup(client: Client, payload: dict[str, Any]) -> None:
    snapshot = await client.run("conformance-identity", {"payload": payload})
    assert snapshot["outputs"] == {"identity": {"payload": payload}}
    fork = await client.fork(snapshot["runId"])
    assert (await client.ended(fork))["outputs"] == {"identity": {"payload": payload}}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "validation_error"),
        ({"workflowId": 7}, 400, "validation_error"),
        ({"workflowId": ""}, 400, "validation_error"),
        ({"workflowId": "nobody-has-this"}, 404, "workflow_not_found"),
        ({"workflowId": "conformance-noop", "inputs": []}, 400, "validation_error"),
        ({"workflowId": "conformance-noop", "tags": "x"}, 400, "validation_error"),
        ({"workflowId": "conformance-noop", "metadata": 1}, 400, "validation_error"),
        ({"workflowId": "conformance-idempotent"}, 400, "validation_error"),
        ({"workflowId": "conformance-idempotent", "inputs": {"nonce": 3}}, 400, "validation_error"),
        ({"workflowId": "conformance-delay", "inputs": {"delayMs": True}}, 400, "validation_error"),
    ],
)
async def test_a_bad_start_creates_nothing(client: Client, body: dict[str, Any], status: int, code: str) -> None:
    answer = await client.post("/v1/runs", json=body)
    assert (answer.status_code, answer.json()["error"]) == (status, code)
    assert set(answer.json()) <= {"error", "message", "details"}
    assert (await client.get("/v1/runs")).json() == {"runs": [], "next": None}


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'"x"', "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b'{"a":"\\ud800"}', "application/json", 400),
        (b"[" * 5000, "application/json", 400),
        (b"{}", "text/plain", 415),
        (b"{}", "", 415),
        (b" " * 1_100_000, "application/json", 413),
    ],
)
async def test_bodies_that_are_not_json_objects(client: Client, content: bytes, kind: str, status: int) -> None:
    answer = await client.post("/v1/runs", content=content, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert answer.json()["message"]


async def test_a_body_without_a_length_is_still_limited(client: Client) -> None:
    async def endless() -> Any:
        for _ in range(40):
            yield b" " * 65_536

    headers = {"Content-Type": "application/json"}
    assert (await client.post("/v1/runs", content=endless(), headers=headers)).status_code == 413


async def test_unknown_paths_and_methods_have_flat_errors(client: Client) -> None:
    missing = await client.get("/nothing/here")
    assert (missing.status_code, missing.json()["error"]) == (404, "not_found")
    wrong = await client.put("/v1/runs", json={})
    assert (wrong.status_code, wrong.json()["error"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "GET, HEAD, POST"
    for run in ("01890000-0000-7000-8000-000000000000", "%00", "ä", "a" * 200, "host-apikeys", "audit-default"):
        answer = await client.get(f"/v1/runs/{run}")
        assert (answer.status_code, answer.json()["error"]) == (404, "run_not_found")


async def test_poll_waits_for_news_and_answers_at_once_when_over(client: Client) -> None:
    run = await client.start("conformance-delay", {"delayMs": 400})
    seen: list[int] = []
    while True:
        params = {"lastSequence": seen[-1] if seen else -1, "timeout": 5}
        found = (await client.get(f"/v1/runs/{run}/events/poll", params=params)).json()
        seen += [event["sequence"] for event in found["events"]]
        if found["isComplete"]:
            break
    assert seen == [0, 1, 2, 3]
    answer = await client.get(f"/v1/runs/{run}/events/poll", params={"lastSequence": 3, "timeout": 60})
    assert answer.json() == {"events": [], "isComplete": True}
    everything = (await client.get(f"/v1/runs/{run}/events/poll", params={"timeout": 1})).json()
    assert len(everything["events"]) == 4


@pytest.mark.parametrize(
    "query",
    ["lastSequence=x", "lastSequence=-2", "timeout=0", "timeout=61", "timeout=1.5", "lastSequence=9" + "9" * 30],
)
async def test_poll_refuses_bad_parameters(client: Client, query: str) -> None:
    run = (await client.run("conformance-noop"))["runId"]
    answer = await client.get(f"/v1/runs/{run}/events/poll?{query}")
    assert answer.status_code == 400


def sse(text: str) -> list[dict[str, str]]:
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]


async def test_the_stream_carries_every_event_and_ends(client: Client) -> None:
    run = await client.start("conformance-delay", {"delayMs": 100})
    answer = await client.get(f"/v1/runs/{run}/events", headers={"Accept": "text/event-stream"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = sse(answer.text)
    assert [int(block["id"]) for block in found] == [0, 1, 2, 3]
    assert [block["event"] for block in found][-1] == "run.completed"
    events = await client.events(run)
    assert [json.loads(block["data"]) for block in found] == events
    rest = await client.get(f"/v1/runs/{run}/events", headers={"Last-Event-ID": "1"})
    assert [int(block["id"]) for block in sse(rest.text)] == [2, 3]
    bad = await client.get(f"/v1/runs/{run}/events", headers={"Last-Event-ID": "yesterday"})
    assert bad.status_code == 400


async def test_a_silent_stream_is_kept_alive(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.host.http import handlers

    assert handlers.KEEPALIVE_S <= 30
    monkeypatch.setattr(handlers, "KEEPALIVE_S", 0.05)
    run = await client.start("conformance-delay", {"delayMs": 400})
    answer = await client.get(f"/v1/runs/{run}/events")
    assert answer.text.count(":keepalive") >= 3
    head = await client.head(f"/v1/runs/{await client.start('conformance-cancellable', {'delayMs': 9_000})}/events")
    assert (head.status_code, head.content) == (200, b"")


async def test_cancel_ends_a_waiting_run(client: Client) -> None:
    run = await client.start("conformance-cancellable", {"delayMs": 60_000})
    answer = await client.post(f"/v1/runs/{run}/cancel", json={})
    assert (answer.status_code, answer.json()) == (200, {"runId": run, "status": "cancelled"})
    events = await client.events(run)
    assert [event["type"] for event in events][-2:] == ["node.cancelled", "run.cancelled"]
    again = await client.post(f"/v1/runs/{run}/cancel")
    assert again.json()["status"] == "cancelled"
    done = (await client.run("conformance-noop"))["runId"]
    assert (await client.post(f"/v1/runs/{done}/cancel")).json()["status"] == "completed"
    assert (await client.post("/v1/runs/unknown/cancel")).status_code == 404


async def test_a_run_has_a_time_limit(tmp_path: Path) -> None:
    from tests.integration.server import workflows
    from tests.integration.server.harness import application, in_process

    slow = workflows.workflow(
        "slow", [workflows.node("wait", "core.conformance.hold", {"delayMs": 60_000})], settings={"timeout": 100}
    )
    async with in_process(application(tmp_path, workflows.write(tmp_path / "flows", slow))) as client:
        snapshot = await client.run("slow")
    assert (snapshot["status"], snapshot["error"]["code"]) == ("failed", "run_timeout")


async def test_large_values_come_back_whole(client: Client) -> None:
    payload = {"text": "x" * 300_000, "list": list(range(20_000))}
    snapshot = await client.run("conformance-identity", {"payload": payload})
    assert snapshot["outputs"]["identity"]["payload"] == payload
    fork = await client.fork(snapshot["runId"], start=2)
    assert (await client.ended(fork))["outputs"] == snapshot["outputs"]


async def test_many_runs_at_once(client: Client) -> None:
    async def one(number: int) -> str:
        snapshot = await client.run("conformance-identity", {"payload": {"number": number}})
        assert snapshot["outputs"]["identity"]["payload"] == {"number": number}
        return str(snapshot["status"])

    assert set(await asyncio.gather(*(one(number) for number in range(60)))) == {"completed"}


async def test_listing_is_newest_first_and_pages(client: Client) -> None:
    made = [(await client.run("conformance-noop"))["runId"] for _ in range(3)]
    listed = (await client.get("/v1/runs", params={"limit": 2})).json()["runs"]
    assert [run["runId"] for run in listed] == [made[2], made[1]]
    rest = (await client.get("/v1/runs", params={"before": made[1]})).json()["runs"]
    assert [run["runId"] for run in rest] == [made[0]]
    assert (await client.get("/v1/runs", params={"status": "odd"})).status_code == 400


async def test_recordings_do_not_hide_older_runs(client: Client) -> None:
    made = [(await client.run("conformance-noop"))["runId"] for _ in range(2)]

    def record() -> None:
        for _ in range(110):
            client.host.app.record(str, "hello")

    await asyncio.to_thread(record)
    made.append((await client.run("conformance-noop"))["runId"])
    listed = (await client.get("/v1/runs", params={"limit": 2})).json()["runs"]
    assert [run["runId"] for run in listed] == [made[2], made[1]]
    rest = (await client.get("/v1/runs", params={"limit": 50, "before": made[2]})).json()["runs"]
    assert [run["runId"] for run in rest] == [made[1], made[0]]


async def test_a_request_for_runs_examines_a_limited_number_of_recordings(client: Client) -> None:
    run = await client.start("conformance-noop")
    await client.ended(run)
    started = client.host.app.clock.now_ms() + 60_000
    for number in range(recordings.MAX_RUNS_SEARCHED + 50):
        manifest = RunManifest(id=f"rec-{number:05}", name="r", status="completed", started_at_ms=started + number)
        await client.host.journal.open_run(manifest)
    first = (await client.get("/v1/runs")).json()
    assert first["runs"] == []
    rest = (await client.get("/v1/runs", params={"before": first["next"]})).json()
    assert ([found["runId"] for found in rest["runs"]], rest["next"]) == ([run], None)


async def test_recordings_are_found_by_the_beginning_of_their_id(client: Client) -> None:
    for found in ("Trace-42AB", "Trace-43"):
        await client.host.journal.open_run(RunManifest(id=found, name="r", status="completed", started_at_ms=1))
    for text in ("Trace-42", "trace-42", "Trace-42AB"):
        listed = (await client.get("/v1/recordings", params={"text": text})).json()["runs"]
        assert [run["id"] for run in listed] == ["Trace-42AB"], text


async def test_headers_are_careful_and_health_is_open(client: Client) -> None:
    answer = await client.get("/healthz")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    anonymous = httpx.Headers({"Authorization": ""})
    for path in ("/healthz", "/readyz", "/.well-known/openwop", "/v1/openapi.json", "/metrics"):
        assert (await client.get(path, headers=anonymous)).status_code == 200
    text = (await client.get("/metrics")).text
    assert 'antiphon_http_requests_total{method="GET",status="200"}' in text

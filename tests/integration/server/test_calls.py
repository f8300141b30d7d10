"""Guarded calls over HTTP: the envelope, roles, tenants, once only, streams, clients that go away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.server import workflows
from tests.integration.server.harness import KEY, Client, application, in_process, serving

CODE = '''
import asyncio
import pathlib
import time
import antiphon

MARKS = pathlib.Path(__file__).with_name("marks.txt")
gateway = antiphon.AsyncGateway(store="memory:")

def mark(text):
    with MARKS.open("a") as file:
        file.write(text + "\\n")

@gateway.tool(idempotent=False, namespace="bank", effect="write")
async def pay(to: str, amount: int = 1) -> dict:
    """Pay somebody."""
    mark(f"pay {to}")
    return {"paid": amount, "to": to}

@gateway.tool(idempotent=False, namespace="bank", effect="write")
def slow(to: str, seconds: float = 0.5) -> str:
    time.sleep(seconds)
    mark(f"slow {to}")
    return "done"

@gateway.tool(idempotent=True, namespace="bank", effect="read")
async def count(to: int, broken: bool = False):
    for number in range(to):
        yield {"number": number}
        await asyncio.sleep(0.02)
    if broken:
        raise ValueError("the stream broke")

@gateway.tool(idempotent=True, namespace="bank", effect="read")
async def fail(kind: str) -> str:
    raise ValueError(kind)
'''


@pytest.fixture
def code(tmp_path: Path) -> Path:
    file = tmp_path / "bank.py"
    file.write_text(CODE)
    return file


@pytest.fixture
async def client(tmp_path: Path, code: Path) -> AsyncIterator[Client]:
    async with in_process(application(tmp_path, None, tools=[str(code)], test_seams=False)) as found:
        yield found


def envelope(tool: str, request: str = "r-1", **params: Any) -> dict[str, Any]:
    return {
        "contractVersion": "1.1",
        "requestId": request,
        "toolName": tool,
        "toolNamespace": "bank",
        "target": {"sessionKey": "order-1042", "actorId": "ada"},
        "payload": {"version": "1.0", "params": params},
        "transport": {"dedupeMode": "enforced", "retryBudget": {"maxAttempts": 2, "maxElapsedMs": 30_000}},
        "control": {},
        "trace": {},
    }


def marks(code: Path) -> list[str]:
    file = code.with_name("marks.txt")
    return file.read_text().splitlines() if file.exists() else []


async def test_a_call_is_made_once(client: Client, code: Path) -> None:
    first = await client.post("/v1/calls", json=envelope("pay", to="ada", amount=5))
    assert first.status_code == 200
    found = first.json()
    assert (found["status"], found["output"]["content"], found["attempts"]) == ("success", {"paid": 5, "to": "ada"}, 1)
    again = (await client.post("/v1/calls", json=envelope("pay", to="ada", amount=5))).json()
    assert (again["status"], again["fromCache"]) == ("success", True)
    key = {"Idempotency-Key": "order-1042"}
    for number in range(3):
        body = envelope("pay", f"r-{number + 2}", to="bob")
        answer = (await client.post("/v1/calls", json=body, headers=key)).json()
        assert answer["status"] == "success"
        assert answer["fromCache"] is (number > 0)
    other = (await client.post("/v1/calls", json=envelope("pay", "r-9", to="eve"), headers=key)).json()
    assert (other["status"], other["error"]["code"]) == ("error", "idempotency_conflict")
    assert marks(code) == ["pay ada", "pay bob"]
    both = envelope("pay", "r-10", to="bob")
    both["payload"]["idempotencyKey"] = "another"
    refused = await client.post("/v1/calls", json=both, headers=key)
    assert (refused.status_code, refused.json()["error"]) == (400, "validation_error")


async def test_what_is_wrong_is_said_and_nothing_is_called(client: Client, code: Path) -> None:
    wrong: list[tuple[Any, int, str]] = [
        ({}, 400, "validation_error"),
        ({**envelope("pay", to="x"), "contractVersion": "9"}, 400, "validation_error"),
        (envelope("pay"), 400, "validation_error"),
        (envelope("pay", to="x", no="such"), 400, "validation_error"),
        (envelope("nobody", to="x"), 404, "unknown_tool"),
        ({**envelope("side-effect", nodeId="x"), "toolNamespace": "conformance"}, 404, "unknown_tool"),
    ]
    for body, status, error in wrong:
        answer = await client.post("/v1/calls", json=body)
        assert (answer.status_code, answer.json()["error"]) == (status, error), body
    failed = (await client.post("/v1/calls", json=envelope("fail", kind="odd"))).json()
    assert failed["status"] != "success"
    assert marks(code) == []


async def test_roles_and_tenants(client: Client, code: Path) -> None:
    tokens = {role: (await client.host.keys.create(role=role, tenant="acme"))[0] for role in ("read", "run")}
    of = {role: {"Authorization": f"Bearer {token}"} for role, token in tokens.items()}
    assert (await client.post("/v1/calls", json=envelope("pay", to="a"), headers=of["read"])).status_code == 403
    assert (await client.post("/v1/calls", json=envelope("pay", to="a"), headers=of["run"])).json()[
        "status"
    ] == "success"
    mine = (await client.post("/v1/calls", json=envelope("pay", to="a"))).json()
    assert mine["fromCache"] is False, "another tenant's call is another call"
    stolen = envelope("pay", to="a")
    stolen["target"]["tenantId"] = "default"
    answer = await client.post("/v1/calls", json=stolen, headers=of["run"])
    assert (answer.status_code, answer.json()["details"]["path"]) == (400, "$.target.tenantId")
    assert marks(code) == ["pay a", "pay a"]
    listed = (await client.get("/v1/tools", headers=of["read"])).json()["tools"]
    assert [tool["name"] for tool in listed] == ["count", "fail", "pay", "slow"]
    assert next(tool for tool in listed if tool["name"] == "pay")["effect"] == "write"


def _events(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


async def test_chunks_come_as_they_are_made(client: Client) -> None:
    headers = {"Accept": "text/event-stream"}
    answer = await client.post("/v1/calls", json=envelope("count", to=3), headers=headers)
    events = _events(answer.text)
    assert [(kind, data["n"], data["data"]) for kind, data in events[:-1]] == [
        ("chunk", number, {"number": number}) for number in range(3)
    ]
    kind, result = events[-1]
    assert (kind, result["status"]) == ("result", "success")
    assert result["output"]["content"] == [{"number": number} for number in range(3)]
    plain = (await client.post("/v1/calls", json=envelope("count", "r-2", to=2))).json()
    assert plain["output"]["content"] == [{"number": 0}, {"number": 1}]
    broken = await client.post("/v1/calls", json=envelope("count", "r-3", to=2, broken=True), headers=headers)
    kinds = [kind for kind, _ in _events(broken.text)]
    assert kinds == ["chunk", "chunk", "result"]
    assert _events(broken.text)[-1][1]["status"] != "success"
    single = await client.post("/v1/calls", json=envelope("pay", to="a"), headers=headers)
    assert [kind for kind, _ in _events(single.text)] == ["result"]


async def test_the_first_chunk_does_not_wait_for_the_last(tmp_path: Path, code: Path) -> None:
    with serving(tmp_path, tmp_path, ANTIPHON_HOST_TOOLS=str(code)) as served:
        headers = {"Authorization": f"Bearer {KEY}", "Accept": "text/event-stream"}
        body = envelope("count", to=40)
        seen: list[str] = []
        with httpx.stream("POST", f"{served.url}/v1/calls", json=body, headers=headers, timeout=30) as answer:
            for line in answer.iter_lines():
                seen.append(line)
                if line.startswith("event: chunk"):
                    break
        assert not any(line.startswith("event: result") for line in seen)
        # the client left; the call went on, and the same request is answered from its record
        again = httpx.post(f"{served.url}/v1/calls", json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=30)
        assert len(again.json()["output"]["content"]) == 40


async def test_a_client_that_goes_away_does_not_end_its_call(client: Client, code: Path) -> None:
    body = envelope("slow", to="ada")
    gone = asyncio.create_task(client.post("/v1/calls", json=body))
    while not client.host._calls:
        await asyncio.sleep(0.01)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    found = (await client.post("/v1/calls", json=body)).json()
    assert (found["status"], found["output"]["content"]) == ("success", "done")
    assert marks(code) == ["slow ada"]
    async with asyncio.timeout(20):
        while client.host._calls:  # the answer may come before the first call has heard of its own record
            await asyncio.sleep(0.01)


async def test_a_revoked_key_ends_the_stream_of_its_call_and_not_the_call(client: Client, code: Path) -> None:
    for body in (envelope("slow", to="ada", seconds=4), envelope("count", to=200)):
        token, key = await client.host.keys.create(role="run", tenant="default")
        headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
        stream = asyncio.create_task(client.post("/v1/calls", json=body, headers=headers, timeout=30))
        while not client.host._calls:
            await asyncio.sleep(0.01)
        await client.host.keys.revoke(key.id)
        (*_, (kind, said)) = _events((await stream).text)
        assert (kind, said["error"]) == ("error", "unauthenticated")
        assert client.host._calls, "the call goes on"
        found = (await client.post("/v1/calls", json=body, timeout=30)).json()
        assert found["status"] == "success"
        async with asyncio.timeout(20):
            while client.host._calls:
                await asyncio.sleep(0.01)
    assert marks(code) == ["slow ada"]


def test_a_host_that_ends_says_so_to_whoever_waits_for_a_call(tmp_path: Path, code: Path) -> None:
    """The call goes on, and is not made again; a call that ends in time is answered."""
    settings = {"ANTIPHON_HOST_TOOLS": str(code), "ANTIPHON_HOST_SHUTDOWN_GRACE_S": "3"}
    key = {"Authorization": f"Bearer {KEY}"}
    calls = {
        "short": (envelope("slow", "r-short", to="short", seconds=2), key),
        "long": (envelope("slow", "r-long", to="long", seconds=5), key),
        "stream": (envelope("slow", "r-stream", to="stream", seconds=5), {**key, "Accept": "text/event-stream"}),
    }
    with serving(tmp_path, tmp_path, **settings) as served:
        url = f"{served.url}/v1/calls"
        with ThreadPoolExecutor(3) as pool:
            waiting = {
                name: pool.submit(httpx.post, url, json=body, headers=headers, timeout=30)
                for name, (body, headers) in calls.items()
            }
            while httpx.get(f"{served.url}/v1/admin/claims", headers=key).text.count('"inflight"') < 3:
                time.sleep(0.05)
            served.stop()
        found = {name: answer.result() for name, answer in waiting.items()}
        assert found["short"].json()["output"]["content"] == "done"
        refused = found["long"]
        assert (refused.status_code, refused.json()["error"]) == (503, "shutting_down")
        assert "same key" in refused.json()["message"]
        assert "retry-after" in refused.headers
        assert [(kind, said["error"]) for kind, said in _events(found["stream"].text)] == [("error", "shutting_down")]
        assert "Traceback" not in served.log()
        served.start()
        for name, (body, _) in calls.items():
            assert httpx.post(url, json=body, headers=key, timeout=30).json()["status"] == "success", name
    assert sorted(marks(code)) == ["slow long", "slow short", "slow stream"]


async def test_calls_are_limited_like_runs(tmp_path: Path, code: Path) -> None:
    async with in_process(application(tmp_path, None, tools=[str(code)], tenant_runs=1)) as client:
        one = asyncio.create_task(client.post("/v1/calls", json=envelope("slow", to="ada")))
        while not client.host._calls:
            await asyncio.sleep(0.01)
        answer = await client.post("/v1/calls", json=envelope("pay", to="bob"))
        assert (answer.status_code, answer.json()["error"]) == (429, "too_many_runs")
        assert (await one).json()["status"] == "success"


async def test_results_with_secrets_are_not_kept_in_clear(client: Client, tmp_path: Path) -> None:
    secret = "sk-ant-api03-" + "Lm4nOp7qRs" * 9
    body = envelope("pay", to=secret)
    for _ in range(2):
        answer = await client.post("/v1/calls", json=body, headers={"Idempotency-Key": "k-secret"})
        assert answer.json()["output"]["content"]["to"] == secret, "the caller gets what the tool returned"
    for file in tmp_path.rglob("*"):
        if file.is_file() and file.name != "marks.txt":
            assert secret.encode() not in file.read_bytes(), file


@pytest.mark.parametrize("open_run", ["live", "replay"])
async def test_a_call_stays_out_of_the_run_that_is_open_beside_it(tmp_path: Path, code: Path, open_run: str) -> None:
    """Also if it is the only one of the process: it may be another tenant's, or a replay that refuses calls."""
    node = workflows.node("hold", "core.conformance.hold", None, workflows.DELAY)
    flow = workflows.workflow("hold", [node], [workflows.variable("delayMs", "number")])
    folder = workflows.write(tmp_path / "flows", flow)
    async with in_process(application(tmp_path, folder, tools=[str(code)])) as client:
        token, _ = await client.host.keys.create(role="run", tenant="acme")
        run = await client.start("hold", {"delayMs": 60_000 if open_run == "live" else 500})
        if open_run == "replay":
            await client.ended(run)
            run = await client.fork(run)
        assert list(client.host.running) == [run]
        while not any(event["type"] == "node.started" for event in await client.events(run)):
            await asyncio.sleep(0.01)
        for headers in ({}, {"Authorization": f"Bearer {token}"}):
            answer = await client.post("/v1/calls", json=envelope("pay", to="ada"), headers=headers)
            assert (answer.status_code, answer.json()["status"]) == (200, "success"), answer.text
        rows = [event.type for event in await client.host.journal.events(run)]
        assert not [kind for kind in rows if kind.startswith("call.")]
        await client.post(f"/v1/runs/{run}/cancel", json={})
    assert marks(code) == ["pay ada", "pay ada"]

"""Webhooks: signed deliveries of live runs, none of replays, no private addresses."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import StoreUnavailable
from tests.integration.server.harness import Client, application, in_process
from tests.unit.gateway.kit import envelope

Delivery = tuple[dict[str, str], bytes]


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[Delivery]]]:
    got: list[Delivery] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", got
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
async def client(tmp_path: Path, folder: Path) -> AsyncIterator[Client]:
    async with in_process(application(tmp_path, folder, webhooks=True, webhooks_loopback=True)) as found:
        yield found


async def _arrived(got: list[Delivery], number: int) -> None:
    for _ in range(3000):
        if len(got) >= number:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{len(got)} of {number} deliveries")


async def test_live_runs_and_branches_deliver_and_replays_do_not(
    client: Client, receiver: tuple[str, list[Delivery]], tmp_path: Path
) -> None:
    url, got = receiver
    made = (await client.post("/v1/webhooks", json={"url": url})).json()
    run = await client.run("conformance-noop")
    await _arrived(got, 4)
    assert [json.loads(body)["type"] for _, body in got] == [e["type"] for e in await client.events(run["runId"])]
    for headers, body in got:
        signed = f"{headers['openwop-timestamp']}.".encode() + body
        expected = hmac.new(made["secret"].encode(), signed, hashlib.sha256).hexdigest()
        assert headers["openwop-signature"] == f"v1={expected}"
    fork = await client.fork(run["runId"])
    await client.ended(fork)
    branch = await client.fork(run["runId"], "branch", 0)
    await client.ended(branch)
    await _arrived(got, 8)
    await asyncio.sleep(0.1)
    assert len(got) == 8
    assert {json.loads(body)["runId"] for _, body in got} == {run["runId"], branch}
    assert len(await client.events(fork)) == 4
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert made["secret"].encode() not in file.read_bytes()
    assert (await client.delete(f"/v1/webhooks/{made['webhookId']}")).status_code == 204
    await client.run("conformance-noop")
    await asyncio.sleep(0.1)
    assert len(got) == 8


async def test_only_the_asked_for_events(client: Client, receiver: tuple[str, list[Delivery]]) -> None:
    url, got = receiver
    await client.post("/v1/webhooks", json={"url": url, "events": ["run.completed"]})
    await client.run("conformance-noop")
    await _arrived(got, 1)
    assert [json.loads(body)["type"] for _, body in got] == ["run.completed"]


async def test_the_list_shows_no_query_of_an_address(client: Client, receiver: tuple[str, list[Delivery]]) -> None:
    url, got = receiver
    made = (await client.post("/v1/webhooks", json={"url": f"{url}?token=wintergreen#part"})).json()
    [listed] = (await client.get("/v1/webhooks")).json()["webhooks"]
    assert listed == {"webhookId": made["webhookId"], "url": url, "events": []}
    await client.run("conformance-noop")
    await _arrived(got, 1)


@pytest.mark.parametrize(
    "url",
    [
        None,
        7,
        "",
        "ftp://127.0.0.1/x",
        "http://user:pass@127.0.0.1/x",
        "http://10.0.0.8/x",
        "https://192.168.1.1/x",
        "http://169.254.169.254/latest/meta-data",
        "https://[fd00::1]/x",
        "http://[",
        "http://8.8.8.8/x",
        "x" * 3000,
    ],
)
async def test_bad_addresses_are_refused(client: Client, url: Any) -> None:
    answer = await client.post("/v1/webhooks", json={"url": url})
    assert (answer.status_code, answer.json()["error"]) == (400, "webhook_url_rejected")


async def test_loopback_needs_the_operators_word_and_the_feature_its_switch(tmp_path: Path, folder: Path) -> None:
    async with in_process(application(tmp_path, folder, webhooks=True, test_seams=False)) as client:
        answer = await client.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/x"})
        assert (answer.status_code, answer.json()["error"]) == (400, "webhook_url_rejected")
        assert (await client.get("/.well-known/openwop")).json()["webhooks"] == {"supported": True}
    async with in_process(application(tmp_path, folder, test_seams=False)) as client:
        assert (await client.get("/v1/webhooks")).status_code == 501
        assert "webhooks" not in (await client.get("/.well-known/openwop")).json()
    async with in_process(application(tmp_path, folder)) as client:
        answer = await client.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/x"})
        assert answer.status_code == 201


async def test_secrets_of_subscribers_need_a_seal_key(tmp_path: Path, folder: Path, valkey_url: str) -> None:
    from antiphon.errors import ConfigError
    from antiphon.host.http.app import create

    host = {"workflows": str(folder), "webhooks": True}
    with pytest.raises(ConfigError, match="seal"):
        async with in_process(create({"store": {"url": valkey_url}, "host": host})):
            pass


async def test_a_repeated_subscription_does_not_show_or_keep_the_secret(
    client: Client, receiver: tuple[str, list[Delivery]], tmp_path: Path
) -> None:
    headers = {"Idempotency-Key": "subscribe-once-0123456789"}
    first = await client.post("/v1/webhooks", json={"url": receiver[0]}, headers=headers)
    again = await client.post("/v1/webhooks", json={"url": receiver[0]}, headers=headers)
    assert again.headers["openwop-Idempotent-Replay"] == "true"
    assert again.json() == {name: value for name, value in first.json().items() if name != "secret"}
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert first.json()["secret"].encode() not in file.read_bytes()


async def test_a_subscription_whose_answer_was_lost_is_not_made_twice(
    client: Client, receiver: tuple[str, list[Delivery]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, got = receiver
    append = client.host.journal.append

    async def loses_the_answer(*rows: Any) -> None:
        await append(*rows)
        raise StoreUnavailable("connection lost")

    asked: dict[str, Any] = {"json": {"url": url}, "headers": {"Idempotency-Key": "hook-1"}}
    with monkeypatch.context() as patch:
        patch.setattr(client.host.journal, "append", loses_the_answer)
        assert (await client.post("/v1/webhooks", **asked)).status_code == 503
    assert len((await client.get("/v1/webhooks")).json()["webhooks"]) == 1
    await client.run("conformance-noop")
    await _arrived(got, 4)
    made = (await client.post("/v1/webhooks", **asked)).json()
    [listed] = (await client.get("/v1/webhooks")).json()["webhooks"]
    assert listed["webhookId"] == made["webhookId"]
    await client.run("conformance-noop")
    await _arrived(got, 8)
    headers, body = got[-1]
    signed = f"{headers['openwop-timestamp']}.".encode() + body
    expected = hmac.new(made["secret"].encode(), signed, hashlib.sha256).hexdigest()
    assert headers["openwop-signature"] == f"v1={expected}"  # by the secret that the client has got


async def test_a_subscriber_is_told_when_a_person_is_needed(
    client: Client, receiver: tuple[str, list[Delivery]]
) -> None:
    url, got = receiver
    made = (await client.post("/v1/webhooks", json={"url": url, "events": ["approval.requested"]})).json()
    app = client.host.tenant("default")

    def pay(amount: int, card: str) -> str:
        raise AssertionError("nobody approved")

    for gateway in (app.gateway, app.async_gateway):  # the other tenant's person is not asked
        gateway.tool("pay", namespace="told", idempotent=False, approve="always")(pay)
    stranger = client.host.tenant("stranger").async_gateway
    stranger.tool("pay", namespace="told", idempotent=False, approve="always")(pay)
    asked, params = [], {"amount": 10, "card": "4111 1111 1111 1111"}
    wires = [
        envelope("pay", params, namespace="told", call_id=f"call-{number}", actor=actor)
        for number, actor in enumerate(("agent", "ada@example.com"))
    ]
    for number, wire in enumerate(wires):
        await stranger.execute(wire)
        answer = await app.async_gateway.execute(wire) if number else await asyncio.to_thread(app.gateway.execute, wire)
        asked.append(answer.to_wire()["error"]["approvalId"])
    await app.async_gateway.execute(wires[1])  # it asks for nothing new
    await _arrived(got, 2)
    told = [json.loads(body) for _, body in got]
    assert {(one["type"], one["payload"]["approvalId"], one["payload"]["tool"]) for one in told} == {
        ("approval.requested", approval, "told/pay") for approval in asked
    }
    headers, body = got[0]
    signed = f"{headers['openwop-timestamp']}.".encode() + body
    expected = hmac.new(made["secret"].encode(), signed, hashlib.sha256).hexdigest()
    assert headers["openwop-signature"] == f"v1={expected}"
    assert "4111" not in str(told)
    assert "ada@example.com" not in str(told)
    assert "token" not in str(told)  # subscribers need no right to decide

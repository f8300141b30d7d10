"""The gauges that alerts are made of say what is the case: both gateways and the host, with stores that fail."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon import AsyncGateway, Gateway
from antiphon.host import webhooks
from antiphon.stores import RedisStore, SQLiteStore
from tests.integration.server import workflows
from tests.integration.server.harness import KEY, Client, application, in_process
from tests.servers import Valkey
from tests.unit.gateway.kit import envelope

PATIENCE_S = 60.0
Scrape = Callable[[], str]

KILLED = """
import os, sys
from antiphon import Antiphon

app = Antiphon({"store": {"url": sys.argv[1]}})

@app.gateway.tool("send", idempotent=False, ttl={"lease_ms": 1})
def send(to: str) -> str:
    os._exit(0)

with app.run("nightly"):
    send("ada")
"""


def value(text: str, name: str, **labels: str) -> float | None:
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"antiphon_{name}" and labels.items() <= sample.labels.items()
    ]
    return sum(found) if found else None


def until(scrape: Scrape, wanted: float, name: str, **labels: str) -> str:
    """Look until the gauge says so."""
    end = time.monotonic() + PATIENCE_S
    while value(text := scrape(), name, **labels) != wanted:
        assert time.monotonic() < end, (name, labels, text)
        time.sleep(0.05)
    return text


def killed_run(url: str) -> None:
    """A process that dies in a call of a run: its claim is stale, its run interrupted."""
    subprocess.run([sys.executable, "-c", KILLED, url], check=True, timeout=120)


class Sync:
    """The gateway for threads."""

    def __init__(self, store: Any) -> None:
        self.gateway = Gateway(store=store)

    def tool(self, work: Callable[[str], str], **declared: Any) -> None:
        self.gateway.tool("send", idempotent=False, **declared)(work)

    def call(self, wire: dict[str, Any]) -> Any:
        return self.gateway.execute(wire)

    def close(self) -> None:
        self.gateway.close()

    def metrics(self) -> str:
        return self.gateway.metrics()


class Async:
    """The gateway for event loops, on a loop of its own."""

    def __init__(self, store: Any) -> None:
        self._runner = asyncio.Runner()
        self.gateway = AsyncGateway(store=store)

    def tool(self, work: Callable[[str], str], **declared: Any) -> None:
        async def send(to: str) -> str:
            return work(to)

        self.gateway.tool("send", idempotent=False, **declared)(send)

    def call(self, wire: dict[str, Any]) -> Any:
        return self._runner.run(self.gateway.execute(wire))

    def close(self) -> None:
        self._runner.run(self.gateway.close())
        self._runner.close()

    def metrics(self) -> str:
        return self.gateway.metrics()


both = pytest.mark.parametrize("face", [Sync, Async])


@both
def test_what_the_store_has_is_shown(face: Any, tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "claims.db")
    killed_run(store.url)
    made = face(store)
    seen: list[str] = []

    def send(to: str) -> str:
        seen.append(made.metrics())
        if to == "bob":
            raise TimeoutError
        return "sent"

    made.tool(send)
    assert made.call(envelope(params={"to": "ada"}, call_id="c1")).ok
    assert made.call(envelope(params={"to": "bob"}, call_id="c2")).code == "outcome_unknown"
    assert value(seen[0], "tool_dedupe_inflight", tool="tools/send", stale="false") == 1
    text = until(made.metrics, 1, "tool_dedupe_inflight", tool="tools/send", stale="true")
    assert value(text, "tool_dedupe_inflight", tool="tools/send", stale="false") == 0
    assert value(text, "tool_unknown_outcomes", tool="tools/send", age="new") == 1
    assert value(text, "runs_interrupted", store=store.url) == 1
    assert value(text, "store_up", store=store.url) == 1
    assert (value(text, "store_latency_ms", store=store.url) or 0.0) > 0
    assert value(text, "store_breaker_state", store=store.url, state="CLOSED") == 1
    assert value(text, "store_breaker_state", store=store.url, state="OPEN") == 0
    assert value(text, "outcomes_unrecorded", store=store.url) == 0
    made.close()


@both
def test_a_frozen_store_is_down_and_results_in_hand_are_counted(
    face: Any, valkey_server: Callable[..., Valkey]
) -> None:
    server = valkey_server()
    store = RedisStore(server.url)
    made = face(store)

    def send(to: str) -> str:
        if to == "bob":
            server.pause()
        return "sent"

    made.tool(send)
    assert made.call(envelope(params={"to": "ada"}, call_id="c1")).ok
    assert value(made.metrics(), "store_up") == 1
    server.pause()
    try:
        frozen = made.metrics()
    finally:
        server.resume()
    assert value(frozen, "store_up", store=store.url) == 0
    assert (value(frozen, "store_latency_ms", store=store.url) or 0.0) >= 1000
    assert value(frozen, "store_breaker_state", state="CLOSED") == 1, "reading metrics opens no breaker"
    until(made.metrics, 1, "store_up")
    try:
        deadline = int((time.time() + 2.0) * 1000)
        answer = made.call(envelope(params={"to": "bob"}, call_id="c2", deadline_at_ms=deadline))
        assert answer.content == "sent"
        frozen = made.metrics()
    finally:
        server.resume()
    assert value(frozen, "store_up", store=store.url) == 0
    assert value(frozen, "store_breaker_state", store=store.url, state="OPEN") == 1
    assert value(frozen, "store_breaker_state", store=store.url, state="CLOSED") == 0
    assert value(frozen, "outcomes_unrecorded", store=store.url) == 1
    text = until(made.metrics, 1, "store_up")
    assert value(text, "store_breaker_state", store=store.url, state="OPEN") == 0
    assert value(text, "outcomes_unrecorded", store=store.url) == 0
    made.close()


def test_no_call_samples_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(store=SQLiteStore(tmp_path / "claims.db"))
    gateway.tool("send", idempotent=False)(lambda to: "sent")
    assert gateway.execute(envelope(call_id="c1")).ok
    assert value(gateway.metrics(), "store_up") == 1
    journal = type(gateway._plans.leases.journal())

    def counted(*_: Any) -> Any:
        raise AssertionError("a call counted the records")

    monkeypatch.setattr(journal, "counts", counted)
    monkeypatch.setattr(journal, "runs", counted)
    assert gateway.execute(envelope(call_id="c2")).ok
    gateway.close()


# -- the host ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setenv("ANTIPHON_API_KEY", KEY)
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "state"))
    folder = workflows.write(tmp_path / "workflows")
    async with in_process(application(tmp_path, folder, webhooks=True, webhooks_loopback=True)) as found:
        yield found


@pytest.fixture
def slow_receiver() -> Iterator[tuple[str, threading.Event]]:
    """A subscriber that answers when it is told to."""
    go = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            go.wait(PATIENCE_S)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", go
    finally:
        go.set()
        server.shutdown()
        server.server_close()


async def test_the_host_shows_the_queue_of_its_webhooks(
    client: Client, slow_receiver: tuple[str, threading.Event]
) -> None:
    url, go = slow_receiver
    assert value((await client.get("/metrics")).text, "host_webhook_queue") == 0
    assert (await client.post("/v1/webhooks", json={"url": url})).status_code == 201
    await client.run("conformance-noop")
    await _queued(client, 3)  # four events, one on its way
    go.set()
    await _queued(client, 0)


async def test_a_full_queue_of_webhooks_drops_and_counts(
    client: Client, slow_receiver: tuple[str, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, go = slow_receiver
    monkeypatch.setattr(webhooks, "QUEUE_BYTES", 600)
    assert value((await client.get("/metrics")).text, "host_webhook_lost_total") == 0
    assert (await client.post("/v1/webhooks", json={"url": url})).status_code == 201
    await client.run("conformance-noop")
    end = time.monotonic() + PATIENCE_S
    while not (lost := value((await client.get("/metrics")).text, "host_webhook_lost_total")):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    assert 0 < lost < 4, "those that have room wait"
    go.set()
    await _queued(client, 0)


async def _queued(client: Client, wanted: int) -> None:
    """Look until the queue is as long as that: a run has ended before its last events are handed out."""
    end = time.monotonic() + PATIENCE_S
    while (found := value((await client.get("/metrics")).text, "host_webhook_queue")) != wanted:
        assert time.monotonic() < end, found
        await asyncio.sleep(0.05)


async def test_the_host_shows_its_store(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "host.db"
    await asyncio.to_thread(killed_run, f"sqlite:///{file}")
    text = (await client.get("/metrics")).text
    store = f"sqlite:///{file}"
    assert value(text, "store_up", store=store) == 1
    assert (value(text, "store_latency_ms", store=store) or 0.0) > 0
    assert value(text, "store_breaker_state", store=store, state="CLOSED") == 1
    assert value(text, "outcomes_unrecorded", store=store) == 0
    assert value(text, "runs_interrupted", store=store) == 1
    assert value(text, "tool_dedupe_inflight", tool="tools/send") == 1
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        scrape = asyncio.create_task(client.get("/metrics"))
        assert (await client.get("/livez")).status_code == 200, "the event loop does not wait for the store"
        text = (await scrape).text
        other.execute("ROLLBACK")
    assert value(text, "store_up", store=store) == 0
    assert value((await client.get("/metrics")).text, "store_up", store=store) == 1


async def test_the_host_counts_the_claims_of_every_tenant(client: Client, tmp_path: Path) -> None:
    await client.host.keys.create(role="run", tenant="acme")
    with Gateway(store=SQLiteStore(tmp_path / "host.db"), tenant="acme") as gateway:

        def send(to: str) -> str:
            raise TimeoutError

        gateway.tool("send", idempotent=False)(send)
        assert gateway.execute(envelope(call_id="c1")).code == "outcome_unknown"
    text = (await client.get("/metrics")).text
    assert value(text, "tool_unknown_outcomes", tool="tools/send", age="new") == 1


@both
def test_an_unknown_outcome_that_an_equal_call_has_followed_is_counted(face: Any, tmp_path: Path) -> None:
    made = face(SQLiteStore(tmp_path / "claims.db"))
    fails = [TimeoutError()]

    def send(to: str) -> str:
        if fails:
            raise fails.pop()
        return "sent"

    made.tool(send, ttl={"done_ms": 100})
    assert made.call(envelope(params={"to": "ada"}, call_id="c1")).code == "outcome_unknown"
    time.sleep(0.15)
    assert made.call(envelope(params={"to": "ada"}, call_id="c2")).ok
    assert value(made.metrics(), "tool_unknown_outcomes", tool="tools/send", age="new") == 1
    made.close()

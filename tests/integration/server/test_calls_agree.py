"""A call over HTTP leaves behind what the same envelope leaves that is executed here, in either face, on every store.

Compared are the whole answer, claim records, breakers, retry budget, metrics, log lines, what listeners and hooks are
told, what was dispatched, and waits. It differs by design in this:

- The client is another process: no turn, session or run of it reaches the host. So the envelope is executed apart from
  them, and a run that is open beside a request has no call of it.
- An answer is JSON, so the other one is compared as JSON.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import antiphon
from antiphon import Antiphon
from antiphon._gateway.gateway import AsyncGateway
from antiphon.contract.result import ToolResultEnvelope
from antiphon.host.http.app import create
from antiphon.host.wire import to_json
from antiphon.stores import MemoryStore, SQLiteStore
from tests.integration.server.harness import Client, in_process
from tests.integration.stores.test_ways_agree_on_servers import use_server
from tests.ticks import Ticks
from tests.unit.gateway import test_ways_agree as ways
from tests.unit.gateway.kit import envelope

QUIET = {"telemetry": {"logs": False}}


@asynccontextmanager
async def host(gateway: AsyncGateway) -> AsyncIterator[Client]:
    """A client of the real application, whose tenant has the gateway of the test."""
    async with in_process(create(app=Antiphon(QUIET, store=MemoryStore()))) as client:
        client.host.tenant("default").__dict__["async_gateway"] = gateway
        yield client


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name in ("redis", "postgres"):
        use_server(name, request, monkeypatch)
    return name


def answered(result: Any) -> Any:
    """What a client is told, as data without ids."""
    if isinstance(result, ToolResultEnvelope):
        result = json.loads(to_json(result.to_wire()))
    return ways.without_ids(ways.plain(result))


def check_http(setup: ways.Setup, *, loop: bool, sqlite: bool) -> None:
    here = ways.observe(replace(setup, run=""), "execute apart", loop=loop, sqlite=sqlite)
    there = ways.observe(setup, "http", loop=True, sqlite=sqlite, host=host)
    assert [answered(result) for result in here.results] == [answered(result) for result in there.results]
    assert not [event for event in there.events if event["type"].startswith("call.")]
    mine, theirs = ways.left_behind(here), ways.left_behind(there)
    for what in mine.keys() - {"events"}:
        assert mine[what] == theirs[what], what


_as_many = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@_as_many
@given(setup=ways.SETUPS, loop=st.booleans())
def test_calls_over_http_leave_the_same_behind(kind: str, setup: ways.Setup, loop: bool) -> None:
    check_http(setup, loop=loop, sqlite=kind == "sqlite")


async def test_a_sick_store_does_not_break_the_deadline_of_a_call_over_http(tmp_path: Path, ticks: Ticks) -> None:
    """D53: it is the same path, so it has the same limit; a locked database alone would hold it for longer."""
    gateway = antiphon.AsyncGateway(store=SQLiteStore(tmp_path / "claims.db", busy_timeout=8.0))

    @gateway.tool("send", idempotent=False)
    async def send(to: str) -> str:
        return "sent"

    async with host(gateway) as client, gateway:
        assert (await client.post("/v1/calls", json=envelope(call_id="c0"))).json()["status"] == "success"
        with contextlib.closing(sqlite3.connect(tmp_path / "claims.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            wire = envelope(params={"to": "bob"}, call_id="c1", deadline_at_ms=int((time.time() + 0.5) * 1000))
            answer = (await client.post("/v1/calls", json=wire)).json()
            assert ticks.since(began) < 5
            assert answer["error"]["code"] == "store_unavailable"
            other.execute("ROLLBACK")

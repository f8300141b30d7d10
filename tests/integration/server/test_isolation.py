"""One damaged or hostile run, tenant, receiver, client or file never harms another."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import shutil
import socket
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from antiphon.errors import StoreUnavailable
from antiphon.host.http import app as http_app
from antiphon.host.http.app import create
from tests.integration.server import workflows
from tests.integration.server.harness import Client, Served, application, in_process
from tests.ticks import Ticks

DEAD = "0badb007.4026531836.999999.1"
AGENTS = """
import pathlib
import time
import antiphon

@antiphon.agent
def sleeper() -> str:
    until = time.monotonic() + 60
    while not pathlib.Path(__file__).with_name("wake").exists() and time.monotonic() < until:
        time.sleep(0.01)
    return "awake"

@antiphon.agent
def quick() -> str:
    return "done"
"""


async def _tenant(client: Client, name: str, role: str = "run") -> dict[str, str]:
    token, _ = await client.host.keys.create(role=role, tenant=name)
    return {"Authorization": f"Bearer {token}"}


async def _left_behind(client: Client, **headers: str) -> str:
    """A run whose process was killed."""
    run = await client.start("conformance-cancellable", {"delayMs": 300}, **headers)
    while len(client.host.running) < 1 or client.host.running[run].state.open is None:
        await asyncio.sleep(0.01)
    local = client.host.running[run]
    assert local.task is not None
    local.task.cancel()
    await asyncio.wait((local.task,))
    manifest = await client.host.journal.manifest(run)
    assert manifest is not None
    await client.host.journal.update_run(msgspec.structs.replace(manifest, tags={**manifest.tags, "executor": DEAD}))
    return run


def _spoil(tmp_path: Path, run: str, body: bytes, seq: int = 1) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "host.db")) as connection, connection:
        place = "(SELECT number FROM runs WHERE id = ?) << 32 | ?"
        changed = connection.execute(f"UPDATE events SET body = ? WHERE id = {place}", (body, run, seq))
        assert changed.rowcount == 1


SPOILT = {
    "no JSON": b"{",
    "another shape": b'{"payload": 7}',
    "no place": b'{"payload": {"nodeId": "delay"}, "meta": {"workflow": true}, "v": 1}',
    "of a newer release": b'{"payload": {}, "meta": {"workflow": true, "sequence": 1}, "v": 99}',
    "no part": b'{"payload": {"x": {"$blob": 5, "bytes": 1}}, "meta": {"workflow": true, "sequence": 1}}',
    "a node that is not there": b'{"payload": {"nodeId": "gone"}, "meta": {"workflow": true, "sequence": 1}, "v": 1}',
}


@pytest.mark.parametrize("body", SPOILT.values(), ids=SPOILT)
async def test_a_damaged_event_stops_its_own_run_only(
    tmp_path: Path, folder: Path, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_process(application(tmp_path, folder)) as client:
        acme = await _tenant(client, "acme")
        spoilt = await _left_behind(client, **acme)
        sound = await _left_behind(client)
        also = await _left_behind(client, **acme)
    _spoil(tmp_path, spoilt, body)
    async with in_process(application(tmp_path, folder)) as client:
        assert (await client.ended(sound))["status"] == "completed"
        answer = await client.get(f"/v1/runs/{also}/events/poll", params={"lastSequence": 2}, headers=acme)
        assert answer.json()["isComplete"], "another run of the same tenant"
        assert spoilt in caplog.text
        for path in ("", "/events/poll", "/events"):
            headers = {**acme, "Accept": "application/json"}
            answer = await client.get(f"/v1/runs/{spoilt}{path}", headers=headers, params={"timeout": 1})
            assert answer.status_code < 500, answer.text
            assert str(tmp_path) not in answer.text
        listed = await client.get("/v1/runs", headers=acme)
        assert {run["runId"] for run in listed.json()["runs"]} == {spoilt, also}
        assert await client.host.resume_orphans() == 0, "it is not tried again and again"


LOOKALIKES: list[Any] = [
    {"$blob": 5, "bytes": 1},
    {"$blob": "sha256:" + "0" * 64, "bytes": 12},
    {"$blob": "../../etc/passwd", "bytes": 1},
    {"$unserialisable": "builtins.object"},
    {"$bytes": "x"},
    {"antiphon": "not serialisable", "type": "x"},
    {"workflow": True, "sequence": 0, "masks": [["/a", "token"]], "blobs": {"outputs": "sha256:0"}},
]


async def test_user_data_is_never_markup(tmp_path: Path, folder: Path) -> None:
    runs = {}
    wait = workflows.node("wait", "core.conformance.hold", {"delayMs": 600})
    same = workflows.node("same", "core.identity", None, {"payload": {"type": "variable", "variableName": "payload"}})
    variables = [workflows.variable("payload", "any")]
    workflows.write(folder, workflows.workflow("markup", [same, wait, {**same, "id": "again"}], variables))
    async with in_process(application(tmp_path, folder)) as client:
        for place, value in enumerate([*LOOKALIKES, LOOKALIKES]):
            run = await client.start("markup", {"payload": value})
            while client.host.running[run].state.open != "wait":
                await asyncio.sleep(0.005)
            local = client.host.running[run]
            assert local.task is not None
            local.task.cancel()
            await asyncio.wait((local.task,))
            manifest = await client.host.journal.manifest(run)
            assert manifest is not None
            dead = msgspec.structs.replace(manifest, tags={**manifest.tags, "executor": DEAD})
            await client.host.journal.update_run(dead)
            runs[run] = (place, value)
    async with in_process(application(tmp_path, folder)) as client:
        for run, (place, value) in runs.items():
            found = await client.ended(run)
            assert (found["status"], found["outputs"]) == ("completed", {"again": {"payload": value}}), place
            assert found["variables"] == {"payload": value}
            fork = await client.fork(run)
            assert (await client.ended(fork))["outputs"] == found["outputs"]
            assert "replay.diverged" not in [event["type"] for event in await client.events(fork)]


async def test_a_damaged_run_says_so_and_ends_its_streams(tmp_path: Path, client: Client) -> None:
    run = (await client.run("conformance-noop"))["runId"]
    _spoil(tmp_path, run, b"{")
    answer = await client.get(f"/v1/runs/{run}")
    assert (answer.status_code, answer.json()["error"]) == (422, "run_damaged")
    stream = await client.get(f"/v1/runs/{run}/events")
    assert "event: error" in stream.text
    assert "run_damaged" in stream.text
    answer = await client.post(f"/v1/runs/{run}:fork", json={"mode": "replay"})
    assert (answer.status_code, answer.json()["error"]) == (422, "run_damaged")


async def test_a_damaged_manifest_is_left_out_of_lists(tmp_path: Path, folder: Path) -> None:
    async with in_process(application(tmp_path, folder)) as client:
        spoilt = (await client.run("conformance-noop"))["runId"]
        sound = await _left_behind(client)
    with contextlib.closing(sqlite3.connect(tmp_path / "host.db")) as connection, connection:
        connection.execute("UPDATE runs SET manifest = ? WHERE id = ?", (b"{", spoilt))
    async with in_process(application(tmp_path, folder)) as client:
        assert (await client.ended(sound))["status"] == "completed"
        assert [run["runId"] for run in (await client.get("/v1/runs")).json()["runs"]] == [sound]


async def test_a_run_that_the_host_cannot_go_on_with_ends(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.host.events import row_of as right

    def row_of(recorder: Any, told: Any, sequence: int) -> Any:
        if told.type == "node.completed":
            raise TypeError("no form for this")
        return right(recorder, told, sequence)

    monkeypatch.setattr("antiphon.host.host.row_of", row_of)
    found = await client.run("conformance-identity", {"payload": {"a": 1}})
    assert (found["status"], found["error"]["code"]) == ("failed", "internal_error")
    events = await client.events(found["runId"])
    assert [event["type"] for event in events] == ["run.started", "run.failed"]
    assert [event["sequence"] for event in events] == [0, 1]
    found = await client.run("conformance-delay", {"delayMs": 1})
    types = [event["type"] for event in await client.events(found["runId"])]
    assert types == ["run.started", "node.started", "node.failed", "run.failed"]
    assert await client.host.resume_orphans() == 0


# -- tenants ---------------------------------------------------------------------------------------------------------


async def test_a_page_says_nothing_of_other_tenants(tmp_path: Path, folder: Path) -> None:
    """An id of another tenant answers as one of nobody, as a cursor and alone."""
    async with in_process(application(tmp_path, folder)) as client:
        stranger = await _tenant(client, "stranger")
        mine = (await client.run("conformance-replay-side-effect", {"delayMs": 1}))["runId"]
        theirs = await client.start("conformance-replay-side-effect", {"delayMs": 1}, **stranger)
        while (await client.get(f"/v1/runs/{theirs}", headers=stranger)).json()["status"] != "completed":
            await asyncio.sleep(0.01)
        (claim,) = (await client.get("/v1/effects", headers=stranger)).json()["effects"]
        for path, known in (("/v1/effects", claim["key"]), ("/v1/runs", theirs), ("/v1/recordings", theirs)):
            nobody = known[::-1]
            assert nobody != known
            for place in ("", "@1", f"@{claim['fence']}", "@" + "9" * 18, "@" + "9" * 30):
                for state in ({}, {"state": "unknown"}) if path == "/v1/effects" else ({},):
                    told, none = [
                        await client.get(path, params={**state, "before": one + place}) for one in (known, nobody)
                    ]
                    assert told.status_code == none.status_code == (200 if 0 < len(place) < 20 else 404)
                    assert told.text.replace(known, nobody) == none.text
        assert [run["runId"] for run in (await client.get("/v1/runs")).json()["runs"]] == [mine]


async def test_a_page_follows_what_was_deleted(client: Client) -> None:
    made = [(await client.run("conformance-replay-side-effect", {"delayMs": 1}))["runId"] for _ in range(5)][::-1]
    for path, name, items in (("/v1/runs", "runId", "runs"), ("/v1/recordings", "id", "runs")):
        page = (await client.get(path, params={"limit": 2})).json()
        assert [run[name] for run in page[items]] == made[:2]
        assert await client.host.journal.delete_run(made[1])
        page = (await client.get(path, params={"before": page["next"]})).json()
        assert ([run[name] for run in page[items]], page["next"]) == (made[2:], None)
        answer = await client.get(path, params={"before": made[1]})
        assert (answer.status_code, answer.json()["error"]) == (404, "run_not_found")
        page = (await client.get(path, params={"before": made[0]})).json()
        assert [run[name] for run in page[items]] == made[2:]
        del made[1]
    keys = [one["key"] for one in (await client.get("/v1/effects")).json()["effects"]]
    assert len(keys) == 5
    page = (await client.get("/v1/effects", params={"limit": 2})).json()
    assert await client.host.journal.clear(keys[1])
    rest = (await client.get("/v1/effects", params={"before": page["next"]})).json()
    assert ([one["key"] for one in rest["effects"]], rest["next"]) == (keys[2:], None)
    answer = await client.get("/v1/effects", params={"before": keys[1]})
    assert (answer.status_code, answer.json()["error"]) == (404, "not_found")
    rest = (await client.get("/v1/effects", params={"before": keys[0]})).json()
    assert [one["key"] for one in rest["effects"]] == keys[2:]


def _with_agents(tmp_path: Path, **host: Any) -> Starlette:
    code = tmp_path / "sleepers.py"
    code.write_text(AGENTS)
    return application(tmp_path, None, agents=[f"{code}:sleeper", f"{code}:quick"], **host)


async def test_sleeping_agents_keep_only_their_own_tenant_waiting(tmp_path: Path) -> None:
    async with in_process(_with_agents(tmp_path, tenant_threads=2)) as client:
        greedy = await _tenant(client, "greedy")
        asleep = [await client.start("agent:sleeper", {}, **greedy) for _ in range(40)]
        assert (await client.run("agent:quick", {}))["status"] == "completed"
        (tmp_path / "wake").touch()
        for run in asleep:
            answer = await client.get(f"/v1/runs/{run}/events/poll", params={"lastSequence": 2}, headers=greedy)
            assert answer.json()["isComplete"]


async def test_runs_requests_and_hooks_of_a_tenant_are_limited(tmp_path: Path, folder: Path) -> None:
    limits = {"tenant_runs": 3, "tenant_requests": 2, "tenant_webhooks": 2}
    async with in_process(application(tmp_path, folder, webhooks=True, webhooks_loopback=True, **limits)) as client:
        greedy = await _tenant(client, "greedy")
        body = {"workflowId": "conformance-cancellable", "inputs": {"delayMs": 30_000}}
        made = [await client.post("/v1/runs", json=body, headers=greedy) for _ in range(4)]
        assert [answer.status_code for answer in made] == [201, 201, 201, 429]
        assert made[3].json()["error"] == "too_many_runs"
        assert made[3].headers["retry-after"]
        assert (await client.run("conformance-noop"))["status"] == "completed"
        run = made[0].json()["runId"]
        polls = [
            asyncio.create_task(client.get(f"/v1/runs/{run}/events/poll?lastSequence=9&timeout=30", headers=greedy))
            for _ in range(2)
        ]
        while client.host._open["greedy"] < 2:
            await asyncio.sleep(0.01)
        refused = await client.get("/v1/runs", headers=greedy)
        assert (refused.status_code, refused.json()["error"]) == (429, "too_many_requests")
        assert (await client.get("/v1/runs")).status_code == 200
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        assert not client.host._open
        assert (await client.get("/v1/runs", headers=greedy)).status_code == 200
        hook = {"url": "http://127.0.0.1:9/x"}
        hooks = [await client.post("/v1/webhooks", json=hook, headers=greedy) for _ in range(3)]
        assert [answer.status_code for answer in hooks] == [201, 201, 429]
        assert hooks[2].json()["error"] == "too_many_webhooks"
        assert (await client.post("/v1/webhooks", json=hook)).status_code == 201


@contextlib.contextmanager
def _deaf() -> Iterator[str]:
    """A receiver that accepts and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"http://127.0.0.1:{server.getsockname()[1]}/hook"


async def test_a_hanging_receiver_keeps_nobody_elses_deliveries(tmp_path: Path, folder: Path, ticks: Ticks) -> None:
    got: list[dict[str, Any]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l"))
        got.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    with _deaf() as deaf:
        async with in_process(application(tmp_path, folder, webhooks=True, webhooks_loopback=True)) as client:
            bad = await _tenant(client, "bad")
            await client.post("/v1/webhooks", json={"url": deaf}, headers=bad)
            await client.post("/v1/webhooks", json={"url": deaf})  # and another of the same tenant as the good one
            await client.post("/v1/webhooks", json={"url": url})
            for _ in range(5):
                await client.start("conformance-noop", None, **bad)
            begun = time.monotonic()
            run = (await client.run("conformance-noop"))["runId"]
            while len(got) < 4:
                assert ticks.since(begun) < 8, f"{len(got)} of 4 deliveries"
                await asyncio.sleep(0.02)
            assert {event["runId"] for event in got} == {run}
    server.close()


async def test_damaged_subscriptions_cost_webhooks_only(tmp_path: Path, folder: Path) -> None:
    async with in_process(application(tmp_path, folder, webhooks=True, webhooks_loopback=True)) as client:
        await client.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/x"})
    _spoil(tmp_path, "host-webhooks", b"{", 0)
    async with in_process(application(tmp_path, folder, webhooks=True, webhooks_loopback=True)) as client:
        assert (await client.run("conformance-noop"))["status"] == "completed"
        assert (await client.get("/v1/webhooks")).status_code == 501


# -- workflow files --------------------------------------------------------------------------------------------------


async def test_a_hostile_file_is_left_out(tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    deep = b'{"id": "deep", "nodes": [{"id": "a", "typeId": "core.noop", "config": ' + b'{"a":' * 5000 + b"1"
    files = {
        "deep": deep + b"}" * 5000 + b"}]}",
        "bytes": b"\xff\xfe\x00",
        "empty": b"",
        "null": b"null",
        "huge number": b'{"id": "n", "nodes": [{"id": "a", "typeId": "core.noop", "config": {"n": 1e999}}]}',
        "surrogate": b'{"id": "s", "nodes": [{"id": "\\ud800", "typeId": "core.noop"}]}',
        "loop": json.dumps(workflows.workflow("loop", [workflows.node("a", "core.noop")]))
        .encode()
        .replace(b'"edges": []', b'"edges": [{"id": "e", "sourceNodeId": "a", "targetNodeId": "nobody"}]'),
        "unknown": json.dumps(workflows.workflow("unknown", [workflows.node("a", "tool:nobody/has-it")])).encode(),
    }
    for name, data in files.items():
        (folder / f"{name}.json").write_bytes(data)
    (folder / "folder.json").mkdir()
    (folder / "dangling.json").symlink_to(tmp_path / "nowhere")
    async with in_process(application(tmp_path, folder)) as client:
        assert (await client.run("conformance-noop"))["status"] == "completed"
        assert "unknown.json is not offered" in caplog.text
        for name in ("huge number", "surrogate"):
            assert (await client.get("/.well-known/openwop")).status_code == 200, name


# -- readiness -------------------------------------------------------------------------------------------------------


async def test_ready_means_that_writes_work(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await client.get("/readyz")).status_code == 200

    def fresh() -> None:
        client.host.lease._proved = float("-inf")

    async def full(*words: Any) -> bool:
        raise StoreUnavailable("database or disk is full")

    async def broken(*words: Any) -> bool:
        raise RuntimeError("anything")

    async def hanging(*words: Any) -> bool:
        await asyncio.sleep(60)
        return True

    journal = client.host.journal
    right = journal.renew
    monkeypatch.setattr("antiphon.host.host._READY_S", 0.2)
    for wrong in (full, broken, hanging):
        monkeypatch.setattr(journal, "renew", wrong)
        fresh()
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["error"]) == (503, "store_unavailable"), wrong
        assert (await client.get("/livez")).status_code == (await client.get("/healthz")).status_code == 200
    monkeypatch.setattr(journal, "renew", right)
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=4096))
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["error"]) == (503, "disk_full")
    monkeypatch.undo()
    fresh()
    assert (await client.get("/readyz")).status_code == 200


# -- connections -----------------------------------------------------------------------------------------------------


@pytest.fixture
def slow(tmp_path: Path, folder: Path) -> Iterator[Served]:
    """A server with 200 descriptors and short patience."""
    environment = {"ANTIPHON_HOST_HEADER_TIMEOUT_S": "1.5", "ANTIPHON_HOST_IDLE_TIMEOUT_S": "1.5"}
    served = Served(tmp_path, folder, environment, descriptors=200).start()
    try:
        yield served
    finally:
        served.kill()


def _half_sent(served: Served, number: int) -> list[socket.socket]:
    found = []
    for _ in range(number):
        one = socket.create_connection(("127.0.0.1", served.port), timeout=10)
        with contextlib.suppress(OSError):
            one.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow:")
        found.append(one)
    return found


def _is_closed(one: socket.socket, seconds: float) -> bool:
    one.settimeout(seconds)
    try:
        while data := one.recv(4096):
            assert data
        return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def test_half_sent_requests_take_nobodys_place(slow: Served) -> None:
    attackers = _half_sent(slow, 230)
    try:
        for _ in range(3):
            assert httpx.get(f"{slow.url}/livez", timeout=60).status_code == 200
        assert all(_is_closed(one, 60) for one in attackers)
    finally:
        for one in attackers:
            one.close()


@pytest.mark.parametrize("trickle", [b"", b"X-More: 1\r\n"], ids=["silent", "byte by byte"])
def test_headers_have_to_end(slow: Served, trickle: bytes) -> None:
    with socket.create_connection(("127.0.0.1", slow.port), timeout=10) as one:
        one.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")  # a second request of a kept connection counts as well
        assert b"200" in one.recv(4096)
        one.sendall(b"GET /livez HTTP/1.1\r\n")
        begun = time.monotonic()
        closed = False
        while not closed and time.monotonic() - begun < 20:
            if trickle:
                with contextlib.suppress(OSError):
                    one.sendall(trickle)
            closed = _is_closed(one, 0.2)
        assert closed


def test_an_answer_that_nobody_reads_ends(slow: Served) -> None:
    with httpx.Client(base_url=slow.url, headers={"Authorization": "Bearer test-key-with-all-rights"}) as client:
        body = {"workflowId": "conformance-identity", "inputs": {"payload": {"text": "x" * 900_000}}}
        run = client.post("/v1/runs", json=body, timeout=30).json()["runId"]
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", slow.port))
    request = f"GET /v1/runs/{run}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer test-key-with-all-rights\r\n\r\n"
    one.sendall(request.encode())
    until = time.monotonic() + 60
    gone = False
    while not gone and time.monotonic() < until:
        time.sleep(0.2)
        try:
            one.sendall(b"X")  # a connection that was aborted answers with a reset
        except OSError:
            gone = True
    one.close()
    assert gone


@pytest.fixture
async def client(tmp_path: Path, folder: Path) -> AsyncIterator[Client]:
    async with in_process(application(tmp_path, folder)) as found:
        yield found


def test_the_application_is_made_without_a_server(tmp_path: Path) -> None:
    assert create({"store": {"url": f"sqlite:///{tmp_path}/x.db"}}).router.redirect_slashes is False


async def test_a_served_process_gives_way_quickly_and_collects_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request takes the interpreter some fifty times, and waits for this long beside a thread that computes."""

    async def started(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "lifespan.startup.complete"})

    async def nothing(*_: Any) -> Any:
        return None

    monkeypatch.setattr(http_app, "share_metrics", lambda: None)
    monkeypatch.setattr(http_app, "create", lambda: started)
    before = sys.getswitchinterval()
    try:
        served = http_app.service()
        assert sys.getswitchinterval() <= 0.0002
        assert gc.get_freeze_count() == 0
        await served({"type": "lifespan"}, nothing, nothing)
        assert gc.get_freeze_count() > 10_000, "a full collection looks at everything that was loaded"
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)

"""The host over loopback HTTP: 64 clients, one worker, SQLite with synchronous=FULL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench import Context, Row

CLIENTS = 64
KEY = "bench-key"
BARE = (
    "from starlette.applications import Starlette\n"
    "from starlette.responses import Response\n"
    "from starlette.routing import Route\n"
    "async def nothing(request):\n"
    "    return Response(b'{}', media_type='application/json')\n"
    "app = Starlette(routes=[Route('/', nothing, methods=['GET', 'POST'])])\n"
)
NOOP = {
    "id": "noop",
    "nodes": [{"id": "n", "typeId": "core.noop"}],
    "edges": [],
}
HOLD = {"id": "hold", "nodes": [{"id": "n", "typeId": "core.conformance.hold", "config": {"delayMs": 20_000}}]}


class Load(NamedTuple):
    """What a load of one kind of request cost."""

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """CPU of the server per request."""
    statuses: frozenset[int]


class Process:
    """A server in a process of its own, measured through /proc."""

    def __init__(self, words: list[str], port: int, env: dict[str, str], folder: Path) -> None:
        self.port = port
        with (folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(words, env=env, cwd=folder, stdout=log, stderr=log)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError((folder / "server.log").read_text()[-2000:])

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _host() -> Iterator[Process]:
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as name:
        folder = Path(name)
        flows = folder / "flows"
        flows.mkdir()
        for flow in (NOOP, HOLD):
            (flows / f"{flow['id']}.json").write_text(json.dumps(flow))
        port = _port()
        env = {
            **os.environ,
            "ANTIPHON_API_KEY": KEY,
            "ANTIPHON_WORKFLOWS": str(flows),
            "ANTIPHON_HOME": str(folder / "state"),
            "ANTIPHON_TELEMETRY_LOGS": "false",
            "ANTIPHON_HOST_TENANT_REQUESTS": "1000",
        }
        code = "from antiphon.cli import main; raise SystemExit(main())"
        words = [sys.executable, "-c", code, "serve", "--port", str(port), "--log-level", "warning"]
        process = Process(words, port, env, folder)
        try:
            yield process
        finally:
            process.stop()


@contextlib.contextmanager
def _bare() -> Iterator[Process]:
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as name:
        folder = Path(name)
        (folder / "bare.py").write_text(BARE)
        port = _port()
        words = [sys.executable, "-m", "uvicorn", "bare:app", "--port", str(port)]
        process = Process([*words, "--no-access-log", "--log-level", "warning"], port, dict(os.environ), folder)
        try:
            yield process
        finally:
            process.stop()


def _request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {KEY}", *headers]
    if body:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        if line[:15].lower() == b"content-length:":
            length = int(line[15:])
    return int(head[9:12]), await reader.readexactly(length)


async def _load(server: Process, make: Callable[[int], bytes], total: int) -> Load:
    """*total* requests over 64 connections, each waiting for its answer before it asks again."""
    numbers = iter(range(total))
    times: list[float] = []
    statuses: set[int] = set()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for number in numbers:
            begun = time.perf_counter()
            writer.write(make(number))
            status, _ = await _answer(reader)
            times.append(time.perf_counter() - begun)
            statuses.add(status)
        writer.close()

    cpu, begun = server.cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    took = time.perf_counter() - begun
    cpu = server.cpu_seconds() - cpu
    cuts = statistics.quantiles(times, n=100)
    return Load(total / took, cuts[49] * 1e3, cuts[98] * 1e3, cpu / total * 1e6, frozenset(statuses))


async def _once(server: Process, request: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    answer = await _answer(reader)
    writer.close()
    return answer


async def _listeners(server: Process, number: int) -> tuple[int, float]:
    """How many of *number* streams of one run are open and have its events at the same time; memory of each in kB."""
    before = server.rss_mb()
    _, body = await _once(server, _request("POST", "/v1/runs", b'{"workflowId":"hold"}'))
    run = json.loads(body)["runId"]
    heard = 0
    ready = asyncio.Event()

    async def listen() -> bool:
        """Whether the stream was open until the end of the run."""
        nonlocal heard
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(_request("GET", f"/v1/runs/{run}/events", b"", "Accept: text/event-stream"))
        while b"node.started" not in (line := await reader.readline()):
            if not line:
                return False
        heard += 1
        if heard == number:
            ready.set()
        while line and b"run.cancelled" not in line:
            line = await reader.readline()
        writer.close()
        return bool(line)

    tasks = [asyncio.create_task(listen()) for _ in range(number)]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(30):
            await ready.wait()
    used = (server.rss_mb() - before) * 1024 / max(heard, 1)
    await _once(server, _request("POST", f"/v1/runs/{run}/cancel", b"{}"))
    done, pending = await asyncio.wait(tasks, timeout=30)
    for task in pending:
        task.cancel()
    return sum(task.result() for task in done), used


def _rows(name: str, load: Load, bare: Load) -> list[Row]:
    note = f"statuses {sorted(load.statuses)}"
    return [
        Row(
            name=f"{name}: requests/s at {CLIENTS} clients",
            value=load.per_second,
            unit="1/s",
            peer="bare Starlette",
            peer_value=bare.per_second,
            note=note,
        ),
        Row(name=f"{name}: p50", value=load.p50_ms, unit="ms", peer="bare Starlette", peer_value=bare.p50_ms),
        Row(name=f"{name}: p99", value=load.p99_ms, unit="ms", peer="bare Starlette", peer_value=bare.p99_ms),
        Row(
            name=f"{name}: server CPU per request",
            value=load.cpu_us,
            unit="µs",
            peer="bare Starlette",
            peer_value=bare.cpu_us,
        ),
    ]


async def _measure(ctx: Context) -> list[Row]:
    total = 600 if ctx.quick else 4_000
    many = 3_000 if ctx.quick else 50_000
    with _bare() as server:
        await _load(server, lambda _: _request("POST", "/", b"{}"), total // 4)
        bare_post = await _load(server, lambda _: _request("POST", "/", b'{"workflowId":"noop"}'), total)
        bare_get = await _load(server, lambda _: _request("GET", "/"), total)
    rows: list[Row] = []
    with _host() as server:
        start = _request("POST", "/v1/runs", b'{"workflowId":"noop"}')
        await _load(server, lambda _: start, total // 4)
        await asyncio.sleep(0.5)
        rows += _rows("start a run", await _load(server, lambda _: start, total), bare_post)
        _, body = await _once(server, start)
        run = json.loads(body)["runId"]
        await asyncio.sleep(0.5)
        poll = _request("GET", f"/v1/runs/{run}/events/poll?timeout=1")
        rows += _rows("poll a finished run", await _load(server, lambda _: poll, total), bare_get)
        keyed = _request("POST", "/v1/runs", b'{"workflowId":"noop"}', "Idempotency-Key: the-same-key-every-time-1")
        await _once(server, keyed)
        rows += _rows("answer from an Idempotency-Key", await _load(server, lambda _: keyed, total), bare_post)
        await _load(server, lambda _: poll, many // 5)
        early = server.rss_mb()
        await _load(server, lambda _: poll, many * 4 // 5)
        late = server.rss_mb()
        rows.append(
            Row(
                name=f"memory grown over {many} requests",
                value=late - early,
                unit="MB",
                at_most=8,
                note=f"{late:.0f} MB at the end",
            )
        )
        held, each = await _listeners(server, 500)
        rows.append(
            Row(name="SSE listeners held", value=held, unit="streams", at_least=500, note=f"{each:.0f} kB each")
        )
    return rows


def run(ctx: Context) -> list[Row]:
    return asyncio.run(_measure(ctx))

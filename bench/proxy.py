"""The proxy: what it adds to a request, open loop, 200 requests a second over 64 connections.

Clients and upstream run on uvloop: they share the cores with the proxy, and what they use it has to wait for.

Beside it mitmproxy (reverse mode, streaming) and aimock (proxy mode), which guard and claim nothing. Then 10,000
requests as fast as they go and 1 GB of streams, and how much the proxy has grown by them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench import Context, Row
from bench._envs import PeerUnavailable, node_of, python_of
from bench.host import Process, _port

CONNECTIONS = 64
RATE = 200
BODY = json.dumps({"model": "fake-1", "messages": [{"role": "user", "content": "hello " * 100}]}).encode()
STREAM = json.dumps({**json.loads(BODY), "stream": True}).encode()
UPSTREAM = r"""
import asyncio, json, sys, uvloop
choice = {"index": 0, "message": {"role": "assistant", "content": "hello " * 100}, "finish_reason": "stop"}
usage = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
answer = json.dumps({"id": "1", "object": "chat.completion", "model": "fake-1", "choices": [choice], "usage": usage})
whole = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n\r\n{answer}".encode()
delta = {"id": "1", "object": "chat.completion.chunk", "model": "fake-1"}
event = b"data: " + json.dumps({**delta, "choices": [{"index": 0, "delta": {"content": "hello"}}]}).encode() + b"\n\n"
head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

async def serve(reader, writer):
    while True:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        length = next(int(line[15:]) for line in request.split(b"\r\n") if line[:15].lower() == b"content-length:")
        body = await reader.readexactly(length)
        if b'"bulk"' in body:
            writer.write(head)
            line = b"data: " + b"x" * 16376 + b"\n\n"
            for number in range(int(json.loads(body)["bulk"]) * 64):
                writer.write(b"4000\r\n%s\r\n" % line)
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            continue
        if b'"stream":true' not in body.replace(b" ", b""):
            writer.write(whole)
            continue
        writer.write(head)
        for number in range(5):
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(0.005)
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()

uvloop.run(main())
"""


class Times(NamedTuple):
    """Milliseconds of one load."""

    p50: float
    p99: float
    first: float
    """To the first byte of the body, median."""
    failed: int


class Way(NamedTuple):
    """One way to the upstream."""

    process: Process
    path: str


OURS = ("live", "record")
PEERS = ("mitmproxy", "aimock")
PATH = "/v1/chat/completions"


@contextlib.contextmanager
def _servers() -> Iterator[tuple[Process, dict[str, Way], dict[str, str]]]:
    """The upstream, the ways to it, and why peers are missing."""
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "upstream.py").write_text(UPSTREAM)
        (folder / "fixtures").mkdir()
        port = _port()
        upstream = Process([sys.executable, "upstream.py", str(port)], port, dict(os.environ), folder)
        stack.callback(upstream.stop)
        url = f"http://127.0.0.1:{port}"
        code = "from antiphon.cli import main; raise SystemExit(main())"
        ways: dict[str, Way] = {}
        missing: dict[str, str] = {}
        for name in (*OURS, *PEERS):
            at = _port()
            env = {**os.environ, "ANTIPHON_HOME": str(folder / f"state-{name}"), "HOME": str(folder)}
            try:
                if name in OURS:
                    words = [sys.executable, "-c", code, "proxy", "--mode", name, "--port", str(at)]
                    words += ["--log-level", "warning", "--upstream", f"openai={url}"]
                elif name == "mitmproxy":
                    words = [str(python_of(name).parent / "mitmdump"), "--quiet", "--mode", f"reverse:{url}"]
                    words += ["--listen-host", "127.0.0.1", "--listen-port", str(at), "--set", "stream_large_bodies=1"]
                else:
                    node, packages = node_of(name)
                    program = packages / "@copilotkit" / "aimock" / "dist" / "cli.js"
                    words = [str(node), str(program), "--port", str(at), "--proxy-only", "--provider-openai", url]
                    words += ["--fixtures", str(folder / "fixtures"), "--log-level", "silent"]
                process = Process(words, at, env, folder)
            except (PeerUnavailable, RuntimeError) as error:
                if name in OURS:
                    raise
                missing[name] = str(error)
                continue
            stack.callback(process.stop)
            ways[name] = Way(process, f"/run/bench/openai{PATH}" if name in OURS else PATH)
        yield upstream, ways, missing


async def _one(
    port: int, path: str, body: bytes, idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
) -> tuple[float, float, bool]:
    """One request over a free connection: its time, that to the first byte of the body, and whether it was answered."""
    begun = time.perf_counter()
    reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in answer.split(b"\r\n") if line[:15].lower() == b"content-length:"), None)
    if length is not None:
        await reader.readexactly(length)
        first = time.perf_counter()
    else:
        first = 0.0
        while size := int((await reader.readline()).strip(), 16):
            first = first or time.perf_counter()
            await reader.readexactly(size + 2)
        await reader.readline()
    idle.append((reader, writer))
    return (time.perf_counter() - begun) * 1e3, (first - begun) * 1e3, answer[9:12] == b"200"


async def _load(port: int, path: str, body: bytes, total: int) -> Times:
    """*total* requests, one every 5 ms whether or not the ones before are answered."""
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
    tasks: list[asyncio.Task[tuple[float, float, bool]]] = []
    begun = time.perf_counter()
    for number in range(total):
        await asyncio.sleep(max(0.0, begun + number / RATE - time.perf_counter()))
        tasks.append(asyncio.create_task(_one(port, path, body, idle)))
    found = await asyncio.gather(*tasks)
    for _, writer in idle:
        writer.close()
    cuts = statistics.quantiles([whole for whole, _, _ in found], n=100)
    first = statistics.median(first for _, first, _ in found)
    return Times(cuts[49], cuts[98], first, sum(not ok for _, _, ok in found))


async def _flood(port: int, path: str, body: bytes, total: int, at_once: int) -> int:
    """*total* requests, so many at a time; how many failed."""
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    left = iter(range(total))

    async def work() -> int:
        return sum([not (await _one(port, path, body, idle))[2] for _ in left])

    failed = sum(await asyncio.gather(*(work() for _ in range(at_once))))
    for _, writer in idle:
        writer.close()
    return failed


def _grown(ctx: Context, mode: str, way: Way) -> list[Row]:
    """How much memory the proxy keeps of many requests, and of long streams."""
    total, streams, size = (300, 4, 5) if ctx.quick else (10_000, 100, 10)
    rows = []
    loads = [(f"{total:,} requests", BODY, total, 16)]
    if mode == "live":  # recorded streams are as large as the disk
        bulk = json.dumps({**json.loads(STREAM), "bulk": size}).encode()
        loads.append((f"{streams * size:,} MB of streams", bulk, streams, 4))
    for what, body, number, at_once in loads:
        uvloop.run(_flood(way.process.port, way.path, body, max(1, number // 10), at_once))  # buffers have their size
        before = way.process.rss_mb()
        failed = uvloop.run(_flood(way.process.port, way.path, body, number, at_once))
        note = f"{failed} of {number} requests failed" if failed else f"of {before:.0f} MB"
        rows.append(
            Row(name=f"{mode}: grown by {what}", value=way.process.rss_mb() - before, unit="MB", note=note, at_most=16)
        )
    return rows


def _median(cpu: list[float], added: list[Times], part: str) -> float:
    """Of that part of the times, or of the CPU time."""
    return float(statistics.median([getattr(one, part) for one in added] if part else cpu))


def run(ctx: Context) -> list[Row]:
    """Direct and through the proxies in turns; what each adds is the median of the differences."""
    rounds, total = (1, 200) if ctx.quick else (5, 1000)
    rows: list[Row] = []
    with _servers() as (upstream, ways, missing):
        for way in ways.values():  # what is imported with the first request is not measured
            for body in (BODY, STREAM):
                uvloop.run(_flood(way.process.port, way.path, body, 50, 16))
        for kind, body in (("JSON", BODY), ("stream", STREAM)):
            added: dict[str, list[Times]] = {name: [] for name in ways}
            cpu: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(rounds):
                direct = uvloop.run(_load(upstream.port, PATH, body, total))
                for name, way in ways.items():
                    before = way.process.cpu_seconds()
                    seen = uvloop.run(_load(way.process.port, way.path, body, total))
                    cpu[name].append((way.process.cpu_seconds() - before) / total * 1e3)
                    p50, p99, first = (one - other for one, other in zip(seen[:3], direct[:3], strict=True))
                    added[name].append(Times(p50, p99, first, seen.failed + direct.failed))
            for mode in OURS:
                for part, most in (("p50", 1.5), ("p99", 5.0), ("first", 1.0), ("", None)):
                    if part == "first" and kind != "stream":
                        continue
                    what = {"first": "added first byte", "": "CPU per request"}.get(part, f"added {part}")

                    failed = sum(one.failed for one in added[mode])
                    note = f"{failed} of {rounds * total * 2} requests failed" if failed else ""
                    name = f"{mode}, {kind}: {what}"
                    goal = most if mode == "live" else None
                    rows.append(
                        Row(name=name, value=_median(cpu[mode], added[mode], part), unit="ms", note=note, at_most=goal)
                    )
                    for peer in PEERS if mode == "live" else ():
                        failures = sum(one.failed for one in added.get(peer, ()))
                        rows.append(
                            Row(
                                name=name,
                                value=_median(cpu[mode], added[mode], part),
                                unit="ms",
                                peer=peer,
                                peer_value=_median(cpu[peer], added[peer], part) if peer in ways else None,
                                note=f"{failures} requests of {peer} failed" if failures else "",
                                failed=missing.get(peer, ""),
                            )
                        )
        for mode in OURS:
            rows.append(Row(name=f"{mode}: memory after the load", value=ways[mode].process.rss_mb(), unit="MB"))
            rows += _grown(ctx, mode, ways[mode])
    return rows

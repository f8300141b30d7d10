"""MCP tool calls through the proxy while a relay cuts either leg at random bytes, and clients that send them again.

    python -m tests.campaigns.lost_answers [--calls 10000] [--seed 1] [--cut 0.2]

Three ways: a bare client, the proxy without identity, the proxy with an ``Idempotency-Key``. The client's leg goes
through the relay each time, the server's leg with the proxy only. An *intent* is a call that a client wants made once;
it is sent again until it is answered. A third of them is followed by an intent with equal arguments.

Printed: a table of what had become of an answer (*lost*: the connection ended before the proxy wrote the last byte,
*handed over*: all of it was written, *confirmed*: a later request came over the same connection) by what went wrong
then: executions more than one for an intent (duplicates), and intents that were answered with the execution of another
intent (swallowed).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests.servers import free_port

CLIENTS = 16
STATES = ("lost", "handed over", "confirmed")
NAMES = {"bare": "bare client", "without": "proxy, calls without identity", "identity": "proxy, calls with identity"}
_STATE = re.compile(r"the answer to (\S+) is (handed over|lost|confirmed)")


class Server:
    """Counts what it executes: the answer says which delivery it executed."""

    def __init__(self) -> None:
        self.executed: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            while True:
                message = json.loads(await _body(reader, await reader.readuntil(b"\r\n\r\n")))
                self.executed.append(message["id"])
                await asyncio.sleep(random.random() * 0.006)
                result = {"content": [{"type": "text", "text": message["id"]}]}
                data = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
                ends = random.random() < 0.5  # so that the proxy opens many connections
                more = ("connection: close",) if ends else ()
                writer.write(_head("HTTP/1.1 200 OK", len(data), *more) + data)
                await writer.drain()
                if ends:
                    break
        writer.close()


class Relay:
    """Passes bytes on; a share of the connections is cut at a random byte of one direction, or a little later."""

    def __init__(self, target: int, seed: int, cut: float) -> None:
        self._target, self._chance, self._cut = target, random.Random(seed), cut
        self.cuts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        limits: list[int | None] = [None, None]
        if self._chance.random() < self._cut:
            limits[self._chance.randrange(2)] = self._chance.randrange(1, 1500)

        async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter, left: int | None) -> None:
            while data := await source.read(65536):
                if left is not None and len(data) >= left:
                    late = self._chance.random() < 0.5
                    to.write(data if late else data[:left])
                    with contextlib.suppress(ConnectionError):
                        await to.drain()
                    if late:  # everything went through; the end comes while the answer is on its way
                        await asyncio.sleep(self._chance.random() * 0.01)
                    self.cuts += 1
                    raise ConnectionAbortedError
                left = None if left is None else left - len(data)
                to.write(data)
                await to.drain()

        pumps = [
            asyncio.ensure_future(pump(reader, far_writer, limits[0])),
            asyncio.ensure_future(pump(far_reader, writer, limits[1])),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for one in (writer, far_writer):
            one.close()


class Intent(NamedTuple):
    """A call that is wanted once."""

    name: str
    order: str
    sent: list[str]
    """The ids of its deliveries."""
    got: list[str]
    """The delivery whose execution answered it; empty if that is not known."""


class Result(NamedTuple):
    """What a campaign counts."""

    intents: int
    deliveries: int
    answers: dict[str, int]
    """By what became of them."""
    duplicates: dict[str, int]
    """By what had become of the answer that was not received: ``lost``, ``handed over``, or ``bare``."""
    swallowed: dict[str, int]
    """By what had become of the answer that was given again."""
    unknown: int


class _Client:
    """Sends intents one after the other over a connection that is opened anew when it breaks."""

    def __init__(self, port: int, path: str, number: int, identity: bool) -> None:
        self._port, self._path, self._number, self._identity = port, path, number, identity
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def make(self, intent: Intent) -> None:
        if self._connection is not None and random.random() < 0.4:  # few clients keep one for long
            self._connection[1].close()
            self._connection = None
        while True:
            delivery = f"{intent.name}.{len(intent.sent)}"
            intent.sent.append(delivery)
            try:
                async with asyncio.timeout(30):
                    answer = await self._deliver(intent, delivery)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                if self._connection is not None:
                    self._connection[1].transport.abort()
                    self._connection = None
                continue
            result = answer.get("result", {})
            if not result.get("isError") and "content" in result:
                intent.got.append(result["content"][0]["text"])
            return

    async def _deliver(self, intent: Intent, delivery: str) -> dict[str, Any]:
        if self._connection is None:
            self._connection = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._connection
        params = {"name": "charge", "arguments": {"order": intent.order}}
        data = json.dumps({"jsonrpc": "2.0", "id": delivery, "method": "tools/call", "params": params}).encode()
        named = [f"idempotency-key: {intent.name}"] if self._identity else []
        accept = "accept: application/json, text/event-stream"
        writer.write(_head(f"POST {self._path} HTTP/1.1", len(data), "host: 127.0.0.1", accept, *named) + data)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        body = await _body(reader, head)
        if not head.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(head[:60].decode("latin-1"))
        found: dict[str, Any] = json.loads(body)
        return found


def _head(first: str, length: int, *more: str) -> bytes:
    lines = [first, "content-type: application/json", f"content-length: {length}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    for line in head.split(b"\r\n"):
        if line[:15].lower() == b"content-length:":
            return await reader.readexactly(int(line[15:]))
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return body


async def play(port: int, path: str, calls: int, seed: int, *, identity: bool) -> list[Intent]:
    """Let the clients make *calls* intents."""
    chance = random.Random(seed)
    made: list[Intent] = []
    left = iter(range(calls))

    async def client(number: int) -> None:
        sender = _Client(port, path, number, identity)
        order = ""
        for call in left:
            if not order or chance.random() > 1 / 3:
                order = f"order-{call}"
            intent = Intent(f"i{call}", order, [], [])
            made.append(intent)
            await sender.make(intent)

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return made


def judge(intents: list[Intent], executed: list[str], states: dict[str, str]) -> Result:
    """Compare what was wanted with what was executed; *states* says what became of the answer of each delivery."""
    of = {delivery: intent.name for intent in intents for delivery in intent.sent}
    runs: defaultdict[str, list[str]] = defaultdict(list)
    for delivery in executed:
        runs[of[delivery]].append(delivery)
    duplicates: Counter[str] = Counter()
    swallowed: Counter[str] = Counter()
    for intent in intents:
        done = runs[intent.name]
        for delivery, following in pairwise(done):  # the first one's answer did not arrive, so there was another
            given = intent.sent[intent.sent.index(delivery) : intent.sent.index(following)]
            told = [states[one] for one in given if one in states]  # what became of that answer, each time it was given
            duplicates["bare" if not states else told[-1] if told else "lost"] += 1
        if intent.got and of[intent.got[0]] != intent.name:
            swallowed[states.get(intent.got[0], "unsaid")] += 1
    return Result(
        len(intents),
        len(of),
        dict(Counter(states.values())),
        dict(duplicates),
        dict(swallowed),
        sum(not intent.got for intent in intents),
    )


async def listen(serve: Any) -> tuple[asyncio.Server, int]:
    """A server on a free port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, int(server.sockets[0].getsockname()[1])


def states_of(lines: list[str]) -> dict[str, str]:
    """What the log of a proxy says about answers. A delivery that was lost is lost, whatever came before."""
    found: dict[str, str] = {}
    for line in lines:
        for delivery, state in _STATE.findall(line):
            found[delivery] = state
    return found


def violations(result: Result, *, identity: bool) -> list[str]:
    """What must not be."""
    wrong = []
    if identity and (result.duplicates or result.swallowed):
        wrong.append(f"with identity: duplicates {result.duplicates}, swallowed {result.swallowed}")
    if set(result.duplicates) - {"handed over"}:
        wrong.append(f"duplicates of answers that were not handed over: {result.duplicates}")
    if set(result.swallowed) - {"lost"}:
        wrong.append(f"calls swallowed by answers that were not lost: {result.swallowed}")
    lost = result.answers.get("lost", 0)
    if sum(result.swallowed.values()) > lost:
        wrong.append(f"{result.swallowed} swallowed for {lost} lost answers")
    return wrong


def table(result: Result) -> str:
    """What had become of an answer, by what went wrong then."""
    rows = list(STATES) if result.answers else []
    rows += [state for state in {**result.duplicates, **result.swallowed} if state not in rows]
    lines = [f"  {'the answer was':<16}{'answers':>9}{'duplicates':>12}{'swallowed':>11}"]
    for state in rows or ["bare"]:  # without a proxy nobody can tell
        answers = result.answers.get(state, "-")
        lines.append(
            f"  {state:<16}{answers:>9}{result.duplicates.get(state, 0):>12}{result.swallowed.get(state, 0):>11}"
        )
    return "\n".join(lines)


def _start(words: list[str], port: int, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, *words], stdout=file, stderr=file, env=dict(os.environ))
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return process
        time.sleep(0.05)
    raise RuntimeError(log.read_text()[-2000:])


async def _campaign(kind: str, calls: int, seed: int, cut: float, folder: Path) -> Result:
    server = Server()
    listening, server.port = await listen(server.serve)
    processes: list[subprocess.Popen[bytes]] = []
    log = folder / f"{kind}.log"
    try:
        to, path = server.port, "/mcp"
        if kind != "bare":
            near = free_port()
            processes.append(_start(_relay(near, server.port, seed + 1, cut / 2), near, folder / "far.log"))
            to, path = free_port(), "/run/campaign/desk/mcp"
            words = ["-m", "antiphon.cli", "proxy", "--mode", "live", "--port", str(to), "--log-level", "debug"]
            words += ["--mcp", f"desk=http://127.0.0.1:{near}", "--store", str(folder / f"{kind}.db")]
            processes.append(_start(words, to, log))
        front = free_port()
        processes.append(_start(_relay(front, to, seed, cut), front, folder / "near.log"))
        random.seed(seed)
        intents = await play(front, path, calls, seed, identity=kind == "identity")
    finally:
        for process in processes:
            process.terminate()
            process.wait(30)
        listening.close()
    states = states_of(log.read_text().splitlines()) if log.exists() else {}
    return judge(intents, server.executed, states)


def _relay(port: int, target: int, seed: int, cut: float) -> list[str]:
    return ["-m", "tests.campaigns.lost_answers", "--relay", f"{port},{target},{seed},{cut}"]


async def _run_relay(text: str) -> None:
    port, target, seed, cut = text.split(",")
    relay = Relay(int(target), int(seed), float(cut))
    async with await asyncio.start_server(relay.serve, "127.0.0.1", int(port)) as server:
        await server.serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cut", type=float, default=0.2, help="share of the connections that are cut")
    parser.add_argument("--ways", default="bare,without,identity", help="which of the three (default: all)")
    parser.add_argument("--relay", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.relay:
        asyncio.run(_run_relay(arguments.relay))
        return 0
    failed = False
    with tempfile.TemporaryDirectory(prefix="antiphon-campaign-") as name:
        for kind in arguments.ways.split(","):
            begun = time.monotonic()
            found = asyncio.run(_campaign(kind, arguments.calls, arguments.seed, arguments.cut, Path(name)))
            wrong = [] if kind == "bare" else violations(found, identity=kind == "identity")
            failed |= bool(wrong)
            print(
                f"{NAMES[kind]}: {found.intents} intents, {found.deliveries} deliveries, {found.unknown} outcomes "
                f"unknown ({time.monotonic() - begun:.0f} s)"
            )
            print(table(found), flush=True)
            for line in wrong:
                print(f"  VIOLATED: {line}")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())

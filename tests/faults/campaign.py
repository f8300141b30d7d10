"""Kills and pauses real workers around a real store, by the hundred, and has the logs checked afterwards.

    python -m tests.faults.campaign --store redis --kills 50 --pauses 14

A recorder, a process of its own, counts the effects. The driver writes down what it asked for, what was answered and
what it broke. ``history.check`` reads the two logs; it decides.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import multiprocessing
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults import history
from tests.faults.fleet_kit import (
    PATIENCE_S,
    Worker,
    envelope,
    open_async_gateway,
    open_gateway,
    short,
    summary,
)
from tests.servers import HOST, Postgres, Server, Valkey

LEASE_MS = 2_000
PAUSE_S = (LEASE_MS / 1000 * 1.5, LEASE_MS / 1000 * 2.2)
WORKERS = 5
FORGETFUL = "redis-no-persistence"
"""Loses what it had confirmed when its server is killed."""
STORES = ("sqlite", "redis", "postgres", FORGETFUL)

_forked = multiprocessing.get_context("forkserver")
_forked.set_forkserver_preload(
    [
        "tests.faults.fleet_kit",
        "antiphon.redact",
        "antiphon.telemetry.builtin",
        "antiphon.stores.sqlite",
        "antiphon.stores.redis.journal",
        "antiphon.stores.postgres.journal",
        "redis.asyncio",
        "psycopg_pool",
    ]
)


# -- the recorder ----------------------------------------------------------------------------------------------------


def _record(file: str, pipe: Connection) -> None:
    """The process that stands for the outside world: it takes an effect, numbers it, writes it down, and says so."""
    server = socket.create_server((HOST, 0), backlog=128)
    pipe.send(server.getsockname()[1])
    lock, count = threading.Lock(), 0

    def take(connection: socket.socket) -> None:
        nonlocal count
        with connection, contextlib.suppress(OSError):
            line = connection.makefile("rb").readline()
            if not line:
                return
            with lock, Path(file).open("a") as log:
                count += 1
                number = count
                log.write(json.dumps({"number": number, "at": time.monotonic(), **json.loads(line)}) + "\n")
            connection.sendall(b"%d\n" % number)

    while True:
        threading.Thread(target=take, args=(server.accept()[0],), daemon=True).start()


class _Place(NamedTuple):
    """What a worker needs to know."""

    url: str
    recorder: int
    asynchronous: bool


# -- a worker --------------------------------------------------------------------------------------------------------


def _work(place: _Place, name: str, pipe: Connection) -> None:
    """One delivery after the other, in one of the two faces of a gateway."""
    logging.disable(logging.CRITICAL)  # a server that is away is noticed by everybody
    if place.asynchronous:
        asyncio.run(_work_async(place, name, pipe))
        return
    current = [0]

    def effect(order: str, before: float, after: float) -> int:
        time.sleep(before)
        with socket.create_connection((HOST, place.recorder)) as connection:
            connection.sendall(_line(order, current[0], name))
            number = int(connection.makefile("rb").readline())
        time.sleep(after)
        return number

    with open_gateway(place.url, loop={"enabled": False}) as gateway:
        _tools(gateway, effect)
        pipe.send("ready")
        while True:
            current[0], order, call_id, params = pipe.recv()
            pipe.send(summary(gateway.execute(_envelope(order, call_id, params))))


async def _work_async(place: _Place, name: str, pipe: Connection) -> None:
    current = [0]

    async def effect(order: str, before: float, after: float) -> int:
        await asyncio.sleep(before)
        reader, writer = await asyncio.open_connection(HOST, place.recorder)
        writer.write(_line(order, current[0], name))
        number = int(await reader.readline())
        writer.close()
        await asyncio.sleep(after)
        return number

    async with open_async_gateway(place.url, loop={"enabled": False}) as gateway:
        _tools(gateway, effect)
        pipe.send("ready")
        while True:
            current[0], order, call_id, params = await asyncio.to_thread(pipe.recv)
            pipe.send(summary(await gateway.execute(_envelope(order, call_id, params))))


def _tools(gateway: Any, effect: Any) -> None:
    gateway.tool("charge", idempotent=False, ttl=short(LEASE_MS))(effect)
    gateway.tool("look_up", idempotent=True, reuse="session", ttl=short(LEASE_MS))(effect)


def _line(order: str, call: int, worker: str) -> bytes:
    return json.dumps({"order": order, "call": call, "worker": worker}).encode() + b"\n"


def _envelope(order: str, call_id: str, params: dict[str, Any]) -> dict[str, Any]:
    return envelope("look_up" if history.repeatable(order) else "charge", params, call_id, key=order)


# -- the driver ------------------------------------------------------------------------------------------------------


class _Member:
    """A worker, and the call it is busy with."""

    def __init__(self, name: str, place: _Place) -> None:
        self.name = name
        self.worker = Worker(_work, place, name, context=_forked)
        self.call = 0
        self.ready = False
        self.wakes = 0.0
        """When it is resumed; 0: it runs."""


class Goals(NamedTuple):
    """How much a campaign does."""

    kills: int
    pauses: int
    server_faults: int = 0


class Campaign:
    """One store, a fleet around it, and faults until there have been enough."""

    def __init__(self, url: str, folder: Path, goals: Goals, seed: int, server: Server | None, *, loses: bool) -> None:
        self._random = random.Random(seed)
        self._goals = goals
        self._server = server
        self._loses = loses
        self._log = (folder / "driver.jsonl").open("a")
        self._effects = folder / "recorder.jsonl"
        self._url = url
        self._members: list[_Member] = []
        self._started = self._calls = self._kills = self._pauses = self._server_faults = 0
        self._orders: dict[str, tuple[str, dict[str, Any]]] = {}
        self._server_back = 0.0
        self._next_server_fault = 0

    def run(self) -> history.Verdict:
        """Until every goal is met; then each order is delivered once more, in peace."""
        here, there = _forked.Pipe()
        recorder = _forked.Process(target=_record, args=(str(self._effects), there), daemon=True)
        recorder.start()
        try:
            self._port = here.recv()
            for _ in range(WORKERS):
                self._hire()
            while not self._enough():
                self._step()
            self._quieten()
            if self._server_faults:
                self._listen(history.AFTERMATH_S)
            self._once_more()
        finally:
            for member in self._members:
                member.worker.kill()
            recorder.kill()
            recorder.join()
            self._log.close()
        return history.check(history.read(Path(self._log.name)), history.read(self._effects))

    def _enough(self) -> bool:
        goals = self._goals
        return (
            self._kills >= goals.kills and self._pauses >= goals.pauses and self._server_faults >= goals.server_faults
        )

    def _say(self, event: str, **fields: Any) -> None:
        self._log.write(json.dumps({"event": event, "at": time.monotonic(), **fields}) + "\n")
        self._log.flush()

    def _hire(self) -> None:
        self._started += 1
        place = _Place(self._url, self._port, asynchronous=self._started % 2 == 0)
        self._members.append(_Member(f"w{self._started}", place))

    def _listen(self, seconds: float) -> None:
        """Take answers and wake sleepers for a while."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for member in self._members:
                if member.wakes and now >= member.wakes:
                    member.worker.resume()
                    member.wakes = 0.0
                    self._say("resume", worker=member.name)
            if self._server_back and now >= self._server_back:
                self._heal()
            pipes = {member.worker.pipe: member for member in self._members}
            for pipe in wait(list(pipes), timeout=max(0.0, min(0.02, until - now))):
                member = pipes[pipe]
                said = member.worker.pipe.recv()
                if said == "ready":
                    member.ready = True
                    continue
                self._say("answer", call=member.call, worker=member.name, **{k: said[k] for k in _KEPT})
                member.call = 0
            if now >= until:
                return

    def _idle(self) -> list[_Member]:
        return [member for member in self._members if member.ready and not member.call and not member.wakes]

    def _step(self) -> None:
        """A new order for a few workers, and perhaps a fault while it is under way."""
        chance = self._random
        self._listen(0.0)
        idle = self._idle()
        if len(idle) < 2:
            self._listen(0.02)
            return
        number = len(self._orders) + 1
        order = f"{'r' if chance.random() < 0.25 else 'o'}{number}"
        params = {"order": order, "before": chance.choice((0.0, 0.02)), "after": chance.choice((0.0, 0.03, 0.1))}
        self._orders[order] = (f"{order}.1", params)
        chosen = chance.sample(idle, min(len(idle), chance.randint(1, 3)))
        for n, member in enumerate(chosen):
            self._deliver(member, order, f"{order}.{n + 1 if chance.random() < 0.5 else 1}", params, final=False)
        self._listen(chance.choice((0.0, 0.005, 0.02, 0.06)) * chance.random())
        self._harm(chance.choice(chosen))

    def _deliver(self, member: _Member, order: str, call_id: str, params: dict[str, Any], *, final: bool) -> None:
        self._calls += 1
        member.call = self._calls
        self._say("call", call=self._calls, worker=member.name, order=order, id=call_id, final=final)
        member.worker.say((self._calls, order, call_id, params))

    def _harm(self, member: _Member) -> None:
        """A kill, a pause, a fault of the server, or nothing."""
        chance, dice = self._random, self._random.random()
        asleep = sum(bool(m.wakes) for m in self._members)
        if dice < 0.45 and self._kills < self._goals.kills:
            self._kills += 1
            self._say("kill", worker=member.name)
            member.worker.kill()
            self._members.remove(member)
            self._hire()
        elif dice < 0.65 and self._pauses < self._goals.pauses and asleep < 2:
            self._pauses += 1
            self._say("pause", worker=member.name)
            member.worker.pause()
            member.wakes = time.monotonic() + chance.uniform(*PAUSE_S)
        elif dice < 0.75 and self._server_faults < self._goals.server_faults and not self._server_back:
            self._break_server()

    def _break_server(self) -> None:
        assert self._server is not None
        self._server_faults += 1
        if self._loses or self._server_faults % 2:
            self._say("server killed")
            self._server.kill()
            if self._loses:
                self._say("writes lost")
            self._frozen = False
        else:
            self._say("server frozen")
            self._server.pause()
            self._frozen = True
        self._server_back = time.monotonic() + self._random.uniform(0.2, 1.0)

    def _heal(self) -> None:
        assert self._server is not None
        self._server_back = 0.0
        if self._frozen:
            self._server.resume()
        else:
            self._server.start()
        self._say("server back")

    def _quieten(self) -> None:
        """Until everybody has answered."""
        deadline = time.monotonic() + PATIENCE_S
        while any(member.call or member.wakes or not member.ready for member in self._members) or self._server_back:
            self._listen(0.05)
            if time.monotonic() > deadline:
                return  # the checker names the calls that were never answered

    def _once_more(self) -> None:
        left = list(self._orders.items())
        deadline = time.monotonic() + PATIENCE_S
        while left and time.monotonic() < deadline:
            idle = self._idle()
            for member in idle[: len(left)]:
                order, (call_id, params) = left.pop()
                self._deliver(member, order, call_id, params, final=True)
            self._listen(0.01)
        self._quieten()


_KEPT = ("status", "code", "attempts", "fromCache", "value", "metadata")


@contextlib.contextmanager
def _store(kind: str, folder: Path) -> Iterator[tuple[str, Server | None]]:
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'claims.db'}", None
        return
    server: Server
    if kind == "postgres":
        server = Postgres(settings={"fsync": "on", "synchronous_commit": "on"})
    elif kind == "redis":
        server = Valkey(appendonly=True, appendfsync="always")
    else:
        server = Valkey()
    with server:
        yield server.url, server


def run(kind: str, goals: Goals, seed: int = 0, folder: Path | None = None) -> history.Verdict:
    """A campaign on a fresh store of *kind*."""
    with contextlib.ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-campaign-")))
        url, server = stack.enter_context(_store(kind, place))
        loses = kind == FORGETFUL
        return Campaign(url, place, goals, seed, server, loses=loses).run()


def main(arguments: list[str] | None = None) -> int:
    """Print the verdict as JSON; 1 if a law was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign", description=__doc__)
    parser.add_argument("--store", choices=STORES, default="sqlite")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pauses", type=int, default=5)
    parser.add_argument("--server-faults", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", type=Path, help="keep the two logs in this folder")
    chosen = parser.parse_args(arguments)
    if chosen.logs is not None:
        chosen.logs.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    verdict = run(chosen.store, Goals(chosen.kills, chosen.pauses, chosen.server_faults), chosen.seed, chosen.logs)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"store": chosen.store, "seed": chosen.seed, "seconds": seconds, **verdict._asdict()}))
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())

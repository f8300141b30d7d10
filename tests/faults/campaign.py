"""Kills and pauses real workers around a real store, breaks the store too, and has the logs checked afterwards.

    python -m tests.faults.campaign --store redis --kills 50 --pauses 14 --faults 3
    python -m tests.faults.campaign --store redis-failover --kills 2 --faults 4
    python -m tests.faults.campaign --store redis-cluster --planted slot-without-its-keys   (must end with code 1)

A recorder, a process of its own, counts the effects, and keeps what workers say of stalls: times in which they were
starved of CPU or disk I/O. The driver writes down what it asked for, what was answered and what it broke.
``history.check`` reads the two logs; it decides. Each fault of the store (``stages.py``) is made ``--faults`` times.
Workers are synchronous, on asyncio or on uvloop; where the store is a server, every second one uses TLS.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import logging
import os
import random
import socket
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from antiphon import Antiphon, AsyncGateway, Gateway
from antiphon.blobs.s3 import Bucket, S3Objects
from antiphon.config.wiring import open_store
from antiphon.ops import storage
from antiphon.ops.runs import find_run
from antiphon.ports import Clock, Store
from antiphon.stores.sqlite import SQLiteStore
from tests.faults import history
from tests.faults.fleet_kit import PATIENCE_S, Worker, envelope, short, summary
from tests.faults.stages import BUCKET, LEASE_MS, STAGES, Address, SteppedClock, holds_lock, stage
from tests.processes import forked, process
from tests.servers import HOST, S3_KEY, S3_SECRET

PAUSE_S = (LEASE_MS / 1000 * 1.5, LEASE_MS / 1000 * 2.2)
STALL_S = LEASE_MS / 1000 / 4
_TICK_S = 0.1
FACES = ("sync", "asyncio", "uvloop")
STORES = tuple(STAGES)


class Planted(NamedTuple):
    """A bug that the checker has to notice."""

    what: str
    store: str
    """Where its fault is made."""


PLANTED = {
    "effect-counted-twice": Planted("an effect happens twice", "sqlite"),
    "store-failure-ignored": Planted("a write is made although the store could not take its claim", "sqlite"),
    "slot-without-its-keys": Planted("a slot moves to another node and its claims do not", "redis-cluster"),
    "loss-unreported": Planted("a failover loses claims, and nothing says which", "redis-failover"),
    "upload-forgotten": Planted("a recording that waits for the bucket is thrown away", "bucket"),
}


# -- the recorder ----------------------------------------------------------------------------------------------------


def _record(file: str, planted: str, pipe: Connection) -> None:
    """The process that stands for the outside world: it takes an effect, numbers it, writes it down, and says so."""
    times = 2 if planted == "effect-counted-twice" else 1
    server = socket.create_server((HOST, 0), backlog=128)
    pipe.send(server.getsockname()[1])
    lock, count = threading.Lock(), 0

    def take(connection: socket.socket) -> None:
        nonlocal count
        with connection, contextlib.suppress(OSError):
            line = connection.makefile("rb").readline()
            if not line:
                return
            said = json.loads(line)
            with lock, Path(file).open("a") as log:
                if "stalled" in said:
                    log.write(json.dumps(said) + "\n")
                    return
                for _ in range(times):
                    count += 1
                    log.write(json.dumps({"number": count, "at": time.monotonic(), **said}) + "\n")
                number = count
            connection.sendall(b"%d\n" % number)

    while True:
        threading.Thread(target=take, args=(server.accept()[0],), daemon=True).start()


class _Place(NamedTuple):
    """What a worker needs to know."""

    url: str
    recorder: int
    face: str
    clock: Path
    planted: str
    bucket: str
    home: Path


# -- a worker --------------------------------------------------------------------------------------------------------


def _work(place: _Place, name: str, pipe: Connection) -> None:
    """One delivery after the other, in one of the two faces of a gateway."""
    logging.disable(logging.CRITICAL)  # a server that is away is noticed by everybody
    threading.Thread(target=_notice_stalls, args=(place, name), daemon=True).start()
    if place.face == "uvloop":
        uvloop: Any = importlib.import_module("uvloop")
        uvloop.run(_work_async(place, name, pipe))
        return
    if place.face == "asyncio":
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

    if place.bucket:
        _work_recorded(place, effect, current, pipe)
        return
    clock = SteppedClock(place.clock)
    with Gateway(store=_store(place, clock), clock=clock, config=_CONFIG) as gateway:
        _tools(gateway, effect, place.planted)
        pipe.send("ready")
        while True:
            current[0], order, call_id, params = pipe.recv()
            pipe.send(summary(gateway.execute(_envelope(order, call_id, params))))


def _notice_stalls(place: _Place, name: str) -> None:
    """Tell the recorder when this process was starved of CPU or disk I/O for a part of a lease."""
    locks = place.url.startswith("sqlite:")  # perhaps in the middle of a write, for which everybody waits
    with tempfile.TemporaryFile(dir=place.clock.parent) as file:
        last = time.monotonic()
        while True:
            time.sleep(_TICK_S)
            with contextlib.suppress(OSError):  # a full disk is a fault of its own
                os.pwrite(file.fileno(), b".", 0)
                os.fsync(file.fileno())
            now = time.monotonic()
            if now - last > STALL_S:
                stall = {"stalled": name, "at": last, "until": now, "locks": locks}
                with socket.create_connection((HOST, place.recorder)) as connection:
                    connection.sendall(json.dumps(stall).encode() + b"\n")
                last = time.monotonic()
            else:
                last = now


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

    clock = SteppedClock(place.clock)
    async with AsyncGateway(store=_store(place, clock), clock=clock, config=_CONFIG) as gateway:
        _tools(gateway, effect, place.planted)
        pipe.send("ready")
        while True:
            current[0], order, call_id, params = await asyncio.to_thread(pipe.recv)
            pipe.send(summary(await gateway.execute(_envelope(order, call_id, params))))


def _work_recorded(place: _Place, effect: Any, current: list[int], pipe: Connection) -> None:
    """Each delivery is a run of its own, whose recording goes to the bucket before the answer."""
    app = _recording(place)
    _tools(app.gateway, effect)
    pipe.send("ready")
    while True:
        current[0], order, call_id, params = pipe.recv()
        with app.run("order", input={"order": order}) as run:
            answer = summary(app.gateway.execute(_envelope(order, call_id, params)))
            run.finish(answer["value"])
        storage.keep(app, find_run(app, run.id))
        if place.planted == "upload-forgotten":
            for left in (place.home / "outbox").rglob(f"{run.id}.*"):
                left.unlink(missing_ok=True)
        pipe.send({**answer, "run": run.id})


def _recording(place: _Place) -> Antiphon:
    """An application with its state in the campaign's folder and its recordings in the bucket."""
    os.environ.update(ANTIPHON_HOME=str(place.home), AWS_ACCESS_KEY_ID=S3_KEY, AWS_SECRET_ACCESS_KEY=S3_SECRET)
    artifacts = {"backend": "s3", "bucket": BUCKET, "endpoint_url": place.bucket, "region": "us-east-1"}
    config = {"artifacts": {**artifacts, "timeout_s": 2.0}, "telemetry": {"logs": False}, **_CONFIG}
    return Antiphon(config, store=open_store(place.url))


def _collect(place: _Place, pipe: Connection) -> None:
    """After the faults, a process of its own sends what is left and reads what the bucket has."""
    logging.disable(logging.CRITICAL)
    app = _recording(place)
    deadline = time.monotonic() + PATIENCE_S
    while storage.send_waiting(app).waiting and time.monotonic() < deadline:
        time.sleep(0.2)
    bucket = S3Objects(Bucket(BUCKET, place.bucket, "us-east-1", S3_KEY, S3_SECRET), timeout=10.0)
    for name in bucket.names():
        document = json.loads(bucket.get(name))
        (interaction,) = document["outputs"]["interactions"]
        pipe.send({"run": document["run_id"], "output": interaction["output"]})
    pipe.send(None)


_CONFIG: dict[str, Any] = {"loop": {"enabled": False}}


def _store(place: _Place, clock: Clock) -> Store:
    file = place.url.partition("sqlite:///")[2]
    return SQLiteStore(Path(file), clock=clock) if file else open_store(place.url)


def _tools(gateway: Any, effect: Any, planted: str = "") -> None:
    declared = {"idempotent": True, "effect": "read"} if planted == "store-failure-ignored" else {"idempotent": False}
    gateway.tool("charge", **declared, ttl=short(LEASE_MS))(effect)
    gateway.tool("look_up", idempotent=True, reuse="session", ttl=short(LEASE_MS))(effect)


def _line(order: str, call: int, worker: str) -> bytes:
    return json.dumps({"order": order, "call": call, "worker": worker}).encode() + b"\n"


def _envelope(order: str, call_id: str, params: dict[str, Any]) -> dict[str, Any]:
    return envelope("look_up" if history.repeatable(order) else "charge", params, call_id, key=order)


# -- the driver ------------------------------------------------------------------------------------------------------


class _Member:
    """A worker, and the call it is busy with."""

    def __init__(self, name: str, place: _Place, via: list[str]) -> None:
        self.name = name
        self.via = via
        self.worker = Worker(_work, place, name)
        self.call = 0
        self.ready = False
        self.wakes = 0.0
        """When it is resumed; 0: it runs."""


class Goals(NamedTuple):
    """How much a campaign does."""

    kills: int
    pauses: int
    faults: int = 0
    """Each fault of the store so often."""
    workers: int = 5


class Campaign:
    """One store, a fleet around it, and faults until there have been enough."""

    def __init__(self, kind: str, folder: Path, goals: Goals, seed: int = 0, planted: str = "") -> None:
        self._kind, self._folder, self._planted = kind, folder, planted
        self._random = random.Random(seed)
        self._goals = goals
        self._log = (folder / "driver.jsonl").open("a")
        self._effects = folder / "recorder.jsonl"
        self._members: list[_Member] = []
        self._started = self._calls = self._kills = self._pauses = 0
        self._orders: dict[str, tuple[str, dict[str, Any]]] = {}
        self._broken = ""
        """The fault of the store that is under way."""
        self._ends = 0.0
        self._ending = False

    def run(self) -> history.Verdict:
        """Until every goal is met; then each order is delivered once more, in peace."""
        here, there = forked.Pipe()
        recorder = process(_record, str(self._effects), self._planted, there)
        recorder.start()
        try:
            self._port = here.recv()
            with stage(self._kind, self._folder, self._say, self._random, self._planted) as self._stage:
                self._stage.pids = lambda: [member.worker.pid for member in self._members]
                self._left = [name for _ in range(self._goals.faults) for name in self._stage.faults]
                self._play()
        finally:
            for member in self._members:
                member.worker.kill()
            recorder.kill()
            recorder.join()
            self._log.close()
        return history.check(history.read(Path(self._log.name)), history.read(self._effects))

    def _play(self) -> None:
        for _ in range(self._goals.workers):
            self._hire()
        while not self._enough():
            self._step()
        self._quieten()
        if self._goals.faults:
            self._listen(history.AFTERMATH_S)
        self._once_more()
        if self._stage.bucket:
            collector = Worker(_collect, self._place("sync", self._stage.addresses[0]))
            while (kept := collector.hear()) is not None:
                self._say("stored", **kept)
            collector.kill()

    def _enough(self) -> bool:
        goals = self._goals
        return self._kills >= goals.kills and self._pauses >= goals.pauses and not self._left

    def _say(self, event: str, **fields: Any) -> None:
        self._log.write(json.dumps({"event": event, "at": time.monotonic()} | fields) + "\n")
        self._log.flush()

    def _hire(self) -> None:
        self._started += 1
        addresses, faces = self._stage.addresses, ("sync",) if self._stage.bucket else FACES
        address = addresses[self._started % len(addresses)]
        face = faces[self._started // len(addresses) % len(faces)]
        via = [*(["TLS"] if address.tls else []), *(["uvloop"] if face == "uvloop" else [])]
        self._members.append(_Member(f"w{self._started}", self._place(face, address), via))

    def _place(self, face: str, address: Address) -> _Place:
        on = self._stage
        return _Place(address.url, self._port, face, on.clock, self._planted, on.bucket, self._folder / "home")

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
            if self._broken and now >= self._ends:
                self._heal()
            pipes: dict[Any, _Member] = {member.worker.pipe: member for member in self._members}
            for pipe in wait(list(pipes), timeout=max(0.0, min(0.02, until - now))):
                member = pipes[pipe]
                try:
                    said = member.worker.pipe.recv()
                except EOFError:  # nobody killed it
                    self._say("crash", worker=member.name)
                    self._members.remove(member)
                    self._hire()
                    continue
                if said == "ready":
                    member.ready = True
                    continue
                self._say("answer", call=member.call, worker=member.name, **{k: said[k] for k in _KEPT if k in said})
                member.call = 0
            if now >= until:
                return

    def _idle(self) -> list[_Member]:
        return [member for member in self._members if member.ready and not member.call and not member.wakes]

    def _step(self) -> None:
        """A new order for a few workers, and perhaps a fault while it is under way."""
        chance = self._random
        self._listen(0.05 if self._broken else 0.0)  # who finds no store is soon back for the next order
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
        delivery = {"order": order, "id": call_id, "final": final, "via": member.via}
        self._say("call", call=self._calls, worker=member.name, **delivery)
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
            began = time.monotonic()
            member.worker.pause()
            self._say("pause", worker=member.name, at=began, locks=holds_lock(member.worker.pid))
            member.wakes = time.monotonic() + chance.uniform(*PAUSE_S)
        elif self._left and not self._broken and self._stage.faults[self._left[0]].timely():
            self._broken, self._ending = self._left.pop(0), False
            fault = self._stage.faults[self._broken]
            self._say(self._broken, excuses=fault.excuses)
            fault.begin()
            self._ends = time.monotonic() + chance.uniform(0.2, 1.0)

    def _heal(self) -> None:
        fault = self._stage.faults[self._broken]
        if not self._ending:
            self._ending = True
            fault.end()
        if fault.ready():
            self._say("over", what=self._broken)
            self._broken = ""

    def _quieten(self) -> None:
        """Until everybody has answered."""
        deadline = time.monotonic() + PATIENCE_S
        while any(member.call or member.wakes or not member.ready for member in self._members) or self._broken:
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


_KEPT = ("status", "code", "message", "attempts", "fromCache", "value", "metadata", "run")


def run(kind: str, goals: Goals, seed: int = 0, folder: Path | None = None, planted: str = "") -> history.Verdict:
    """A campaign on a fresh store of *kind*."""
    with contextlib.ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-campaign-")))
        return Campaign(kind, place, goals, seed, planted).run()


def main(arguments: list[str] | None = None) -> int:
    """Print the verdict as JSON; 1 if a law was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", choices=STORES, help="default: sqlite, or the one of the planted bug")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pauses", type=int, default=5)
    parser.add_argument("--faults", type=int, default=1, help="each fault of the store so often (default: 1)")
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--planted", choices=PLANTED, default="", help="a bug that the checker has to notice")
    parser.add_argument("--logs", type=Path, help="keep the two logs in this folder")
    chosen = parser.parse_args(arguments)
    if chosen.logs is not None:
        chosen.logs.mkdir(parents=True, exist_ok=True)
    kind = chosen.store or (PLANTED[chosen.planted].store if chosen.planted else "sqlite")
    began = time.monotonic()
    goals = Goals(chosen.kills, chosen.pauses, chosen.faults, chosen.workers)
    verdict = run(kind, goals, chosen.seed, chosen.logs, chosen.planted)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"store": kind, "seed": chosen.seed, "seconds": seconds, **verdict._asdict()}))
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())

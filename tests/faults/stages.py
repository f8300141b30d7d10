"""The stores that a campaign works on, the addresses that lead to them, and what can be done to them.

A fault has a name, which the history has too, a beginning and an end. One is under way at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import random
import resource
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import redis
from redis.crc import key_slot

from antiphon.ports import Clock
from antiphon.stores.redis.schema import Names
from tests.faultproxy import FaultProxy
from tests.faults.history import repeatable
from tests.integration.stores.redis_kit import Cluster
from tests.servers import HOST, Postgres, Server, Valkey, Weed
from tests.tlsfront import TlsFront

LEASE_MS = 2_000
STEP_MS = 2 * LEASE_MS
"""So far the wall clock is set forward or back: beyond a lease."""
SLOW_S = 0.15
LAG_S = 0.5
"""So old is the newest write that a replica has."""
BUCKET = "campaign"

Say = Callable[..., None]


class Fault(NamedTuple):
    """Something that goes wrong for everybody until it is put right."""

    begin: Callable[[], None]
    end: Callable[[], None]
    ready: Callable[[], bool] = lambda: True
    """Whether the end is complete."""
    excuses: bool = True
    """Whether it may leave an outcome open; else the calls must go on as if it were not there."""
    timely: Callable[[], bool] = lambda: True
    """Whether it would do harm now; else it waits for more orders."""


class Address(NamedTuple):
    """One way to the store."""

    url: str
    tls: bool = False


class Stage:
    """A store that is there, with its faults in the order in which they are made."""

    def __init__(
        self, folder: Path, say: Say, chance: random.Random, planted: str, running: contextlib.ExitStack
    ) -> None:
        self.folder, self.say, self.chance, self.planted, self.running = folder, say, chance, planted, running
        self.pids: Callable[[], list[int]] = list
        """The workers."""
        self.addresses: list[Address] = []
        self.proxies: list[FaultProxy] = []
        """The network between the workers and a server."""
        self.bucket = ""
        """The endpoint of the bucket for recordings, if there is one."""
        self.clock = folder / "clock"
        write_clock(self.clock, 0)
        self.faults: dict[str, Fault] = {}

        self._helper = running.enter_context(ThreadPoolExecutor(1))

    def beside(self, work: Callable[[], None]) -> tuple[Callable[[], None], Callable[[], bool]]:
        """*work* while calls go on: how to start it, and whether it is over.

        On one thread for the whole campaign: a server ends with the thread that started it.
        """
        under_way: list[Future[None]] = []

        def over() -> bool:
            if not under_way[-1].done():
                return False
            under_way[-1].result()
            return True

        return lambda: under_way.append(self._helper.submit(work)), over

    # -- parts ---------------------------------------------------------------------------------------------------

    def on_server(self, server: Server, folder: Path) -> Server:
        """Reached by two ways, a plain one and one with TLS, each over a network that can fail."""
        server = self.running.enter_context(server)
        postgres = isinstance(server, Postgres)
        protocol = "postgresql" if postgres else ""
        front = self.running.enter_context(TlsFront(folder, server.port, protocol=protocol))
        plain, secret = (self.running.enter_context(FaultProxy(port)) for port in (server.port, front.port))
        self.proxies = [plain, secret]
        if postgres:
            options = f"sslmode=verify-full&sslrootcert={front.certificate}&sslnegotiation=direct"
            tls = f"postgresql://postgres@localhost:{secret.port}/postgres?{options}"
        else:
            tls = f"rediss://localhost:{secret.port}/0?ssl_ca_certs={front.certificate}"
        self.addresses = [Address(plain.url(server.url)), Address(tls, tls=True)]
        return server

    def network(self) -> dict[str, Fault]:
        """What a network does to those behind it."""

        def everywhere(*acts: str, **options: Any) -> Callable[[], None]:
            def make() -> None:
                for proxy, act in itertools.product(self.proxies, acts):
                    getattr(proxy, act)(**options)

            return make

        return {
            "network cut": Fault(everywhere("refuse", "reset"), everywhere("heal")),
            "network slow": Fault(everywhere("delay", seconds=SLOW_S), everywhere("heal")),
            # what was swallowed cannot come later: a connection that lost some bytes is over
            "answers lost": Fault(everywhere("drop", direction="down"), everywhere("reset", "heal")),
            "network half-closed": Fault(everywhere("half_close", direction="down"), everywhere("heal")),
        }

    def killed(self, server: Server) -> Fault:
        return Fault(server.kill, server.start)

    def stepped(self) -> Fault:
        """The wall clock of the workers' machine jumps, and jumps back; a server decides by its own."""

        def step() -> None:
            write_clock(self.clock, self.chance.choice((STEP_MS, -STEP_MS)))

        return Fault(step, lambda: write_clock(self.clock, 0), excuses=not self.proxies)

    def disk_full(self) -> Fault:
        """No file of a worker can grow (``RLIMIT_FSIZE``, set from outside)."""

        def limit(size: int) -> None:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

        return Fault(lambda: limit(0), lambda: limit(resource.RLIM_INFINITY))


# -- the wall clock of the workers -----------------------------------------------------------------------------------


def write_clock(file: Path, offset_ms: int) -> None:
    """Move the wall clock of all workers that look at *file*."""
    with file.open("r+b" if file.exists() else "w+b") as handle:
        handle.write(struct.pack("<q", offset_ms))


class SteppedClock(Clock):
    """The live clock, off by what the file says: Python's own clocks cannot be moved for one process."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        with file.open("rb") as handle:
            self._page = mmap.mmap(handle.fileno(), 8, access=mmap.ACCESS_READ)

    def now_ms(self) -> int:
        offset: int = struct.unpack("<q", self._page[:8])[0]
        return super().now_ms() + offset


def holds_lock(pid: int) -> bool:
    """Whether a paused process stopped in the middle of a write to a file, so that nobody else can write to it."""
    for _ in range(100):
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            break
        time.sleep(0.001)
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(words[1:2] == ["POSIX"] and words[3:5] == ["WRITE", str(pid)] for words in lines)


# -- stores ----------------------------------------------------------------------------------------------------------


class OnSqlite(Stage):
    """A file of this machine."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.addresses = [Address(f"sqlite:///{self.folder / 'claims.db'}")]
        self.faults = {"disk full": self.disk_full(), "clock stepped": self.stepped()}


class OnRedis(Stage):
    """A server that has each write on disk before it confirms it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        server = Valkey(appendonly=True, appendfsync="always")
        self.on_server(server, self.folder)

        def limit(size: str) -> Callable[[], None]:
            return lambda: _ok(server.command("CONFIG", "SET", "maxmemory", size))

        self.faults = {
            "server killed": self.killed(server),
            "server frozen": Fault(server.pause, server.resume),
            "memory full": Fault(limit("100kb"), limit("0")),
            **self.network(),
            "clock stepped": self.stepped(),
        }


class OnPostgres(Stage):
    """A server with ``fsync`` and ``synchronous_commit``."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        server = Postgres(settings={"fsync": "on", "synchronous_commit": "on"})
        self.on_server(server, self.folder)

        def terminate() -> None:
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
                )

        self.faults = {
            "server killed": self.killed(server),
            "server frozen": Fault(server.pause, server.resume),
            "server restarted": Fault(server.stop, server.start),
            "connections terminated": Fault(terminate, terminate),
            **self.network(),
            "clock stepped": self.stepped(),
        }


class OnCluster(Stage):
    """A Redis Cluster of three nodes, whose slots move while they are used."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.cluster = self.running.enter_context(Cluster())
        self.addresses = [Address(self.cluster.url)]
        start, over = self.beside(self._move)
        self.faults = {"slot moved": Fault(start, lambda: None, over, timely=self._is_timely)}

    def _is_timely(self) -> bool:
        """Whether the planted bug can show: a claim in flight that is lost is written anew by its worker."""
        return not self.planted or any(map(_is_settled_write, self._records()))

    def _move(self) -> None:
        slot, owner = self._slot_in_use()
        target = self.chance.choice([number for number in range(3) if number != owner])
        self.cluster.move(slot, target, 0.05, keys=self.planted != "slot-without-its-keys")

    def _records(self) -> list[tuple[bytes, bytes, int]]:
        """Name, content and node of each claim."""
        found: list[tuple[bytes, bytes, int]] = []
        for number in range(3):
            with self.cluster.client(number) as client:
                found += [(name, record, number) for name, record in _records(client).items()]
        return found

    def _slot_in_use(self) -> tuple[int, int]:
        """A slot with a claim in flight if there is one, with a settled write for the planted bug; else any in use."""
        seen = self._records()
        wanted = [one for one in seen if (_is_settled_write(one) if self.planted else _is_in_flight(one))]
        names = [name for name, _, _ in wanted or seen]
        slot = int(key_slot(self.chance.choice(names) if names else _ANY))
        return slot, self.cluster.owner(slot)


_ANY = Names("antiphon").shards[0].record.encode()


class Forgetful(Stage):
    """A server that keeps nothing on disk."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        server = Valkey()
        self.on_server(server, self.folder)

        def kill() -> None:
            server.kill()
            self.say("writes lost")

        self.faults = {"server killed": Fault(kill, server.start)}


class FailingOver(Stage):
    """A primary and a replica that lags behind it; when the primary dies, the replica takes its place."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._primary = self.running.enter_context(Valkey())
        self._clients = self.running.enter_context(FaultProxy(self._primary.port))
        self._link = self.running.enter_context(FaultProxy(self._primary.port))
        self._replica = Valkey(options={"replicaof": f"{HOST} {self._link.port}"})
        self.running.enter_context(self._replica)
        self._link.delay(LAG_S, "down")
        self.addresses = [Address(self._clients.url(self._primary.url))]
        start, over = self.beside(self._follow)
        self.faults = {"server failed over": Fault(self._fail_over, start, over, timely=self._is_timely)}

    def _is_timely(self) -> bool:
        """Whether the primary has the result of a write of which the replica knows nothing."""
        try:
            kept = _orders(self._replica)
        except redis.exceptions.BusyLoadingError:  # it takes over what the primary has
            return False
        with redis.Redis(HOST, self._primary.port) as client:
            records = [(name, record, 0) for name, record in _records(client).items()]
        return any(_order(record) not in kept for _, record, _ in filter(_is_settled_write, records))

    def _fail_over(self) -> None:
        """Nothing is confirmed between the look at the primary and its end, so it shows what the replica lacks."""
        old, new = self._primary, self._replica
        _ok(old.command("CLIENT", "PAUSE", "60000", "WRITE"))
        confirmed = _orders(old)
        old.kill()
        self._link.reset()
        new.lead()
        kept = _orders(new)
        lost = sorted(order for order in confirmed.keys() | kept.keys() if confirmed.get(order) != kept.get(order))
        self.say("writes lost", orders=[] if self.planted == "loss-unreported" else lost)
        self._clients.retarget(new.port)
        self._clients.reset()
        self._primary, self._replica = new, old

    def _follow(self) -> None:
        self._link.heal()
        self._link.retarget(self._primary.port)
        self._replica.follow(self._link.port)
        self._replica.start()
        self._link.delay(LAG_S, "down")


class WithBucket(Stage):
    """SQLite for claims and recordings, and a bucket to which the recordings go."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        server = self.running.enter_context(Weed())
        Weed.make_bucket(server.url, BUCKET)
        proxy = self.running.enter_context(FaultProxy(server.port + 3))
        self.proxies = [proxy]
        self.bucket = proxy.url(server.url)
        self.addresses = [Address(f"sqlite:///{self.folder / 'claims.db'}")]
        start, over = self.beside(server.start)
        network = self.network()
        self.faults = {
            "bucket away": Fault(server.kill, start, over),
            **{name: network[name] for name in ("network cut", "answers lost")},
        }


STAGES: dict[str, type[Stage]] = {
    "sqlite": OnSqlite,
    "redis": OnRedis,
    "postgres": OnPostgres,
    "redis-cluster": OnCluster,
    "bucket": WithBucket,
    "redis-no-persistence": Forgetful,
    "redis-failover": FailingOver,
}
LOSING = ("redis-no-persistence", "redis-failover")
"""Stores that lose what they had confirmed: there, no effect is promised to happen once only."""


@contextlib.contextmanager
def stage(kind: str, folder: Path, say: Say, chance: random.Random, planted: str = "") -> Iterator[Stage]:
    """The store of *kind* while it runs."""
    with contextlib.ExitStack() as running:
        yield STAGES[kind](folder, say, chance, planted, running)


def _ok(reply: bytes) -> None:
    assert reply == b"+OK", reply


def _records(client: redis.Redis) -> dict[bytes, bytes]:
    """The claim records of one server, as they lie there."""
    found = {}
    for name in client.scan_iter(match="antiphon:{*}:c:*", count=1000):
        record = client.get(name)
        if isinstance(record, bytes):
            found[name] = record
    return found


def _order(record: bytes) -> str:
    """The order that a record is about; none for one without arguments."""
    lines = record.split(b"\n")
    return str(json.loads(lines[4])[0]) if len(lines) > 4 else ""


def _is_in_flight(found: tuple[bytes, bytes, int]) -> bool:
    return b" inflight " in found[1].partition(b"\n")[0]


def _is_settled_write(found: tuple[bytes, bytes, int]) -> bool:
    order = _order(found[1])
    return bool(order) and not repeatable(order) and not _is_in_flight(found)


def _orders(server: Valkey) -> dict[str, bytes]:
    """What the records of a server say, by the order they are about."""
    found: dict[str, bytes] = {}
    with redis.Redis(HOST, server.port) as client:
        for name, record in sorted(_records(client).items()):
            order = _order(record)
            if order:
                found[order] = found.get(order, b"") + name + record
    return found

"""What the tests of the Redis store share: claim requests, both journals, Clusters, a look at the server."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, Self, TypeVar

import redis

from antiphon._drive import drive
from antiphon.ports import Begun, Claimed, ClaimTemplate, Existing, Settlement, StaticClaimRequest
from antiphon.stores._adapters import AsyncFromSync
from antiphon.stores.redis import RedisStore
from antiphon.stores.redis.journal import AsyncRedisJournal, SyncRedisJournal
from tests.servers import HOST, Valkey, free_port

T = TypeVar("T")
Face = Literal["sync", "async"]
FACES: tuple[Face, ...] = ("sync", "async")
HOUR_MS = 3_600_000
BUSY_S = 60.0
"""How long a server of a busy machine may take where a rule is tested, and no timeout."""


def request_for(
    key: str,
    identity: str = "call-1",
    *,
    wait_replicas: int = 0,
    token: str = "",
    idempotency_key: str = "computed",
    **template: Any,
) -> StaticClaimRequest:
    """A request for the claim on *key*."""
    shared: dict[str, Any] = {
        "tool": "tools/send",
        "session": "session-1",
        "actor": "actor-1",
        "ttl_ms": HOUR_MS,
        "lease_ms": 60_000,
        "owner": "test",
    }
    return StaticClaimRequest(
        key=key,
        identity=identity,
        template=ClaimTemplate(**(shared | template)),
        idempotency_key=idempotency_key,
        params=("d" * 64, "e" * 64),
        request_id=f"request-of-{identity}",
        token=token or secrets.token_hex(4),
        wait_replicas=wait_replicas,
    )


class ThreadJournal(AsyncFromSync):
    """A synchronous journal, for a test that is written once for both."""

    def __init__(self, journal: SyncRedisJournal) -> None:
        super().__init__(journal)
        self._sync = journal

    async def usage(self, tenant: str) -> Mapping[str, float]:
        return self._sync.usage(tenant)


RedisJournal = AsyncRedisJournal | ThreadJournal


def done(payload: bytes | None = b'{"ok":true}', ttl_ms: int = HOUR_MS) -> Settlement:
    return Settlement("done", ttl_ms, payload=payload, attempt_count=1)


def claimed(answer: Begun) -> Claimed:
    assert isinstance(answer, Claimed), answer
    return answer


def existing(answer: Begun | None) -> Existing:
    assert isinstance(answer, Existing), answer
    return answer


def in_face(face: Face, store: RedisStore, work: Callable[[RedisJournal], Coroutine[Any, Any, T]]) -> T:
    """Run *work* with a journal of *face*, and close it."""

    async def run() -> T:
        journal = ThreadJournal(store.open_sync()) if face == "sync" else store.open_async()
        try:
            return await work(journal)  # type: ignore[arg-type]
        finally:
            await journal.close()

    return drive(run()) if face == "sync" else asyncio.run(run())


async def sleep(face: Face, seconds: float) -> None:
    """Let time pass without blocking what the face needs."""
    if face == "sync":
        time.sleep(seconds)
    else:
        await asyncio.sleep(seconds)


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait for something another task does."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        await asyncio.sleep(0.005)


def until_sync(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait for something another thread or process does."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.005)


async def told_of_the_end(journal: RedisJournal, end: Callable[[int], None]) -> None:
    """Wait for the claim of "k", which *end* settles on a thread, given its version."""
    held = claimed(await journal.begin(request_for("k")))
    thread = threading.Thread(target=end, args=(held.version,))
    thread.start()
    started = time.monotonic()
    await journal.wait("k", held.version, 60)
    assert time.monotonic() - started < 30
    thread.join()
    assert existing(await journal.read("k")).current.state == "done"


def waited_for(client: redis.Redis, name: str) -> bool:
    """Whether somebody asked to be told of the record's next change."""
    text = client.get(name)
    return isinstance(text, bytes) and text.partition(b"\n")[0].endswith(b" 1")


def make_newer(client: redis.Redis, name: str) -> None:
    """Let the record look as if a newer release had written it."""
    text = client.get(name)
    assert isinstance(text, bytes)
    assert text.startswith(b"1 "), text
    client.set(name, b"99" + text[1:], keepttl=True)


def calls(client: redis.Redis, *names: str) -> dict[str, int]:
    """How often the server executed each command since ``CONFIG RESETSTAT``; all of them if none is named."""
    found: dict[str, Any] = client.info("commandstats")
    return {
        name.removeprefix("cmdstat_"): row["calls"] for name, row in found.items() if not names or name[8:] in names
    }


def command(client: redis.Redis, *words: Any) -> Any:
    """Any command, typed."""
    execute: Any = client.execute_command
    return execute(*words)


class Cluster:
    """Three primaries that share the slots, each a private server."""

    def __init__(self) -> None:
        options = {"cluster-enabled": "yes", "cluster-node-timeout": "2000", "cluster-require-full-coverage": "no"}
        self.nodes = [Valkey(port=free_port(spread=(0, 10_000)), options=options) for _ in range(3)]
        self._running = contextlib.ExitStack()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def client(self, number: int) -> redis.Redis:
        return redis.Redis(HOST, self.nodes[number].port)

    def __enter__(self) -> Self:
        for node in self.nodes:
            self._running.enter_context(node)
        edges = [0, 5461, 10923, 16384]
        for number in range(3):
            with self.client(number) as client:
                command(client, "CLUSTER", "ADDSLOTSRANGE", edges[number], edges[number + 1] - 1)
                for other in self.nodes:
                    command(client, "CLUSTER", "MEET", HOST, other.port)
        for number in range(3):
            with self.client(number) as client:
                until_sync(lambda client=client: self._whole(client), 30)  # type: ignore[misc]
        return self

    @staticmethod
    def _whole(client: redis.Redis) -> bool:
        about = command(client, "CLUSTER", "INFO")
        return "cluster_state:ok" in str(about) and len(command(client, "CLUSTER", "SLOTS")) == 3

    def node_id(self, number: int) -> str:
        with self.client(number) as client:
            return str(command(client, "CLUSTER", "MYID").decode())

    def owner(self, slot: int) -> int:
        """The number of the node that has *slot*."""
        with self.client(0) as client:
            shards = command(client, "CLUSTER", "SLOTS")
        port = next(primary[1] for first, last, primary, *_ in shards if first <= slot <= last)
        return next(number for number, node in enumerate(self.nodes) if node.port == port)

    def move(self, slot: int, target: int, pause_s: float = 0.0, *, keys: bool = True) -> None:
        """Give *slot* to another node while it is used, one key after the other; without *keys* they are lost."""
        source = self.owner(slot)
        owner, port = self.node_id(target), self.nodes[target].port
        with self.client(source) as before, self.client(target) as after:
            command(after, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.node_id(source))
            command(before, "CLUSTER", "SETSLOT", slot, "MIGRATING", owner)
            while found := command(before, "CLUSTER", "GETKEYSINSLOT", slot, 1):
                time.sleep(pause_s)
                command(before, *(("MIGRATE", HOST, port, found[0], 0, 5000) if keys else ("DEL", found[0])))
            time.sleep(pause_s)
            for number in (target, source, 3 - source - target):
                with self.client(number) as client:
                    command(client, "CLUSTER", "SETSLOT", slot, "NODE", owner)
            command(after, "CLUSTER", "BUMPEPOCH")  # a late message of the old owner must not take it back
            command(after, "CLUSTER", "SETSLOT", slot, "NODE", owner)

    def __exit__(self, *_: object) -> None:
        self._running.close()

"""The Redis store, and redis-py sending the same scripts by hand."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import redis
import redis.asyncio

from antiphon.ports import Claimed, ClaimTemplate, Settlement, StaticClaimRequest
from antiphon.stores import RedisStore
from antiphon.stores.redis import schema
from antiphon.stores.redis.journal import AsyncRedisJournal
from antiphon.stores.redis.schema import Names, head_of, outcome_bytes

DAY_MS = 86_400_000
CALLERS = 64
NAMES = Names("antiphon")
SETTLEMENT = Settlement("done", DAY_MS, payload=b'{"status":"sent","id":"' + b"x" * 250 + b'"}', attempt_count=1)
CLAIM, SETTLE = schema.DIGESTS["claim"].decode(), schema.DIGESTS["settle"].decode()
_serial = itertools.count(time.time_ns())


def new_key() -> str:
    return f"{next(_serial):064x}"


REQUEST = StaticClaimRequest(
    key="",
    identity="call-1",
    template=ClaimTemplate(
        tool="tools/send_email",
        session="session-12",
        actor="actor-7",
        ttl_ms=DAY_MS,
        lease_ms=120_000,
        owner="12ab34cd.4026531836.4711.123456",
    ),
    idempotency_key="b" * 64,
    params=("d" * 64, "e" * 64),
    request_id="0190a1b2-7c3d-7e4f-8a9b-0c1d2e3f4a5b",
    token="5f3a9c01",
)


def request_for(key: str, identity: str = "call-1") -> StaticClaimRequest:
    """What a gateway hands to the store; making it is not the store's work."""
    return REQUEST._replace(key=key, identity=identity)


HEAD, OUTCOME = head_of(request_for("k")), outcome_bytes(SETTLEMENT)
IDENTITY = HEAD.partition(b"\n")[0]


def claim_words(key: str, identity: bytes = IDENTITY) -> tuple[Any, ...]:
    """The words of the claim script, for redis-py to pack."""
    shard = NAMES.shard(key)
    names = (shard.record + key, shard.history + key, shard.expiries + key, shard.entries + "default")
    first = f" inflight {key} {DAY_MS} 0 {DAY_MS} 120000 "
    return (4, *names, key, shard.channel, "", identity, DAY_MS, -2 * DAY_MS - 3_600_000, first, HEAD)


def settle_words(key: str, version: int) -> tuple[Any, ...]:
    """The words of the settle script."""
    shard = NAMES.shard(key)
    first = f" done {key}s {DAY_MS} 1 {DAY_MS} 0 "
    begin = f"1 {version} inflight "
    return (1, shard.record + key, key, shard.channel, begin, version, key + "s", DAY_MS, first, OUTCOME)


def _load(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        for script in ("claim", "settle"):
            client.script_load(schema.SOURCES[schema.DIGESTS[script]])


def ours(url: str) -> Iterator[Callable[[], None]]:
    """A miss: claim and settle, synchronous."""
    journal = RedisStore(url).open_sync()

    def miss() -> None:
        key = new_key()
        held = journal.begin(request_for(key))
        assert isinstance(held, Claimed)
        journal.settle(key, held.version, SETTLEMENT)

    yield miss
    journal.close()


def raw(url: str) -> Iterator[Callable[[], None]]:
    """The same two scripts, sent by redis-py; nothing is read from the answers but the version."""
    _load(url)
    client = redis.Redis.from_url(url)

    def miss() -> None:
        key = new_key()
        version = client.evalsha(CLAIM, *claim_words(key))
        client.evalsha(SETTLE, *settle_words(key, version))

    yield miss
    client.close()


def ours_reused(url: str) -> Iterator[Callable[[], None]]:
    """An answer from a settled record, decoded."""
    journal = RedisStore(url).open_sync()
    key = new_key()
    held = journal.begin(request_for(key))
    assert isinstance(held, Claimed)
    journal.settle(key, held.version, SETTLEMENT)
    request = request_for(key, "call-2")

    def reuse() -> None:
        journal.begin(request)

    yield reuse
    journal.close()


def raw_reused(url: str) -> Iterator[Callable[[], None]]:
    """The claim script on a settled record; the answer stays as it came."""
    _load(url)
    client = redis.Redis.from_url(url)
    key = new_key()
    version = client.evalsha(CLAIM, *claim_words(key))
    client.evalsha(SETTLE, *settle_words(key, version))
    words = claim_words(key, b'"call-2"')

    def reuse() -> None:
        client.evalsha(CLAIM, *words)

    yield reuse
    client.close()


async def _crowd(n: int, miss: Callable[[], Awaitable[None]]) -> None:
    left = itertools.count(n - 1, -1)

    async def caller() -> None:
        while next(left) >= 0:
            await miss()

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


async def ours_crowd(url: str) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """64 callers of one event loop, one connection."""
    journal = RedisStore(url).open_async()

    async def miss() -> None:
        key = new_key()
        held = await journal.begin(request_for(key))
        assert isinstance(held, Claimed)
        await journal.settle(key, held.version, SETTLEMENT)

    async def run(n: int) -> None:
        await _crowd(n, miss)

    yield run
    await journal.close()


async def raw_crowd(url: str) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """64 callers of one event loop, a redis-py pool with a connection for each."""
    _load(url)
    client = redis.asyncio.Redis(connection_pool=redis.asyncio.ConnectionPool.from_url(url, max_connections=CALLERS))

    async def miss() -> None:
        key = new_key()
        version = await client.evalsha(CLAIM, *claim_words(key))
        await client.evalsha(SETTLE, *settle_words(key, version))

    async def run(n: int) -> None:
        await _crowd(n, miss)

    yield run
    await client.aclose()


def _calls(client: redis.Redis) -> dict[str, int]:
    stats: dict[str, Any] = client.info("commandstats")
    return {name: row["calls"] for name, row in stats.items()}


def _sent(client: redis.Redis) -> tuple[int, int]:
    """Scripts that clients sent, and how often the server had to read from a client."""
    calls = _calls(client)
    reads: dict[str, Any] = client.info("stats")
    return calls.get("cmdstat_evalsha", 0) + calls.get("cmdstat_eval", 0), reads["total_reads_processed"]


def round_trips(url: str) -> Iterator[Callable[[int], dict[str, float]]]:
    """What the server counted: scripts, or reads if there were more, per miss and per reused answer."""
    client = redis.Redis.from_url(url)
    journal = RedisStore(url).open_sync()
    journal.ping()

    def count(n: int) -> dict[str, float]:
        keys = [new_key() for _ in range(n)]
        start = _sent(client)
        for key in keys:
            held = journal.begin(request_for(key))
            assert isinstance(held, Claimed)
            journal.settle(key, held.version, SETTLEMENT)
        middle = _sent(client)
        for key in keys:
            journal.begin(request_for(key, "call-2"))
        end = _sent(client)

        def number(before: tuple[int, int], after: tuple[int, int]) -> float:
            looks = 2  # this case's own questions in between
            return max(after[0] - before[0], after[1] - before[1] - looks) / n

        return {"miss": number(start, middle), "reused": number(middle, end)}

    yield count
    journal.close()
    client.close()


async def wake(url: str) -> AsyncIterator[Callable[[int], Awaitable[dict[str, float]]]]:
    """64 tasks wait; how long from the call of settle until each holds the value, and what was sent meanwhile."""
    leader, journal = RedisStore(url).open_async(), RedisStore(url).open_async()
    client = redis.Redis.from_url(url)

    async def run(n: int) -> dict[str, float]:
        taken: list[float] = []
        idle = 0.0
        for _ in range(n):
            spent, commands = await _wake_once(leader, journal, client)
            taken += spent
            idle += commands
        taken.sort()
        return {
            "p50_ms": statistics.median(taken) * 1e3,
            "p99_ms": taken[int(len(taken) * 0.99)] * 1e3,
            "idle_commands": idle / n,
        }

    yield run
    client.close()
    await leader.close()
    await journal.close()


async def _wake_once(
    leader: AsyncRedisJournal, journal: AsyncRedisJournal, client: redis.Redis
) -> tuple[list[float], int]:
    key = new_key()
    held = await leader.begin(request_for(key))
    assert isinstance(held, Claimed)
    taken: list[float] = []
    started = 0.0

    async def wait(number: int) -> None:
        await journal.wait(key, held.version, 60)
        seen = await journal.read(key, f"waiter-{number}")
        assert seen is not None
        assert seen.current.state == "done"
        taken.append(time.perf_counter() - started)

    tasks = [asyncio.create_task(wait(number)) for number in range(CALLERS)]
    await asyncio.sleep(0.05)
    before = sum(_calls(client).values())
    await asyncio.sleep(0.2)
    idle = sum(_calls(client).values()) - before - 1  # the look itself
    started = time.perf_counter()
    await leader.settle(key, held.version, SETTLEMENT)
    await asyncio.gather(*tasks)
    return taken, idle


def memory(url: str) -> Iterator[Callable[[int], dict[str, float]]]:
    """What the server's memory grows by for each record, index included."""
    client = redis.Redis.from_url(url)
    journal = RedisStore(url, prefix=f"m{time.time_ns()}").open_sync()

    def fill(n: int) -> dict[str, float]:
        before = _used(client)
        keys = [new_key() for _ in range(n)]
        for key in keys:
            journal.begin(request_for(key))
        in_flight = _used(client)
        for key in keys:
            seen = journal.read(key)
            assert seen is not None
            journal.settle(key, seen.current.version, SETTLEMENT)
        settled = _used(client)
        for key in keys:
            journal.clear(key)
        return {"inflight": (in_flight - before) / n, "done": (settled - before) / n}

    yield fill
    journal.close()
    client.close()


def _used(client: redis.Redis) -> int:
    return int(client.info("memory")["used_memory"])

"""D2, D3, D7: many processes and callers on one Redis, killed and paused workers, clocks that jump, full indexes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from multiprocessing.connection import Connection

import pytest
import redis

import antiphon
from antiphon._drive import drive
from antiphon.ports import Claimed
from antiphon.stores import RedisStore
from antiphon.stores.redis.schema import Names
from antiphon.testing.journal_conformance import failed
from tests.faultproxy import FaultProxy
from tests.integration.stores.redis_kit import (
    FACES,
    Face,
    RedisJournal,
    calls,
    claimed,
    command,
    done,
    existing,
    in_face,
    request_for,
    until_sync,
)
from tests.processes import forked, process
from tests.servers import Valkey

PROCESSES, CALLERS, KEYS = 4, 64, 8
both_faces = pytest.mark.parametrize("face", FACES)


def _fleet_worker(url: str, prefix: str, number: int, pipe: Connection) -> None:
    """64 callers; each asks for shared keys and one of its own, dispatches if it may, and waits otherwise."""

    async def dispatch(journal: RedisJournal, client: redis.Redis, key: str, identity: str) -> str:
        answer = await journal.begin(request_for(key, identity))
        while not isinstance(answer, Claimed):
            current = existing(answer).current
            if current.state == "done":
                return bytes(current.payload).decode()  # type: ignore[arg-type]
            await journal.wait(key, current.version, 30)
            answer = existing(await journal.read(key, identity))
        client.hincrby(f"{prefix}:effects", key, 1)
        await asyncio.sleep(0.01)
        result = f'"by {number}"'
        assert await journal.settle(key, answer.version, done(result.encode())) is not None
        return result

    async def main() -> dict[str, set[str]]:
        journal = RedisStore(url, prefix=prefix).open_async()
        await journal.ping()
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        seen: dict[str, set[str]] = {}

        async def caller(n: int) -> None:
            for key in (*(f"shared-{k}" for k in range(KEYS)), f"own-{number}-{n}"):
                seen.setdefault(key, set()).add(await dispatch(journal, client, key, f"{number}.{n}"))  # type: ignore[arg-type]

        with redis.Redis.from_url(url) as client:
            await asyncio.gather(*(caller(n) for n in range(CALLERS)))
        await journal.close()
        return seen

    pipe.send(asyncio.run(main()))


def test_each_intent_is_dispatched_once_by_a_whole_fleet(valkey_url: str, unique: str) -> None:
    pipes = [forked.Pipe() for _ in range(PROCESSES)]
    workers = [process(_fleet_worker, valkey_url, unique, number, there) for number, (_, there) in enumerate(pipes)]
    for worker in workers:
        worker.start()
    for here, _ in pipes:
        assert here.recv() == "ready"
    for here, _ in pipes:
        here.send("go")
    seen = [here.recv() for here, _ in pipes]
    for worker in workers:
        worker.join()
    with redis.Redis.from_url(valkey_url) as client:
        effects = client.hgetall(f"{unique}:effects")
    assert len(effects) == KEYS + PROCESSES * CALLERS
    assert set(effects.values()) == {b"1"}, "nothing ran twice"
    for n in range(KEYS):
        assert len(set().union(*(answers[f"shared-{n}"] for answers in seen))) == 1, "everybody got the same answer"


def _holder(url: str, prefix: str, pipe: Connection) -> None:
    journal = RedisStore(url, prefix=prefix).open_sync()
    held = claimed(journal.begin(request_for("k", "worker", lease_ms=300)))
    pipe.send(held.version)
    pipe.recv()
    pipe.send(journal.settle("k", held.version, done(b'"late"')))


@both_faces
def test_a_worker_paused_beyond_its_lease_is_fenced(face: Face, valkey_url: str, unique: str) -> None:
    here, there = forked.Pipe()
    child = process(_holder, valkey_url, unique, there)
    child.start()
    version = here.recv()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)

    async def succeed(journal: RedisJournal) -> None:
        seen = existing(await journal.begin(request_for("k", "successor")))
        assert seen.current.version == version
        until_sync(lambda: time.time() * 1000 > int(seen.current.lock_until_ms) + 50)  # type: ignore[arg-type]
        taken = claimed(await journal.take_over(request_for("k", "successor"), version))
        assert taken.version > version
        assert await journal.settle("k", taken.version, done(b'"in time"')) is not None
        assert child.pid is not None
        os.kill(child.pid, signal.SIGCONT)
        here.send("settle now")
        assert here.recv() is None, "the late one is refused"
        assert bytes(existing(await journal.read("k")).current.payload) == b'"in time"'  # type: ignore[arg-type]

    in_face(face, RedisStore(valkey_url, prefix=unique), succeed)
    child.join()


@both_faces
def test_versions_grow_when_the_servers_clock_goes_back(face: Face, valkey_url: str, unique: str) -> None:
    """A fail-over to a slower clock: the record says a version of the future; the next one is above it all the same."""
    names = Names(unique)
    ahead = (int(time.time()) + 3600) * 1_000_000

    async def work(journal: RedisJournal) -> None:
        with redis.Redis.from_url(valkey_url) as client:
            held = claimed(await journal.begin(request_for("k")))
            name = names.shard("k").record + "k"
            text = client.get(name)
            assert isinstance(text, bytes)
            client.set(name, text.replace(str(held.version).encode(), str(ahead).encode(), 1), keepttl=True)
            settled = await journal.settle("k", ahead, done())
            assert settled == ahead + 1
            taken = claimed(await journal.take_over(request_for("k", "call-2"), settled))
            assert taken.version == ahead + 2
            assert await journal.clear("k")
            assert claimed(await journal.begin(request_for("k", "call-3"))).version == ahead + 3, "also after clearing"

    in_face(face, RedisStore(valkey_url, prefix=unique), work)


@both_faces
def test_round_trips_are_two_for_a_miss_and_one_for_a_reused_answer(
    face: Face, valkey_server: Callable[..., Valkey]
) -> None:
    url = valkey_server().url  # of its own: what others do there would be counted

    async def work(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for("warm")))
        await journal.settle("warm", held.version, done())
        with redis.Redis.from_url(url) as client:
            before = calls(client)
            for n in range(50):
                held = claimed(await journal.begin(request_for(f"k{n}")))
                assert await journal.settle(f"k{n}", held.version, done()) is not None
            after = calls(client)
            assert after["evalsha"] - before["evalsha"] == 100
            for n in range(50):
                existing(await journal.begin(request_for(f"k{n}", "call-2")))
            last = calls(client)
            assert last["evalsha"] - after["evalsha"] == 50
            inside = {
                "evalsha",
                "time",
                "get",
                "set",
                "hget",
                "pexpire",
                "zadd",
                "zscore",
                "zrangebyscore",
            }
            assert {name for name in last if last[name] != before.get(name)} <= inside | {"info"}

    in_face(face, RedisStore(url), work)


def test_so_they_are_for_calls_with_an_id(valkey_server: Callable[..., Valkey]) -> None:
    """What ties an id to its arguments goes with the claim."""
    url, ran = valkey_server().url, []
    gateway = antiphon.Gateway(store=RedisStore(url), config={"telemetry": {"logs": False}})

    @gateway.tool(idempotent=False)
    def send(to: str) -> str:
        ran.append(to)
        return "sent"

    turn = gateway.session("s").turn()
    turn.call("send", {"to": "warm"}, "warm")
    with redis.Redis.from_url(url) as client:
        seen = [calls(client)["evalsha"]]
        for to, answer in (("ada", ""), ("ada", ""), ("bob", "idempotency_conflict")):
            for n in range(10):
                assert turn.call("send", {"to": f"{to}-{n}"}, f"call-{n}").code == answer
            seen.append(calls(client)["evalsha"])
    gateway.close()
    assert len(ran) == 11
    assert [after - before for before, after in pairwise(seen)] == [20, 10, 10]


@both_faces
def test_lists_of_thousands_are_complete_and_in_order(face: Face, valkey_url: str, unique: str) -> None:
    total = 3000

    async def work(journal: RedisJournal) -> None:
        if face == "async":
            await asyncio.gather(*(journal.begin(request_for(f"k{n}", session=f"s{n % 7}")) for n in range(total)))
        else:
            for n in range(total):
                await journal.begin(request_for(f"k{n}", session=f"s{n % 7}"))
        records = await journal.list(tenant="default", limit=total + 5)
        assert len({record.key for record in records}) == total
        times = [record.created_at_ms for record in records]
        assert times == sorted(times, reverse=True)
        assert [record.key for record in await journal.list(tenant="default", limit=100)] == [
            record.key for record in records[:100]
        ]
        of_session = await journal.list(tenant="default", session="s3", limit=total)
        assert len(of_session) == sum(n % 7 == 3 for n in range(total))
        assert await journal.counts("default") == {("tools/send", "inflight"): total}
        usage = await journal.usage("default")
        assert usage["records"] == total
        assert 200 < usage["bytesPerRecord"] < 2000

    in_face(face, RedisStore(valkey_url, prefix=unique), work)


@both_faces
def test_the_index_forgets_expired_claims_by_itself(face: Face, valkey_url: str, unique: str) -> None:
    """Without any janitor an index does not grow for ever; with one it is exact."""
    names = Names(unique)

    async def work(journal: RedisJournal) -> None:
        with redis.Redis.from_url(valkey_url) as client:
            held = claimed(await journal.begin(request_for("live")))
            index = names.shard("live").entries + "default"
            old = int(time.time() * 1000) - 100 * 3_600_000
            client.zadd(index, {f"old-{n}": -old - n for n in range(500)})
            unknown = next(key for n in range(10_000) if names.shard(key := f"u-{n}") is names.shard("live"))
            lost = claimed(await journal.begin(request_for(unknown)))
            await journal.settle(unknown, lost.version, failed("outcome_unknown", 365 * 86_400_000))
            client.zadd(index, {unknown: -old})
            for n in range(2000):
                if client.zcard(index) < 20:
                    break
                await journal.settle("live", held.version, done())
                version = existing(await journal.read("live")).current.version
                held = claimed(await journal.take_over(request_for("live", f"next-{n}"), version))
            assert client.zcard(index) < 20, "claims of the same shard have dropped what is older than any record"
            listed = [record.key for record in await journal.list(tenant="default", state="failed")]
            assert listed == [unknown], "what nobody has settled is listed, however old it is"
            recent = int(time.time() * 1000) - 10_000
            client.zadd(index, {f"gone-{n}": -recent - n for n in range(50)})
            dropped = 0
            for _ in range(10):
                dropped += await journal.sweep(limit=1000)
            assert dropped >= 50
            assert client.zscore(index, "live") is not None
            assert client.zcard(index) == 3, "the live claims and the index's own mark"
            assert command(client, "PTTL", index) > 0

    in_face(face, RedisStore(valkey_url, prefix=unique), work)


@both_faces
@pytest.mark.parametrize("identity", ["", "a b", "line\nbreak", "nul\0byte", "ümläut😀", "x" * 256, "%d %s"])
def test_identities_of_any_kind_find_their_own(face: Face, identity: str, valkey_url: str, unique: str) -> None:
    async def work(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for("k", identity)))
        assert await journal.renew("k", held.version, 60_000)
        settled = await journal.settle("k", held.version, done(b'"mine"'))
        seen = existing(await journal.begin(request_for("k", identity)))
        assert seen.own is not None
        assert seen.own.request.identity == identity
        claimed(await journal.take_over(request_for("k", "another"), settled or 0))
        own = existing(await journal.begin(request_for("k", identity))).own
        assert own is not None
        assert (own.version, own.request.identity, own.dispatched) == (settled, identity, True)

    in_face(face, RedisStore(valkey_url, prefix=unique), work)


@both_faces
def test_the_owner_names_request_and_process(face: Face, valkey_url: str, unique: str) -> None:
    """A record of release 0.1.0 names the process only; it is read, settled and replaced all the same."""

    async def work(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for("k", token="t1", owner="boot.1.22.333")))
        assert existing(await journal.read("k")).current.owner == "t1/boot.1.22.333"
        name = Names(unique).shard("k").record + "k"
        with redis.Redis.from_url(valkey_url) as client:
            text = client.get(name)
            assert isinstance(text, bytes)
            client.set(name, text.replace(b"t1/", b""), keepttl=True)
        seen = existing(await journal.begin(request_for("k", "call-2")))
        assert (seen.current.owner, seen.current.version) == ("boot.1.22.333", held.version)
        settled = await journal.settle("k", held.version, done())
        assert settled is not None
        claimed(await journal.take_over(request_for("k", "call-2", token="t2"), settled))
        seen = existing(await journal.read("k", "call-1"))
        assert (seen.current.owner, seen.own and seen.own.owner) == ("t2/test", "boot.1.22.333")

    in_face(face, RedisStore(valkey_url, prefix=unique), work)


@both_faces
def test_an_outcome_kept_for_no_time_is_gone_at_once(face: Face, valkey_url: str, unique: str) -> None:
    async def work(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for("k")))
        assert await journal.settle("k", held.version, done(ttl_ms=0)) is not None
        with redis.Redis.from_url(valkey_url) as client:
            until_sync(lambda: not client.exists(Names(unique).shard("k").record + "k"))
        claimed(await journal.begin(request_for("k", "call-2")))

    in_face(face, RedisStore(valkey_url, prefix=unique), work)


@both_faces
def test_a_network_that_keeps_breaking_neither_loses_nor_doubles_a_claim(
    face: Face, valkey_url: str, unique: str, fault_proxy: Callable[[int], FaultProxy]
) -> None:
    """Connections are reset every few milliseconds under load: each key is won exactly once and can be settled."""
    proxy = fault_proxy(int(valkey_url.rpartition(":")[2].partition("/")[0]))
    callers, keys = 12, 120
    wins: list[str] = []
    stop = threading.Event()

    def shake() -> None:
        seen = 0
        while not stop.wait(0.005):
            if proxy.carried["down"] - seen > 5_000:  # on a slow machine, too, something gets through in between
                proxy.reset()
                seen = proxy.carried["down"]

    async def call(journal: RedisJournal, number: int) -> None:
        for n in range(keys):
            for key in (f"shared-{n}", f"own-{number}-{n}"):
                answer = await journal.begin(request_for(key, f"{number}"))
                if isinstance(answer, Claimed):
                    wins.append(key)
                    settled = await journal.settle(key, answer.version, done())
                    assert settled is not None, "nobody else settles, so nobody can have fenced it"

    async def work(journal: RedisJournal) -> None:
        shaker = threading.Thread(target=shake)
        shaker.start()
        try:
            if face == "async":
                await asyncio.gather(*(call(journal, number) for number in range(callers)))
            else:
                with ThreadPoolExecutor(callers) as pool:
                    list(pool.map(lambda number: drive(call(journal, number)), range(callers)))
        finally:
            stop.set()
            shaker.join()
        assert sorted(wins) == sorted([f"shared-{n}" for n in range(keys)] + _own(callers, keys)), "each once"
        assert proxy.connections > 20, "it really broke"
        assert await journal.counts("default") == {("tools/send", "done"): len(wins)}

    in_face(face, RedisStore(proxy.url(valkey_url), prefix=unique, retry_timeout_s=20), work)


def _own(callers: int, keys: int) -> list[str]:
    return [f"own-{number}-{n}" for number in range(callers) for n in range(keys)]


async def test_cancelled_callers_leave_no_claim_behind(valkey_url: str, unique: str) -> None:
    """Callers are cancelled at every possible moment; afterwards every key is free or held by somebody who knows it."""
    journal = RedisStore(valkey_url, prefix=unique).open_async()
    claimed(await journal.begin(request_for("warm")))
    held: set[str] = set()

    async def call(key: str) -> None:
        claimed(await journal.begin(request_for(key)))
        held.add(key)

    chance = random.Random(7)
    for round_ in range(40):
        tasks = [asyncio.create_task(call(f"{round_}-{n}")) for n in range(20)]
        await asyncio.sleep(chance.uniform(0, 0.004))
        for task in tasks:
            if chance.random() < 0.5:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.2)
    listed = {record.key for record in await journal.list(tenant="default", limit=2000)} - {"warm"}
    assert listed == held
    assert 0 < len(held) < 800
    await journal.close()

"""D10, D1, D3: whatever is wrong with a Redis is said in words, and no fault lets a claim be won twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from msgspec import structs

import antiphon
from antiphon.contract.spec import Ttls
from antiphon.errors import ConfigError, StoreUnavailable
from antiphon.ports import Begun, Settlement
from antiphon.stores import RedisStore
from antiphon.stores.redis.schema import CLEARED, Names
from tests.faultproxy import FaultProxy
from tests.integration.stores.redis_kit import (
    FACES,
    Face,
    RedisJournal,
    claimed,
    command,
    done,
    existing,
    in_face,
    request_for,
    sleep,
    until,
    until_sync,
)
from tests.servers import HOST, Valkey, free_port
from tests.ticks import Ticks

Start = Callable[..., Valkey]
Proxy = Callable[[int], FaultProxy]

both_faces = pytest.mark.parametrize("face", FACES)


def error_of(face: Face, store: RedisStore, key: str = "k") -> StoreUnavailable:
    async def begin(journal: RedisJournal) -> None:
        await journal.begin(request_for(key))

    with pytest.raises(StoreUnavailable) as caught:
        in_face(face, store, begin)
    assert "its URL" in str(caught.value), "it is named where to look"
    return caught.value


@both_faces
def test_nobody_listens(face: Face, ticks: Ticks) -> None:
    started = time.monotonic()
    error = error_of(face, RedisStore(f"redis://user:geheim@{HOST}:{free_port()}", retry_timeout_s=0.2))
    assert "cannot be reached" in str(error)
    assert "geheim" not in str(error)
    assert ticks.since(started) < 5


@both_faces
def test_tls_to_a_server_without_it(face: Face, valkey_server: Start) -> None:
    place = f"{HOST}:{valkey_server().port}/?socket_timeout=0.3&socket_connect_timeout=0.3"
    error = error_of(face, RedisStore(f"rediss://{place}", retry_timeout_s=0))
    assert "asks for TLS (rediss://)" in str(error)


@both_faces
@pytest.mark.parametrize(
    ("login", "words"), [("", "requires a password"), (":wrong@", "refused user or password")], ids=["none", "wrong"]
)
def test_auth_refused(face: Face, login: str, words: str, valkey_server: Start) -> None:
    server = valkey_server(requirepass="geheim")
    error = error_of(face, RedisStore(f"redis://{login}{HOST}:{server.port}"))
    assert words in str(error)
    assert "wrong" not in str(error)

    async def begin(journal: RedisJournal) -> Begun:
        return await journal.begin(request_for("k"))

    claimed(in_face(face, RedisStore(server.url), begin))


@both_faces
def test_acl_that_forbids_what_the_store_needs(face: Face, valkey_server: Start) -> None:
    server = valkey_server()
    with redis.Redis(HOST, server.port) as client:
        command(client, "ACL", "SETUSER", "app", "on", ">pw", "~other:*", "+@all")
        assert "does not allow this user" in str(error_of(face, RedisStore(f"redis://app:pw@{HOST}:{server.port}")))
        command(client, "ACL", "SETUSER", "app", "resetkeys", "~antiphon:*", "resetchannels", "&antiphon:*")

        async def wait_and_settle(journal: RedisJournal) -> None:
            held = claimed(await journal.begin(request_for("k")))
            await journal.wait("k", held.version, 0.1)
            assert await journal.settle("k", held.version, done()) is not None

        in_face(face, RedisStore(f"redis://app:pw@{HOST}:{server.port}"), wait_and_settle)


@both_faces
def test_read_only_replica(face: Face, valkey_server: Start) -> None:
    replica = valkey_server(replicaof=valkey_server())
    error = error_of(face, RedisStore(replica.url, retry_timeout_s=0.1))
    assert "read-only replica" in str(error)

    async def ping(journal: RedisJournal) -> Any:
        return await journal.ping()

    assert in_face(face, RedisStore(replica.url), ping)["readOnly"]


@both_faces
def test_full_server_refuses_new_claims_but_lets_running_calls_settle(face: Face, valkey_server: Start) -> None:
    server = valkey_server(maxmemory="64mb")
    with redis.Redis(HOST, server.port) as client:

        async def fill(journal: RedisJournal) -> None:
            held = claimed(await journal.begin(request_for("running")))
            client.config_set("maxmemory", "100kb")  # less than it uses already
            with pytest.raises(StoreUnavailable, match="full") as caught:
                await journal.begin(request_for("new"))
            assert "noeviction" in str(caught.value)
            assert await journal.settle("running", held.version, done(b'"kept"')) is not None
            assert existing(await journal.read("running")).current.state == "done"
            assert await journal.read("new") is None

        in_face(face, RedisStore(server.url), fill)


@both_faces
def test_eviction_and_missing_persistence_are_warned_of(face: Face, valkey_server: Start) -> None:
    server = valkey_server(maxmemory="50mb", maxmemory_policy="allkeys-lru")

    async def ping(journal: RedisJournal) -> Any:
        return await journal.ping()

    warnings = " ".join(in_face(face, RedisStore(server.url), ping)["warnings"])
    assert "noeviction" in warnings
    assert "appendonly" in warnings


@both_faces
def test_scripts_are_loaded_again_after_script_flush(face: Face, valkey_url: str, unique: str) -> None:
    with redis.Redis.from_url(valkey_url) as client:

        async def work(journal: RedisJournal) -> None:
            client.script_flush()
            held = claimed(await journal.begin(request_for("k")))
            client.script_flush()
            assert await journal.settle("k", held.version, done()) is not None
            client.script_flush()
            assert existing(await journal.begin(request_for("k", "call-2"))).current.state == "done"
            client.script_flush()
            assert len(await journal.list(tenant="default")) == 1
            client.script_flush()
            assert await journal.counts("default") == {("tools/send", "done"): 1}

        in_face(face, RedisStore(valkey_url, prefix=unique), work)


@both_faces
def test_restart_in_the_middle_keeps_claims_and_nobody_wins_twice(face: Face, valkey_server: Start) -> None:
    server = valkey_server(appendonly=True, appendfsync="always")

    async def work(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for("k")))
        server.kill()
        with pytest.raises(StoreUnavailable):
            await journal.begin(request_for("k", "call-2"))
        server.start()
        assert existing(await journal.begin(request_for("k", "call-2"))).current.version == held.version
        assert await journal.settle("k", held.version, done()) is not None

    in_face(face, RedisStore(server.url, retry_timeout_s=0.1), work)


@pytest.mark.parametrize("lease_ms", [1_500, 120_000])
def test_a_restart_without_persistence_loses_no_claim_of_a_running_call(lease_ms: int, valkey_server: Start) -> None:
    """The renewal writes it anew; with a long lease the end of the outage, which another call has seen, does."""
    server = valkey_server()
    gateways = [antiphon.Gateway(store=RedisStore(server.url, retry_timeout_s=0.1)) for _ in range(2)]
    go = threading.Event()
    done: list[str] = []

    def tool(gateway: antiphon.Gateway) -> Callable[[str], str]:
        @gateway.tool(idempotent=False, key="order", ttl=Ttls(lease_ms=lease_ms))
        def pay(order: str) -> str:
            done.append(order)
            assert go.wait(20)
            return "paid"

        return pay

    holder, other = [tool(gateway) for gateway in gateways]
    journal = RedisStore(server.url).open_sync()

    def in_flight() -> set[str]:
        return {one.key for one in journal.list(tenant="default", state="inflight")}

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(holder, "o1")
        until_sync(lambda: done == ["o1"])
        claimed = in_flight()
        server.kill()
        if lease_ms > 100_000:
            with pytest.raises(StoreUnavailable):
                holder("o2")
        server.start()
        until_sync(lambda: in_flight() == claimed)  # "o2" has a claim for a moment, which settles what became of it
        second = threads.submit(other, "o1")
        go.set()
        assert (first.result(20), second.result(20), done) == ("paid", "paid", ["o1"])
    journal.close()
    for gateway in gateways:
        gateway.close()


async def test_settle_waits_out_a_restart(valkey_server: Start) -> None:
    """An outcome that is not written makes its call unknown: settling is more patient than claiming."""
    server = valkey_server(appendonly=True, appendfsync="always")
    journal = RedisStore(server.url, retry_timeout_s=0.1).open_async()
    held = claimed(await journal.begin(request_for("k")))
    server.kill()
    settling = asyncio.create_task(journal.settle("k", held.version, done()))
    await asyncio.sleep(0.5)
    assert not settling.done()
    await asyncio.to_thread(server.start)
    assert await settling is not None
    await journal.close()


@both_faces
def test_an_idle_connection_that_broke_is_not_noticed_by_callers(
    face: Face, valkey_url: str, unique: str, fault_proxy: Proxy
) -> None:
    proxy = fault_proxy(_port(valkey_url))

    async def work(journal: RedisJournal) -> None:
        for n in range(5):
            held = claimed(await journal.begin(request_for(f"k{n}")))
            proxy.reset()
            assert await journal.settle(f"k{n}", held.version, done()) is not None
            proxy.reset()

    in_face(face, RedisStore(proxy.url(valkey_url), prefix=unique), work)


@both_faces
def test_a_claim_whose_answer_was_lost_is_recognised_as_ours(
    face: Face, valkey_url: str, unique: str, fault_proxy: Proxy
) -> None:
    """The script ran, the connection broke before the answer: asking again must find the claim ours, not held."""
    proxy = fault_proxy(_port(valkey_url))

    async def work(journal: RedisJournal) -> None:
        await journal.ping()
        await journal.read("k")
        proxy.truncate(0, "down")  # the answer is cut off and the connection closed
        healing = _heal_soon(proxy, face)
        held = claimed(await journal.begin(request_for("k")))
        await healing()
        assert existing(await journal.read("k")).current.version == held.version
        proxy.truncate(0, "down")
        healing = _heal_soon(proxy, face)
        settled = await journal.settle("k", held.version, done())
        await healing()
        assert settled is not None, "its own settlement must not look like somebody else's"
        assert existing(await journal.read("k")).current.version == settled

    in_face(face, RedisStore(proxy.url(valkey_url), prefix=unique, retry_timeout_s=5), work)


@both_faces
def test_events_whose_answer_was_lost_are_written_once(
    face: Face, valkey_url: str, unique: str, fault_proxy: Proxy
) -> None:
    from antiphon.ports import Row

    proxy = fault_proxy(_port(valkey_url))
    row = Row("r", "call.started", 1, b'{"payload":{},"meta":{}}')

    async def work(journal: RedisJournal) -> None:
        assert await journal.append("r", [row]) == 0
        proxy.truncate(0, "down")
        healing = _heal_soon(proxy, face)
        assert await journal.append("r", [row, row]) == 1
        await healing()
        assert await journal.append("r", [row]) == 3
        assert [event.seq for event in await journal.events("r")] == [0, 1, 2, 3]

    in_face(face, RedisStore(proxy.url(valkey_url), prefix=unique, retry_timeout_s=5), work)


@both_faces
def test_a_claim_that_was_reported_as_failed_is_given_back_when_the_server_wakes_up(
    face: Face, valkey_server: Start
) -> None:
    """A paused server executes what waits in its buffers: the claim nobody believes in must not stay."""
    server = valkey_server()

    async def work(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for("first")))
        server.pause()
        with pytest.raises(StoreUnavailable):
            await journal.begin(request_for("ghost"))
        server.resume()
        with redis.Redis(HOST, server.port) as client:
            name = Names("antiphon").shard("ghost").record + "ghost"
            until_sync(lambda: client.exists(name))
            assert await journal.settle("first", held.version, done()) is not None
            claimed(await journal.begin(request_for("second")))
            until_sync(lambda: client.getrange(name, 0, 1) == CLEARED)
        claimed(await journal.begin(request_for("ghost", "call-2")))

    in_face(face, RedisStore(f"{server.url}?socket_timeout=2&socket_connect_timeout=2", retry_timeout_s=0.1), work)


@both_faces
def test_a_server_that_does_not_answer_fails_in_time(face: Face, valkey_server: Start, ticks: Ticks) -> None:
    server = valkey_server()

    async def work(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for("k")))
        server.pause()
        started = time.monotonic()
        try:
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await journal.begin(request_for("k2"))
            assert ticks.since(started) < 6
        finally:
            server.resume()
        assert await journal.settle("k", held.version, done()) is not None

    in_face(face, RedisStore(f"{server.url}?socket_timeout=1.5&socket_connect_timeout=1.5", retry_timeout_s=0.2), work)


async def test_a_cancelled_caller_gives_its_claim_back(valkey_url: str, unique: str, fault_proxy: Proxy) -> None:
    """The command was sent when its caller went away: the claim it won must not block others for a lease."""
    proxy = fault_proxy(_port(valkey_url))
    journal = RedisStore(proxy.url(valkey_url), prefix=unique).open_async()
    claimed(await journal.begin(request_for("another")))
    proxy.delay(0.1)
    task = asyncio.create_task(journal.begin(request_for("k")))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    proxy.heal()
    with redis.Redis.from_url(valkey_url) as client:
        name = Names(unique).shard("k").record + "k"
        await until(lambda: client.getrange(name, 0, 1) == CLEARED)
    claimed(await journal.begin(request_for("k", "call-2")))
    await journal.close()


async def test_replies_never_shift_when_callers_are_cancelled(valkey_url: str, unique: str) -> None:
    journal = RedisStore(valkey_url, prefix=unique).open_async()
    versions = {n: claimed(await journal.begin(request_for(f"k{n}"))).version for n in range(50)}
    for delay in range(20):
        tasks = [asyncio.create_task(journal.read(f"k{n}", "call-1")) for n in range(50)]
        await asyncio.sleep(delay / 20_000)
        for task in tasks[::2]:
            task.cancel()
        for n, task in enumerate(tasks):
            if n % 2:
                assert existing(await task).current.version == versions[n]
        await asyncio.gather(*tasks, return_exceptions=True)
    await journal.close()


async def test_a_cancelled_claim_that_was_never_sent_is_not_sent(valkey_url: str, unique: str) -> None:
    journal = RedisStore(valkey_url, prefix=unique).open_async()
    claimed(await journal.begin(request_for("warm")))
    sent, queued = (asyncio.create_task(journal.begin(request_for(key))) for key in ("sent", "queued"))
    await asyncio.sleep(0)  # the first is on its way; the second leaves with the next step of the loop
    queued.cancel()
    claimed(await sent)
    await sleep("async", 0.05)
    with redis.Redis.from_url(valkey_url) as client:
        assert not client.exists(Names(unique).shard("queued").record + "queued"), "not even given back"
    await journal.close()


@pytest.fixture
def pair(valkey_server: Start) -> tuple[Valkey, Valkey]:
    primary = valkey_server()
    return primary, valkey_server(replicaof=primary)


def _in_step(primary: Valkey) -> None:
    with redis.Redis(HOST, primary.port) as client:
        until_sync(lambda: client.set("step", time.monotonic()) and command(client, "WAIT", 1, 100) == 1)


@both_faces
def test_wait_lets_a_claim_count_only_when_replicas_have_it(face: Face, pair: tuple[Valkey, Valkey]) -> None:
    primary, replica = pair
    _in_step(primary)
    store = RedisStore(primary.url, wait_ms=200)

    async def work(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for("safe", wait_replicas=1)))
        with redis.Redis(HOST, replica.port) as copy:
            assert copy.exists(Names("antiphon").shard("safe").record + "safe"), "the replica has it already"
        assert await journal.settle("safe", held.version, done()) is not None
        replica.pause()
        try:
            again = existing(await journal.begin(request_for("safe", "call-2", wait_replicas=1)))
            assert again.current.state == "done", "a record that is there answers whatever the replicas do"
            with pytest.raises(StoreUnavailable, match="Only 0 of 1 replicas"):
                await journal.begin(request_for("unsafe", wait_replicas=1))
            assert await journal.read("unsafe") is None, "the claim was given back"
            claimed(await journal.begin(request_for("unsafe")))
        finally:
            replica.resume()
        with pytest.raises(StoreUnavailable, match="of 2 replicas"):
            await journal.begin(request_for("too-many", wait_replicas=2))

    in_face(face, store, work)


@both_faces
@pytest.mark.parametrize("identity", ["call-1", "call-2"])
def test_a_claim_that_is_given_back_leaves_what_it_replaced(
    face: Face, identity: str, pair: tuple[Valkey, Valkey]
) -> None:
    primary, replica = pair
    _in_step(primary)

    async def work(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for("k", "call-1")))
        settlement = Settlement("failed", 60_000, payload=b'"granted"', error=("granted", "Go on.", True, False))
        version = await journal.settle("k", held.version, settlement)
        assert version is not None
        before = await journal.read("k", "call-1")
        assert before is not None
        replica.pause()
        try:
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="Only 0 of 1 replicas"):
                    await journal.take_over(request_for("k", identity, wait_replicas=1), version)
                again = await journal.read("k", "call-1")
                assert again is not None
                assert again.own is not None
                assert again.current == again.own == structs.replace(before.current, version=again.current.version)
                assert again.current.version > version, "versions go on"
                assert await journal.earlier(tenant=again.current.tenant, key="k") == []
                version = again.current.version
        finally:
            replica.resume()
        claimed(await journal.take_over(request_for("k", identity), version))
        earlier = await journal.earlier(tenant=before.current.tenant, key="k")
        assert [one.version for one in earlier] == [version]

    in_face(face, RedisStore(primary.url, wait_ms=100), work)


@both_faces
def test_a_claim_that_is_given_back_leaves_no_older_execution(face: Face, pair: tuple[Valkey, Valkey]) -> None:
    """What it replaced is gone, or was not the current record."""
    primary, replica = pair
    _in_step(primary)

    async def work(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for("k", "call-1")))
        failure = ("broken", "It broke.", False, False)
        own = await journal.settle("k", held.version, Settlement("failed", 60_000, error=failure))
        assert own is not None
        held = claimed(await journal.take_over(request_for("k", "call-2"), own))
        assert await journal.settle("k", held.version, Settlement("failed", 1, error=failure)) is not None
        await sleep(face, 0.02)
        replica.pause()
        try:
            with pytest.raises(StoreUnavailable, match="Only 0 of 1 replicas"):
                await journal.take_over(request_for("k", "call-1", wait_replicas=1), own)
        finally:
            replica.resume()
        assert await journal.read("k", "call-3") is None

    in_face(face, RedisStore(primary.url, wait_ms=100), work)


@both_faces
def test_without_wait_a_failover_can_forget_a_claim_and_with_it_not(
    face: Face, valkey_server: Start, fault_proxy: Proxy
) -> None:
    """What the reference page says about fail-over, shown: the replica is cut off, then promoted."""
    primary, replica = valkey_server(), valkey_server()
    cable = fault_proxy(primary.port)
    with redis.Redis(HOST, replica.port) as client:
        command(client, "REPLICAOF", HOST, cable.port)
    _in_step(primary)

    async def before(journal: RedisJournal) -> None:
        claimed(await journal.begin(request_for("safe", wait_replicas=1)))
        cable.drop("down")
        claimed(await journal.begin(request_for("fast")))
        with pytest.raises(StoreUnavailable):
            await journal.begin(request_for("refused", wait_replicas=1))

    async def after(journal: RedisJournal) -> None:
        assert existing(await journal.begin(request_for("safe", "call-2"))).current.state == "inflight"
        claimed(await journal.begin(request_for("fast", "call-2")))  # won a second time: this is what WAIT is for

    in_face(face, RedisStore(primary.url, wait_ms=1_000), before)
    primary.kill()
    with redis.Redis(HOST, replica.port) as client:
        command(client, "REPLICAOF", "NO", "ONE")
    in_face(face, RedisStore(replica.url), after)


@pytest.mark.parametrize(
    "options",
    [{"prefix": "a{b}"}, {"prefix": ""}, {"wait_ms": 0}, {"wait_replicas": -1}, {"retry_timeout_s": -1.0}],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RedisStore("redis://localhost", **options)


def test_a_closed_store_says_so(valkey_url: str, unique: str) -> None:
    journal = RedisStore(valkey_url, prefix=unique).open_sync()
    journal.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        journal.begin(request_for("k"))


@pytest.mark.parametrize("step", ["shutdown_asyncgens", "shutdown_default_executor", "close"])
def test_a_store_that_is_closed_beside_a_reading_thread_says_so(
    valkey_url: str, unique: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whatever the subscriber's event loop has come to when the thread asks it."""
    journal = RedisStore(valkey_url, prefix=unique).open_sync()
    journal.wait("k", 1, 0.001)  # the subscriber reads for all threads now
    end = getattr(asyncio.SelectorEventLoop, step)
    said: list[str] = []

    def read() -> None:
        try:
            journal.read("k")
        except StoreUnavailable as error:
            said.append(error.data["reason"])

    reading = threading.Thread(target=read, daemon=True)

    def read_first(loop: asyncio.AbstractEventLoop) -> Any:
        if threading.current_thread().name == "antiphon-redis-subscriber":
            reading.start()
            reading.join(0.2)
        return end(loop)

    monkeypatch.setattr(asyncio.SelectorEventLoop, step, read_first)
    journal.close()
    reading.join(20)
    assert said == ["closed"]


def _port(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def _heal_soon(proxy: FaultProxy, face: Face) -> Callable[[], Any]:
    """Let the network behave again in a moment; returns how to wait for it."""
    timer = threading.Timer(0.2, proxy.heal)
    timer.start()

    async def healed() -> None:
        while timer.is_alive():
            await sleep(face, 0.01)

    return healed


AN_EVENT_LOOP = """
import asyncio, sys
import antiphon

gateway = antiphon.AsyncGateway(store=sys.argv[1])

@gateway.tool(idempotent=False, key="k")
async def pay(k: str) -> str:
    return k

async def main():
    await pay(sys.argv[2])
    await asyncio.sleep(float(sys.argv[3]))

asyncio.run(main())
"""


@pytest.mark.parametrize("more_s", [0.0, 0.0005, 0.001, 0.002])
def test_an_event_loop_ends_although_its_gateway_was_not_closed(valkey_url: str, unique: str, more_s: float) -> None:
    """``asyncio.run`` cancels each task once, and ``wait_for`` of Python 3.11 can lose that."""
    command = [sys.executable, "-c", AN_EVENT_LOOP, valkey_url, f"{unique}{more_s}", str(more_s)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")

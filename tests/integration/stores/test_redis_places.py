"""R6: the same store over a socket, TLS, Sentinel and Cluster; a moved slot or a new primary is followed."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from antiphon._gateway.store_breaker import is_outage
from antiphon.errors import StoreUnavailable
from antiphon.ports import BreakerRow, Pinned
from antiphon.stores import RedisStore
from antiphon.stores.redis import wait as wait_module
from antiphon.stores.redis.claims import RedisClaims
from antiphon.stores.redis.client import ASK_EVERY_S
from antiphon.stores.redis.schema import Names
from tests.integration.stores.redis_kit import (
    FACES,
    Cluster,
    Face,
    RedisJournal,
    claimed,
    command,
    done,
    existing,
    in_face,
    request_for,
    sleep,
    told_of_the_end,
    until_sync,
    waited_for,
)
from tests.servers import HOST, Valkey, free_port
from tests.tlsfront import TlsFront

Start = Callable[..., Valkey]
both_faces = pytest.mark.parametrize("face", FACES)


async def everything(journal: RedisJournal) -> None:
    """A claim's whole life, waiting, listing, breakers."""
    held = claimed(await journal.begin(request_for("k")))
    await journal.wait("k", held.version, 0.05)
    settled = await journal.settle("k", held.version, done(b'"x"'))
    assert settled is not None
    assert existing(await journal.begin(request_for("k", "call-2"))).current.version == settled
    for n in range(50):
        claimed(await journal.begin(request_for(f"k{n}")))
    assert len(await journal.list(tenant="default", limit=1000)) == 51
    assert await journal.counts("default") == {("tools/send", "done"): 1, ("tools/send", "inflight"): 50}
    row = BreakerRow("b", "OPEN", 1, 0, "", 1)
    await journal.save_breaker("default", row)
    assert await journal.load_breakers("default") == [row]
    for record in await journal.list(tenant="default", limit=1000):
        assert await journal.clear(record.key)
    assert await journal.list(tenant="default") == []
    assert (await journal.ping())["server"] == "valkey"


@both_faces
def test_unix_socket(face: Face, valkey_server: Start, tmp_path: Path) -> None:
    path = Path("/tmp") / f"antiphon-{tmp_path.name[-20:]}-{free_port()}.sock"  # a socket's path must be short
    valkey_server(options={"unixsocket": str(path)})
    in_face(face, RedisStore(f"unix://{path}"), everything)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        in_face(face, RedisStore(f"unix://{path}.not", retry_timeout_s=0.1), everything)


@both_faces
def test_closing_leaks_no_thread_and_no_socket(face: Face, valkey_server: Start) -> None:
    store = RedisStore(valkey_server().url, retry_timeout_s=0.1)

    async def use(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for("k")))
        journal.subscribe_breakers("default", lambda _: None)
        await journal.wait("k", held.version, 0.2)
        with pytest.raises(StoreUnavailable, match="Only 0 of 1 replicas"):
            await journal.begin(request_for("k2", wait_replicas=1))
        assert await journal.ping()
        assert await journal.clear("k")

    threads, sockets = _threads_and_sockets()
    for _ in range(3):
        in_face(face, store, use)
    now_threads, now_sockets = _threads_and_sockets()  # those of earlier tests may have ended meanwhile
    assert not Counter(now_threads) - Counter(threads)
    assert now_sockets <= sockets


def _threads_and_sockets() -> tuple[list[str], int]:
    gc.collect()
    threads = sorted(thread.name for thread in threading.enumerate() if "redis" in thread.name)
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(str(link.readlink()))
    return threads, sum(link.startswith("socket:") for link in links)


@both_faces
def test_another_database(face: Face, valkey_server: Start) -> None:
    server = valkey_server()
    in_face(face, RedisStore(f"redis://{HOST}:{server.port}/5"), everything)
    with redis.Redis(HOST, server.port, db=0) as client:
        assert client.dbsize() == 0
    with pytest.raises(StoreUnavailable, match="does not have this database"):
        in_face(face, RedisStore(f"redis://{HOST}:{server.port}/99"), everything)


@both_faces
def test_tls(face: Face, valkey_server: Start, tmp_path: Path) -> None:
    server = valkey_server(requirepass="geheim")
    front = TlsFront(tmp_path, server.port)
    place = f"localhost:{front.port}"
    try:
        in_face(face, RedisStore(f"rediss://:geheim@{place}?ssl_ca_certs={front.certificate}"), everything)
        with pytest.raises(StoreUnavailable, match="certificate"):
            in_face(face, RedisStore(f"rediss://:geheim@{place}", retry_timeout_s=0.1), everything)
        other_name = f"rediss://:geheim@{HOST}:{front.port}?ssl_ca_certs={front.certificate}"
        with pytest.raises(StoreUnavailable, match="certificate"):
            in_face(face, RedisStore(other_name, retry_timeout_s=0.1), everything)
    finally:
        front.close()


class Sentinel:
    """A Sentinel that watches one primary; it is the same program with another task."""

    def __init__(self, primary: Valkey, folder: Path, password: str = "") -> None:
        self.port = free_port()
        program = Path(primary._command()[0])
        config = folder / "sentinel.conf"
        lines = [
            f"port {self.port}",
            f"dir {folder}",
            f"bind {HOST}",
            f"sentinel monitor orders {HOST} {primary.port} 1",
            "sentinel down-after-milliseconds orders 500",
            "sentinel failover-timeout orders 3000",
            *([f"requirepass {password}"] if password else []),
        ]
        config.write_text("\n".join(lines))
        self._process = subprocess.Popen(
            [str(program), str(config), "--sentinel"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.client = redis.Redis(HOST, self.port, password=password or None)
        until_sync(self._knows_replica, 30)

    def _knows_replica(self) -> bool:
        try:
            return bool(command(self.client, "SENTINEL", "REPLICAS", "orders"))
        except (redis.exceptions.RedisError, OSError):
            return False

    def primary_port(self) -> int:
        return int(command(self.client, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "orders")[1])

    def fail_over(self, primary: Valkey) -> None:
        """Name another primary; it takes some seconds until *primary* is told that it is none any more."""
        until_sync(self._promotes, 60)
        until_sync(lambda: self.primary_port() != primary.port, 60)

    def _promotes(self) -> bool:
        try:
            return bool(command(self.client, "SENTINEL", "FAILOVER", "orders"))
        except redis.ResponseError:  # NOGOODSLAVE: it has not seen enough of the replica yet
            return False

    def close(self) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait()


@both_faces
def test_sentinel_names_the_primary_and_a_new_one_is_followed(face: Face, valkey_server: Start, tmp_path: Path) -> None:
    primary = valkey_server()
    replica = valkey_server(replicaof=primary)
    sentinel = Sentinel(primary, tmp_path, password="watch")
    url = f"redis+sentinel://{HOST}:{free_port()},{HOST}:{sentinel.port}/orders?sentinel_password=watch"
    try:

        async def work(journal: RedisJournal) -> None:
            held = claimed(await journal.begin(request_for("k", wait_replicas=1)))
            primary.kill()
            until_sync(lambda: sentinel.primary_port() == replica.port, 60)
            settled = await journal.settle("k", held.version, done())
            assert settled is not None
            await journal.wait("k", settled, 1.0)
            assert existing(await journal.begin(request_for("k", "call-2"))).current.version == settled

        in_face(face, RedisStore(url, retry_timeout_s=10), work)
        with pytest.raises(StoreUnavailable, match="No master found for 'nothing'"):
            in_face(face, RedisStore(url.replace("/orders", "/nothing"), retry_timeout_s=0.1), everything)
    finally:
        sentinel.close()


@pytest.fixture
def two_servers(valkey_server: Start) -> tuple[Valkey, Valkey]:
    """A primary and its replica."""
    primary = valkey_server()
    return primary, valkey_server(replicaof=primary)


@both_faces
def test_a_running_process_leaves_a_primary_that_sentinel_names_no_more(
    face: Face, two_servers: tuple[Valkey, Valkey], tmp_path: Path
) -> None:
    primary, replica = two_servers
    sentinel = Sentinel(primary, tmp_path)
    names = Names("antiphon")
    try:

        async def work(journal: RedisJournal) -> None:
            before = claimed(await journal.begin(request_for("before")))
            waiting = claimed(await journal.begin(request_for("waiting")))
            await journal.wait("waiting", waiting.version, 0.01)  # a subscriber is connected, too
            sentinel.fail_over(primary)
            with redis.Redis(HOST, primary.port) as old, redis.Redis(HOST, replica.port) as new:
                for key in map(str, range(50)):  # a Sentinel that takes its time is asked less often
                    await sleep(face, ASK_EVERY_S)
                    claimed(await journal.begin(request_for(key)))
                    if new.exists(names.shard(key).record + key):
                        break
                assert command(old, "ROLE")[0] == b"master"  # it would have taken the claim
                assert (old.exists(names.shard(key).record + key), new.exists(names.shard(key).record + key)) == (0, 1)
            assert await journal.settle("before", before.version, done()) is not None
            settled = await journal.settle("waiting", waiting.version, done())
            assert settled is not None
            await journal.wait("waiting", waiting.version, 5.0)
            assert existing(await journal.begin(request_for("waiting", "call-2"))).current.version == settled

        in_face(face, RedisStore(f"redis+sentinel://{HOST}:{sentinel.port}/orders"), work)
    finally:
        sentinel.close()


@both_faces
def test_a_process_that_runs_does_not_need_sentinel(
    face: Face, two_servers: tuple[Valkey, Valkey], tmp_path: Path
) -> None:
    sentinel = Sentinel(two_servers[0], tmp_path)
    try:

        async def work(journal: RedisJournal) -> None:
            held = claimed(await journal.begin(request_for("k")))
            sentinel.close()
            await sleep(face, ASK_EVERY_S)
            assert await journal.settle("k", held.version, done()) is not None

        in_face(face, RedisStore(f"redis+sentinel://{HOST}:{sentinel.port}/orders"), work)
    finally:
        sentinel.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """One whose slots a test may move."""
    with Cluster() as running:
        yield running


def slot_of(names: Names, key: str) -> int:
    return int(key_slot(names.shard(key).record.encode()))


@both_faces
def test_cluster(face: Face, cluster: Cluster, unique: str) -> None:
    in_face(face, RedisStore(cluster.url, prefix=unique), everything)


@both_faces
def test_a_message_that_the_nodes_of_a_cluster_lose_is_made_up_for(
    face: Face, cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node passes a message on to the others once; if the link between them breaks then, nobody sends it again."""
    receive = wait_module.Subscriber._received

    def lose(self: wait_module.Subscriber, message: dict[str, Any] | None) -> None:
        if message is None or message["type"] != "message":
            receive(self, message)

    monkeypatch.setattr(wait_module.Subscriber, "_received", lose)
    monkeypatch.setattr(wait_module, "LOOK_AGAIN_S", 0.2)
    names = Names(unique)
    outside = RedisStore(cluster.url, prefix=unique).open_sync()

    async def work(journal: RedisJournal) -> None:
        def act(version: int) -> None:
            with cluster.client(cluster.owner(slot_of(names, "k"))) as client:
                until_sync(lambda: waited_for(client, names.shard("k").record + "k"))
            assert outside.settle("k", version, done()) is not None

        await told_of_the_end(journal, act)

    in_face(face, RedisStore(cluster.url, prefix=unique), work)
    outside.close()


@both_faces
def test_shards_behind_one_address(face: Face, valkey_server: Start) -> None:
    """A server that looks like one but keeps the rules of a Cluster: what is in two slots takes two steps."""
    server = valkey_server(port=free_port(spread=(0, 10_000)), options={"cluster-enabled": "yes"})
    with redis.Redis.from_url(server.url) as client:
        command(client, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until_sync(lambda: "cluster_state:ok" in str(command(client, "CLUSTER", "INFO")), 30)

    async def work(journal: RedisJournal) -> None:
        for n in range(20):
            request = request_for(f"k{n}", f"call-{n}")._replace(pin=(f"call-{n}", n))
            held = claimed(await journal.begin(request))
            assert await journal.begin(request._replace(key=f"other-{n}", pin=(f"call-{n}", 99))) == Pinned(n)
            assert existing(await journal.begin(request)).current.version == held.version

    in_face(face, RedisStore(server.url), work)


@both_faces
def test_a_single_server_is_no_cluster(face: Face, valkey_server: Start) -> None:
    url = f"redis+cluster://{HOST}:{valkey_server().port}"
    with pytest.raises(StoreUnavailable, match="Cluster mode is not enabled"):
        in_face(face, RedisStore(url, retry_timeout_s=0.1), everything)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        in_face(face, RedisStore(f"redis+cluster://{HOST}:{free_port()}", retry_timeout_s=0.1), everything)


@both_faces
def test_a_moved_slot_is_followed(face: Face, own_cluster: Cluster, unique: str) -> None:
    names = Names(unique)
    key = next(f"k{n}" for n in range(1000) if slot_of(names, f"k{n}") < 5461)
    slot = slot_of(names, key)

    async def work(journal: RedisJournal) -> None:
        claimed(await journal.begin(request_for("elsewhere")))
        owner = own_cluster.node_id(1)
        for number in (1, 0, 2):
            with own_cluster.client(number) as client:
                command(client, "CLUSTER", "SETSLOT", slot, "NODE", owner)
        with own_cluster.client(1) as client:  # a late message of the old owner must not take it back
            command(client, "CLUSTER", "BUMPEPOCH")
            command(client, "CLUSTER", "SETSLOT", slot, "NODE", owner)
        held = claimed(await journal.begin(request_for(key)))  # MOVED
        assert await journal.settle(key, held.version, done()) is not None
        with own_cluster.client(1) as client:
            assert client.exists(names.shard(key).record + key)

    in_face(face, RedisStore(own_cluster.url, prefix=unique), work)


@both_faces
def test_servers_that_send_each_other_the_call_are_given_up(face: Face, own_cluster: Cluster, unique: str) -> None:
    names = Names(unique)
    key = next(f"k{n}" for n in range(1000) if slot_of(names, f"k{n}") < 5461)

    async def work(journal: RedisJournal) -> None:
        claimed(await journal.begin(request_for("elsewhere")))
        for number, other in ((0, 1), (1, 0)):
            with own_cluster.client(number) as client:
                command(client, "CLUSTER", "SETSLOT", slot_of(names, key), "NODE", own_cluster.node_id(other))
        with pytest.raises(StoreUnavailable):
            await journal.begin(request_for(key))

    in_face(face, RedisStore(own_cluster.url, prefix=unique, retry_timeout_s=0.3), work)


@both_faces
def test_a_slot_on_the_move_settles_at_once_and_claims_when_it_has_arrived(
    face: Face, own_cluster: Cluster, unique: str
) -> None:
    """A script of one key is asked for at its new place; one of several keys is tried again until all are there."""
    names = Names(unique)
    key = next(f"k{n}" for n in range(1000) if slot_of(names, f"k{n}") < 5461)
    shard = names.shard(key)
    slot, record, index = slot_of(names, key), shard.record + key, shard.entries + "default"
    port = own_cluster.nodes[1].port

    async def work(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for(key)))
        with own_cluster.client(1) as target, own_cluster.client(0) as source:
            command(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", own_cluster.node_id(0))
            command(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", own_cluster.node_id(1))
            assert command(source, "MIGRATE", HOST, port, record, 0, 1000) == b"OK"
            settled = await journal.settle(key, held.version, done())  # ASK
            assert settled is not None

            def arrive() -> None:
                assert command(source, "MIGRATE", HOST, port, index, 0, 1000) == b"OK"
                for client in (target, source):
                    command(client, "CLUSTER", "SETSLOT", slot, "NODE", own_cluster.node_id(1))

            timer = threading.Timer(0.3, arrive)
            timer.start()
            seen = existing(await journal.begin(request_for(key, "call-2")))  # TRYAGAIN until then
            assert (seen.current.version, seen.current.state) == (settled, "done")
            timer.join()

    in_face(face, RedisStore(own_cluster.url, prefix=unique, retry_timeout_s=5), work)


@both_faces
def test_a_slot_that_stays_on_the_move_is_an_unavailable_store(
    face: Face, own_cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redirections without end are an error of redis-py, which no caller of the store knows."""
    names = Names(unique)
    key = next(f"k{n}" for n in range(1000) if slot_of(names, f"k{n}") < 5461)
    elsewhere = next(f"k{n}" for n in range(1000) if slot_of(names, f"k{n}") >= 5461)
    given_back: list[RedisClaims] = []

    async def give_back(claims: RedisClaims) -> None:
        given_back.append(claims)

    monkeypatch.setattr(RedisClaims, "_give_back", give_back)

    async def work(journal: RedisJournal) -> None:
        claimed(await journal.begin(request_for(key)))
        slot, port = slot_of(names, key), own_cluster.nodes[1].port
        with own_cluster.client(1) as target, own_cluster.client(0) as source:
            command(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", own_cluster.node_id(0))
            command(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", own_cluster.node_id(1))
            assert command(source, "MIGRATE", HOST, port, names.shard(key).record + key, 0, 1000) == b"OK"
        with pytest.raises(StoreUnavailable, match="moving a slot") as caught:
            await journal.read(key, "call-2")
        assert not is_outage(caught.value), "the other slots work"
        with pytest.raises(StoreUnavailable, match="moving a slot") as caught:
            await journal.begin(request_for(key, "call-2"))
        assert not is_outage(caught.value)
        claimed(await journal.begin(request_for(elsewhere)))
        assert not given_back, "no other call waits until a claim is given back that was certainly not made"

    in_face(face, RedisStore(own_cluster.url, prefix=unique, retry_timeout_s=0.3), work)


@both_faces
def test_waiting_in_a_cluster_is_pushed_from_any_node(face: Face, cluster: Cluster, unique: str) -> None:
    store = RedisStore(cluster.url, prefix=unique)

    async def work(journal: RedisJournal) -> None:
        for n in range(6):
            held = claimed(await journal.begin(request_for(f"k{n}")))
            thread = threading.Thread(target=_settle_elsewhere, args=(store, f"k{n}", held.version))
            thread.start()
            started = time.monotonic()
            await journal.wait(f"k{n}", held.version, 60)
            assert time.monotonic() - started < 30
            while thread.is_alive():
                await sleep(face, 0.01)

    in_face(face, store, work)


def _settle_elsewhere(store: RedisStore, key: str, version: int) -> None:
    async def settle(journal: RedisJournal) -> None:
        time.sleep(0.1)
        assert await journal.settle(key, version, done()) is not None

    in_face("sync", store, settle)

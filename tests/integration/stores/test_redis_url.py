"""URLs are read as redis-py reads them; what cannot be used is refused by name, and no secret is shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import parse_url
from redis.crc import key_slot

from antiphon.config.load import load
from antiphon.config.wiring import store_of
from antiphon.errors import ConfigError
from antiphon.stores import RedisStore
from antiphon.stores.redis.client import unreachable
from antiphon.stores.redis.schema import SHARDS, Names
from antiphon.stores.redis.url import parse

SAME_AS_REDIS_PY = [
    "redis://localhost",
    "redis://cache.example:7000/3",
    "redis://user:p%40ss%2Fw%3Ard@cache.example:7000/3",
    "redis://:only-password@cache.example",
    "redis://user@cache.example",
    "redis://[::1]:7000/1",
    "redis://cache.example?db=4&socket_timeout=2.5&socket_connect_timeout=0.5&client_name=app",
    "redis://cache.example/2?db=4",
    "unix:///run/redis/redis.sock",
    "unix://user:pw@/run/redis.sock?db=2",
    "redis://cache.example?health_check_interval=10&max_connections=5",
]


@pytest.mark.parametrize("url", SAME_AS_REDIS_PY)
def test_read_as_redis_py_reads_it(url: str) -> None:
    theirs: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    ours = parse(url)
    assert ours.options.get("unix_socket_path") == theirs.get("path")
    assert ours.addresses == ((theirs.get("host", "localhost"), theirs.get("port", 6379)),)
    for name, default in (
        ("db", 0),
        ("username", None),
        ("password", None),
        ("socket_timeout", 5.0),
        ("socket_connect_timeout", 2.0),
        ("client_name", "antiphon"),
    ):
        assert ours.options.get(name, 0 if name == "db" else None) == theirs.get(name, default), name
    assert "ssl" not in ours.options
    assert "max_connections" not in ours.options


@given(
    st.text("abcxyz0123456789-_.~!$&'()*+,;=:@/?#[] äß", min_size=1, max_size=20),
    st.integers(1, 65535),
    st.integers(0, 15),
)
def test_passwords_survive_quoting_and_never_show(password: str, port: int, db: int) -> None:
    from urllib.parse import quote

    url = f"redis://user:{quote(password, safe='')}@cache.example:{port}/{db}"
    target = parse(url)
    assert (target.options["password"], target.options["db"]) == (password, db)
    assert target.addresses == (("cache.example", port),)
    assert target.safe_url == f"redis://user@cache.example:{port}/{db}"
    assert repr(RedisStore(url)) == f"RedisStore('redis://user@cache.example:{port}/{db}', prefix='antiphon')"
    assert target.safe_url in repr(target)
    assert repr(target).count("password") == 0


def test_tls() -> None:
    options = parse(
        "rediss://cache.example?ssl_check_hostname=false&ssl_min_version=772&ssl_cert_reqs=required"
    ).options
    assert options["ssl"]
    assert (options["ssl_check_hostname"], options["ssl_cert_reqs"]) == (False, "required")
    assert options["ssl_min_version"] == 772
    assert "ssl_ca_certs" not in parse("redis://cache.example?ssl_ca_certs=x").options


def test_sentinel_and_cluster() -> None:
    sentinel = parse("redis+sentinel://user:pw@s1:26379,s2,[::1]:5000/orders/2?sentinel_password=other")
    assert sentinel.mode == "sentinel"
    assert sentinel.addresses == (("s1", 26379), ("s2", 26379), ("::1", 5000))
    assert (sentinel.service, sentinel.options["db"], sentinel.options["password"]) == ("orders", 2, "pw")
    assert sentinel.sentinel_options["password"] == "other"
    assert "username" not in sentinel.sentinel_options
    assert "other" not in sentinel.safe_url
    cluster = parse("valkey+cluster://n1:7000,n2:7001")
    assert (cluster.mode, cluster.addresses) == ("cluster", (("n1", 7000), ("n2", 7001)))
    assert parse("rediss://n1").options["ssl"]
    assert parse("rediss+cluster://n1").options["ssl"]
    assert parse("rediss+sentinel://n1/orders").sentinel_options["ssl"]


def test_options_of_the_store_may_stand_in_the_url() -> None:
    store = RedisStore("redis://cache.example?antiphon_prefix=team&antiphon_wait_ms=50", prefix="other", wait_ms=99)
    assert store.prefix == "team"
    assert store._options.wait_ms == 50
    assert store.url == "redis://cache.example?antiphon_prefix=team"


@pytest.mark.parametrize("name", ["retry_timeout_s", "patience_s"])
def test_the_old_name_of_the_retry_timeout_works(name: str) -> None:
    options: dict[str, Any] = {name: 7.0}
    for store in (
        RedisStore("redis://cache.example", **options),
        RedisStore(f"redis://cache.example?antiphon_{name}=7"),
    ):
        assert store._options.retry_timeout_s == 7.0


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "without ://"),
        ("localhost:6379", "without ://"),
        ("http://localhost", "http is not a Redis scheme"),
        ("redis+magic://localhost", "not a Redis scheme"),
        ("unix+cluster:///x", "socket cannot be"),
        ("unix://", "path of the socket"),
        ("redis://localhost/orders", "number of the database"),
        ("redis://localhost?socket_timeout=fast", "socket_timeout is not a number"),
        ("redis://localhost?typo=1", "typo is not known"),
        ("redis://localhost?antiphon_typo=1", "antiphon_typo is not known"),
        ("redis://localhost?antiphon_wait_ms=soon", "antiphon_wait_ms is not a number"),
        ("redis://user:se/cret@localhost", "%XX"),
        ("redis://[::1", "%XX"),
        ("redis+sentinel://s1:26379", "name of the service"),
        ("redis+cluster://n1/3", "database 0 only"),
        ("rediss://localhost?ssl_cert_reqs=maybe", "ssl_cert_reqs"),
        ("rediss://localhost?ssl_ca_certs=/no/such/file", "TLS"),
        ("rediss://localhost?ssl_min_version=1", "%XX"),
        ("rediss+cluster://localhost?ssl_ca_path=/", "not supported for a Cluster"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(url: str, words: str) -> None:
    for setting, path in (("", "url"), ("[store] claims", "[store] claims")):
        with pytest.raises(ConfigError) as caught:
            RedisStore(url, setting=setting)
        assert words in str(caught.value)
        assert setting in str(caught.value)
        assert "cret" not in str(caught.value)
        assert caught.value.path == path


@pytest.mark.parametrize(
    ("section", "setting"),
    [
        ({"url": "redis://127.0.0.1:1"}, "[store] url"),
        ({"claims": "redis://127.0.0.1:1"}, "[store] claims"),
        ({"url": "redis://127.0.0.1:1", "log": "memory:"}, "[store] url"),
        ({"log": "redis://127.0.0.1:1", "claims": "memory:"}, "[store] log"),
    ],
)
def test_the_setting_that_was_used_is_named(section: dict[str, str], setting: str) -> None:
    store: Any = store_of(load({"store": section}, {}).config)
    for part in (store, getattr(store, "claims", None), getattr(store, "log", None)):
        target = getattr(part, "_target", None)
        if target is not None:
            assert setting in str(unreachable(target, OSError("refused")))
            break
    else:
        raise AssertionError("no Redis store was made")
    wrong = {name: url.replace(":1", ":x") for name, url in section.items()}
    with pytest.raises(ConfigError) as caught:
        store_of(load({"store": wrong}, {}).config)
    assert caught.value.path == setting


@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=12))
def test_all_names_of_one_intent_share_a_slot(key: str, tenant: str) -> None:
    """Cluster-safe: record, history, expiries and index of any key and tenant, braces included."""
    shard = Names("antiphon").shard(key)
    names = (shard.record + key, shard.history + key, shard.expiries + key, shard.entries + tenant)
    assert len({key_slot(name.encode()) for name in names}) == 1


@given(st.text(min_size=1, max_size=40))
def test_names_of_one_run_share_a_slot(run: str) -> None:
    manifest, events = Names("antiphon").run(run)
    assert key_slot(manifest.encode()) == key_slot(events.encode())


def test_shards_spread_over_slots() -> None:
    slots = {key_slot(shard.record.encode()) for shard in Names("antiphon").shards}
    assert len(slots) > SHARDS * 0.95
    thirds = [sum(1 for slot in slots if slot * 3 // 16384 == third) for third in range(3)]
    assert min(thirds) > SHARDS // 5

"""R6, D3: claims on Redis and the log elsewhere keep every rule, and what a crash leaves is repaired or explicit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from antiphon.errors import StoreUnavailable
from antiphon.ports import BreakerRow, Existing, Journal, Row, Settlement, Store, SyncJournal
from antiphon.stores import ComposedStore, MemoryStore, PostgresStore, RedisStore, SQLiteStore
from antiphon.stores._common import recorded_attempt
from antiphon.stores.composed import ComposedJournal, SyncComposedJournal
from antiphon.stores.redis.claims import RedisClaims
from antiphon.stores.redis.schema import Names
from antiphon.testing.journal_conformance import FACES, Face, JournalConformance
from tests.integration.stores.redis_kit import BUSY_S, HOUR_MS, claimed, done, existing, request_for, until_sync

RUN = "0190a1b2-run"
UNKNOWN = Settlement("failed", HOUR_MS, error=("outcome_unknown", "its worker was lost", True, False))


def compose(url: str, prefix: str, path: Path) -> ComposedStore:
    """Picklable: the rules across processes make it in each of them."""
    return ComposedStore(claims=RedisStore(url, prefix=prefix, retry_timeout_s=BUSY_S), log=SQLiteStore(path))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("rule", JournalConformance.rules(across_processes=True))
def test_redis_and_sqlite_conform(rule: str, face: Face, valkey_url: str, unique: str, tmp_path: Path) -> None:
    JournalConformance(partial(compose, valkey_url, unique, tmp_path / "log.db"), face).check(rule)


def started() -> Row:
    return Row(RUN, "call.started", 1, b'{"lane":"0","index":0,"call":"c","payload":{"name":"send"},"meta":{}}')


def finished(value: bytes = b'{"sent":1}') -> Row:
    return Row(RUN, "call.finished", 2, b'{"lane":"0","payload":{"outcome":"ok","value":%b},"meta":{"ms":3}}' % value)


class Broken:
    """A journal whose named steps fail, as those of a server that is gone."""

    def __init__(self, journal: SyncJournal, *steps: str) -> None:
        self._journal = journal
        self.broken = set(steps)

    def __getattr__(self, name: str) -> Any:
        if name in self.broken:
            return self._fail
        return getattr(self._journal, name)

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise StoreUnavailable("It is gone.")


@pytest.fixture
def stores(valkey_url: str, unique: str) -> tuple[Store, Store]:
    return RedisStore(valkey_url, prefix=unique, retry_timeout_s=BUSY_S), MemoryStore()


class Breakable(SyncComposedJournal):
    """A composed journal whose parts can fail."""

    def __init__(self, claims: Broken, log: Broken) -> None:
        super().__init__(claims, log)
        self.claims = claims
        self.log = log


def journal_of(stores: tuple[Store, Store], *, claims: Sequence[str] = (), log: Sequence[str] = ()) -> Breakable:
    return Breakable(Broken(stores[0].open_sync(), *claims), Broken(stores[1].open_sync(), *log))


def lapsed(journal: SyncJournal, key: str) -> Existing:
    """What is there once the lease is over."""
    until_sync(lambda: _lease_over(journal.read(key)))
    return existing(journal.begin(request_for(key, "call-2", lease_ms=50)))


def _lease_over(seen: Existing | None) -> bool:
    assert seen is not None
    return seen.current.state != "inflight" or seen.current.lock_until_ms <= seen.now_ms  # type: ignore[operator]


def test_outcome_in_the_log_settles_a_claim_whose_worker_died_before_settling(
    stores: tuple[Store, Store],
) -> None:
    worker = journal_of(stores, claims=["settle"])
    held = claimed(worker.begin(request_for("k", lease_ms=50), [started()]))
    attempts = ((1, 2, "ETIMEDOUT", True), (3, 4, "", False))
    settlement = Settlement("done", HOUR_MS, payload=b'{"sent":1}', attempts=attempts, attempt_count=2)
    with pytest.raises(StoreUnavailable):
        worker.settle("k", held.version, settlement, [finished()])

    seen = lapsed(journal_of(stores), "k").current
    assert (seen.state, bytes(seen.payload), seen.fence) == ("done", b'{"sent":1}', held.version)  # type: ignore[arg-type]
    assert seen.execution.attempts == tuple(map(recorded_attempt, attempts))  # type: ignore[union-attr]
    assert seen.output_redacted is not True
    assert seen.ttl_ms == HOUR_MS


def test_owners_are_shown_without_the_run_of_their_events(stores: tuple[Store, Store]) -> None:
    journal = journal_of(stores)
    held = claimed(journal.begin(request_for("k", token="first"), [started()]))
    settled = journal.settle("k", held.version, done()) or 0
    claimed(journal.take_over(request_for("k", "call-2", token="second"), settled, [started()]))
    assert [record.owner for record in journal.earlier(tenant="default")] == ["first/test"]
    assert [record.owner for record in journal.list(tenant="default")] == ["second/test"]


def test_nothing_is_repaired_while_the_lease_lives(stores: tuple[Store, Store]) -> None:
    worker = journal_of(stores, claims=["settle"])
    held = claimed(worker.begin(request_for("k"), [started()]))
    with pytest.raises(StoreUnavailable):
        worker.settle("k", held.version, done(b'{"sent":1}'), [finished()])
    assert existing(journal_of(stores).begin(request_for("k", "call-2"))).current.state == "inflight"


def test_a_start_event_without_outcome_stays_in_flight_and_is_the_callers_unknown(stores: tuple[Store, Store]) -> None:
    claimed(journal_of(stores).begin(request_for("k", lease_ms=50), [started()]))
    assert lapsed(journal_of(stores), "k").current.state == "inflight"


def test_an_outcome_of_another_execution_settles_nothing(stores: tuple[Store, Store]) -> None:
    """The first execution is in the log; the second one, of the same key and run, was lost."""
    journal = journal_of(stores)
    first = claimed(journal.begin(request_for("k"), [started()]))
    settled = journal.settle("k", first.version, done(b'{"sent":1}'), [finished()])
    assert settled is not None
    second = claimed(journal.take_over(request_for("k", "call-2", lease_ms=50), settled, [started()]))
    seen = lapsed(journal, "k").current
    assert (seen.state, seen.version) == ("inflight", second.version)


def test_giving_up_on_a_worker_looks_into_the_log_first(stores: tuple[Store, Store]) -> None:
    worker = journal_of(stores, claims=["settle"])
    held = claimed(worker.begin(request_for("k"), [started()]))
    with pytest.raises(StoreUnavailable):
        worker.settle("k", held.version, done(b'{"sent":1}'), [finished()])
    other = journal_of(stores)
    assert other.settle("k", held.version, UNKNOWN) is not None
    assert existing(other.read("k")).current.state == "done"


def test_giving_up_without_an_outcome_in_the_log_is_an_unknown(stores: tuple[Store, Store]) -> None:
    journal = journal_of(stores)
    held = claimed(journal.begin(request_for("k"), [started()]))
    assert journal.settle("k", held.version, UNKNOWN) is not None
    record = existing(journal.read("k")).current
    assert record.error.code == "outcome_unknown"  # type: ignore[union-attr]


def test_a_result_that_the_log_redacted_comes_back_as_redacted(stores: tuple[Store, Store]) -> None:
    worker = journal_of(stores, claims=["settle"])
    held = claimed(worker.begin(request_for("k", lease_ms=50), [started()]))
    with pytest.raises(StoreUnavailable):
        worker.settle("k", held.version, done(b'{"to":"a@b.c"}'), [finished(b'{"to":"<email>"}')])
    seen = lapsed(journal_of(stores), "k").current
    assert (bytes(seen.payload), seen.output_redacted) == (b'{"to":"<email>"}', True)  # type: ignore[arg-type]


def test_references_errors_and_marks_survive_the_way_through_the_log(stores: tuple[Store, Store]) -> None:
    worker = journal_of(stores, claims=["settle"])
    settlements = {
        "sealed": Settlement("done", HOUR_MS, payload_sealed="c2VhbGVk", attempt_count=1),
        "spilled": Settlement("done", HOUR_MS, payload_ref="sha256:abc", attempt_count=1),
        "failed": Settlement("failed", HOUR_MS, error=("boom", "it “broke”", True, False), attempt_count=2),
        "cancelled": Settlement("cancelled", HOUR_MS, dispatched=True),
    }
    for key, settlement in settlements.items():
        held = claimed(worker.begin(request_for(key, lease_ms=50), [started()]))
        with pytest.raises(StoreUnavailable):
            worker.settle(key, held.version, settlement, [finished()])
    journal = journal_of(stores)
    sealed, spilled, failed, cancelled = (lapsed(journal, key).current for key in settlements)
    assert (sealed.state, sealed.payload_sealed) == ("done", "c2VhbGVk")
    assert (spilled.state, spilled.payload_ref) == ("done", "sha256:abc")
    assert (failed.state, failed.error.code, failed.error.message) == ("failed", "boom", "it “broke”")  # type: ignore[union-attr]
    assert (cancelled.state, cancelled.dispatched) == ("cancelled", True)


def test_a_log_that_is_gone_gives_the_claim_back_and_nothing_is_dispatched(stores: tuple[Store, Store]) -> None:
    with pytest.raises(StoreUnavailable):
        journal_of(stores, log=["append"]).begin(request_for("k"), [started()])
    record = existing(journal_of(stores).begin(request_for("k", "call-2"))).current
    assert (record.state, record.dispatched) == ("cancelled", False)


def test_a_log_that_is_gone_at_the_end_does_not_keep_the_claim_from_being_settled(stores: tuple[Store, Store]) -> None:
    journal = journal_of(stores)
    held = claimed(journal.begin(request_for("k"), [started()]))
    journal.log.broken = {"append"}
    for _ in range(2):  # the caller tries again
        with pytest.raises(StoreUnavailable):
            journal.settle("k", held.version, done(b'{"sent":1}'), [finished()])
    assert existing(journal.read("k")).current.state == "done"
    journal.log.broken = set()
    assert journal.settle("k", held.version, done(b'{"sent":1}'), [finished()]) is not None, "not fenced by itself"
    assert [event.type for event in journal.events(RUN)] == ["call.started", "call.finished"]


def test_a_repeated_settle_writes_its_events_once(stores: tuple[Store, Store]) -> None:
    journal = journal_of(stores)
    held = claimed(journal.begin(request_for("k"), [started()]))
    journal.claims.broken = {"settle"}
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            journal.settle("k", held.version, done(), [finished()])
    journal.claims.broken = set()
    assert journal.settle("k", held.version, done(), [finished()]) is not None
    assert [event.type for event in journal.events(RUN)] == ["call.started", "call.finished"]


@pytest.mark.parametrize("composed", [True, False])
def test_a_settle_that_is_finished_on_another_journal_writes_its_events_once(
    composed: bool, stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a caller leaves the outcome to the background thread."""
    store = ComposedStore(claims=stores[0], log=stores[1]) if composed else stores[0]
    caller, background = store.open_sync(), store.open_sync()
    held = claimed(caller.begin(request_for("k"), [started()]))
    with monkeypatch.context() as patch:
        patch.setattr(RedisClaims, "_settle", Broken._fail)
        with pytest.raises(StoreUnavailable):
            caller.settle("k", held.version, done(), [finished()])
    assert background.settle("k", held.version, done(), [finished()]) is not None
    assert [event.type for event in background.events(RUN)] == ["call.started", "call.finished"]


def test_the_log_never_holds_the_store_key(stores: tuple[Store, Store]) -> None:
    """D21: keys come from raw values and live only in the store of claims."""
    journal = journal_of(stores)
    held = claimed(journal.begin(request_for("raw-key-digest"), [started()]))
    journal.settle("raw-key-digest", held.version, done(), [finished()])
    assert "raw-key-digest" not in repr([event.to_wire() for event in journal.events(RUN)])


def test_owners_come_back_as_they_were_given(stores: tuple[Store, Store]) -> None:
    """Whether an owner is alive is read from its name: the run that is noted with it must not show."""
    journal = journal_of(stores)
    claimed(journal.begin(request_for("k", token="t1", owner="boot.1.22.333"), [started()]))
    assert existing(journal.read("k", "call-1")).own.owner == "t1/boot.1.22.333"  # type: ignore[union-attr]
    assert [record.owner for record in journal.list(tenant="default")] == ["t1/boot.1.22.333"]
    alone = existing(stores[0].open_sync().read("k")).current
    assert alone.owner == f"{RUN}@t1/boot.1.22.333"


def test_a_claim_of_release_0_1_0_is_settled_from_the_log(
    stores: tuple[Store, Store], valkey_url: str, unique: str
) -> None:
    """Its owner has no token: ``RUN@PROCESS``."""
    worker = journal_of(stores, claims=["settle"])
    held = claimed(worker.begin(request_for("k", token="t1", owner="boot.1.22.333", lease_ms=50), [started()]))
    with pytest.raises(StoreUnavailable):
        worker.settle("k", held.version, done(b'{"sent":1}'), [finished()])
    name = Names(unique).shard("k").record + "k"
    with redis.Redis.from_url(valkey_url) as client:
        text = client.get(name)
        assert isinstance(text, bytes)
        assert b"@t1/" in text
        client.set(name, text.replace(b"@t1/", b"@"), keepttl=True)
    seen = lapsed(journal_of(stores), "k").current
    assert (seen.state, seen.owner) == ("done", "boot.1.22.333")


async def test_a_caller_cancelled_between_claim_and_start_event_leaves_no_claim(valkey_url: str, unique: str) -> None:
    claims = RedisStore(valkey_url, prefix=unique).open_async()
    journal = ComposedJournal(claims, Slow(MemoryStore().open_async()))
    task = asyncio.create_task(journal.begin(request_for("k"), [started()]))
    while await claims.read("k") is None:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = existing(await journal.read("k")).current
    assert (record.state, record.dispatched) == ("cancelled", False)
    await journal.close()


class Slow:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def append(self, run: str, rows: Sequence[Row]) -> int:
        await asyncio.sleep(30)
        return 0


def test_breakers_live_with_the_claims_and_are_pushed(stores: tuple[Store, Store]) -> None:
    journal = ComposedStore(claims=stores[0], log=stores[1]).open_sync()
    heard: list[BreakerRow] = []
    stop = journal.subscribe_breakers("default", heard.append)
    assert stop is not None
    row = BreakerRow("tools/send", "OPEN", 1, 0, "tripped", 1, "me")
    journal.save_breaker("default", row)
    until_sync(lambda: row in heard)
    stop()
    assert stores[0].open_sync().load_breakers("default") == [row]
    journal.close()


def test_memory_claims_offer_no_push() -> None:
    journal = ComposedStore(claims=MemoryStore(), log=MemoryStore()).open_sync()
    assert journal.subscribe_breakers("default", lambda _: None) is None
    assert journal.usage is None
    assert not journal.durable


def test_redis_and_postgres(valkey_url: str, unique: str, postgres_database: str) -> None:
    store = ComposedStore(claims=RedisStore(valkey_url, prefix=unique), log=PostgresStore(postgres_database))
    journal = store.open_sync()
    held = claimed(journal.begin(request_for("k"), [started()]))
    assert journal.settle("k", held.version, done(b'{"sent":1}'), [finished()]) is not None
    assert [event.type for event in journal.events(RUN)] == ["call.started", "call.finished"]
    about = journal.ping()
    assert (about["store"], about["claims"]["store"]) == ("composed", "redis")
    assert about["durable"] is False, "these servers keep nothing on disk"
    assert " + " in store.url
    journal.close()

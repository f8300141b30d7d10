"""R6, D3: claims on Redis and the log elsewhere keep every rule, and what a crash leaves is repaired or explicit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from antiphon._drive import drive
from antiphon.contract.record import RecordedAttempt
from antiphon.errors import StoreUnavailable
from antiphon.ports import BreakerRow, Existing, Final, Journal, Row, Store
from antiphon.stores import ComposedStore, MemoryStore, PostgresStore, RedisStore, SQLiteStore
from antiphon.stores.composed import ComposedJournal
from antiphon.testing.journal_conformance import FACES, Face, JournalConformance
from tests.integration.stores.redis_kit import HOUR_MS, ask, claimed, done, existing, until_sync

RUN = "0190a1b2-run"
UNKNOWN = Final("failed", HOUR_MS, error=("outcome_unknown", "its worker was lost", True, False))


def compose(url: str, prefix: str, path: Path) -> ComposedStore:
    """Picklable: the rules across processes make it in each of them."""
    return ComposedStore(claims=RedisStore(url, prefix=prefix), log=SQLiteStore(path))


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

    def __init__(self, journal: Journal, *steps: str) -> None:
        self._journal = journal
        self.broken = set(steps)

    def __getattr__(self, name: str) -> Any:
        if name in self.broken:
            return self._fail
        return getattr(self._journal, name)

    async def _fail(self, *_: Any, **__: Any) -> Any:
        raise StoreUnavailable("It is gone.")


@pytest.fixture
def stores(valkey_url: str, unique: str) -> tuple[Store, Store]:
    return RedisStore(valkey_url, prefix=unique), MemoryStore()


def journal_of(stores: tuple[Store, Store], *, claims: Sequence[str] = (), log: Sequence[str] = ()) -> ComposedJournal:
    return ComposedJournal(Broken(stores[0].open_sync(), *claims), Broken(stores[1].open_sync(), *log))


def lapsed(journal: Journal, key: str) -> Existing:
    """What is there once the lease is over."""
    until_sync(lambda: _lease_over(drive(journal.read(key))))
    return existing(drive(journal.begin(ask(key, "call-2", lease_ms=50))))


def _lease_over(seen: Existing | None) -> bool:
    assert seen is not None
    return seen.current.state != "inflight" or seen.current.lock_until_ms <= seen.now_ms  # type: ignore[operator]


def test_outcome_in_the_log_settles_a_claim_whose_worker_died_before_settling(
    stores: tuple[Store, Store],
) -> None:
    worker = journal_of(stores, claims=["settle"])
    held = claimed(drive(worker.begin(ask("k", lease_ms=50), [started()])))
    attempt = RecordedAttempt(started_at_ms=1, finished_at_ms=2, status="success", retriable=False)
    final = Final("done", HOUR_MS, payload=b'{"sent":1}', attempts=(attempt,), attempt_count=1)
    with pytest.raises(StoreUnavailable):
        drive(worker.settle("k", held.version, final, [finished()]))

    seen = lapsed(journal_of(stores), "k").current
    assert (seen.state, bytes(seen.payload), seen.fence) == ("done", b'{"sent":1}', held.version)  # type: ignore[arg-type]
    assert seen.execution.attempts == (attempt,)  # type: ignore[union-attr]
    assert seen.output_redacted is not True
    assert seen.ttl_ms == HOUR_MS


def test_nothing_is_repaired_while_the_lease_lives(stores: tuple[Store, Store]) -> None:
    worker = journal_of(stores, claims=["settle"])
    held = claimed(drive(worker.begin(ask("k"), [started()])))
    with pytest.raises(StoreUnavailable):
        drive(worker.settle("k", held.version, done(b'{"sent":1}'), [finished()]))
    assert existing(drive(journal_of(stores).begin(ask("k", "call-2")))).current.state == "inflight"


def test_a_start_event_without_outcome_stays_in_flight_and_is_the_callers_unknown(stores: tuple[Store, Store]) -> None:
    claimed(drive(journal_of(stores).begin(ask("k", lease_ms=50), [started()])))
    assert lapsed(journal_of(stores), "k").current.state == "inflight"


def test_an_outcome_of_another_execution_settles_nothing(stores: tuple[Store, Store]) -> None:
    """The first execution is in the log; the second one, of the same key and run, was lost."""
    journal = journal_of(stores)
    first = claimed(drive(journal.begin(ask("k"), [started()])))
    settled = drive(journal.settle("k", first.version, done(b'{"sent":1}'), [finished()]))
    assert settled is not None
    second = claimed(drive(journal.take(ask("k", "call-2", lease_ms=50), settled, [started()])))
    seen = lapsed(journal, "k").current
    assert (seen.state, seen.version) == ("inflight", second.version)


def test_giving_up_on_a_worker_looks_into_the_log_first(stores: tuple[Store, Store]) -> None:
    worker = journal_of(stores, claims=["settle"])
    held = claimed(drive(worker.begin(ask("k"), [started()])))
    with pytest.raises(StoreUnavailable):
        drive(worker.settle("k", held.version, done(b'{"sent":1}'), [finished()]))
    other = journal_of(stores)
    assert drive(other.settle("k", held.version, UNKNOWN)) is not None
    assert existing(drive(other.read("k"))).current.state == "done"


def test_giving_up_without_an_outcome_in_the_log_is_an_unknown(stores: tuple[Store, Store]) -> None:
    journal = journal_of(stores)
    held = claimed(drive(journal.begin(ask("k"), [started()])))
    assert drive(journal.settle("k", held.version, UNKNOWN)) is not None
    record = existing(drive(journal.read("k"))).current
    assert record.error.code == "outcome_unknown"  # type: ignore[union-attr]


def test_a_result_that_the_log_redacted_comes_back_as_redacted(stores: tuple[Store, Store]) -> None:
    worker = journal_of(stores, claims=["settle"])
    held = claimed(drive(worker.begin(ask("k", lease_ms=50), [started()])))
    with pytest.raises(StoreUnavailable):
        drive(worker.settle("k", held.version, done(b'{"to":"a@b.c"}'), [finished(b'{"to":"<email>"}')]))
    seen = lapsed(journal_of(stores), "k").current
    assert (bytes(seen.payload), seen.output_redacted) == (b'{"to":"<email>"}', True)  # type: ignore[arg-type]


def test_references_errors_and_marks_survive_the_way_through_the_log(stores: tuple[Store, Store]) -> None:
    worker = journal_of(stores, claims=["settle"])
    finals = {
        "sealed": Final("done", HOUR_MS, payload_sealed="c2VhbGVk", attempt_count=1),
        "spilled": Final("done", HOUR_MS, payload_ref="sha256:abc", attempt_count=1),
        "failed": Final("failed", HOUR_MS, error=("boom", "it “broke”", True, False), attempt_count=2),
        "cancelled": Final("cancelled", HOUR_MS, dispatched=True),
    }
    for key, final in finals.items():
        held = claimed(drive(worker.begin(ask(key, lease_ms=50), [started()])))
        with pytest.raises(StoreUnavailable):
            drive(worker.settle(key, held.version, final, [finished()]))
    journal = journal_of(stores)
    sealed, spilled, failed, cancelled = (lapsed(journal, key).current for key in finals)
    assert (sealed.state, sealed.payload_sealed) == ("done", "c2VhbGVk")
    assert (spilled.state, spilled.payload_ref) == ("done", "sha256:abc")
    assert (failed.state, failed.error.code, failed.error.message) == ("failed", "boom", "it “broke”")  # type: ignore[union-attr]
    assert (cancelled.state, cancelled.dispatched) == ("cancelled", True)


def test_a_log_that_is_gone_gives_the_claim_back_and_nothing_is_dispatched(stores: tuple[Store, Store]) -> None:
    with pytest.raises(StoreUnavailable):
        drive(journal_of(stores, log=["append"]).begin(ask("k"), [started()]))
    record = existing(drive(journal_of(stores).begin(ask("k", "call-2")))).current
    assert (record.state, record.dispatched) == ("cancelled", False)


def test_a_log_that_is_gone_at_the_end_does_not_keep_the_claim_from_being_settled(stores: tuple[Store, Store]) -> None:
    journal = journal_of(stores)
    held = claimed(drive(journal.begin(ask("k"), [started()])))
    log = journal._log
    assert isinstance(log, Broken)
    log.broken = {"append"}
    for _ in range(2):  # the caller tries again
        with pytest.raises(StoreUnavailable):
            drive(journal.settle("k", held.version, done(b'{"sent":1}'), [finished()]))
    assert existing(drive(journal.read("k"))).current.state == "done"
    log.broken = set()
    assert drive(journal.settle("k", held.version, done(b'{"sent":1}'), [finished()])) is not None, (
        "not fenced by itself"
    )
    assert [event.type for event in drive(journal.events(RUN))] == ["call.started", "call.finished"]


def test_a_repeated_settle_writes_its_events_once(stores: tuple[Store, Store]) -> None:
    journal = journal_of(stores)
    held = claimed(drive(journal.begin(ask("k"), [started()])))
    claims = journal._claims
    assert isinstance(claims, Broken)
    claims.broken = {"settle"}
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            drive(journal.settle("k", held.version, done(), [finished()]))
    claims.broken = set()
    assert drive(journal.settle("k", held.version, done(), [finished()])) is not None
    assert [event.type for event in drive(journal.events(RUN))] == ["call.started", "call.finished"]


def test_the_log_never_holds_the_store_key(stores: tuple[Store, Store]) -> None:
    """D21: keys come from raw values and live only in the store of claims."""
    journal = journal_of(stores)
    held = claimed(drive(journal.begin(ask("raw-key-digest"), [started()])))
    drive(journal.settle("raw-key-digest", held.version, done(), [finished()]))
    assert "raw-key-digest" not in repr([event.to_wire() for event in drive(journal.events(RUN))])


def test_owners_come_back_as_they_were_given(stores: tuple[Store, Store]) -> None:
    """Whether an owner is alive is read from its name: the run that is noted with it must not show."""
    journal = journal_of(stores)
    claimed(drive(journal.begin(ask("k", owner="boot.1.22.333"), [started()])))
    assert existing(drive(journal.read("k", "call-1"))).own.owner == "boot.1.22.333"  # type: ignore[union-attr]
    assert [record.owner for record in drive(journal.list(tenant="default"))] == ["boot.1.22.333"]
    alone = existing(drive(stores[0].open_sync().read("k"))).current
    assert alone.owner == f"{RUN}@boot.1.22.333", "with Redis alone it is no known process: never taken for dead"


async def test_a_caller_cancelled_between_claim_and_start_event_leaves_no_claim(valkey_url: str, unique: str) -> None:
    claims = RedisStore(valkey_url, prefix=unique).open_async()
    journal = ComposedJournal(claims, Slow(MemoryStore().open_sync()))
    task = asyncio.create_task(journal.begin(ask("k"), [started()]))
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
    stop: Callable[[], None] = journal.subscribe_breakers("default", heard.append)
    row = BreakerRow("tools/send", "OPEN", 1, 0, "tripped", 1, "me")
    drive(journal.save_breaker("default", row))
    until_sync(lambda: row in heard)
    stop()
    assert drive(stores[0].open_sync().load_breakers("default")) == [row]
    drive(journal.close())


def test_memory_claims_offer_no_push() -> None:
    journal = ComposedStore(claims=MemoryStore(), log=MemoryStore()).open_sync()
    assert not hasattr(journal, "subscribe_breakers")
    assert not journal.durable


def test_redis_and_postgres(valkey_url: str, unique: str, postgres_database: str) -> None:
    store = ComposedStore(claims=RedisStore(valkey_url, prefix=unique), log=PostgresStore(postgres_database))
    journal = store.open_sync()
    held = claimed(drive(journal.begin(ask("k"), [started()])))
    assert drive(journal.settle("k", held.version, done(b'{"sent":1}'), [finished()])) is not None
    assert [event.type for event in drive(journal.events(RUN))] == ["call.started", "call.finished"]
    about = drive(journal.ping())
    assert (about["store"], about["claims"]["store"], about["durable"]) == ("composed", "redis", True)
    assert " + " in store.url
    drive(journal.close())

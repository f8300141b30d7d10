"""Every guarantee of the journal has a planted bug that the conformance suite finds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from antiphon.ports import Ask, BreakerRow, Claimed, Existing, Final, Journal, Row
from antiphon.stores.memory import MemoryJournal, MemoryStore
from antiphon.testing.journal_conformance import Face, JournalConformance
from tests.unit.stores.clock import ManualClock


class CheckThenSet(MemoryJournal):
    """Begin in two steps: look, then insert."""

    async def begin(self, ask: Ask, events: Sequence[Row] = ()) -> Claimed | Existing:
        seen = await self.read(ask.key, ask.identity)
        await asyncio.sleep(0)
        if seen is not None:
            return seen
        await self.clear(ask.key)
        return await super().begin(ask, events)


class TakeWithoutCompare(MemoryJournal):
    async def take(self, ask: Ask, version: int, events: Sequence[Row] = ()) -> Claimed | Existing:
        seen = await self.read(ask.key)
        return await super().take(ask, seen.current.version if seen else version, events)


class SettleWithoutFence(MemoryJournal):
    async def settle(self, key: str, version: int, final: Final, events: Sequence[Row] = ()) -> int | None:
        seen = await self.read(key)
        return await super().settle(key, seen.current.version if seen else version, final, events)


class IdentityOverwritten(MemoryJournal):
    """Taking a claim forgets who had it before."""

    async def take(self, ask: Ask, version: int, events: Sequence[Row] = ()) -> Claimed | Existing:
        seen = await self.read(ask.key, ask.identity)
        if seen is None or seen.current.version != version:
            return await super().take(ask, version, events)
        await self.clear(ask.key)
        return await super().begin(ask, events)


class AliasForgotten(MemoryJournal):
    async def alias(self, key: str, identity: str, version: int) -> bool:
        return True


class SharesWhatRuns(MemoryJournal):
    """Sharing does not look whether the call has begun to run."""

    async def alias(self, key: str, identity: str, version: int) -> bool:
        return await super().alias(key, identity, version) or version > 0


class RunsWhatWasShared(MemoryJournal):
    """Taking compares the current version alone."""

    async def take(self, ask: Ask, version: int, events: Sequence[Row] = ()) -> Claimed | Existing:
        answer = await super().take(ask, version, events)
        if isinstance(answer, Existing) and answer.current.version == version:
            return await super().take(ask._replace(identity=f"{ask.identity}, again"), version, events)
        return answer


class LifeFreesTheClaim(MemoryJournal):
    """A claim in flight expires like a settled one."""

    async def begin(self, ask: Ask, events: Sequence[Row] = ()) -> Claimed | Existing:
        seen = await self.read(ask.key)
        if seen is not None and seen.current.expires_at_ms <= seen.now_ms:
            await self.clear(ask.key)
        return await super().begin(ask, events)


class LifeFencesTheHolder(MemoryJournal):
    async def settle(self, key: str, version: int, final: Final, events: Sequence[Row] = ()) -> int | None:
        seen = await self.read(key)
        if seen is not None and seen.current.expires_at_ms <= seen.now_ms:
            return None
        return await super().settle(key, version, final, events)


class SweepsAtFirstSight(MemoryJournal):
    async def sweep(self, limit: int = 1000) -> int:
        dropped = await super().sweep(limit)
        return dropped + sum([await self.clear(node.key) for node in self._nodes() if node.spared])


class NeverForgets(MemoryJournal):
    async def sweep(self, limit: int = 1000) -> int:
        for node in self._nodes():
            if node.state == "inflight":
                await self.renew(node.key, node.version, 1_000)
        return await super().sweep(limit)


class LeaseFreesTheClaim(MemoryJournal):
    """A claim past its lease is treated as free."""

    async def begin(self, ask: Ask, events: Sequence[Row] = ()) -> Claimed | Existing:
        seen = await self.read(ask.key)
        if seen and isinstance(seen.current.lock_until_ms, int) and seen.current.lock_until_ms <= seen.now_ms:
            await self.clear(ask.key)
        return await super().begin(ask, events)


class AnybodyRenews(MemoryJournal):
    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        seen = await self.read(key)
        return seen is not None and await super().renew(key, seen.current.version, lease_ms)


class LosersWriteEvents(MemoryJournal):
    async def begin(self, ask: Ask, events: Sequence[Row] = ()) -> Claimed | Existing:
        answer = await super().begin(ask)
        self._log.write(events)
        return answer


class FencedEventsLost(MemoryJournal):
    async def settle(self, key: str, version: int, final: Final, events: Sequence[Row] = ()) -> int | None:
        settled = await super().settle(key, version, final)
        if settled is not None:
            self._log.write(events)
        return settled


class SilentSettle(MemoryJournal):
    """Nobody is told."""

    async def settle(self, key: str, version: int, final: Final, events: Sequence[Row] = ()) -> int | None:
        waiting = dict(self._claims.waiters.by_key)
        self._claims.waiters.by_key.clear()
        settled = await super().settle(key, version, final, events)
        self._claims.waiters.by_key.update(waiting)
        return settled


class OneTtlForAll(MemoryJournal):
    async def settle(self, key: str, version: int, final: Final, events: Sequence[Row] = ()) -> int | None:
        return await super().settle(key, version, final._replace(ttl_ms=86_400_000), events)


class FlushesAllTenants(MemoryJournal):
    async def flush(self, *, tenant: str, tool: str = "", session: str = "", prefix: str = "") -> int:
        doomed = [node.ask.key for node in self._nodes()]
        for key in doomed:
            await self.clear(key)
        return len(doomed)


class LastBreakerWins(MemoryJournal):
    async def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        for kept in await self.load_breakers(tenant):
            row = row._replace(epoch=max(row.epoch, kept.epoch)) if kept.key == row.key else row
        await super().save_breaker(tenant, row)


class GapsInTheLog(MemoryJournal):
    """Numbers are read and used in two steps."""

    async def append(self, run: str, rows: Sequence[Row]) -> int:
        first = len(await self.events(run, limit=10_000))
        await asyncio.sleep(0)
        await super().append(run, rows)
        return first


class ReopeningReplaces(MemoryJournal):
    open_run = MemoryJournal.update_run


CAUGHT_BY: list[tuple[type[MemoryJournal], str, Face]] = [
    (CheckThenSet, "one_of_many_begins", "async"),
    (TakeWithoutCompare, "one_of_many_takes", "sync"),
    (SettleWithoutFence, "settle_is_fenced_after_takeover", "sync"),
    (IdentityOverwritten, "replaced_executions_are_kept", "sync"),
    (AliasForgotten, "alias", "sync"),
    (SharesWhatRuns, "an_identity_has_one_answer", "sync"),
    (SharesWhatRuns, "sharing_and_running_exclude_each_other", "async"),
    (RunsWhatWasShared, "an_identity_has_one_answer", "sync"),
    (RunsWhatWasShared, "sharing_and_running_exclude_each_other", "async"),
    (LifeFreesTheClaim, "a_claim_in_flight_does_not_expire", "sync"),
    (LifeFencesTheHolder, "a_claim_in_flight_does_not_expire", "sync"),
    (SweepsAtFirstSight, "an_abandoned_claim_is_forgotten", "sync"),
    (NeverForgets, "an_abandoned_claim_is_forgotten", "sync"),
    (LeaseFreesTheClaim, "lapsed_lease_is_still_seen", "sync"),
    (AnybodyRenews, "only_the_holder_renews", "sync"),
    (LosersWriteEvents, "events_come_with_the_claim", "sync"),
    (FencedEventsLost, "settle_is_fenced_after_takeover", "sync"),
    (OneTtlForAll, "final_state_sets_the_ttl", "sync"),
    (FlushesAllTenants, "flush_fits_its_filter", "sync"),
    (LastBreakerWins, "breakers_keep_the_newest_epoch", "sync"),
    (GapsInTheLog, "append_is_gap_free", "async"),
    (ReopeningReplaces, "opening_a_run_twice_keeps_the_first", "sync"),
]


class _Buggy(MemoryStore):
    def __init__(self, kind: type[MemoryJournal], clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self._kind = kind

    def open_sync(self) -> Journal:
        return self._as_buggy(super().open_sync())

    def open_async(self) -> Journal:
        return self._as_buggy(super().open_async())

    def _as_buggy(self, journal: Journal) -> Journal:
        assert isinstance(journal, MemoryJournal)
        return self._kind(journal._data, self._clock, journal._new_waiter)


@pytest.mark.parametrize(
    ("bug", "rule", "face"), CAUGHT_BY, ids=[f"{bug.__name__}-{rule}" for bug, rule, _ in CAUGHT_BY]
)
def test_planted_bug_is_found(bug: type[MemoryJournal], rule: str, face: Face) -> None:
    clock = ManualClock()
    with pytest.raises(AssertionError):
        JournalConformance(lambda: _Buggy(bug, clock), face, advance=clock.advance).check(rule)


async def test_a_silent_settle_leaves_waiters_alone() -> None:
    """The suite finds this one by patience; here it is enough that the waiter is still waiting."""
    store = _Buggy(SilentSettle, ManualClock())
    suite = JournalConformance(lambda: store, "async")
    journal = store.open_async()
    held = await journal.begin(suite.ask("k"))
    assert isinstance(held, Claimed)
    waiter = asyncio.ensure_future(journal.wait("k", held.version, 60))
    await asyncio.sleep(0)
    await journal.settle("k", held.version, Final("done", 1000))
    await asyncio.sleep(0)
    assert not waiter.done()
    waiter.cancel()

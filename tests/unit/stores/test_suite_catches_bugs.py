"""Every guarantee of the journal has a planted bug that the conformance suite finds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.ports import (
    Begun,
    BreakerRow,
    Claimed,
    ClaimRequest,
    Cursor,
    Existing,
    Manifests,
    Records,
    Row,
    Settlement,
    StaticClaimRequest,
)
from antiphon.stores._common import digests_of
from antiphon.stores.memory.store import MemoryJournal, MemoryStore, SyncMemoryJournal
from antiphon.testing.journal_conformance import Face, JournalConformance
from tests.unit.stores.clock import ManualClock


class CheckThenSet(MemoryJournal):
    """Begin in two steps: look, then insert."""

    async def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Begun:
        seen = await self.read(request.key, request.identity)
        await asyncio.sleep(0)
        if seen is not None:
            return seen
        await self.clear(request.key)
        return await super().begin(request, events)


class TakeWithoutCompare(SyncMemoryJournal):
    def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Begun:
        seen = self.read(request.key)
        return super().take_over(request, seen.current.version if seen else version, events)


class SettleWithoutFence(SyncMemoryJournal):
    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        seen = self.read(key)
        return super().settle(key, seen.current.version if seen else version, settlement, events)


class IdentityOverwritten(SyncMemoryJournal):
    """Taking a claim forgets who had it before."""

    def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Begun:
        seen = self.read(request.key, request.identity)
        if seen is None or seen.current.version != version:
            return super().take_over(request, version, events)
        self.clear(request.key)
        return super().begin(request, events)


class LastMarkWins(SyncMemoryJournal):
    """The id of a call can be tied to other arguments."""

    def begin(self, request: ClaimRequest, events: Sequence[Row] = (), replaces: int = 0) -> Begun:
        self._pins.clear()
        return super().begin(request, events, replaces)


class ArgumentsForgotten(SyncMemoryJournal):
    """A claim in flight does not say what it is about."""

    def begin(self, request: ClaimRequest, events: Sequence[Row] = (), replaces: int = 0) -> Begun:
        return super().begin(_changed(request, shown=""), events, replaces)


class AliasForgotten(SyncMemoryJournal):
    def alias(self, key: str, identity: str, version: int) -> bool:
        return True


class SharesWhatRuns(SyncMemoryJournal):
    """Sharing does not look whether the call has begun to run."""

    def alias(self, key: str, identity: str, version: int) -> bool:
        return super().alias(key, identity, version) or version > 0


class OutdatedVersionsStayValid(SyncMemoryJournal):
    """The version before the last settlement still names its execution."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.newer: dict[int, int] = {}

    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        settled = super().settle(key, version, settlement, events)
        if settled is not None:
            self.newer[version] = settled
        return settled


class SharesOutdatedVersions(OutdatedVersionsStayValid):
    def alias(self, key: str, identity: str, version: int) -> bool:
        return super().alias(key, identity, self.newer.get(version, version))


class ReplacesOutdatedVersions(OutdatedVersionsStayValid):
    def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Begun:
        return super().take_over(request, self.newer.get(version, version), events)


class RunsWhatWasShared(SyncMemoryJournal):
    """Taking compares the current version alone."""

    def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Begun:
        answer = super().take_over(request, version, events)
        if isinstance(answer, Existing) and answer.current.version == version:
            again = _changed(request, identity=f"{request.identity}, again")
            return super().take_over(again, version, events)
        return answer


class LifeFreesTheClaim(SyncMemoryJournal):
    """A claim in flight expires like a settled one."""

    def begin(self, request: ClaimRequest, events: Sequence[Row] = (), replaces: int = 0) -> Begun:
        seen = self.read(request.key)
        if seen is not None and seen.current.expires_at_ms <= seen.now_ms:
            self.clear(request.key)
        return super().begin(request, events)


class LifeFencesTheHolder(SyncMemoryJournal):
    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        seen = self.read(key)
        if seen is not None and seen.current.expires_at_ms <= seen.now_ms:
            return None
        return super().settle(key, version, settlement, events)


class SweepsAtFirstSight(SyncMemoryJournal):
    def sweep(self, limit: int = 1000) -> int:
        dropped = super().sweep(limit)
        return dropped + sum([self.clear(node.key) for node in self._all_current() if node.had_grace_period])


class NeverForgets(SyncMemoryJournal):
    def sweep(self, limit: int = 1000) -> int:
        for node in self._all_current():
            if node.state == "inflight":
                self.renew(node.key, node.version, 1_000)
        return super().sweep(limit)


class LeaseFreesTheClaim(SyncMemoryJournal):
    """A claim past its lease is treated as free."""

    def begin(self, request: ClaimRequest, events: Sequence[Row] = (), replaces: int = 0) -> Begun:
        seen = self.read(request.key)
        if seen and isinstance(seen.current.lock_until_ms, int) and seen.current.lock_until_ms <= seen.now_ms:
            self.clear(request.key)
        return super().begin(request, events)


class AnybodyRenews(SyncMemoryJournal):
    def renew(self, key: str, version: int, lease_ms: int) -> bool:
        seen = self.read(key)
        return seen is not None and super().renew(key, seen.current.version, lease_ms)


class LosersWriteEvents(SyncMemoryJournal):
    def begin(self, request: ClaimRequest, events: Sequence[Row] = (), replaces: int = 0) -> Begun:
        answer = super().begin(request)
        self._write(events)
        return answer


class FencedEventsLost(SyncMemoryJournal):
    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        settled = super().settle(key, version, settlement)
        if settled is not None:
            self._write(events)
        return settled


class SilentSettle(SyncMemoryJournal):
    """Nobody is told."""

    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        waiting = dict(self.waiters.by_key)
        self.waiters.by_key.clear()
        settled = super().settle(key, version, settlement, events)
        self.waiters.by_key.update(waiting)
        return settled


class OneTtlForAll(SyncMemoryJournal):
    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        return super().settle(key, version, settlement._replace(ttl_ms=86_400_000), events)


class LastBreakerWins(SyncMemoryJournal):
    def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        for kept in self.load_breakers(tenant):
            row = row._replace(epoch=max(row.epoch, kept.epoch)) if kept.key == row.key else row
        super().save_breaker(tenant, row)


class GapsInTheLog(MemoryJournal):
    """Numbers are read and used in two steps."""

    async def append(self, run: str, rows: Sequence[Row]) -> int:
        first = len(await self.events(run, limit=10_000))
        await asyncio.sleep(0)
        await super().append(run, rows)
        return first


class ReopeningReplaces(SyncMemoryJournal):
    open_run = SyncMemoryJournal.update_run


class Keeps(SyncMemoryJournal):
    """A request or a settlement is kept, but not all of it."""

    def begin(self, request: ClaimRequest, events: Sequence[Row] = (), replaces: int = 0) -> Begun:
        return super().begin(self.kept_request(request), events)

    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        return super().settle(key, version, self.kept_settlement(settlement), events)

    def kept_request(self, request: ClaimRequest) -> ClaimRequest:
        return request

    def kept_settlement(self, settlement: Settlement) -> Settlement:
        return settlement


class KeepsNoCallId(Keeps):
    def kept_request(self, request: ClaimRequest) -> ClaimRequest:
        return _changed(request, call_id=None)


class KeepsNoToken(Keeps):
    def kept_request(self, request: ClaimRequest) -> ClaimRequest:
        return _changed(request, token="")


class KeepsOneDigest(Keeps):
    def kept_request(self, request: ClaimRequest) -> ClaimRequest:
        digests = digests_of(request.params)
        return _changed(request, params=(digests[0], digests[0]))


class CutsLongParameters(Keeps):
    def kept_request(self, request: ClaimRequest) -> ClaimRequest:
        return _changed(request, params=request.params[:2_048])


class KeepsTheLastAttempt(Keeps):
    def kept_settlement(self, settlement: Settlement) -> Settlement:
        return settlement._replace(attempts=settlement.attempts[-1:])


class TakesAllForNew(SyncMemoryJournal):
    """After many claims in a row it does not look any more."""

    def begin(self, request: ClaimRequest, events: Sequence[Row] = (), replaces: int = 0) -> Begun:
        if self.ping()["claims"] >= 20:
            self.clear(request.key)
        return super().begin(request, events)


class TakesAllForHeld(SyncMemoryJournal):
    """After many claims in a row any version settles."""

    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        seen = self.read(key) if self.ping()["claims"] >= 20 else None
        return super().settle(key, seen.current.version if seen else version, settlement, events)


class LosesSecondEvents(SyncMemoryJournal):
    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        return super().settle(key, version, settlement, events[:1])


class AsksForTheRecord(SyncMemoryJournal):
    """A list goes on where the record of the cursor stands now, whoever owns it."""

    def list(self, **which: Any) -> Records:
        place: Cursor | None = which.get("before")
        if place is not None:
            there = self.read(place.id)
            which["before"] = Cursor(0 if there is None else there.current.fence, place.id)
        return super().list(**which)


class EndsWhereARunIsGone(SyncMemoryJournal):
    def runs(self, **which: Any) -> Manifests:
        place: Cursor | None = which.get("before")
        return [] if place is not None and self.manifest(place.id) is None else super().runs(**which)


def _changed(request: ClaimRequest, **changes: Any) -> ClaimRequest:
    assert isinstance(request, StaticClaimRequest)
    return request._replace(**changes)


CAUGHT_BY: list[tuple[type[SyncMemoryJournal | MemoryJournal], str, Face]] = [
    (CheckThenSet, "one_of_many_begins", "async"),
    (TakeWithoutCompare, "one_of_many_takes", "sync"),
    (SettleWithoutFence, "settle_is_fenced_after_takeover", "sync"),
    (IdentityOverwritten, "replaced_executions_are_kept", "sync"),
    (ArgumentsForgotten, "a_claim_in_flight_shows_its_arguments", "sync"),
    (LastMarkWins, "a_call_keeps_its_first_mark", "sync"),
    (AliasForgotten, "alias", "sync"),
    (SharesWhatRuns, "an_identity_has_one_answer", "sync"),
    (SharesWhatRuns, "sharing_and_running_exclude_each_other", "async"),
    (SharesOutdatedVersions, "an_outdated_version_is_neither_shared_nor_replaced", "sync"),
    (ReplacesOutdatedVersions, "an_outdated_version_is_neither_shared_nor_replaced", "async"),
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
    (LastBreakerWins, "breakers_keep_the_newest_epoch", "sync"),
    (GapsInTheLog, "append_is_gap_free", "async"),
    (ReopeningReplaces, "opening_a_run_twice_keeps_the_first", "sync"),
    (KeepsNoCallId, "record_says_who_asked", "sync"),
    (KeepsNoToken, "record_says_who_asked", "sync"),
    (KeepsNoToken, "owner_is_token_and_process", "async"),
    (KeepsOneDigest, "record_says_who_asked", "sync"),
    (CutsLongParameters, "record_says_who_asked", "sync"),
    (KeepsTheLastAttempt, "record_says_how_it_ended", "sync"),
    (TakesAllForNew, "a_duplicate_after_many_claims_is_shown_the_record", "sync"),
    (TakesAllForHeld, "a_late_settlement_after_many_claims_is_fenced", "sync"),
    (AsksForTheRecord, "a_list_goes_on_whatever_happened", "sync"),
    (EndsWhereARunIsGone, "a_list_of_runs_goes_on_whatever_happened", "sync"),
    (LosesSecondEvents, "events_are_in_order_after_many_claims", "sync"),
]


class _Buggy(MemoryStore):
    """A bug in the steps shows in both faces, one in the coroutines only in theirs."""

    def __init__(self, kind: type[SyncMemoryJournal | MemoryJournal], clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self._kind = MemoryJournal
        if issubclass(kind, SyncMemoryJournal):
            self._journal = kind(25_000, 250_000, clock)
        else:
            self._kind = kind

    def open_async(self) -> MemoryJournal:
        return self._kind(self._journal)


@pytest.mark.parametrize(
    ("bug", "rule", "face"), CAUGHT_BY, ids=[f"{bug.__name__}-{rule}" for bug, rule, _ in CAUGHT_BY]
)
def test_planted_bug_is_found(bug: type[SyncMemoryJournal | MemoryJournal], rule: str, face: Face) -> None:
    clock = ManualClock()
    with pytest.raises(AssertionError):
        JournalConformance(lambda: _Buggy(bug, clock), face, advance=clock.advance).check(rule)


async def test_a_silent_settle_leaves_waiters_alone() -> None:
    """The suite finds this one by patience; here it is enough that the waiter is still waiting."""
    store = _Buggy(SilentSettle, ManualClock())
    suite = JournalConformance(lambda: store, "async")
    journal = store.open_async()
    held = await journal.begin(suite.request("k"))
    assert isinstance(held, Claimed)
    waiter = asyncio.ensure_future(journal.wait("k", held.version, 60))
    await asyncio.sleep(0)
    await journal.settle("k", held.version, Settlement("done", 1000))
    await asyncio.sleep(0)
    assert not waiter.done()
    waiter.cancel()

"""The rules that every journal must obey, as a suite that any store can run.

    from functools import partial
    import pytest
    from antiphon.testing.journal_conformance import FACES, JournalConformance

    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize("rule", JournalConformance.rules(across_processes=True))
    def test_my_store(rule, face, tmp_path):
        JournalConformance(partial(MyStore, tmp_path / "my.db"), face).check(rule)

A rule is written once, as a coroutine, and runs in both faces: the synchronous journal is wrapped in coroutines that
never suspend. It fails with an :class:`AssertionError` of one sentence.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeVar

from msgspec import UNSET

from antiphon._drive import drive
from antiphon.contract.events import CodeVersion, RunManifest
from antiphon.contract.record import DedupeRecord, RecordedError, RecordedExecution
from antiphon.errors import StoreVersionError
from antiphon.ports import (
    Attempt,
    Begun,
    BreakerRow,
    Claimed,
    ClaimTemplate,
    Cursor,
    Existing,
    Journal,
    Pinned,
    Row,
    Settlement,
    StaticClaimRequest,
    Store,
)
from antiphon.stores._adapters import AsyncFromSync

T = TypeVar("T")
Face = Literal["sync", "async"]
Step = Callable[[Journal], Coroutine[Any, Any, T]]

TTL_MS = 60_000
SHORT_MS = 400
"""Long enough for a loaded machine to act within it, short enough to wait for if the clock cannot be moved."""


def must(condition: object, what: str) -> None:
    """Fail with the sentence of the broken rule."""
    if not condition:
        raise AssertionError(what)


def claimed(answer: Begun) -> Claimed:
    """The answer of a call that must win."""
    if not isinstance(answer, Claimed):
        raise AssertionError(f"the claim should have been won, but the store answered {answer}")
    return answer


def existing(answer: Begun | None) -> Existing:
    """The answer of a call that must lose."""
    if not isinstance(answer, Existing):
        raise AssertionError(f"the store should have shown a record, but it answered {answer}")
    return answer


def check_attempts(record: DedupeRecord, attempts: Sequence[Attempt]) -> None:
    """Check that *record* has these attempts and no others."""
    execution = record.execution
    assert isinstance(execution, RecordedExecution)
    told = [(a.started_at_ms, a.finished_at_ms, a.error_code or "", a.retriable, a.status) for a in execution.attempts]
    expected = [(*attempt, "error" if attempt[2] else "success") for attempt in attempts]
    must(told == expected, f"attempts are kept: {expected}, not {told}")
    must(execution.attempt_count == len(attempts), "attempts are counted")


class Harness:
    """A store under test in one face."""

    def __init__(
        self, make: Callable[[], Store], face: Face = "sync", advance: Callable[[int], None] | None = None
    ) -> None:
        self.make = make
        self.store: Store = make()
        self.face = face
        self._advance = advance
        self.name: str = uuid.uuid4().hex[:12]
        self.tenant: str = f"tenant-{self.name}"

    def open(self) -> Journal:
        """A journal of this face; a synchronous one is wrapped in coroutines that never suspend."""
        return AsyncFromSync(self.store.open_sync()) if self.face == "sync" else self.store.open_async()

    @property
    def has_clock(self) -> bool:
        """Whether the rules can move the store's clock."""
        return self._advance is not None

    async def pass_ms(self, milliseconds: int) -> None:
        """Let time pass on the store's clock."""
        if self._advance is not None:
            self._advance(milliseconds)
        else:
            await self.sleep(milliseconds / 1000)

    async def sleep(self, seconds: float) -> None:
        """Let real time pass."""
        if self.face == "sync":
            time.sleep(seconds)
        else:
            await asyncio.sleep(seconds)

    async def together(self, journal: Journal, steps: Sequence[Step[T]]) -> list[T]:
        """Run *steps* at the same time: threads in the synchronous face, tasks in the asynchronous one."""
        if self.face == "async":
            return list(await asyncio.gather(*(step(journal) for step in steps)))
        with ThreadPoolExecutor(max_workers=len(steps)) as pool:
            return list(pool.map(lambda step: drive(step(journal)), steps))

    def key(self, name: str = "key") -> str:
        """A store key that nobody else uses."""
        return f"{name}-{self.name}"

    def request(self, key: str, identity: str = "call-1", **changes: Any) -> StaticClaimRequest:
        """A request for the claim on *key*; *changes* are fields of the request or of its template."""
        shared: dict[str, Any] = {
            "tool": "tools/send",
            "session": "session-1",
            "actor": "actor-1",
            "ttl_ms": TTL_MS,
            "lease_ms": TTL_MS,
            "owner": "process-1",
            "tenant": self.tenant,
            "workspace": "workspace-1",
        }
        values: dict[str, Any] = {
            "key": key,
            "identity": identity,
            "idempotency_key": f"given-{key}",
            "params": ("digest", "exact"),
            "request_id": f"request-of-{identity}",
            "token": f"token-of-{identity}",
            "call_id": identity,
        }
        for name, value in changes.items():
            (shared if name in shared else values)[name] = value
        return StaticClaimRequest(template=ClaimTemplate(**shared), **values)

    async def held(
        self, j: Journal, identity: str = "call-1", *, name: str = "key", **changes: Any
    ) -> tuple[str, Claimed]:
        """An unused key, and the claim on it."""
        key = self.key(name)
        return key, claimed(await j.begin(self.request(key, identity, **changes)))

    async def finds(self, j: Journal, key: str, identity: str, version: int | None, what: str) -> None:
        """Check that *identity* is shown *version* as its own."""
        own = existing(await j.begin(self.request(key, identity))).own
        must(own is not None and own.version == version, what)

    def rows(self, run: str, *types: str) -> list[Row]:
        """Events as rows for the log."""
        return [Row(run, kind, 1, b'{"lane":"0","index":0,"payload":{"n":1},"meta":{}}') for kind in types]

    def manifest(self, run: str, **changes: Any) -> RunManifest:
        """The manifest of a run."""
        values: dict[str, Any] = {"id": run, "name": "demo", "status": "running", "started_at_ms": 1_000}
        return RunManifest(**(values | {"tenant": self.tenant} | changes))


def done(payload: bytes | None = b'{"ok":true}', ttl_ms: int = TTL_MS, **changes: Any) -> Settlement:
    """A call that succeeded."""
    return Settlement("done", ttl_ms, payload=payload, attempt_count=1, **changes)


def failed(code: str = "refused", ttl_ms: int = TTL_MS) -> Settlement:
    """A call that failed."""
    return Settlement("failed", ttl_ms, error=(code, "it did not work", True, False), attempt_count=1)


DAY_MS = 86_400_000
RACERS = 12
ROUNDS = 20


class ClaimRules(Harness):
    """One method per rule; each gets an open journal and unused keys."""

    async def rule_begin_inserts_or_returns(self, j: Journal) -> None:
        """The first caller gets the claim; every later one is shown the record."""
        key = self.key()
        must(await j.read(key) is None, "there is nothing to read before the first claim")
        won = claimed(await j.begin(self.request(key)))
        again = existing(await j.begin(self.request(key)))
        must(again.current.state == "inflight", "a claim begins in flight")
        must(again.current.version == won.version == again.current.fence, "version and fence are what the winner got")
        must(again.current.lock_until_ms == won.now_ms + TTL_MS, "the lease counts from the store's own time")
        must(again.own == again.current, "the same identity finds the record as its own")
        other = existing(await j.begin(self.request(key, "call-2")))
        must(other.current == again.current and other.own is None, "another identity has no record of its own")
        seen = existing(await j.read(key))
        must(seen.current == again.current, "reading shows the same record")

    async def _warm_up(self, j: Journal) -> None:
        """Let a store with a pool open a connection for each racer, so that they actually race."""
        others = [self.key(f"warm-{n}") for n in range(RACERS)]
        await self.together(j, [lambda journal, key=key: journal.begin(self.request(key)) for key in others])  # type: ignore[misc]

    async def rule_one_of_many_begins(self, j: Journal) -> None:
        """Of many concurrent callers exactly one gets the claim."""
        key = self.key()
        requests = [self.request(key, f"call-{n}") for n in range(RACERS)]
        await self._warm_up(j)
        answers = await self.together(j, [lambda journal, asked=asked: journal.begin(asked) for asked in requests])  # type: ignore[misc]
        must(sum(isinstance(answer, Claimed) for answer in answers) == 1, "exactly one of many begins wins")

    async def rule_one_of_many_takes(self, j: Journal) -> None:
        """Of many callers that try to replace the same version exactly one succeeds."""
        key, won = await self.held(j)
        requests = [self.request(key, f"call-{n}") for n in range(2, RACERS + 2)]
        answers = await self.together(
            j,
            [lambda journal, asked=asked: journal.take_over(asked, won.version) for asked in requests],  # type: ignore[misc]
        )
        winners = [answer for answer in answers if isinstance(answer, Claimed)]
        must(len(winners) == 1, "exactly one of many takeovers wins")
        must(winners[0].version > won.version, "a takeover has a higher version")
        current = existing(await j.read(key)).current
        must(current.version == winners[0].version, "the winner's record is the current one")
        for answer in answers:
            if isinstance(answer, Existing):
                must(answer.current.version == current.version, "losers are shown the winner's record")

    async def rule_versions_only_grow(self, j: Journal) -> None:
        """Every claim and every settlement has a higher version, even after clearing and expiry."""
        key = self.key()
        seen = [claimed(await j.begin(self.request(key))).version]
        seen.append(await j.settle(key, seen[-1], done()) or 0)
        seen.append(claimed(await j.take_over(self.request(key, "call-2"), seen[-1])).version)
        seen.append(await j.settle(key, seen[-1], done(ttl_ms=SHORT_MS)) or 0)
        await self.pass_ms(SHORT_MS + 50)
        seen.append(claimed(await j.begin(self.request(key, "call-3"))).version)
        await j.clear(key)
        seen.append(claimed(await j.begin(self.request(key, "call-4"))).version)
        seen.append(await j.settle(key, seen[-1], done()) or 0)
        await j.clear(key)
        seen.append(claimed(await j.begin(self.request(key, "call-5"))).version)
        seen.append(await j.settle(key, seen[-1], done(ttl_ms=SHORT_MS)) or 0)
        await self.pass_ms(SHORT_MS + 50)
        await j.sweep()
        seen.append(claimed(await j.begin(self.request(key, "call-6"))).version)
        must(all(earlier < later for earlier, later in pairwise(seen)), f"versions grow: {seen}")

    async def rule_replaced_executions_are_kept(self, j: Journal) -> None:
        """Each call identity finds its own execution, whatever has run since."""
        key, (version, _) = await self.held(j, "call-0")
        for n in range(40):
            settled = await j.settle(key, version, done(b'{"n":%d}' % n))
            must(settled is not None, "the holder can settle")
            version = claimed(await j.take_over(self.request(key, f"call-{n + 1}"), settled or 0)).version
        for n in range(40):
            answer = existing(await j.begin(self.request(key, f"call-{n}")))
            must(answer.current.version == version, "the current record is the newest")
            must(answer.own is not None, f"call-{n} has an execution of its own")
            assert answer.own is not None
            must(bytes(answer.own.payload) == b'{"n":%d}' % n, "an identity is shown its own outcome")  # type: ignore[arg-type]
            must(answer.own.request.identity == f"call-{n}", "an identity is shown its own request")

    async def rule_own_execution_outlives_the_current_one(self, j: Journal) -> None:
        """If the current record has expired, an identity with a live execution is shown that, and may replace it."""
        key, (version, _) = await self.held(j)
        first = await j.settle(key, version, failed("first"))
        version = claimed(
            await j.take_over(self.request(key, "call-2", ttl_ms=SHORT_MS, lease_ms=1), first or 0)
        ).version
        second = await j.settle(key, version, failed(ttl_ms=SHORT_MS))
        await self.pass_ms(SHORT_MS + 50)
        await j.sweep()
        again = existing(await j.begin(self.request(key, "call-1")))
        must(again.current.version == first and again.own == again.current, "the earlier execution answers")
        must(existing(await j.read(key, "call-1")).current.version == first, "reading shows the earlier execution, too")
        taken = claimed(await j.take_over(self.request(key, "call-1"), first or 0))
        must(taken.version > (second or 0), "replacing the earlier execution gives a version above all others")

    async def rule_new_identity_after_expiry_begins(self, j: Journal) -> None:
        """An expired current record does not stop a new identity, even if others have executions there."""
        key, (version, _) = await self.held(j)
        first = await j.settle(key, version, done())
        version = claimed(
            await j.take_over(self.request(key, "call-2", ttl_ms=SHORT_MS, lease_ms=1), first or 0)
        ).version
        await j.settle(key, version, failed(ttl_ms=SHORT_MS))
        await self.pass_ms(SHORT_MS + 50)
        claimed(await j.begin(self.request(key, "call-3")))
        await self.finds(j, key, "call-1", first, "the live execution is still found")

    async def rule_alias(self, j: Journal) -> None:
        """A waiter that shared a result later finds it as its own, even after others ran."""
        key, (version, _) = await self.held(j)
        must(not await j.alias(key, "call-2", version), "a claim in flight has nothing to share")
        must(existing(await j.read(key, "call-2")).own is None, "a refused alias gives no execution of its own")
        settled = await j.settle(key, version, done(b'"shared"')) or 0
        must(await j.alias(key, "call-2", settled), "a settled execution is shared")
        must(await j.alias(key, "call-2", settled) and await j.alias(key, "call-1", settled), "sharing is repeatable")
        await self.finds(j, key, "call-2", settled, "the alias finds the settled record")
        third = claimed(await j.take_over(self.request(key, "call-3"), settled))
        must(await j.alias(key, "call-4", settled), "an execution that was replaced can be shared")
        for identity in ("call-1", "call-2", "call-4"):
            await self.finds(j, key, identity, settled, f"{identity} still finds the shared execution")
        must(existing(await j.read(key)).current.version == third.version, "the current record is untouched")
        must(not await j.alias(key, "call-9", settled + 999_999_999), "an unknown version is not shared")
        must(existing(await j.read(key, "call-9")).own is None, "a refused alias gives no execution of its own")
        claimed(await j.take_over(self.request(key, "call-5"), third.version))
        must(not await j.alias(key, "call-9", third.version), "a claim that was taken over has nothing to share")

    async def rule_an_identity_has_one_answer(self, j: Journal) -> None:
        """What a call identity found first is its answer: it neither runs nor shares anything else."""
        key, (version, _) = await self.held(j)
        first = await j.settle(key, version, done(b'"first"')) or 0
        must(await j.alias(key, "sharer", first), "the sharer has its answer")
        seen = existing(await j.take_over(self.request(key, "sharer"), first))
        must(seen.own is not None and seen.own.version == first, "an identity that shared a result does not run")
        version = claimed(await j.take_over(self.request(key, "runner"), first)).version
        must(not await j.alias(key, "runner", first), "an identity whose claim is in flight does not share")
        must(existing(await j.read(key, "runner")).current.version == version, "a refused alias changes no claim")
        second = await j.settle(key, version, done(b'"second"')) or 0
        must(not await j.alias(key, "runner", first), "an identity with a result of its own does not share")
        must(not await j.alias(key, "sharer", second), "an identity that shared one result does not share another")
        for identity, answer in (("sharer", first), ("runner", second)):
            await self.finds(j, key, identity, answer, f"the {identity} keeps its answer")
        version = claimed(await j.take_over(self.request(key, "failure"), second)).version
        lost = await j.settle(key, version, failed()) or 0
        version = claimed(await j.take_over(self.request(key, "call-3"), lost)).version
        third = await j.settle(key, version, done(b'"third"')) or 0
        must(await j.alias(key, "failure", third), "an identity whose call failed can share a result")
        await self.finds(j, key, "failure", third, "a shared result replaces the failure as the identity's answer")

    async def rule_sharing_and_running_exclude_each_other(self, j: Journal) -> None:
        """If two deliveries of one call race, one to share a result and one to run, only the faster one succeeds."""
        for n in range(ROUNDS):
            key, (version, _) = await self.held(j, name=f"round-{n}")
            settled = await j.settle(key, version, done()) or 0

            async def share(journal: Journal, key: str = key, settled: int = settled) -> bool:
                return await journal.alias(key, "call-2", settled)

            async def run(journal: Journal, key: str = key, settled: int = settled) -> bool:
                return isinstance(await journal.take_over(self.request(key, "call-2"), settled), Claimed)

            did = await self.together(j, (share, run) if n % 2 else (run, share))
            must(sum(did) == 1, f"exactly one of sharing and running succeeds: {did}")

    async def rule_settle_is_fenced_after_takeover(self, j: Journal) -> None:
        """A worker that was replaced cannot settle its successor's claim; its events are logged all the same."""
        key, run = self.key(), self.key("run")
        zombie = claimed(await j.begin(self.request(key, "call-1")))
        holder = claimed(await j.take_over(self.request(key, "call-2"), zombie.version))
        late = await j.settle(key, zombie.version, done(b'"late"'), self.rows(run, "call.finished"))
        must(late is None, "the late settlement is refused")
        must(not await j.renew(key, zombie.version, TTL_MS), "a late renewal is refused")
        current = existing(await j.read(key)).current
        must((current.version, current.state) == (holder.version, "inflight"), "the holder's claim is untouched")
        must(len(await j.events(run)) == 1, "the late worker's event is in the log")
        must(await j.settle(self.key("never"), 1, done()) is None, "what was never claimed cannot be settled")

    async def rule_unknown_is_settled_by_its_new_version(self, j: Journal) -> None:
        """Marking a claim unknown gives it a new version, and only with that can its true outcome be recorded."""
        key, held = await self.held(j)
        unknown = await j.settle(key, held.version, failed("outcome_unknown"))
        must(unknown is not None and unknown > held.version, "settling gives a higher version")
        must(await j.settle(key, held.version, done()) is None, "the version before the unknown outcome is fenced")
        settled = await j.settle(key, unknown or 0, done(b'"found out"'))
        must(settled is not None, "the version of the unknown outcome settles it")
        record = existing(await j.read(key)).current
        must((record.state, record.fence) == ("done", held.version), "the fence stays that of the dispatch")
        must(record.error.__class__ is not RecordedError, "a settled record has nothing of its unknown outcome")

    async def rule_unknown_is_settled_after_others_followed(self, j: Journal) -> None:
        """The true outcome of an earlier call is recorded in its own execution; later ones stay unchanged."""
        key, held = await self.held(j)
        unknown = await j.settle(key, held.version, failed("outcome_unknown")) or 0
        second = claimed(await j.take_over(self.request(key, "call-2"), unknown))
        must(await j.settle(key, held.version, done()) is None, "the version before the unknown outcome is fenced")
        settled = await j.settle(key, unknown, done(b'"found out"'))
        must(settled is not None and settled > unknown, "the earlier execution gets a new version")
        must(await j.settle(key, unknown, done()) is None, "the old version of the earlier execution is fenced")
        must(await j.settle(key, settled or 0, done()) is None, "a known earlier outcome is not settled again")
        now = existing(await j.read(key, "call-1"))
        must((now.current.version, now.current.state) == (second.version, "inflight"), "the current one is untouched")
        own = now.own
        assert own is not None
        must((own.state, own.version, own.fence) == ("done", settled, held.version), "its new outcome is shown")
        must(bytes(own.payload) == b'"found out"', "the earlier execution has its result")  # type: ignore[arg-type]
        must(own.error.__class__ is not RecordedError, "the earlier execution has nothing of its unknown outcome")
        must(await j.settle(key, second.version, done()) is not None, "the current holder settles its own claim")
        must(existing(await j.begin(self.request(key, "call-1"))).own == own, "a redelivery finds its own execution")
        must(await j.alias(key, "call-3", settled or 0), "another call can share the earlier execution")
        must(existing(await j.read(key, "call-3")).own == own, "a call that shares the earlier execution finds it")

    async def rule_an_outdated_version_is_neither_shared_nor_replaced(self, j: Journal) -> None:
        """Once an earlier execution has a new version, nothing can be done with its old one."""
        key, held = await self.held(j)
        unknown = await j.settle(key, held.version, failed("outcome_unknown")) or 0
        second = claimed(await j.take_over(self.request(key, "call-2", ttl_ms=SHORT_MS, lease_ms=1), unknown))
        settled = await j.settle(key, unknown, failed()) or 0
        must(settled > unknown, "the earlier execution gets a new version")
        must(not await j.alias(key, "call-9", unknown), "an outdated version is not shared")
        must(existing(await j.read(key, "call-9")).own is None, "an outdated version aliases nothing")
        await j.settle(key, second.version, failed(ttl_ms=SHORT_MS))
        await self.pass_ms(SHORT_MS + 50)
        shown = existing(await j.take_over(self.request(key, "call-1"), unknown))
        must(shown.current.version == settled, "a takeover of an outdated version is shown the new one")
        claimed(await j.take_over(self.request(key, "call-1"), settled))

    async def rule_only_the_holder_renews(self, j: Journal) -> None:
        """A renewal extends the lease of an in-flight claim with that version and no other."""
        key, held = await self.held(j, lease_ms=1_000)
        must(await j.renew(key, held.version, 300_000), "the holder renews")
        record = existing(await j.read(key)).current
        must(record.version == held.version, "renewing does not change the version")
        must(_lock(record) >= held.now_ms + 300_000, "a renewal extends the lease")
        must(record.expires_at_ms >= _lock(record), "a record outlives its lease")
        must(not await j.renew(key, held.version + 1, 300_000), "another version cannot renew the lease")
        settled = await j.settle(key, held.version, done()) or 0
        must(not await j.renew(key, settled, 300_000), "a settled claim has no lease")

    async def rule_lapsed_lease_is_still_seen(self, j: Journal) -> None:
        """A claim past its lease is not free: it is shown, and can be renewed or taken over."""
        key, held = await self.held(j, lease_ms=50)
        await self.pass_ms(100)
        must(await j.sweep() == 0, "an in-flight claim is not swept when its lease ends")
        seen = existing(await j.begin(self.request(key, "call-2")))
        must((seen.current.version, seen.current.state) == (held.version, "inflight"), "it stays in flight after it")
        must(_lock(seen.current) <= seen.now_ms, "a claim past its lease says so")
        must(await j.renew(key, held.version, TTL_MS), "a holder that was only slow can renew")

    async def rule_lease_longer_than_ttl(self, j: Journal) -> None:
        """A claim is not forgotten while its lease is held, however short its TTL."""
        key, held = await self.held(j, ttl_ms=1, lease_ms=TTL_MS)
        await self.pass_ms(50)
        await j.sweep()
        must(existing(await j.begin(self.request(key, "call-2"))).current.version == held.version, "its lease holds")

    async def rule_final_state_sets_the_ttl(self, j: Journal) -> None:
        """Once settled, a record lives as long as its outcome specifies; then it is as if it had never existed."""
        for settlement in (done(ttl_ms=SHORT_MS), failed(ttl_ms=SHORT_MS)):
            key, held = await self.held(j, name=settlement.state)
            await j.settle(key, held.version, settlement)
            record = existing(await j.read(key)).current
            must(record.ttl_ms == SHORT_MS, "the record names the TTL of its outcome")
            must(record.expires_at_ms - record.updated_at_ms == SHORT_MS, "the record expires by its outcome's TTL")
        await self.pass_ms(SHORT_MS + 50)
        for state in ("done", "failed"):
            must(await j.read(self.key(state)) is None, f"an expired {state} record is not shown")
            claimed(await j.begin(self.request(self.key(state), "call-2")))

    async def rule_a_claim_in_flight_does_not_expire(self, j: Journal) -> None:
        """Past its TTL a claim in flight is still shown, and can be settled, renewed or taken over as before.

        A TTL ends by a clock, and clocks are set forward. If that freed a claim, a call in progress would be made a
        second time. So only the lease says what a claim in flight is worth, and whoever reads it decides.
        """
        keys = [self.key(name) for name in ("seen", "settled", "renewed", "taken")]
        life_ms = 6 * SHORT_MS  # a store that expires keys itself keeps it twice as long: time for all that follows
        request = self.request(keys[0], ttl_ms=life_ms, lease_ms=1)
        seen, settled, renewed, taken = [claimed(await j.begin(request._replace(key=key))).version for key in keys]
        await self.pass_ms(life_ms + 50)
        other = self.request(keys[0], "call-2")
        for answer in (await j.begin(other), await j.take_over(other, 7), await j.read(keys[0])):
            found = existing(answer)
            must((found.current.version, found.current.state) == (seen, "inflight"), "it stays in flight after it")
            must(found.current.expires_at_ms <= found.now_ms, "a claim past its TTL says so")
        must(await j.settle(keys[1], settled, done()) is not None, "the holder settles a claim past its TTL")
        must(await j.renew(keys[2], renewed, TTL_MS), "the holder renews a claim past its TTL")
        must(await j.settle(keys[2], renewed, done()) is not None, "the holder settles a claim that it renewed late")
        must(claimed(await j.take_over(self.request(keys[3], "call-2"), taken)).version > taken, "versions grow")
        must(await j.settle(keys[3], taken, done()) is None, "a takeover of a claim past its TTL fences its holder")
        must(len(await j.list(tenant=self.tenant, state="inflight")) == 2, "a list shows claims past their TTL")
        must((await j.counts(self.tenant)).get((request.template.tool, "stale")) == 1, "it is counted as stale")

    async def rule_an_abandoned_claim_is_forgotten(self, j: Journal) -> None:
        """A sweep extends a claim in flight by its TTL once, in case the clock was set forward; then it is removed."""
        began = time.monotonic()
        key, held = await self.held(j, ttl_ms=SHORT_MS, lease_ms=1)
        await self.pass_ms(SHORT_MS + 50)
        dropped, found = await j.sweep(), await j.read(key)
        if time.monotonic() - began < 2 * SHORT_MS / 1000:  # else its second TTL may be over, too
            must(dropped == 0, "the first sweep drops nothing")
            must(existing(found).current.version == held.version, "the claim is still there after the first sweep")
        await self.pass_ms(SHORT_MS + 50)
        await j.sweep()
        must(await j.read(key) is None, "an abandoned claim is gone after its second TTL")
        must(not await j.renew(key, held.version, TTL_MS), "a claim that was forgotten cannot be renewed")
        must(await j.settle(key, held.version, done()) is None, "a claim that was forgotten cannot be settled")
        must(claimed(await j.begin(self.request(key, "call-2"))).version > held.version, "the intent is free")

    async def rule_an_abandoned_claim_leaves_its_history(self, j: Journal) -> None:
        """When a claim in flight is forgotten, earlier executions of its intent survive."""
        key = self.key()
        first = await j.settle(key, claimed(await j.begin(self.request(key))).version, done()) or 0
        held = claimed(await j.take_over(self.request(key, "call-2", ttl_ms=SHORT_MS, lease_ms=1), first))
        for _ in range(2):
            await self.pass_ms(SHORT_MS + 50)
            await j.sweep()
        must(await j.settle(key, held.version, done()) is None, "an abandoned claim can no longer be settled")
        must(await j.read(key, "call-2") is None, "an abandoned claim that was forgotten is not shown")
        must(existing(await j.read(key, "call-1")).current.version == first, "an earlier execution is shown again")
        must(claimed(await j.begin(self.request(key, "call-2"))).version > held.version, "the intent is free")
        await self.finds(j, key, "call-1", first, "the earlier execution is still found after a new claim")

    async def rule_an_expired_outcome_is_fenced(self, j: Journal) -> None:
        """Once expired, an unknown outcome can no longer be settled, whether swept or not."""
        key, held = await self.held(j)
        unknown = await j.settle(key, held.version, failed("outcome_unknown", ttl_ms=SHORT_MS)) or 0
        await self.pass_ms(SHORT_MS + 50)
        must(await j.settle(key, unknown, done()) is None, "an expired unknown outcome cannot be settled")
        must(await j.read(key) is None, "an expired record is not shown")

    async def rule_take_of_what_is_gone_begins(self, j: Journal) -> None:
        """Taking over a record that was cleared or has expired meanwhile is a plain claim."""
        key, held = await self.held(j)
        await j.clear(key)
        taken = claimed(await j.take_over(self.request(key, "call-2"), held.version))
        must(await j.settle(key, taken.version, done()) is not None, "a takeover of what is gone can be settled")

    async def rule_outcome_survives_to_the_byte(self, j: Journal) -> None:
        """Payload, references, error and attempts are returned unchanged."""
        payload = b'{"b":1.0,"a":[1e3,"\\u00e4\\ud83d\\ude00","\xc3\xa4"],"n":12345678901234567890,"t":" x  y "}'
        attempts = ((1, 2, "ETIMEDOUT", True), (3, 4, "", False))
        key, held = await self.held(j)
        await j.settle(key, held.version, done(payload, attempts=attempts)._replace(attempt_count=2))
        record = existing(await j.begin(self.request(key))).current
        must(bytes(record.payload) == payload, "payload bytes are untouched")  # type: ignore[arg-type]
        check_attempts(record, attempts)
        must(record.dispatched, "the record says that the tool was touched")
        claimed(await j.take_over(self.request(key, "call-2"), record.version))
        own = existing(await j.begin(self.request(key))).own
        must(own == record, "a replaced execution is the same as before")

        other = self.key("other")
        held = claimed(await j.begin(self.request(other)))
        error = ("boom", "it went\nwrong “here”", False, True)
        settlement = done(None, payload_ref="sha256:abc", payload_sealed="c2VhbGVk", output_redacted=True)
        await j.settle(other, held.version, settlement._replace(dispatched=False, error=error))
        record = existing(await j.read(other)).current
        must(record.payload_ref == "sha256:abc" and record.payload_sealed == "c2VhbGVk", "the references are kept")
        must(record.output_redacted is True and not record.dispatched, "the two marks of a settlement are kept")
        expected = RecordedError(code="boom", message=error[1], terminal=False, should_retriable=True)
        must(record.error == expected, "the error is kept")

    async def rule_large_payload(self, j: Journal) -> None:
        """A megabyte is stored as well as a byte."""
        key = self.key()
        payload = b'"' + b"x" * 1_000_000 + b'"'
        held = claimed(await j.begin(self.request(key)))
        await j.settle(key, held.version, done(payload))
        record = existing(await j.begin(self.request(key))).current
        must(bytes(record.payload) == payload, "a payload of a megabyte is kept whole")  # type: ignore[arg-type]


def _lock(record: DedupeRecord) -> int:
    return record.lock_until_ms if isinstance(record.lock_until_ms, int) else 0


IN_A_ROW = 20
"""Number of new claims in a row after which a store may assume that the next one is new as well."""
LONG_TTL_MS = 3_600_000
UGLY = 'é "1"\\\n\u2028'
PARAMS: dict[str, bytes | tuple[str, str]] = {
    "short": b'{"to":"ada"}',
    "empty": b"",
    "long": b'"' + b"x" * 5_000 + b'"',
    "limit": b"x" * 2_048,
    "digests": ("d" * 64, "e" * 64),
}
SETTLEMENTS: dict[str, Settlement] = {
    "one success": done(b'"sent"', LONG_TTL_MS, attempts=((5, 7, "", False),)),
    "no attempts": done(b'"sent"', LONG_TTL_MS)._replace(attempt_count=0),
    "several attempts": done(
        b'"sent"', LONG_TTL_MS, attempts=((1, 2, "ETIMEDOUT", True), (3, 4, "refused", False), (5, 6, "", False))
    )._replace(attempt_count=3),
    "retriable success": done(b'"sent"', LONG_TTL_MS, attempts=((1, 2, "", True),)),
    "sealed": done(None, LONG_TTL_MS, attempts=((5, 7, "", False),), payload_sealed="c2VhbGVk", output_redacted=True),
    "elsewhere": done(None, LONG_TTL_MS, attempts=((5, 7, "", False),), payload_ref="sha256:abc"),
    "short life": done(b'"sent"', 60_000, attempts=((5, 7, "", False),)),
    "failed": failed("outcome_unknown", LONG_TTL_MS)._replace(attempts=((1, 2, "outcome_unknown", False),)),
    "cancelled": Settlement("cancelled", LONG_TTL_MS, dispatched=False),
}


class RecordRules(Harness):
    """One method per rule."""

    async def rule_record_says_who_asked(self, j: Journal) -> None:
        """Every field of the request is in the record, in whatever form its parameters came."""
        await self._check_requests(j, "first")
        await self._warm(j)
        await self._check_requests(j, "warm")

    async def rule_record_says_how_it_ended(self, j: Journal) -> None:
        """Every field of the settlement is in the record, and those of the request are kept."""
        await self._check_settlements(j, "first")
        await self._warm(j)
        await self._check_settlements(j, "warm")

    async def rule_events_are_in_order_after_many_claims(self, j: Journal) -> None:
        """Claim and outcome are logged with their events (none, one or several) without a gap."""
        await self._warm(j)
        run, other, expected = self.key("run"), self.key("other"), []
        for n in range(IN_A_ROW):
            started, ended = [f"{n}.started"][: n % 3], [f"{n}.ended", f"{n}.decided"][: n % 4]
            version = await self._win(j, self.request(self.key(f"{n}")), self.rows(run, *started))
            must(await j.settle(self.key(f"{n}"), version, _plain(n), self.rows(run, *ended)) is not None, "it settles")
            expected += started + ended
            if n % 5 == 0:
                await j.append(run, self.rows(run, f"{n}.between"))
                expected.append(f"{n}.between")
            await j.settle(self.key(f"{n}"), version, _plain(n), self.rows(other, f"{n}.late"))
        events = await j.events(run)
        must([event.type for event in events] == expected, f"events are in order: {[event.type for event in events]}")
        must([event.seq for event in events] == list(range(len(expected))), "events are numbered without a gap")
        must(len(await j.events(other)) == IN_A_ROW, "events of a fenced settlement are written")

    async def rule_a_duplicate_after_many_claims_is_shown_the_record(self, j: Journal) -> None:
        """A store that assumes the next claim is new still notices if it is not."""
        await self._warm(j)
        run = self.key("run")
        for n, settlement in enumerate((None, done(ttl_ms=LONG_TTL_MS), failed(ttl_ms=LONG_TTL_MS))):
            key = self.key(f"duplicate-{n}")
            version = await self._win(j, self.request(key), self.rows(run, "started"))
            if settlement is not None:
                version = await j.settle(key, version, settlement, self.rows(run, "ended")) or 0
            for identity in ("call-1", "call-2"):
                seen = existing(await j.begin(self.request(key, identity), self.rows(run, "lost")))
                must(seen.current.version == version, "the record of the first claim is shown")
                must((seen.own is not None) == (identity == "call-1"), "only its own identity has it as its own")
            await self._warm(j, f"again-{n}")
        must("lost" not in [event.type for event in await j.events(run)], "a claim that is lost writes no events")

    async def rule_a_late_settlement_after_many_claims_is_fenced(self, j: Journal) -> None:
        """Neither an earlier version nor an unknown key can be settled, whatever code path writes it."""
        await self._warm(j)
        key = self.key()
        version = await self._win(j, self.request(key))
        must(await j.settle(key, version - 1, _plain(1)) is None, "another version is fenced")
        must(await j.settle(self.key("never"), version, _plain(1)) is None, "what was never claimed is fenced")
        settled = await j.settle(key, version, _plain(1))
        must(settled is not None and settled > version, "the holder settles")
        must(await j.settle(key, version, _plain(2)) is None, "a version settles only once")
        current = existing(await j.read(key)).current
        must(bytes(current.payload) == b'"1"', "a refused settlement leaves the outcome untouched")  # type: ignore[arg-type]

    async def rule_owner_is_token_and_process(self, j: Journal) -> None:
        """A caller that was interrupted finds its own token in the record, even after a takeover."""
        for n, token in enumerate(("token-1", "token-2")):
            request = self.request(self.key(), f"call-{n}", token=token, owner="worker-7")
            if n:
                version = existing(await j.read(self.key())).current.version
                claimed(await j.take_over(request, version))
            else:
                claimed(await j.begin(request))
            must(existing(await j.read(self.key())).current.owner == f"{token}/worker-7", "the owner is token/process")

    async def _warm(self, j: Journal, name: str = "won") -> None:
        for n in range(IN_A_ROW):
            await self._win(j, self.request(self.key(f"{name}-{n}")))

    async def _win(self, j: Journal, request: StaticClaimRequest, events: Sequence[Row] = ()) -> int:
        return claimed(await j.begin(request, events)).version

    async def _check_requests(self, j: Journal, name: str) -> None:
        for n, (kind, params) in enumerate(PARAMS.items()):
            for call_id in (None, "toolu_1", UGLY):
                key = self.key(f"{name}-{n}-{call_id}")
                request = self.request(
                    key, f"{UGLY}-{n}", params=params, call_id=call_id, request_id=UGLY, session=UGLY, actor=f"{UGLY}!"
                )
                await self._win(j, request)
                record = existing(await j.read(key, request.identity)).current
                _check_request(record, request, f"{name}, {kind} parameters, call {call_id!r}")
                must(record.expires_at_ms == record.created_at_ms + record.ttl_ms, "a claim expires by its TTL")

    async def _check_settlements(self, j: Journal, name: str) -> None:
        for n, (kind, settlement) in enumerate(SETTLEMENTS.items()):
            key = self.key(f"{name}-{n}")
            request = self.request(key, params=b"{}")
            version = await self._win(j, request)
            must(await j.settle(key, version, settlement) is not None, f"{kind}: the holder settles")
            record = existing(await j.read(key)).current
            _check_request(record, request, f"{name}, {kind}")
            _check_settlement(record, settlement, f"{name}, {kind}")
            must(record.fence == version, f"{kind}: the fence stays that of the claim")


def _plain(n: int) -> Settlement:
    return done(b'"%d"' % n, LONG_TTL_MS, attempts=((1, 2, "", False),))


def _check_request(record: DedupeRecord, request: StaticClaimRequest, what: str) -> None:
    template, told, params = request.template, record.request, request.params
    digests = (sha256(params).hexdigest(),) * 2 if isinstance(params, bytes) else params
    fields = {
        "key": (record.key, request.key),
        "tool": (record.tool, template.tool),
        "idempotency_key": (record.idempotency_key, request.idempotency_key),
        "tenant": (record.tenant, template.tenant),
        "workspace": (record.workspace, template.workspace),
        "owner": (record.owner, f"{request.token}/{template.owner}"),
        "session": (told.session_key, template.session),
        "actor": (told.actor_id, template.actor),
        "request_id": (told.request_id, request.request_id),
        "identity": (told.identity, request.identity),
        "digests": ((told.params_digest, told.params_digest_exact), digests),
        "call_id": (told.tool_call_id or None, request.call_id),
    }
    for field, (found, expected) in fields.items():
        must(found == expected, f"{what}: {field} is {expected!r}, not {found!r}")


def _check_settlement(record: DedupeRecord, settlement: Settlement, what: str) -> None:
    payload, error = settlement.payload, settlement.error
    fields = {
        "state": (record.state, settlement.state),
        "ttl_ms": (record.ttl_ms, settlement.ttl_ms),
        "expiry": (record.expires_at_ms - record.updated_at_ms, settlement.ttl_ms),
        "payload": (bytes(record.payload) if record.payload else None, payload),
        "payload_ref": (record.payload_ref or None, settlement.payload_ref),
        "payload_sealed": (record.payload_sealed or None, settlement.payload_sealed),
        "output_redacted": (bool(record.output_redacted), settlement.output_redacted),
        "error": ((e.code, e.message, e.terminal, e.should_retriable) if (e := record.error) else None, error),
        "dispatched": (record.dispatched, settlement.dispatched),
        "lease": (bool(record.lock_until_ms), False),
    }
    for field, (found, expected) in fields.items():
        must(found == expected, f"{what}: {field} is {expected!r}, not {found!r}")
    if settlement.attempt_count == len(settlement.attempts):
        check_attempts(record, settlement.attempts)


class AdminRules(Harness):
    """One method per rule; each gets an open journal and its own tenant."""

    async def rule_clear_forgets_record_and_history(self, j: Journal) -> None:
        """After clearing, nothing of the key is left."""
        key = self.key()
        must(not await j.clear(key), "a key without records has nothing to clear")
        first = claimed(await j.begin(self.request(key)))
        settled = await j.settle(key, first.version, done()) or 0
        claimed(await j.take_over(self.request(key, "call-2"), settled))
        must(not await j.clear(key, settled), "a version that is over clears nothing")
        must(existing(await j.read(key, "call-1")).own is not None, "a version that is over clears no history")
        must(await j.clear(key), "a key with records is cleared")
        must(await j.read(key, "call-1") is None, "a cleared record is gone")
        again = claimed(await j.begin(self.request(key, "call-1")))
        must(await j.clear(key, again.version), "the current version is cleared")
        must(await j.read(key, "call-1") is None, "a record that was cleared by its version is gone")

    async def rule_earlier_executions_are_listed(self, j: Journal) -> None:
        """Each execution that later ones replaced is listed once, whoever shares it, until it expires."""
        keys = [self.key("one"), self.key("two")]

        async def followed(key: str, version: int, n: int, ttl_ms: int = TTL_MS) -> int:
            settled = await j.settle(key, version, failed(f"run-{n}", ttl_ms)) or 0
            must(await j.alias(key, f"friend-{n}", settled), "another call shares an execution")
            return claimed(await j.take_over(self.request(key, f"call-{n}"), settled)).version

        version = 0
        for key in keys:
            version = claimed(await j.begin(self.request(key))).version
            for n in (2, 3):
                version = await followed(key, version, n)
        claimed(await j.begin(self.request(self.key("theirs"), tenant="other-" + self.name)))
        found = await j.earlier(tenant=self.tenant)
        told = [(record.key, record.error.code) for record in found if isinstance(record.error, RecordedError)]
        expected = [(keys[1], "run-3"), (keys[1], "run-2"), (keys[0], "run-3"), (keys[0], "run-2")]
        must(told == expected, f"earlier executions are listed newest first, not as {told}")
        must(await j.earlier(tenant=self.tenant, key=keys[0]) == found[2:], "a key lists its own executions only")
        must(await j.earlier(tenant="other-" + self.name) == [], "the current record is not an earlier execution")
        must(await j.earlier(tenant="other-" + self.name, key=keys[0]) == [], "tenants see their own executions only")
        await followed(keys[1], version, 4, SHORT_MS)
        await self.pass_ms(SHORT_MS + 50)
        must(await j.earlier(tenant=self.tenant) == found, "expired executions are not listed")

    async def rule_tenants_do_not_see_each_other(self, j: Journal) -> None:
        """Listing and counting never cross tenants."""
        claimed(await j.begin(self.request(self.key("mine"))))
        claimed(await j.begin(self.request(self.key("theirs"), tenant="other-" + self.name)))
        for tenant, name in ((self.tenant, "mine"), ("other-" + self.name, "theirs")):
            listed = await j.list(tenant=tenant)
            must([record.key for record in listed] == [self.key(name)], f"{tenant} sees only its own claims")
            must(dict(await j.counts(tenant)) == {("tools/send", "inflight"): 1}, f"{tenant} counts only its claims")
            must(tenant in await j.tenants(), "a tenant with claims is among the tenants of the store")

    async def rule_list_is_newest_first(self, j: Journal) -> None:
        """Claims are listed newest first, filtered and limited."""
        keys = await self._fill(j)
        order = [record.key for record in await j.list(tenant=self.tenant)]
        must(order == list(reversed(keys.values())), f"claims are listed newest first, not as {order}")
        must(len(await j.list(tenant=self.tenant, limit=2)) == 2, "a list has at most as many claims as its limit")
        wanted: tuple[dict[str, Any], ...] = ({}, {"state": "inflight"}, {"tool": "tools/send"}, {"session": "s-1"})
        for which in wanted:
            whole = [record.key for record in await j.list(tenant=self.tenant, **which)]
            paged: list[str] = []
            before: Cursor | None = None
            while page := await j.list(tenant=self.tenant, limit=2, before=before, **which):
                paged += [record.key for record in page]
                before = Cursor.of_record(page[-1])
            must(paged == whole, f"page after page it is the same: {paged}, not {whole}")
        await self._expect(j, [keys["read", "s-2"], keys["read", "s-1"]], tool="tools/read")
        await self._expect(j, [keys["send", "s-1"], keys["read", "s-1"]], session="s-1")
        await self._expect(j, [keys["send", "s-1"]], session="s-1", tool="tools/send")
        await self._expect(j, [keys["send", "s-2"]], prefix=keys["send", "s-2"][:-3])
        current = existing(await j.read(keys["read", "s-1"])).current
        settled = await j.settle(current.key, current.version, done()) or 0
        await self._expect(j, [current.key], state="done")
        await self._expect(j, [current.key], state="done", tool="tools/read")
        await self._expect(j, order[:-1], state="inflight")
        claimed(await j.take_over(self.request(current.key, "call-2", tool="tools/read", session="s-1"), settled))
        newest = (await j.list(tenant=self.tenant, limit=1))[0]
        must(newest.key == current.key, "a new execution makes a claim the newest")

    async def rule_a_list_goes_on_whatever_happened(self, j: Journal) -> None:
        """A cleared or replaced claim hides none of those after it, and a cursor reveals nothing of other tenants."""
        keys = [*(await self._fill(j)).values()]
        theirs = self.key("theirs")
        claimed(await j.begin(self.request(theirs, tenant="other-" + self.name)))
        await self.pass_ms(2)
        keys.append(self.key("newest"))
        claimed(await j.begin(self.request(keys[-1], tool="tools/send", session="s-1")))
        listed = await j.list(tenant=self.tenant)
        places = [Cursor.of_record(record) for record in listed]
        other = existing(await j.read(theirs)).current

        async def behind(place: Cursor, state: str = "") -> list[str]:
            return [record.key for record in await j.list(tenant=self.tenant, state=state, before=place)]

        for at in (1, listed[3].fence + 1_000, other.fence, listed[0].fence + 1_000):
            told, guessed = await behind(Cursor(at, theirs)), await behind(Cursor(at, self.key("none")))
            must(told == guessed, f"a cursor at another tenant's key is like one at no key: {told}, not {guessed}")
        must(await behind(Cursor(other.fence, theirs)) == keys[-2::-1], "a cursor of another tenant has its moment")
        must(await behind(Cursor(1, keys[0])) == [], "a list before the first claim is empty")
        must(await j.clear(places[2].id), "a claim is cleared")
        held = existing(await j.read(places[3].id)).current
        settled = await j.settle(held.key, held.version, done()) or 0
        must(await behind(places[3]) == keys[-5::-1], "a settled claim keeps its place in the list")
        claimed(await j.take_over(self.request(held.key, "call-2"), settled))
        left = [place.id for place in places if place not in places[2:4]]
        for n, place in enumerate(places):
            follow = left[min(n + 1, 2) if n < 4 else n - 1 :]
            must(await behind(place) == follow, f"after claim {n} come {await behind(place)}, not {follow}")
        must(await behind(places[2], state="inflight") == left[2:], "a list of one state goes on after a cursor, too")

    async def rule_counts_by_tool_and_state(self, j: Journal) -> None:
        """Live records by tool and state: stale if past the lease, unknown ones split by age, expired ones left out."""
        for n, state in enumerate(("done", "done", "failed", "unknown", "inflight", "stale", "gone")):
            key, held = await self.held(j, lease_ms=50 if state == "stale" else TTL_MS, name=f"{n}")
            if state in ("done", "gone"):
                await j.settle(key, held.version, done(ttl_ms=SHORT_MS if state == "gone" else TTL_MS))
            elif state in ("failed", "unknown"):
                code = "outcome_unknown" if state == "unknown" else '"error":{"code":"outcome_unknown"'
                await j.settle(key, held.version, failed(code, ttl_ms=3 * DAY_MS))
        await self.pass_ms(SHORT_MS + 50)
        found = {state: number for (tool, state), number in (await j.counts(self.tenant)).items() if number}
        must(found == {"done": 2, "failed": 1, "unknown": 1, "inflight": 1, "stale": 1}, f"{found} is not the count")
        if self.has_clock:
            for ms, expected in ((DAY_MS // 24, "unknown_1h"), (DAY_MS, "unknown_1d")):
                await self.pass_ms(ms)
                found = {state: n for (tool, state), n in (await j.counts(self.tenant)).items() if n}
                must(found.get(expected) == 1 and "unknown" not in found, f"after {ms} ms {found} is counted")

    async def rule_a_cleared_claim_is_known_to_be_forgotten(self, j: Journal) -> None:
        """The holder of a cleared claim learns that it was forgotten on purpose."""
        request = self.request(self.key())
        held = claimed(await j.begin(request))
        await j.clear(request.key)
        must(await j.settle(request.key, held.version, done()) is None, "a cleared claim cannot be settled")
        must(await j.forgotten(request, held.version), "the store knows that a version was forgotten")

    async def rule_a_claim_in_flight_shows_its_arguments(self, j: Journal) -> None:
        """Whoever must settle the claim of a lost worker sees its arguments; a settlement replaces them."""
        text = '{"order":"1042","note":"\\n\u00e9\U0001f600"}'
        for name, shown in (("shown", text), ("hidden", "")):
            request = self.request(self.key(name), shown=shown)
            held = claimed(await j.begin(request))
            expected = shown or UNSET
            must(existing(await j.read(request.key)).current.arguments == expected, "a record shows its arguments")
            (listed,) = [found for found in await j.list(tenant=self.tenant) if found.key == request.key]
            must(listed.arguments == expected, "a list shows the arguments of a record in flight")
            must(await j.renew(request.key, held.version, TTL_MS), "the holder renews")
            must(existing(await j.read(request.key)).current.arguments == expected, "a renewal keeps the arguments")
            await j.settle(request.key, held.version, done())
            must(existing(await j.read(request.key)).current.arguments is UNSET, "a settled record shows no arguments")
        request = self.request(self.key("taken"), shown="before", lease_ms=1)
        held = claimed(await j.begin(request))
        taken = request._replace(identity="call-2", shown="after")
        claimed(await j.take_over(taken, held.version))
        must(existing(await j.read(request.key)).current.arguments == "after", "a takeover shows its own arguments")

    async def rule_a_call_keeps_its_first_mark(self, j: Journal) -> None:
        """The first to mark a call binds it for the TTL of a result; a mark is neither a claim nor a record."""
        call, other, most = self.key("call"), self.key("other"), 2**63 - 1
        first, second, third = (self.request(self.key(name), name, pin=(call, 7)) for name in ("one", "two", "three"))
        held = claimed(await j.begin(first))
        must(await j.begin(first._replace(pin=(call, most))) == Pinned(7), "a later mark does not replace the first")
        must(await j.begin(second._replace(pin=(call, most))) == Pinned(7), "a mark binds its call for every key")
        must(await j.read(second.key, "two") is None, "a call that is bound to other arguments claims nothing")
        must(existing(await j.begin(first)).current.version == held.version, "a call with its mark is shown its claim")
        await j.settle(first.key, held.version, done())
        must(existing(await j.begin(first)).current.state == "done", "a call with its own mark is shown its result")
        must(await j.begin(third._replace(pin=(call, 8))) == Pinned(7), "a mark stays when its claim is settled")
        claimed(await j.begin(second._replace(pin=(other, most))))
        must(await j.begin(third._replace(pin=(other, 7))) == Pinned(most), "each call has a mark of its own")
        must(await j.read(call) is None and len(await j.list(tenant=self.tenant)) == 2, "a mark is no record")
        racing = [self.request(self.key(f"r{n}"), f"r{n}", pin=(self.key("racing"), n + 1)) for n in range(RACERS)]
        answers = await self.together(j, [lambda journal, asked=asked: journal.begin(asked) for asked in racing])  # type: ignore[misc]
        lost = [answer for answer in answers if not isinstance(answer, Claimed)]
        must(len(lost) == RACERS - 1 and len({*lost}) == 1, "of many marks at once one is kept, and all learn which")
        short = self.key("short")
        for mark in (1, 2):
            brief = self.request(self.key(f"short {mark}"), ttl_ms=SHORT_MS, lease_ms=TTL_MS, pin=(short, mark))
            claimed(await j.begin(brief))  # a mark expires
            await self.pass_ms(SHORT_MS + 50)
        must(await j.sweep() == 0, "sweeping counts records only")

    async def rule_sweep_drops_only_what_expired(self, j: Journal) -> None:
        """Sweeping removes expired records and their history, and nothing live."""
        live, dead = self.key("live"), self.key("dead")
        claimed(await j.begin(self.request(live, lease_ms=50)))
        held = claimed(await j.begin(self.request(dead)))
        await j.settle(dead, held.version, done(ttl_ms=SHORT_MS))
        await self.pass_ms(SHORT_MS + 50)
        await j.sweep()
        must(await j.sweep() == 0, "a second sweep finds nothing to drop")
        must(await j.read(dead) is None, "an expired record is gone")
        must(await j.read(live) is not None, "an in-flight record past its lease is not swept")

    async def _fill(self, j: Journal) -> dict[tuple[str, str], str]:
        keys: dict[tuple[str, str], str] = {}
        for name in ("read s-1", "send s-1", "read s-2", "send s-2", "send s-3", "x s-4"):
            tool, session = name.split()
            key = keys[tool, session] = f"{tool}-{session}-{self.name}-end"
            claimed(await j.begin(self.request(key, tool=f"tools/{tool}", session=session)))
            await self.pass_ms(2)  # newest first is by the store's clock
        return keys

    async def _expect(self, j: Journal, keys: list[str], **which: str) -> None:
        found = [record.key for record in await j.list(tenant=self.tenant, **which)]  # type: ignore[arg-type]
        must(found == keys, f"{which} lists {keys}, not {found}")


WAITERS = 4
PATIENCE_S = 30.0
Act = Callable[[str, int], Awaitable[object]]


class WaitRules(Harness):
    """One method per rule; nobody wakes up by timeout: it is far longer than any pause in here."""

    async def rule_wait_returns_at_once_if_nothing_to_wait_for(self, j: Journal) -> None:
        """No record, another version, or a settled record: there is nothing to wait for."""
        key = self.key()
        await self._returns_soon(j, key, 1)
        held = claimed(await j.begin(self.request(key)))
        await self._returns_soon(j, key, held.version + 1)
        settled = await j.settle(key, held.version, done()) or 0
        await self._returns_soon(j, key, held.version)
        await self._returns_soon(j, key, settled)

    async def rule_wait_times_out(self, j: Journal) -> None:
        """A waiter returns after its timeout, and may wait again."""
        held = claimed(await j.begin(self.request(self.key())))
        for _ in range(2):
            started = time.monotonic()
            await j.wait(self.key(), held.version, 0.05)
            must(time.monotonic() - started >= 0.04, "a waiter waits until its timeout")

    async def rule_settle_wakes_all_waiters(self, j: Journal) -> None:
        """Every waiter learns of the outcome."""
        await self._woken_by(j, lambda key, version: j.settle(key, version, done()))

    async def rule_take_wakes_all_waiters(self, j: Journal) -> None:
        """Every waiter learns that the claim changed hands."""
        await self._woken_by(j, lambda key, version: j.take_over(self.request(key, "call-2"), version))

    async def rule_clear_wakes_all_waiters(self, j: Journal) -> None:
        """Every waiter learns that the claim is gone."""
        await self._woken_by(j, lambda key, version: j.clear(key))

    async def rule_a_waiter_that_leaves_concerns_nobody_else(self, j: Journal) -> None:
        """If one waiter gives up (or is cancelled), the others are woken as if it had never been there."""
        key, held = await self.held(j)

        async def settle(journal: Journal) -> None:
            await journal.settle(key, held.version, done())

        async def leave(journal: Journal) -> float:
            if self.face == "sync":
                await journal.wait(key, held.version, 0.05)
                return 0.0
            task = asyncio.ensure_future(journal.wait(key, held.version, PATIENCE_S))
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.wait([task])
            must(task.cancelled(), "a cancelled waiter is cancelled")
            return 0.0

        waited = await self.together(j, [leave, self._later(settle, 0.4), *[self._wait(key, held.version)] * WAITERS])
        must(max(waited[2:]) < PATIENCE_S / 2, "the waiters that stayed are woken")

    async def rule_one_waiter_takes_over(self, j: Journal) -> None:
        """When the leader fails, exactly one waiter takes over."""
        key, held = await self.held(j)

        async def follow(journal: Journal, n: int) -> bool:
            await journal.wait(key, held.version, PATIENCE_S)
            seen = existing(await journal.read(key))
            if seen.current.state == "inflight":
                return False
            return isinstance(
                await journal.take_over(self.request(key, f"follower-{n}"), seen.current.version), Claimed
            )

        async def fail(journal: Journal) -> bool:
            await self.sleep(0.2)
            return await journal.settle(key, held.version, failed()) is None

        took = await self.together(j, [fail, *(lambda journal, n=n: follow(journal, n) for n in range(WAITERS))])
        must(sum(took) == 1, f"exactly one waiter takes over, not {sum(took)}")

    async def rule_waiters_of_both_faces(self, j: Journal) -> None:
        """A waiting thread is woken by a task, and a waiting task by a thread, through journals of one store."""
        key, held = await self.held(j)
        waited: list[float] = []

        def in_thread() -> None:
            async def wait_and_close() -> None:
                journal = AsyncFromSync(store.open_sync()) if self.face == "async" else store.open_async()
                waited.append(await self._wait(key, held.version)(journal))
                await journal.close()

            drive(wait_and_close()) if self.face == "async" else asyncio.run(wait_and_close())

        store = self.store
        thread = threading.Thread(target=in_thread)
        thread.start()
        await self.sleep(0.2)
        await j.settle(key, held.version, done())
        while thread.is_alive():
            await self.sleep(0.01)
        must(waited and waited[0] < PATIENCE_S / 2, "a waiter of the other face is woken")

    async def _woken_by(self, j: Journal, act: Act) -> None:
        key, held = await self.held(j)
        later = self._later(lambda _: act(key, held.version), 0.2)
        waited = await self.together(j, [later, *[self._wait(key, held.version)] * WAITERS])
        must(max(waited) < PATIENCE_S / 2, f"the waiters are woken at once, not after {waited} s")

    def _later(self, act: Callable[[Journal], Awaitable[object]], seconds: float) -> Step[float]:
        async def later(journal: Journal) -> float:
            await self.sleep(seconds)
            await act(journal)
            return 0.0

        return later

    def _wait(self, key: str, version: int) -> Step[float]:
        async def wait(journal: Journal) -> float:
            started = time.monotonic()
            await journal.wait(key, version, PATIENCE_S)
            return time.monotonic() - started

        return wait

    async def _returns_soon(self, j: Journal, key: str, version: int) -> None:
        started = time.monotonic()
        await j.wait(key, version, PATIENCE_S)
        must(time.monotonic() - started < PATIENCE_S / 2, "a wait with nothing to wait for returns at once")


WRITERS, EACH = 8, 15


class LogRules(Harness):
    """One method per rule."""

    async def rule_events_come_with_the_claim(self, j: Journal) -> None:
        """A claim's events are written with it: the loser's never, the settler's always, in order."""
        key, run = self.key(), self.key("run")
        held = claimed(await j.begin(self.request(key), self.rows(run, "call.started")))
        existing(await j.begin(self.request(key, "call-2"), self.rows(run, "lost")))
        existing(await j.take_over(self.request(key, "call-2"), held.version + 7, self.rows(run, "lost")))
        await j.settle(key, held.version, done(), self.rows(run, "call.finished", "decision"))
        events = await j.events(run)
        must([event.type for event in events] == ["call.started", "call.finished", "decision"], "events are in order")
        must([event.seq for event in events] == [0, 1, 2], "events are numbered from 0 without a gap")

    async def rule_event_comes_back_as_written(self, j: Journal) -> None:
        """Place, links, payload and metadata of an event are preserved."""
        run = self.key("run")
        place = b'"lane":"0/1","index":7,"call":"c","parent":"p"'
        body = b'{%b,"payload":{"a":[1.5,null,"\xc3\xa4"]},"meta":{"ms":3},"v":1}' % place
        must(await j.append(run, [Row(run, "call.started", 1234, body)]) == 0, "the first event has number 0")
        (event,) = await j.events(run)
        must((event.run, event.seq, event.type, event.at_ms) == (run, 0, "call.started", 1234), "its line is kept")
        must((event.lane, event.index, event.call, event.parent) == ("0/1", 7, "c", "p"), "its place is kept")
        must(event.payload == {"a": [1.5, None, "ä"]} and event.meta == {"ms": 3}, "the event's content is kept")

    async def rule_append_is_gap_free(self, j: Journal) -> None:
        """Many writers to one run: every number once, each writer's rows together and in order."""
        run = self.key("run")

        def writer(name: int) -> Step[dict[int, str]]:
            async def write(journal: Journal) -> dict[int, str]:
                types = [(f"{name}.{n}.a", f"{name}.{n}.b") for n in range(EACH)]
                return {await journal.append(run, self.rows(run, *pair)): pair[0] for pair in types}

            return write

        told = await self.together(j, [writer(name) for name in range(WRITERS)])
        events = await j.events(run, limit=10 * WRITERS * EACH)
        must([event.seq for event in events] == list(range(2 * WRITERS * EACH)), "events are numbered one by one")
        for first, kind in (item for answers in told for item in answers.items()):
            must(events[first].type == kind, "a writer is told the number its first row really got")
        must(sum(map(len, told)) == WRITERS * EACH, "no number is told twice")
        for name in range(WRITERS):
            mine = [event.type for event in events if event.type.startswith(f"{name}.")]
            must(mine == [f"{name}.{n}.{part}" for n in range(EACH) for part in "ab"], "each writer's order is kept")

    async def rule_event_ranges(self, j: Journal) -> None:
        """Events are read by range, in order, at most as many as requested."""
        run = self.key("run")
        must(await j.append(run, self.rows(run, *map(str, range(10)))) == 0, "the first events start at number 0")
        must(await j.append(run, self.rows(run, *map(str, range(10, 20)))) == 10, "later events follow the first ones")

        async def seqs(**which: int | None) -> list[int]:
            return [event.seq for event in await j.events(run, **which)]  # type: ignore[arg-type]

        must(await seqs(start=5, stop=8) == [5, 6, 7], "a range includes its start and excludes its stop")
        must(await seqs(start=18) == [18, 19], "a range without a stop goes to the end")
        must(await seqs(limit=3) == [0, 1, 2], "a limit ends a range")
        must(await seqs(start=3, stop=10, limit=2) == [3, 4], "start, stop and limit work together")
        must(await seqs(start=20) == [] and await seqs(start=7, stop=7) == [], "an empty range has no events")
        must(await seqs(start=-1, limit=2) == [0, 1], "a negative start means the first event")
        must(await seqs(stop=-1) == [] and await seqs(limit=-1) == [], "a negative stop or limit means no event")
        must(await j.events(self.key("no-such-run")) == [], "a run that does not exist has no events")

    async def rule_runs_do_not_mix(self, j: Journal) -> None:
        """Two runs written concurrently keep their own events and numbers."""
        runs = [self.key(f"run-{n}") for n in range(4)]

        def writer(run: str) -> Step[int]:
            async def write(journal: Journal) -> int:
                for n in range(EACH):
                    await journal.append(run, self.rows(run, f"{run}.{n}"))
                return 0

            return write

        await self.together(j, [writer(run) for run in runs])
        for run in runs:
            must([event.type for event in await j.events(run)] == [f"{run}.{n}" for n in range(EACH)], "runs are apart")

    async def rule_opening_a_run_twice_keeps_the_first(self, j: Journal) -> None:
        """A manifest is inserted once, replaced only on purpose, and may come after the first event."""
        run = self.key("run")
        must(await j.manifest(run) is None, "a run that does not exist has no manifest")
        await j.append(run, self.rows(run, "early"))
        must(await j.manifest(run) is None, "a run with only an event has no manifest")
        await j.open_run(self.manifest(run))
        await j.open_run(self.manifest(run, name="again", status="failed"))
        must(await j.manifest(run) == self.manifest(run), "opening a run again keeps its first manifest")
        finished = self.manifest(
            run, status="completed", finished_at_ms=2_000, tags={"a": "b"}, code=CodeVersion(commit="c")
        )
        await j.update_run(finished)
        must(await j.manifest(run) == finished, "updating a run replaces its manifest")
        must(len(await j.events(run)) == 1, "updating a run leaves its events untouched")

    async def rule_runs_are_listed_newest_first(self, j: Journal) -> None:
        """By tenant, id prefix, name and status, page by page."""
        names = [self.key(f"{n}-run") for n in range(5)]
        for n, run in enumerate(names):
            status = "completed" if n % 2 else "running"
            await j.open_run(self.manifest(run, started_at_ms=1_000 + n // 2, name=f"n{n % 3}", status=status))
        await j.open_run(self.manifest(self.key("theirs"), tenant="other-" + self.name))
        newest = list(reversed(names))

        async def ids(**which: object) -> list[str]:
            return [manifest.id for manifest in await j.runs(tenant=self.tenant, **which)]  # type: ignore[arg-type]

        must(await ids() == newest, "runs are listed newest first, then by id")
        must(await ids(limit=2) == newest[:2], "a limited list has the newest runs")
        must(await ids(limit=2, before=Cursor(1_001, newest[1])) == newest[2:4], "a cursor leads to the next runs")
        must(await ids(name="n1") == [names[4], names[1]], "runs are filtered by name")
        must(await ids(status="completed") == [names[3], names[1]], "runs are filtered by status")
        must(await ids(prefix="2-run") == [names[2]], "runs are filtered by the beginning of their id")
        must(await ids(prefix="9") == [], "a prefix that no run has gives an empty list")

    async def rule_a_list_of_runs_goes_on_whatever_happened(self, j: Journal) -> None:
        """A deleted run hides none of those after it, and a cursor reveals nothing about other tenants."""
        names = [self.key(f"{n}-run") for n in range(5)]
        for n, run in enumerate(names):
            await j.open_run(self.manifest(run, started_at_ms=1_000 + n // 2))
        theirs = self.key("2-theirs")
        await j.open_run(self.manifest(theirs, started_at_ms=1_001, tenant="other-" + self.name))

        async def behind(at: int, run: str) -> list[str]:
            return [manifest.id for manifest in await j.runs(tenant=self.tenant, before=Cursor(at, run))]

        for at in (1, 1_000, 1_001, 1_002, 9_999):
            must(await behind(at, theirs) == await behind(at, theirs + "?"), "a cursor reveals no other tenant's run")
        must(await j.delete_run(names[2]), "a run is deleted")
        must(await behind(1_001, names[2]) == [names[1], names[0]], "a list goes on after a cursor at a deleted run")
        must(await behind(1_001, names[3]) == [names[1], names[0]], "a list does not have a deleted run")
        await j.update_run(self.manifest(names[0], started_at_ms=1_003))
        must(await behind(9_999, "") == [names[0], names[4], names[3], names[1]], "a new start moves the run")
        must(await behind(1_003, names[0]) == [names[4], names[3], names[1]], "older runs follow a run that moved")

    async def rule_deleting_a_run(self, j: Journal) -> None:
        """Manifest and events are deleted together; other runs stay."""
        run, other = self.key("run"), self.key("run2")
        for name in (run, other):
            await j.open_run(self.manifest(name))
            await j.append(name, self.rows(name, "a", "b"))
        must(await j.delete_run(run), "an existing run is deleted")
        must(not await j.delete_run(run), "a deleted run cannot be deleted again")
        must(await j.manifest(run) is None and await j.events(run) == [], "a deleted run has nothing left")
        must(len(await j.events(other)) == 2, "another run is untouched")
        must(await j.append(run, self.rows(run, "a")) == 0, "the name can be used anew")

    async def rule_newer_formats_are_refused(self, j: Journal) -> None:
        """Log entries from a newer release are refused, not guessed at."""
        run = self.key("run")
        await j.open_run(self.manifest(run, v=99))
        await j.append(run, [Row(run, "call.started", 1, b'{"lane":"0","v":99,"novelty":true}')])
        for read in (j.manifest, j.events):
            try:
                await read(run)
            except StoreVersionError:
                continue
            must(False, f"{read.__name__} should refuse a newer format")

    async def rule_breakers_keep_the_newest_epoch(self, j: Journal) -> None:
        """State is stored per tenant; an older epoch never replaces a newer one, an equal one may."""
        key = self.key("breaker")
        newer = BreakerRow(key, "OPEN", 3, 99, "tripped", 1, "a")
        await j.save_breaker(self.tenant, newer)
        await j.save_breaker(self.tenant, BreakerRow(key, "CLOSED", 2, 0, "stale", 2, "b"))
        must(await j.load_breakers(self.tenant) == [newer], "an older epoch does not replace a newer one")
        await j.save_breaker(self.tenant, BreakerRow(key, "FORCED_OPEN", 3, 0, "operator", 3, "c"))
        await j.save_breaker(self.tenant, BreakerRow(key + "x", "OPEN", 1, 5, "", 1))
        rows = sorted(await j.load_breakers(self.tenant))
        must([row.state for row in rows] == ["FORCED_OPEN", "OPEN"], "an equal epoch replaces its own breaker only")
        must(await j.load_breakers("other-" + self.name) == [], "another tenant does not see the breakers")

    async def rule_ping_says_what_it_is(self, j: Journal) -> None:
        """A ping returns the store's kind and whether it is durable."""
        answer = await j.ping()
        must(answer["durable"] in (False, j.durable), "a ping says whether the store is durable")
        must(self.store.url, "a store has a URL")


PROCESSES, KEYS = 4, 25

_METHODS = multiprocessing.get_all_start_methods()
_clean: Any = multiprocessing.get_context("forkserver" if "forkserver" in _METHODS else "spawn")


class ProcessRules(Harness):
    """One method per rule. The function that creates the store is pickled and called in each process."""

    async def process_rule_one_of_many_processes_begins(self, j: Journal) -> None:
        """Processes that race for the same keys: each key is claimed by exactly one."""
        won = self._race("begin")
        must(sorted(key for keys in won for key in keys) == list(range(KEYS)), f"each key is claimed once: {won}")

    async def process_rule_log_is_gap_free_across_processes(self, j: Journal) -> None:
        """Several processes write to one run: every number once."""
        self._race("append")
        events = await j.events(self.key("run"), limit=10 * PROCESSES * KEYS)
        must([event.seq for event in events] == list(range(PROCESSES * KEYS)), "events are numbered one by one")
        must(len({event.type for event in events}) == PROCESSES * KEYS, "no event is lost")

    async def process_rule_killed_between_claim_and_settle(self, j: Journal) -> None:
        """A claim whose process died stays claimed, is shown past its lease, and goes to exactly one successor."""
        here, there = _clean.Pipe()
        child = _clean.Process(target=_claim_and_hang, args=(self, there), daemon=True)
        child.start()
        version = here.recv()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        key = self.key()
        seen = existing(await j.begin(self.request(key, "call-2")))
        must((seen.current.state, seen.current.version) == ("inflight", version), "the claim outlives its process")
        events = await j.events(self.key("run"))
        must([event.type for event in events] == ["call.started"], "an event written with a claim outlives its process")
        successors = await self.together(
            j,
            [lambda journal, n=n: journal.take_over(self.request(key, f"next-{n}"), version) for n in range(4)],  # type: ignore[misc]
        )
        must(sum(isinstance(answer, Claimed) for answer in successors) == 1, "exactly one successor takes a claim over")
        must(await j.settle(key, version, done()) is None, "the version of a dead process is fenced")

    async def process_rule_settle_in_another_process_wakes(self, j: Journal) -> None:
        """A waiter learns of a settlement in another process long before its timeout."""
        here, there = _clean.Pipe()
        child = _clean.Process(target=_claim_and_settle, args=(self, there), daemon=True)
        child.start()
        version = here.recv()
        here.send("settle soon")
        started = time.monotonic()
        await j.wait(self.key(), version, 60)
        must(time.monotonic() - started < 30, "a waiter is woken by another process")
        must(existing(await j.read(self.key())).current.state == "done", "a waiter is woken by the settlement")
        child.join()

    def _race(self, what: str) -> list[list[int]]:
        pipes = [_clean.Pipe() for _ in range(PROCESSES)]
        children = [
            _clean.Process(target=_racer, args=(self, what, number, there), daemon=True)
            for number, (_, there) in enumerate(pipes)
        ]
        for child, (_, there) in zip(children, pipes, strict=True):
            child.start()
            there.close()  # so that the pipe ends with its process
        for here, _ in pipes:
            must(here.recv() == "ready", "each process of the race starts")
        for here, _ in pipes:
            here.send("go")
        results = [here.recv() for here, _ in pipes]
        for child in children:
            child.join()
        return results

    def __getstate__(self) -> dict[str, Any]:
        return {"make": self.make, "face": self.face, "name": self.name, "tenant": self.tenant}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, store=state["make"](), _advance=None)


def _racer(harness: ProcessRules, what: str, number: int, pipe: Connection) -> None:
    async def race() -> list[int]:
        journal = harness.open()
        await journal.ping()
        pipe.send("ready")
        pipe.recv()
        won = []
        for n in range(KEYS):
            if what == "begin":
                answer = await journal.begin(harness.request(harness.key(f"{n}"), f"call-{number}"))
                if isinstance(answer, Claimed):
                    won.append(n)
            else:
                await journal.append(harness.key("run"), harness.rows(harness.key("run"), f"{number}.{n}"))
        await journal.close()
        return won

    pipe.send(_run(harness.face, race))


def _claim_and_hang(harness: ProcessRules, pipe: Connection) -> None:
    async def claim() -> None:
        journal = harness.open()
        rows = harness.rows(harness.key("run"), "call.started")
        held = claimed(await journal.begin(harness.request(harness.key(), lease_ms=TTL_MS), rows))
        pipe.send(held.version)
        pipe.recv()  # forever

    _run(harness.face, claim)


def _claim_and_settle(harness: ProcessRules, pipe: Connection) -> None:
    async def claim() -> None:
        journal = harness.open()
        held = claimed(await journal.begin(harness.request(harness.key())))
        pipe.send(held.version)
        pipe.recv()
        await harness.sleep(0.3)
        await journal.settle(harness.key(), held.version, done())
        await journal.close()

    _run(harness.face, claim)


def _run(face: Face, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return drive(work()) if face == "sync" else asyncio.run(work())


__all__ = ["FACES", "Face", "JournalConformance"]

FACES: tuple[Face, ...] = ("sync", "async")


class JournalConformance(ClaimRules, RecordRules, AdminRules, WaitRules, LogRules, ProcessRules):
    """A store under test in one face.

    *make* creates the store; for rules across processes it must be picklable and reach the same data each time.
    *advance* moves the store's clock by milliseconds; without it the suite really waits (less than a second per rule).
    *make_newer* changes the stored record of a key to a format of the future, as a newer release would write it.
    """

    def __init__(
        self,
        make: Callable[[], Store],
        face: Face = "sync",
        *,
        advance: Callable[[int], None] | None = None,
        make_newer: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__(make, face, advance)
        self._make_newer = make_newer

    @classmethod
    def rules(cls, *, across_processes: bool = False, newer_records: bool = False) -> list[str]:
        """The names of the rules; some need processes that share the store, one needs *make_newer*."""
        names = [name.removeprefix("rule_") for name in dir(cls) if name.startswith("rule_")]
        if across_processes:
            names += [name.removeprefix("process_rule_") for name in dir(cls) if name.startswith("process_rule_")]
        return names + ["newer_records_are_refused"] * newer_records

    def check(self, rule: str) -> None:
        """Run one rule; raises ``AssertionError`` if the store breaks it."""
        _run(self.face, lambda: self._run(rule))

    async def newer_records_are_refused(self, j: Journal) -> None:
        """A record of a newer release fails closed: it is neither reused nor replaced (D1)."""
        assert self._make_newer is not None
        key = self.key()
        held = claimed(await j.begin(self.request(key)))
        self._make_newer(key)
        for what, step in (
            ("begin", lambda: j.begin(self.request(key, "call-2"))),
            ("take_over", lambda: j.take_over(self.request(key, "call-2"), held.version)),
            ("read", lambda: j.read(key)),
        ):
            try:
                answer = await step()
            except StoreVersionError:
                continue
            must(False, f"{what} should refuse a newer record, but answered {answer}")

    async def _run(self, rule: str) -> None:
        step = next(
            found
            for prefix in ("rule_", "process_rule_", "")
            if (found := getattr(self, prefix + rule, None)) is not None
        )
        journal = self.open()
        try:
            await step(journal)
        finally:
            await journal.close()

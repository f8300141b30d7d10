"""Rules of the claim: who gets it, who keeps it, and what is remembered of it."""

from __future__ import annotations

from itertools import pairwise

from antiphon.contract.record import DedupeRecord, RecordedError
from antiphon.ports import Claimed, Existing, Journal
from antiphon.testing._harness import SHORT_MS, TTL_MS, Harness, check_attempts, claimed, done, existing, failed, must

RACERS = 12
ROUNDS = 20


class ClaimRules(Harness):
    """One method per rule; each gets an open journal and unused keys."""

    async def rule_begin_inserts_or_returns(self, j: Journal) -> None:
        """The first one gets the claim; everybody after it is shown the record."""
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

    async def rule_one_of_many_begins(self, j: Journal) -> None:
        """Of many that ask at once exactly one gets the claim."""
        key = self.key()
        requests = [self.request(key, f"call-{n}") for n in range(RACERS)]
        answers = await self.together(j, [lambda journal, asked=asked: journal.begin(asked) for asked in requests])  # type: ignore[misc]
        must(sum(isinstance(answer, Claimed) for answer in answers) == 1, "exactly one of many begins wins")

    async def rule_one_of_many_takes(self, j: Journal) -> None:
        """Of many that try to replace the same version exactly one does."""
        key = self.key()
        won = claimed(await j.begin(self.request(key)))
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
        """Every claim and every settlement has a higher version, also after clearing and expiry."""
        key = self.key()
        seen = [claimed(await j.begin(self.request(key))).version]
        seen.append(await j.settle(key, seen[-1], done()) or 0)
        seen.append(claimed(await j.take_over(self.request(key, "call-2"), seen[-1])).version)
        seen.append(await j.settle(key, seen[-1], done(ttl_ms=SHORT_MS)) or 0)
        await self.pass_ms(SHORT_MS + 50)
        seen.append(claimed(await j.begin(self.request(key, "call-3"))).version)
        await j.clear(key)
        seen.append(claimed(await j.begin(self.request(key, "call-4"))).version)
        await j.flush(tenant=self.tenant)
        seen.append(claimed(await j.begin(self.request(key, "call-5"))).version)
        seen.append(await j.settle(key, seen[-1], done(ttl_ms=SHORT_MS)) or 0)
        await self.pass_ms(SHORT_MS + 50)
        await j.sweep()
        seen.append(claimed(await j.begin(self.request(key, "call-6"))).version)
        must(all(earlier < later for earlier, later in pairwise(seen)), f"versions grow: {seen}")

    async def rule_replaced_executions_are_kept(self, j: Journal) -> None:
        """Each call identity finds its own execution, whatever ran since."""
        key = self.key()
        version = claimed(await j.begin(self.request(key, "call-0"))).version
        for n in range(40):
            settled = await j.settle(key, version, done(b'{"n":%d}' % n))
            must(settled is not None, "the holder can settle")
            version = claimed(await j.take_over(self.request(key, f"call-{n + 1}"), settled or 0)).version
        for n in range(40):
            answer = existing(await j.begin(self.request(key, f"call-{n}")))
            must(answer.current.version == version, "the current record is the newest")
            must(answer.own is not None, f"call-{n} has an execution of its own")
            assert answer.own is not None
            must(bytes(answer.own.payload) == b'{"n":%d}' % n, "it is answered from its own outcome")  # type: ignore[arg-type]
            must(answer.own.request.identity == f"call-{n}", "and by its own request")

    async def rule_own_execution_outlives_the_current_one(self, j: Journal) -> None:
        """When the current record has expired, an identity with a live execution is shown that, and may replace it."""
        key = self.key()
        version = claimed(await j.begin(self.request(key, "call-1"))).version
        first = await j.settle(key, version, failed("first"))
        version = claimed(
            await j.take_over(self.request(key, "call-2", ttl_ms=SHORT_MS, lease_ms=1), first or 0)
        ).version
        second = await j.settle(key, version, failed(ttl_ms=SHORT_MS))
        await self.pass_ms(SHORT_MS + 50)
        await j.sweep()
        again = existing(await j.begin(self.request(key, "call-1")))
        must(again.current.version == first and again.own == again.current, "the earlier execution answers")
        must(existing(await j.read(key, "call-1")).current.version == first, "reading agrees")
        taken = claimed(await j.take_over(self.request(key, "call-1"), first or 0))
        must(taken.version > (second or 0), "and replacing it gives a version above all others")

    async def rule_new_identity_after_expiry_begins(self, j: Journal) -> None:
        """An expired current record does not stop a new identity, even if others have executions there."""
        key = self.key()
        version = claimed(await j.begin(self.request(key, "call-1"))).version
        first = await j.settle(key, version, done())
        version = claimed(
            await j.take_over(self.request(key, "call-2", ttl_ms=SHORT_MS, lease_ms=1), first or 0)
        ).version
        await j.settle(key, version, failed(ttl_ms=SHORT_MS))
        await self.pass_ms(SHORT_MS + 50)
        claimed(await j.begin(self.request(key, "call-3")))
        own = existing(await j.begin(self.request(key, "call-1"))).own
        must(own is not None and own.version == first, "the live execution is still found")

    async def rule_alias(self, j: Journal) -> None:
        """A waiter that shared a result finds it as its own later, also after others ran."""
        key = self.key()
        version = claimed(await j.begin(self.request(key, "call-1"))).version
        must(not await j.alias(key, "call-2", version), "a claim in flight has nothing to share")
        must(existing(await j.read(key, "call-2")).own is None, "and shares nothing")
        settled = await j.settle(key, version, done(b'"shared"')) or 0
        must(await j.alias(key, "call-2", settled), "a settled one is shared")
        must(await j.alias(key, "call-2", settled) and await j.alias(key, "call-1", settled), "however often")
        own = existing(await j.begin(self.request(key, "call-2"))).own
        must(own is not None and own.version == settled, "the alias finds the settled record")
        third = claimed(await j.take_over(self.request(key, "call-3"), settled))
        must(await j.alias(key, "call-4", settled), "also when it is history")
        for identity in ("call-1", "call-2", "call-4"):
            own = existing(await j.begin(self.request(key, identity))).own
            must(own is not None and own.version == settled, f"{identity} still finds it")
        must(existing(await j.read(key)).current.version == third.version, "the current record is untouched")
        must(not await j.alias(key, "call-9", settled + 999_999_999), "an unknown version is not shared")
        must(existing(await j.read(key, "call-9")).own is None, "and aliases nothing")
        claimed(await j.take_over(self.request(key, "call-5"), third.version))
        must(not await j.alias(key, "call-9", third.version), "what was taken over has nothing to share")

    async def rule_an_identity_has_one_answer(self, j: Journal) -> None:
        """What a call identity found first is its answer: it neither runs nor shares anything else beside it."""
        key = self.key()
        version = claimed(await j.begin(self.request(key, "call-1"))).version
        first = await j.settle(key, version, done(b'"first"')) or 0
        must(await j.alias(key, "sharer", first), "the sharer has its answer")
        seen = existing(await j.take_over(self.request(key, "sharer"), first))
        must(seen.own is not None and seen.own.version == first, "and does not run any more, but is shown it")
        version = claimed(await j.take_over(self.request(key, "runner"), first)).version
        must(not await j.alias(key, "runner", first), "who runs does not share")
        must(existing(await j.read(key, "runner")).current.version == version, "its claim is untouched")
        second = await j.settle(key, version, done(b'"second"')) or 0
        must(not await j.alias(key, "runner", first), "nor does who is done")
        must(not await j.alias(key, "sharer", second), "who shared one result does not share another")
        for identity, answer in (("sharer", first), ("runner", second)):
            own = existing(await j.begin(self.request(key, identity))).own
            must(own is not None and own.version == answer, f"the {identity} keeps its answer")
        version = claimed(await j.take_over(self.request(key, "failure"), second)).version
        lost = await j.settle(key, version, failed()) or 0
        version = claimed(await j.take_over(self.request(key, "call-3"), lost)).version
        third = await j.settle(key, version, done(b'"third"')) or 0
        must(await j.alias(key, "failure", third), "a failure does not stand in the way of a result")
        own = existing(await j.begin(self.request(key, "failure"))).own
        must(own is not None and own.version == third, "which is its answer from then on")

    async def rule_sharing_and_running_exclude_each_other(self, j: Journal) -> None:
        """Of two deliveries of one call, one that shares a result and one that runs, only the faster one does."""
        for n in range(ROUNDS):
            key = self.key(f"round-{n}")
            version = claimed(await j.begin(self.request(key, "call-1"))).version
            settled = await j.settle(key, version, done()) or 0

            async def share(journal: Journal, key: str = key, settled: int = settled) -> bool:
                return await journal.alias(key, "call-2", settled)

            async def run(journal: Journal, key: str = key, settled: int = settled) -> bool:
                return isinstance(await journal.take_over(self.request(key, "call-2"), settled), Claimed)

            did = await self.together(j, (share, run) if n % 2 else (run, share))
            must(sum(did) == 1, f"exactly one of both: {did}")

    async def rule_settle_is_fenced_after_takeover(self, j: Journal) -> None:
        """A worker that was replaced cannot end its successor's claim; its events are history all the same."""
        key, run = self.key(), self.key("run")
        zombie = claimed(await j.begin(self.request(key, "call-1")))
        holder = claimed(await j.take_over(self.request(key, "call-2"), zombie.version))
        late = await j.settle(key, zombie.version, done(b'"late"'), self.rows(run, "call.finished"))
        must(late is None, "the late settlement is refused")
        must(not await j.renew(key, zombie.version, TTL_MS), "so is a late renewal")
        current = existing(await j.read(key)).current
        must((current.version, current.state) == (holder.version, "inflight"), "the holder's claim is untouched")
        must(len(await j.events(run)) == 1, "the late worker's event is in the log")
        must(await j.settle(self.key("never"), 1, done()) is None, "what was never claimed cannot be settled")

    async def rule_unknown_is_settled_by_its_new_version(self, j: Journal) -> None:
        """Marking a claim unknown gives it a new version, by which alone its true outcome is entered."""
        key = self.key()
        held = claimed(await j.begin(self.request(key)))
        unknown = await j.settle(key, held.version, failed("outcome_unknown"))
        must(unknown is not None and unknown > held.version, "settling gives a higher version")
        must(await j.settle(key, held.version, done()) is None, "the old version is fenced")
        settled = await j.settle(key, unknown or 0, done(b'"found out"'))
        must(settled is not None, "the new version settles it")
        record = existing(await j.read(key)).current
        must((record.state, record.fence) == ("done", held.version), "the fence stays that of the dispatch")
        must(record.error.__class__ is not RecordedError, "nothing is left of the unknown")

    async def rule_only_the_holder_renews(self, j: Journal) -> None:
        """A renewal extends the lease of an in-flight claim of that version and of no other."""
        key = self.key()
        held = claimed(await j.begin(self.request(key, lease_ms=1_000)))
        must(await j.renew(key, held.version, 300_000), "the holder renews")
        record = existing(await j.read(key)).current
        must(record.version == held.version, "renewing does not change the version")
        must(_lock(record) >= held.now_ms + 300_000, "the lease is longer")
        must(record.expires_at_ms >= _lock(record), "a record outlives its lease")
        must(not await j.renew(key, held.version + 1, 300_000), "nobody else renews")
        settled = await j.settle(key, held.version, done()) or 0
        must(not await j.renew(key, settled, 300_000), "a settled claim has no lease")

    async def rule_lapsed_lease_is_still_seen(self, j: Journal) -> None:
        """A claim past its lease is not free: it is shown, and can be renewed or taken."""
        key = self.key()
        held = claimed(await j.begin(self.request(key, lease_ms=50)))
        await self.pass_ms(100)
        must(await j.sweep() == 0, "an in-flight claim is not swept when its lease ends")
        seen = existing(await j.begin(self.request(key, "call-2")))
        must((seen.current.version, seen.current.state) == (held.version, "inflight"), "it is still in flight")
        must(_lock(seen.current) <= seen.now_ms, "and says that its lease is over")
        must(await j.renew(key, held.version, TTL_MS), "a holder that was only slow keeps it")

    async def rule_lease_longer_than_ttl(self, j: Journal) -> None:
        """A claim is not forgotten while somebody holds its lease, however short its TTL."""
        key = self.key()
        held = claimed(await j.begin(self.request(key, ttl_ms=1, lease_ms=TTL_MS)))
        await self.pass_ms(50)
        await j.sweep()
        must(existing(await j.begin(self.request(key, "call-2"))).current.version == held.version, "it is still held")

    async def rule_final_state_sets_the_ttl(self, j: Journal) -> None:
        """Once settled, a record lives as long as its outcome says; then it is as if it never was."""
        for settlement in (done(ttl_ms=SHORT_MS), failed(ttl_ms=SHORT_MS)):
            key = self.key(settlement.state)
            held = claimed(await j.begin(self.request(key)))
            await j.settle(key, held.version, settlement)
            record = existing(await j.read(key)).current
            must(record.ttl_ms == SHORT_MS, "the record names the TTL of its outcome")
            must(record.expires_at_ms - record.updated_at_ms == SHORT_MS, "and expires by it")
        await self.pass_ms(SHORT_MS + 50)
        for state in ("done", "failed"):
            must(await j.read(self.key(state)) is None, f"an expired {state} record is not shown")
            claimed(await j.begin(self.request(self.key(state), "call-2")))

    async def rule_a_claim_in_flight_does_not_expire(self, j: Journal) -> None:
        """Past its whole life a claim in flight is shown, and can be settled, renewed or taken, as within it.

        A life ends by a clock, and clocks are set forward. If that made a claim free, a call that goes on would be made
        a second time. So the lease alone says what a claim in flight is worth, and who looks at it decides.
        """
        keys = [self.key(name) for name in ("seen", "settled", "renewed", "taken")]
        life_ms = 4 * SHORT_MS  # a store that forgets by itself keeps it as long again: time for all that follows
        request = self.request(keys[0], ttl_ms=life_ms, lease_ms=1)
        seen, settled, renewed, taken = [claimed(await j.begin(request._replace(key=key))).version for key in keys]
        await self.pass_ms(life_ms + 50)
        other = self.request(keys[0], "call-2")
        for answer in (await j.begin(other), await j.take_over(other, 7), await j.read(keys[0])):
            found = existing(answer)
            must((found.current.version, found.current.state) == (seen, "inflight"), "it is still in flight")
            must(found.current.expires_at_ms <= found.now_ms, "and says that its life is over")
        must(await j.settle(keys[1], settled, done()) is not None, "its holder settles it")
        must(await j.renew(keys[2], renewed, TTL_MS), "or renews it")
        must(await j.settle(keys[2], renewed, done()) is not None, "and settles it then")
        must(claimed(await j.take_over(self.request(keys[3], "call-2"), taken)).version > taken, "or another takes it")
        must(await j.settle(keys[3], taken, done()) is None, "which fences its holder")
        must(len(await j.list(tenant=self.tenant, state="inflight")) == 2, "operators see it")
        must((await j.counts(self.tenant)).get((request.template.tool, "stale")) == 1, "as one whose lease is over")

    async def rule_an_abandoned_claim_is_forgotten(self, j: Journal) -> None:
        """A sweep gives a claim in flight its life once more, in case the clock was set forward; then it goes."""
        key = self.key()
        held = claimed(await j.begin(self.request(key, ttl_ms=SHORT_MS, lease_ms=1)))
        await self.pass_ms(SHORT_MS + 50)
        must(await j.sweep() == 0, "the first sweep drops nothing")
        must(existing(await j.read(key)).current.version == held.version, "it is still there")
        await self.pass_ms(SHORT_MS + 50)
        await j.sweep()
        must(await j.read(key) is None, "it is gone")
        must(not await j.renew(key, held.version, TTL_MS), "and can no longer be renewed")
        must(await j.settle(key, held.version, done()) is None, "or settled")
        must(claimed(await j.begin(self.request(key, "call-2"))).version > held.version, "the intent is free")

    async def rule_an_abandoned_claim_leaves_its_history(self, j: Journal) -> None:
        """When a claim in flight is forgotten, earlier executions of its intent live on."""
        key = self.key()
        first = await j.settle(key, claimed(await j.begin(self.request(key))).version, done()) or 0
        held = claimed(await j.take_over(self.request(key, "call-2", ttl_ms=SHORT_MS, lease_ms=1), first))
        for _ in range(2):
            await self.pass_ms(SHORT_MS + 50)
            await j.sweep()
        must(await j.settle(key, held.version, done()) is None, "the abandoned one is gone")
        must(await j.read(key, "call-2") is None, "and not shown")
        must(existing(await j.read(key, "call-1")).current.version == first, "the earlier one is")
        must(claimed(await j.begin(self.request(key, "call-2"))).version > held.version, "the intent is free")
        own = existing(await j.begin(self.request(key, "call-1"))).own
        must(own is not None and own.version == first, "and the earlier one is still found")

    async def rule_an_expired_outcome_is_fenced(self, j: Journal) -> None:
        """Past its life an unknown outcome can no longer be settled, swept or not."""
        key = self.key()
        held = claimed(await j.begin(self.request(key)))
        unknown = await j.settle(key, held.version, failed("outcome_unknown", ttl_ms=SHORT_MS)) or 0
        await self.pass_ms(SHORT_MS + 50)
        must(await j.settle(key, unknown, done()) is None, "too late to settle")
        must(await j.read(key) is None, "it is as if it never was")

    async def rule_take_of_what_is_gone_begins(self, j: Journal) -> None:
        """Taking a record that was cleared or expired meanwhile is a plain claim."""
        key = self.key()
        held = claimed(await j.begin(self.request(key)))
        await j.clear(key)
        taken = claimed(await j.take_over(self.request(key, "call-2"), held.version))
        must(await j.settle(key, taken.version, done()) is not None, "and it is a real claim")

    async def rule_outcome_survives_to_the_byte(self, j: Journal) -> None:
        """Payload, references, error and attempts come back as they were given."""
        payload = b'{"b":1.0,"a":[1e3,"\\u00e4\\ud83d\\ude00","\xc3\xa4"],"n":12345678901234567890,"t":" x  y "}'
        attempts = ((1, 2, "ETIMEDOUT", True), (3, 4, "", False))
        key = self.key()
        held = claimed(await j.begin(self.request(key)))
        await j.settle(key, held.version, done(payload, attempts=attempts)._replace(attempt_count=2))
        record = existing(await j.begin(self.request(key))).current
        must(bytes(record.payload) == payload, "payload bytes are untouched")  # type: ignore[arg-type]
        check_attempts(record, attempts)
        must(record.dispatched, "the record says that the tool was touched")
        claimed(await j.take_over(self.request(key, "call-2"), record.version))
        own = existing(await j.begin(self.request(key))).own
        must(own == record, "the same as history")

        other = self.key("other")
        held = claimed(await j.begin(self.request(other)))
        error = ("boom", "it went\nwrong “here”", False, True)
        settlement = done(None, payload_ref="sha256:abc", payload_sealed="c2VhbGVk", output_redacted=True)
        await j.settle(other, held.version, settlement._replace(dispatched=False, error=error))
        record = existing(await j.read(other)).current
        must(record.payload_ref == "sha256:abc" and record.payload_sealed == "c2VhbGVk", "references are kept")
        must(record.output_redacted is True and not record.dispatched, "so are the marks")
        expected = RecordedError(code="boom", message=error[1], terminal=False, should_retriable=True)
        must(record.error == expected, "and the error")

    async def rule_large_payload(self, j: Journal) -> None:
        """A megabyte is kept as well as a byte."""
        key = self.key()
        payload = b'"' + b"x" * 1_000_000 + b'"'
        held = claimed(await j.begin(self.request(key)))
        await j.settle(key, held.version, done(payload))
        record = existing(await j.begin(self.request(key))).current
        must(bytes(record.payload) == payload, "all of it")  # type: ignore[arg-type]


def _lock(record: DedupeRecord) -> int:
    return record.lock_until_ms if isinstance(record.lock_until_ms, int) else 0

"""Rules of the record: it tells what the request and the settlement said, whichever way a store wrote them.

A store may write the first claims one way and, while all claims are new, the next ones another way. So each rule runs
once at the start of a journal and once after many claims that were won in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from antiphon.contract.record import DedupeRecord
from antiphon.ports import Journal, Row, Settlement, StaticClaimRequest
from antiphon.testing._harness import Harness, check_attempts, claimed, done, existing, failed, must

IN_A_ROW = 20
"""Claims to win before a store may take it that the next one is new as well."""
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
        """Every field of the request is in the record, however its parameters came."""
        await self._check_requests(j, "first")
        await self._warm(j)
        await self._check_requests(j, "warm")

    async def rule_record_says_how_it_ended(self, j: Journal) -> None:
        """Every field of the settlement is in the record, and those of the request stay."""
        await self._check_settlements(j, "first")
        await self._warm(j)
        await self._check_settlements(j, "warm")

    async def rule_events_are_in_order_after_many_claims(self, j: Journal) -> None:
        """Claim and outcome are logged with their events, none of them, one or several, without a gap."""
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
        must([event.type for event in events] == expected, f"as it happened: {[event.type for event in events]}")
        must([event.seq for event in events] == list(range(len(expected))), "numbered without a gap")
        must(len(await j.events(other)) == IN_A_ROW, "events of a fenced settlement are written")

    async def rule_a_duplicate_after_many_claims_is_shown_the_record(self, j: Journal) -> None:
        """A store that takes the next claim for a new one still sees that it is not."""
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
                must((seen.own is not None) == (identity == "call-1"), "to its own identity as its own")
            await self._warm(j, f"again-{n}")
        must("lost" not in [event.type for event in await j.events(run)], "who lost writes no events")

    async def rule_a_late_settlement_after_many_claims_is_fenced(self, j: Journal) -> None:
        """Neither an earlier version nor an unknown key is settled, however it is written."""
        await self._warm(j)
        key = self.key()
        version = await self._win(j, self.request(key))
        must(await j.settle(key, version - 1, _plain(1)) is None, "another version is fenced")
        must(await j.settle(self.key("never"), version, _plain(1)) is None, "what was never claimed is fenced")
        settled = await j.settle(key, version, _plain(1))
        must(settled is not None and settled > version, "the holder settles")
        must(await j.settle(key, version, _plain(2)) is None, "and only once by that version")
        current = existing(await j.read(key)).current
        must(bytes(current.payload) == b'"1"', "its outcome stays")  # type: ignore[arg-type]

    async def rule_owner_is_token_and_process(self, j: Journal) -> None:
        """A caller that was interrupted finds its own token in the record, also after a takeover."""
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
                must(record.expires_at_ms == record.created_at_ms + record.ttl_ms, "it expires by its TTL")

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

"""One execution of an intent in memory."""

from __future__ import annotations

from msgspec import UNSET, Raw

from antiphon.contract.record import DedupeRecord
from antiphon.ports import ClaimTemplate, Settlement, StaticClaimRequest
from antiphon.stores._common import NO_OUTCOME, outcome_of, owner_of, recorded_request


class Node:
    """One execution of an intent: the values of its request as they came; the record is built when somebody reads it.

    Every call writes to it several times, and a struct's fields take ten times as long to set as slots do.
    """

    __slots__ = (
        "began",
        "call_id",
        "created",
        "ended",
        "expires",
        "fence",
        "found_by",
        "idempotency_key",
        "identity",
        "kept",
        "key",
        "params",
        "payload",
        "record",
        "renewed_until",
        "request_id",
        "serial",
        "settlement",
        "state",
        "template",
        "token",
        "updated",
        "version",
    )

    key: str
    template: ClaimTemplate
    identity: str
    idempotency_key: str
    params: bytes | tuple[str, str]
    request_id: str
    token: str
    call_id: str | None
    found_by: str
    """The identity that finds it: the one that asked, except for an alias."""
    serial: int
    """Its place among the past ones; the fence, except for an alias."""
    version: int
    fence: int
    created: int
    updated: int
    expires: int
    renewed_until: int
    """End of the lease, if that is not what was asked for first."""
    state: str
    kept: bool
    """In flight or unknown: never evicted."""
    settlement: Settlement | None
    """How it ended, except for a plain success, of which only what differs is kept: less for the garbage collector."""
    payload: bytes | None
    """The result of a plain success."""
    began: int
    ended: int
    record: DedupeRecord | None

    @property
    def lock_until(self) -> int:
        return self.renewed_until or self.created + self.template.lease_ms

    def lives(self, now: int) -> bool:
        """Whether it counts; one in flight always does."""
        return self.expires > now or self.state == "inflight"

    @property
    def spared(self) -> bool:
        """In flight, and a sweep has seen it past its life before: only that lets it expire so late."""
        return self.expires > max(self.created + self.template.ttl_ms, self.lock_until)

    def alias(self, identity: str, serial: int) -> Node:
        """The same execution, found by another identity."""
        copy = Node()
        for name in Node.__slots__:
            setattr(copy, name, getattr(self, name))
        copy.found_by, copy.serial = identity, serial
        return copy

    def to_record(self) -> DedupeRecord:
        if self.record is None:
            self.record = self._build()
        return self.record

    def _settled(self) -> Settlement | None:
        if self.payload is None:
            return self.settlement
        attempts = ((self.began, self.ended, "", False),)
        return Settlement("done", self.expires - self.updated, self.payload, attempts=attempts, attempt_count=1)

    def _build(self) -> DedupeRecord:
        template, settlement = self.template, self._settled()
        ids = (self.request_id, self.token, self.call_id)
        request = StaticClaimRequest(self.key, self.identity, template, self.idempotency_key, self.params, *ids)
        outcome = NO_OUTCOME if settlement is None else outcome_of(settlement)
        return DedupeRecord(
            key=self.key,
            tool=template.tool,
            idempotency_key=self.idempotency_key,
            state=self.state,  # type: ignore[arg-type]
            created_at_ms=self.created,
            updated_at_ms=self.updated,
            expires_at_ms=self.expires,
            ttl_ms=template.ttl_ms if settlement is None else settlement.ttl_ms,
            request=recorded_request(request),
            version=self.version,
            fence=self.fence,
            tenant=template.tenant,
            workspace=template.workspace,
            owner=owner_of(request),
            dispatched=False if settlement is None else settlement.dispatched,
            execution=outcome.execution,
            payload=UNSET if settlement is None or settlement.payload is None else Raw(settlement.payload),
            payload_ref=outcome.payload_ref,
            payload_sealed=outcome.payload_sealed,
            output_redacted=outcome.output_redacted,
            error=outcome.error,
            lock_until_ms=self.lock_until if settlement is None else UNSET,
        )

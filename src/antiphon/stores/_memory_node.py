"""One execution of an intent in memory, and the quick steps of calls that are made in this process."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import UNSET, Raw

from antiphon.contract.record import DedupeRecord, RecordedAttempt
from antiphon.ports import Ask, Final
from antiphon.stores._common import NO_OUTCOME, outcome_of


class Form(Protocol):
    """What the quick calls of one tool, session and actor have in common; :class:`~antiphon.ports.Ask` names it."""

    tool: str
    ttl_ms: int
    lease_ms: int
    owner: str
    tenant: str
    workspace: str
    session: str

    def ask(self, key: str, identity: str, material: Any) -> Ask:
        """The whole request for the claim, from what the call brought along."""
        ...


class Node:
    """One execution of an intent; the record is built when somebody asks for it.

    Every call writes to it several times, and a struct's fields take ten times as long to set as slots do.
    """

    __slots__ = (
        "answer",
        "created",
        "expires",
        "fence",
        "final",
        "form",
        "identity",
        "kept",
        "key",
        "material",
        "record",
        "renewed_until",
        "serial",
        "state",
        "took_ms",
        "updated",
        "version",
    )

    key: str
    identity: str
    form: Ask | Form
    """The request for the claim, or what it can be made of together with the *material*."""
    material: Any
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
    answer: bytes | None
    """The result, if it can be given again as it is."""
    took_ms: float
    """Of a plain success, which has no ``final``: how long its only attempt took."""
    final: Final | None
    record: DedupeRecord | None

    @property
    def ask(self) -> Ask:
        form = self.form
        return form if isinstance(form, Ask) else form.ask(self.key, self.identity, self.material)

    @property
    def lock_until(self) -> int:
        return self.renewed_until or self.created + self.form.lease_ms

    @property
    def session(self) -> str:
        form = self.form
        return form.request.session_key if isinstance(form, Ask) else form.session

    def lives(self, now: int) -> bool:
        """Whether it counts; one in flight always does."""
        return self.expires > now or self.state == "inflight"

    @property
    def spared(self) -> bool:
        """In flight, and a sweep has seen it past its life before: only that lets it expire so late."""
        return self.expires > max(self.created + self.form.ttl_ms, self.lock_until)

    def alias(self, identity: str, serial: int) -> Node:
        """The same execution, found by another identity."""
        copy = Node()
        for name in Node.__slots__:
            setattr(copy, name, getattr(self, name))
        copy.identity, copy.serial = identity, serial
        return copy

    def to_record(self) -> DedupeRecord:
        if self.record is None:
            self.record = self._build()
        return self.record

    def _end(self) -> Final | None:
        """How it ended; of a plain success this is put together only here."""
        if self.final is None and self.answer is not None:
            began, ended = self.updated - int(self.took_ms), self.updated
            attempt = RecordedAttempt(started_at_ms=began, finished_at_ms=ended, status="success", retriable=False)
            self.final = Final("done", self.form.ttl_ms, self.answer, attempts=(attempt,), attempt_count=1)
        return self.final

    def _build(self) -> DedupeRecord:
        ask, final = self.ask, self._end()
        outcome = NO_OUTCOME if final is None else outcome_of(final)
        return DedupeRecord(
            key=ask.key,
            tool=ask.tool,
            idempotency_key=ask.idempotency_key,
            state=self.state,  # type: ignore[arg-type]
            created_at_ms=self.created,
            updated_at_ms=self.updated,
            expires_at_ms=self.expires,
            ttl_ms=ask.ttl_ms if final is None else final.ttl_ms,
            request=ask.request,
            version=self.version,
            fence=self.fence,
            tenant=ask.tenant,
            workspace=ask.workspace,
            owner=ask.owner,
            dispatched=False if final is None else final.dispatched,
            execution=outcome.execution,
            payload=UNSET if final is None or final.payload is None else Raw(final.payload),
            payload_ref=outcome.payload_ref,
            payload_sealed=outcome.payload_sealed,
            output_redacted=outcome.output_redacted,
            error=outcome.error,
            lock_until_ms=self.lock_until if final is None else UNSET,
        )


def new_node(key: str, identity: str, form: Ask | Form, material: Any, version: int, now: int, expires: int) -> Node:
    """A claim that begins. A function: it costs half of what ``__init__`` does."""
    node = Node()
    node.key = key
    node.identity = identity
    node.form = form
    node.material = material
    node.serial = node.version = node.fence = version
    node.created = node.updated = now
    node.expires = expires
    node.renewed_until = 0
    node.state = "inflight"
    node.kept = True
    node.answer = node.final = node.record = None
    node.took_ms = 0.0
    return node

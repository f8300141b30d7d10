"""The five seams of Antiphon: what a back-end author implements.

``Journal`` keeps claims and the run log, ``Blobs`` keeps large payloads, ``Invoker`` answers calls,
``Clock`` gives time and chance, ``Listener`` is told what happened. Stores are mechanism: no rule is
decided in them (see ``antiphon.decide``).

Every method of a journal is written with ``async``. A journal opened for the synchronous face
completes each call without suspending.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from antiphon.contract.events import Event, RunManifest
from antiphon.contract.record import DedupeRecord, RecordedRequest


class Row(NamedTuple):
    """An event on its way into the log. The store gives it its sequence number in the run."""

    run: str
    type: str
    at_ms: int
    body: bytes
    """JSON of :class:`antiphon.contract.events.EventBody`, already redacted."""


class Ask(NamedTuple):
    """A request for the claim on one intent. Times are durations: only the store's clock counts."""

    key: str
    identity: str
    tool: str
    """``namespace/name``."""
    idempotency_key: str
    request: RecordedRequest
    ttl_ms: int
    lease_ms: int
    owner: str
    tenant: str
    workspace: str
    wait_replicas: int = 0
    """Replicas that must have the claim before it counts (Redis ``WAIT``; 0 = do not ask)."""


class Claimed(NamedTuple):
    """The claim is ours. ``version`` is the fencing token and the compare-and-set handle."""

    version: int
    now_ms: int


class Existing(NamedTuple):
    """Somebody holds or held the claim: the current record, and the one of the asking identity."""

    current: DedupeRecord
    own: DedupeRecord | None
    now_ms: int


class Final(NamedTuple):
    """How a claim ends, or what an unknown one turned out to be."""

    state: str
    """``done``, ``failed`` or ``cancelled``."""
    ttl_ms: int
    payload: bytes | None = None
    payload_ref: str | None = None
    payload_sealed: str | None = None
    output_redacted: bool = False
    error: tuple[str, str, bool, bool] | None = None
    """code, message, terminal, retriable."""
    attempts: tuple[Any, ...] = ()
    """:class:`antiphon.contract.record.RecordedAttempt` values."""
    attempt_count: int = 0
    dispatched: bool = True


class BreakerRow(NamedTuple):
    """Persisted state of one breaker; counters stay in the processes."""

    key: str
    state: str
    epoch: int
    until_ms: int
    """Wall-clock end of the cool-down or of a forced state; 0 = no end."""
    reason: str
    updated_at_ms: int
    tripped_by: str = ""


class Claims(Protocol):
    """The claim half of a journal. Each method is one atomic step."""

    async def begin(self, ask: Ask, events: Sequence[Row] = ()) -> Claimed | Existing:
        """Insert an in-flight record if there is no live one, else return what is there.

        A settled record lives until ``expires_at_ms``. One in flight lives until it is settled, replaced, cleared or
        swept, whatever the clock says: what its lease means is decided elsewhere. If the current one has expired but
        the asking identity has a live execution of its own, that one is returned, as both. The new version is
        ``max(previous + 1, server microseconds)``, so it grows even after a record expired. *events* are
        written only if the claim was won.
        """
        ...

    async def take(self, ask: Ask, version: int, events: Sequence[Row] = ()) -> Claimed | Existing:
        """Replace the current record if its version is still *version* (takeover, or a new execution).

        The replaced record stays findable by its own identity until it would have expired. If nothing lives
        there any more (cleared, expired), this is a plain claim. If the asking identity has a live ``done`` record of
        its own, that is the answer: nobody runs a call that he knows to be done, so it came about since he looked.
        """
        ...

    async def settle(self, key: str, version: int, final: Final, events: Sequence[Row] = ()) -> int | None:
        """End the claim if its version is still *version*: the new version, or ``None`` if it is fenced.

        A settled record that has expired is fenced, too. *events* are written in either case: history does
        not depend on who won.
        """
        ...

    async def mark_dispatched(self, key: str, version: int) -> bool:
        """Note that the tool may have been touched (only used by stores that need a second mark)."""
        ...

    async def alias(self, key: str, identity: str, version: int) -> bool:
        """Let *identity* find the settled record *version* as its own (a waiter that shared a result).

        Whether it does now. It does not if it already has the current record, or a live ``done`` one, for its own;
        nor if *version* is in flight or gone.
        """
        ...

    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        """Extend the lease if *version* still holds it in flight."""
        ...

    async def read(self, key: str, identity: str = "") -> Existing | None:
        """The record without touching it."""
        ...

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        """Return when the record's version is no longer *version* or is settled, or after *timeout_s*."""
        ...

    async def clear(self, key: str) -> bool:
        """Forget the record and its history."""
        ...

    async def flush(self, *, tenant: str, tool: str = "", session: str = "", prefix: str = "") -> int:
        """Forget all records that fit; in-flight ones included. Returns how many."""
        ...

    async def list(
        self, *, tenant: str, tool: str = "", session: str = "", state: str = "", prefix: str = "", limit: int = 100
    ) -> list[DedupeRecord]:
        """Current records, newest first."""
        ...

    async def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        """Number of live records by (tool, state); in-flight past its lease counts as ``stale``."""
        ...

    async def sweep(self, limit: int = 1000) -> int:
        """Drop expired records. One in flight is first given its TTL once more, and dropped if that ends as well.

        So a clock that is set forward does not end a call that goes on, and a claim whose holder is gone does not stay
        for ever. A store whose records go by themselves keeps one in flight for a TTL longer than it says.
        """
        ...


class Log(Protocol):
    """The run-log half of a journal."""

    async def open_run(self, manifest: RunManifest) -> None:
        """Insert the manifest (an existing run of that id is kept)."""
        ...

    async def update_run(self, manifest: RunManifest) -> None:
        """Replace the manifest."""
        ...

    async def append(self, run: str, rows: Sequence[Row]) -> int:
        """Write rows with the next gap-free sequence numbers; returns the first of them."""
        ...

    async def manifest(self, run: str) -> RunManifest | None: ...

    async def runs(
        self, *, tenant: str, prefix: str = "", name: str = "", status: str = "", limit: int = 50, before: str = ""
    ) -> list[RunManifest]:
        """Manifests, newest first."""
        ...

    async def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> list[Event]:
        """Events ``start <= seq < stop`` in order, at most *limit*."""
        ...

    async def delete_run(self, run: str) -> bool: ...


class Breakers(Protocol):
    """Shared breaker state: trips, forced states and resets, never counters."""

    async def load_breakers(self, tenant: str) -> list[BreakerRow]: ...

    async def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        """Keep *row* unless a newer epoch is there; tell the other processes where the store can push."""
        ...


@runtime_checkable
class Journal(Claims, Log, Breakers, Protocol):
    """Claims, run log and breaker state behind one connection."""

    durable: bool
    """Whether records survive this process."""

    async def ping(self) -> Mapping[str, Any]:
        """Reach the store: version, latency, durability; raises :class:`~antiphon.errors.StoreUnavailable`."""
        ...

    async def close(self) -> None: ...


class Store(Protocol):
    """A description of a back-end. Each face opens its own journal."""

    def open_sync(self) -> Journal: ...

    def open_async(self) -> Journal:
        """Called inside a running event loop; one journal per loop."""
        ...

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        ...


class Blobs(Protocol):
    """Content-addressed payloads within one tenant."""

    async def put(self, tenant: str, data: bytes) -> str:
        """Keep *data* once; returns its reference (``sha256:…``)."""
        ...

    async def get(self, tenant: str, ref: str) -> bytes:
        """Raises :class:`~antiphon.errors.NotFound`, or ``ArtifactError`` if the content is not what it says."""
        ...

    async def delete(self, tenant: str, ref: str) -> None: ...

    def refs(self, tenant: str) -> AsyncIterator[str]: ...


class Listener(Protocol):
    """Told what the gateway decided. Must not raise and must not block."""

    def emit(self, event: str, fields: Mapping[str, Any]) -> None: ...


class Clock:
    """Wall time, monotonic time, chance and sleep of the live world; tests pass their own."""

    def __init__(self, seed: int | None = None) -> None:
        self.random = random.Random(seed) if seed is not None else random.Random()

    monotonic = staticmethod(time.monotonic)
    """Seconds of a clock that never jumps."""

    def now_ms(self) -> int:
        """Wall clock in milliseconds."""
        return time.time_ns() // 1_000_000

    def uniform(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)

    async def sleep(self, seconds: float) -> None:
        """Block this thread (the asynchronous face brings its own clock)."""
        time.sleep(seconds)


class AsyncClock(Clock):
    """The clock of the asynchronous face."""

    async def sleep(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)


class Invocation(NamedTuple):
    """One logical call on its way to whoever answers it."""

    kind: str
    """``tool``, ``llm`` or ``mcp``."""
    name: str
    arguments: Any
    digest: str
    """Digest of the canonical arguments (RFC 8785, exact)."""
    site: Any
    """:class:`antiphon._scope.Site`: lane, index and occurrence."""
    spec: Any = None
    """:class:`antiphon.contract.spec.ToolSpec` of a tool."""
    stream: bool = False
    body: Any = None
    """The provider's own request body of a model call."""
    send: Any = None
    """How the code itself would ask its model, where it said so."""
    dialect: str = ""
    """Whose shape the body has: ``openai-chat``, ``anthropic`` …"""


class Answer(NamedTuple):
    """What an invoker answers: a value, a stream, or a failure, as data."""

    outcome: str
    """``ok``, ``error``, ``denied`` or ``refusal``."""
    value: Any = None
    error: Mapping[str, Any] | None = None
    """class, code, message, retriable, terminal and what else was recorded."""
    chunks: Sequence[Any] | None = None
    source: str = "recording"
    """``recording``, ``semantic``, ``static``, ``fault``, ``blocked`` or ``live``."""
    meta: Mapping[str, Any] = {}


class Invoker(Protocol):
    """Answers calls in place of the world. A run without one is live."""

    async def answer(self, call: Invocation) -> Answer | None:
        """The answer, or ``None`` to let the live pipeline run the call. Raises ``Divergence`` to refuse."""
        ...

    def draw(self, what: str, site: Any, fresh: Callable[[], Any]) -> Any:
        """A value of clock or chance."""
        ...


Live = Callable[[], Awaitable[Any]]

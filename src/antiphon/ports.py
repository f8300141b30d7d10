"""The seams of Antiphon: what a back-end author implements.

A store opens a ``SyncJournal`` for threads and a ``Journal`` for an event loop: the same steps, once as plain methods
and once as coroutines. They keep claims, the run log and breaker states. ``Blobs`` keeps large payloads, ``Invoker``
answers calls, ``Clock`` provides time and randomness, ``Listener`` receives events. Stores are mechanism: they decide
no rule (see ``antiphon.decide``).
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import orjson

from antiphon.contract.events import Event, RunManifest
from antiphon.contract.record import DedupeRecord


class Row(NamedTuple):
    """An event to be appended to the log. The store assigns its sequence number in the run."""

    run: str
    type: str
    at_ms: int
    body: bytes
    """JSON of :class:`antiphon.contract.events.EventBody`, already redacted."""


class ClaimTemplate(msgspec.Struct, kw_only=True, eq=False):
    """What the claims of one tool, session and actor have in common."""

    tool: str
    """``namespace/name``."""
    session: str
    actor: str
    ttl_ms: int
    lease_ms: int
    owner: str
    """The requesting process."""
    tenant: str = "default"
    workspace: str = "default"
    session_json: bytes = b""
    actor_json: bytes = b""
    lives_ms: int = 0
    """How long a claim is kept if it is never settled."""

    def __post_init__(self) -> None:
        self.session_json = bytes(memoryview(orjson.dumps(self.session)))  # orjson's own bytes take 4 KiB each
        self.actor_json = bytes(memoryview(orjson.dumps(self.actor)))
        self.lives_ms = max(self.ttl_ms, self.lease_ms)


class ClaimRequest(Protocol):
    """What a store reads from a request for the claim on one intent. It keeps the values, never the object.

    Times are durations: only the store's clock counts.
    """

    @property
    def key(self) -> str:
        """The store key of the intent."""

    @property
    def identity(self) -> str:
        """What makes two requests deliveries of the same call."""

    @property
    def template(self) -> ClaimTemplate:
        """What all requests of a tool, session and actor have in common."""

    @property
    def idempotency_key(self) -> str:
        """The key of the intent, as given or derived."""

    @property
    def params(self) -> bytes | tuple[str, str]:
        """The canonical parameters, or their digests: normalised, and as given."""

    @property
    def request_id(self) -> str:
        """The id of this request, for the record."""

    @property
    def call_id(self) -> str | None:
        """The model's id of the call, if it has one."""

    @property
    def token(self) -> str:
        """Unique for this request. The record's ``owner`` is ``token/process``, so a caller that was interrupted can
        tell its own claim from another's."""

    @property
    def wait_replicas(self) -> int:
        """Replicas that must have the claim before it counts (Redis ``WAIT``; 0 = no check)."""

    @property
    def shown(self) -> str:
        """The masked arguments, for those who have to settle the claim if its worker is lost; empty: none are kept."""

    @property
    def pin(self) -> Pin | None:
        """What ties the id of the call to its arguments, if it has one."""


Pin = tuple[str, int]
"""A name for a call by its id, and a mark for its arguments (less than 2**63)."""


class StaticClaimRequest(NamedTuple):
    """A claim request that does not come from a call."""

    key: str
    identity: str
    template: ClaimTemplate
    idempotency_key: str
    params: bytes | tuple[str, str]
    request_id: str
    token: str
    call_id: str | None = None
    wait_replicas: int = 0
    shown: str = ""
    pin: Pin | None = None


class Claimed(NamedTuple):
    """The claim is ours. ``version`` is the fencing token and the compare-and-set handle."""

    version: int
    now_ms: int


class Existing(NamedTuple):
    """Somebody holds or held the claim: the current record, and the one of the requesting identity."""

    current: DedupeRecord
    own: DedupeRecord | None
    now_ms: int


class Pinned(NamedTuple):
    """The id of the call belongs to other arguments: nothing was claimed."""

    mark: int
    """The stored mark."""


Begun = Claimed | Existing | Pinned
"""The result of a claim request."""

Attempt = tuple[int, int, str, bool]
"""One attempt of a call: when it began and ended (ms), its error code (empty: none), whether that is retriable."""


class Settlement(NamedTuple):
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
    attempts: tuple[Attempt, ...] = ()
    attempt_count: int = 0
    dispatched: bool = True


ONLY_EVENTS = "only_events"
"""In the data of an error of ``settle``: the claim has ended, and only its events are missing; a repeated call writes
them."""


class Success(Settlement):
    """The settlement of most calls: done at the first attempt, with the result stored as it is."""

    __slots__ = ()


class Cursor(NamedTuple):
    """A position in a list of records or runs, written ``ID@AT``. It stays valid when the record or run is gone."""

    at: int
    """The fence of a record; when a run started, in milliseconds."""
    id: str
    """The key of a record; the id of a run."""

    def __str__(self) -> str:
        return f"{self.id}@{self.at}"

    @classmethod
    def of_record(cls, record: DedupeRecord) -> Cursor:
        """The position of a record."""
        return cls(record.fence, record.key)

    @classmethod
    def of_run(cls, manifest: RunManifest) -> Cursor:
        """The position of a run."""
        return cls(manifest.started_at_ms, manifest.id)

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """The cursor in *text*; ``None`` if it is only an id."""
        name, mark, at = text.rpartition("@")
        return cls(int(at), name) if mark and at.isdecimal() and len(at) <= _LONGEST_AT else None


_LONGEST_AT = 18
"""The number of digits that every store can compare."""


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

    @property
    def name(self) -> str:
        """The breaker's name: the key of a process's trip ends with the process."""
        return self.key.removesuffix(f"#{self.tripped_by}") if self.tripped_by else self.key

    @property
    def is_trip(self) -> bool:
        """Whether one process opened it; otherwise an operator acted."""
        return self.name != self.key


BreakerCallback = Callable[[BreakerRow], None]


class SyncJournal(Protocol):
    """Claims, run log and breaker states, for threads. Each claim method is one atomic step."""

    durable: bool
    """Whether records survive this process."""

    # -- claims --------------------------------------------------------------------------------------------------

    def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Begun:
        """Insert an in-flight record if there is no live one, or else return what is there.

        A settled record lives until ``expires_at_ms``. One in flight lives until it is settled, replaced, cleared or
        swept, whatever the time: what its lease means is decided elsewhere. If the current one has expired but the
        requesting identity has a live execution of its own, that one is returned, as both. The new version is
        ``max(previous + 1, server microseconds)``, so it grows even after a record expired. *events* are written only
        if the claim was won.

        A request with a pin is first tied to its mark, for the TTL of its template, in the same step. If the name has a
        different live mark, whoever set it, that is the answer. A mark is neither a record nor the key of one.
        """

    def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Begun:
        """Replace the current record if its version is still *version* (takeover, or a new execution).

        The replaced record can still be found by its own identity until it would have expired. If nothing lives there
        any more (cleared, expired), this is a plain claim. If the requesting identity has a live ``done`` record of its
        own, that is the answer: the record was completed after the caller read it.
        """

    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        """End the claim if its version is still *version*: the new version, or ``None`` if it is fenced.

        A settled record that has expired is fenced, too. An execution of unknown outcome that others have followed
        is settled where it is kept, and keeps its expiry. *events* are written in either case: history does not
        depend on who won.
        """

    def alias(self, key: str, identity: str, version: int) -> bool:
        """Let *identity* find the settled record *version* as its own (a waiter that shared a result).

        Returns whether it does now. It does not if it already has the current record, or a live ``done`` one, of its
        own; nor if *version* is in flight or gone.
        """

    def renew(self, key: str, version: int, lease_ms: int) -> bool:
        """Extend the lease if *version* still holds it in flight."""

    def read(self, key: str, identity: str = "") -> Existing | None:
        """Read the record without changing it."""

    def forgotten(self, request: ClaimRequest, version: int) -> bool:
        """Whether this store knows that the claim *version* of an intent without a record was cleared or swept.

        If not, it has lost the record (its file was deleted, its server restarted empty): then whoever has the outcome
        may write it again.
        """

    def wait(self, key: str, version: int, timeout_s: float) -> None:
        """Return when the record's version is no longer *version* or is settled, or after *timeout_s*."""

    def clear(self, key: str, version: int | None = None) -> bool:
        """Forget the record and its history; with *version* only if that is still the current one."""

    def list(
        self,
        *,
        tenant: str,
        tool: str = "",
        session: str = "",
        state: str = "",
        prefix: str = "",
        limit: int = 100,
        before: Cursor | None = None,
    ) -> Records:
        """Current records, newest first; with *before* those that follow it, whatever became of the record there.

        A cursor opens no other tenant's record. After a record that is gone, records of the same moment may be
        repeated.
        """

    def earlier(self, *, tenant: str, key: str = "") -> Records:
        """Executions that others have followed, newest first: of one key, or of all."""

    def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        """Number of live records by (tool, state).

        One in flight past its lease counts as ``stale``. A failed one of unknown outcome counts as ``unknown``, as
        ``unknown_1h`` when it is an hour old, and as ``unknown_1d`` when it is a day old.
        """

    def tenants(self) -> Collection[str]:
        """Every tenant that has claims, and possibly some that had."""

    def sweep(self, limit: int = 1000) -> int:
        """Drop expired records. One in flight is first given its TTL once more, and dropped when that ends as well.

        So a clock that is set forward does not end a call that is still running, and a claim whose holder is gone does
        not stay forever. A store whose records expire by themselves keeps one in flight for a TTL longer than it says.
        """

    # -- run log -------------------------------------------------------------------------------------------------

    def open_run(self, manifest: RunManifest) -> None:
        """Insert the manifest (an existing run of that id is kept)."""

    def update_run(self, manifest: RunManifest) -> None:
        """Replace the manifest."""

    def append(self, run: str, rows: Sequence[Row]) -> int:
        """Write rows with the next gap-free sequence numbers; returns the first of them."""

    def manifest(self, run: str) -> RunManifest | None:
        """The manifest of a run, or ``None`` if there is no such run."""

    def runs(
        self,
        *,
        tenant: str,
        prefix: str = "",
        name: str = "",
        status: str = "",
        limit: int = 50,
        before: Cursor | None = None,
    ) -> Manifests:
        """Manifests, newest first, then by id; with *before* those that follow it, even if that run is gone."""

    def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> Events:
        """Events ``start <= seq < stop`` in order, at most *limit*."""

    def delete_run(self, run: str) -> bool:
        """Delete a run and its events; returns whether there was one."""

    # -- breakers ------------------------------------------------------------------------------------------------

    def load_breakers(self, tenant: str) -> BreakerRows:
        """Trips, forced states and resets; never counters."""

    def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        """Store *row* unless a newer epoch is there; notify the other processes if the store can push."""

    def subscribe_breakers(self, tenant: str, callback: BreakerCallback) -> Callable[[], None] | None:
        """Call *callback* with each saved row of *tenant*; returns how to stop, or ``None`` if the store cannot push.

        It may be called from the store's own thread and must not block. After a gap in the connection it is called with
        every row: a repeated one changes nothing.
        """

    # -- the connection ------------------------------------------------------------------------------------------

    def ping(self) -> Mapping[str, Any]:
        """Reach the store: version, latency, durability; raises :class:`~antiphon.errors.StoreUnavailable`."""

    def close(self) -> None:
        """Release connections and threads; further calls fail."""


Records = list[DedupeRecord]
Manifests = list[RunManifest]
Events = list[Event]
BreakerRows = list[BreakerRow]


class Journal(Protocol):
    """The same steps for one event loop. See :class:`SyncJournal` for what each of them does."""

    durable: bool

    async def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Begun:
        """As :meth:`SyncJournal.begin`."""

    async def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Begun:
        """As :meth:`SyncJournal.take_over`."""

    async def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        """As :meth:`SyncJournal.settle`."""

    async def alias(self, key: str, identity: str, version: int) -> bool:
        """As :meth:`SyncJournal.alias`."""

    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        """As :meth:`SyncJournal.renew`."""

    async def read(self, key: str, identity: str = "") -> Existing | None:
        """As :meth:`SyncJournal.read`."""

    async def forgotten(self, request: ClaimRequest, version: int) -> bool:
        """See :meth:`SyncJournal.forgotten`."""

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        """As :meth:`SyncJournal.wait`."""

    async def clear(self, key: str, version: int | None = None) -> bool:
        """As :meth:`SyncJournal.clear`."""

    async def list(
        self,
        *,
        tenant: str,
        tool: str = "",
        session: str = "",
        state: str = "",
        prefix: str = "",
        limit: int = 100,
        before: Cursor | None = None,
    ) -> Records:
        """As :meth:`SyncJournal.list`."""

    async def earlier(self, *, tenant: str, key: str = "") -> Records:
        """See :meth:`SyncJournal.earlier`."""

    async def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        """As :meth:`SyncJournal.counts`."""

    async def tenants(self) -> Collection[str]:
        """As :meth:`SyncJournal.tenants`."""

    async def sweep(self, limit: int = 1000) -> int:
        """As :meth:`SyncJournal.sweep`."""

    async def open_run(self, manifest: RunManifest) -> None:
        """As :meth:`SyncJournal.open_run`."""

    async def update_run(self, manifest: RunManifest) -> None:
        """As :meth:`SyncJournal.update_run`."""

    async def append(self, run: str, rows: Sequence[Row]) -> int:
        """As :meth:`SyncJournal.append`."""

    async def manifest(self, run: str) -> RunManifest | None:
        """As :meth:`SyncJournal.manifest`."""

    async def runs(
        self,
        *,
        tenant: str,
        prefix: str = "",
        name: str = "",
        status: str = "",
        limit: int = 50,
        before: Cursor | None = None,
    ) -> Manifests:
        """As :meth:`SyncJournal.runs`."""

    async def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> Events:
        """As :meth:`SyncJournal.events`."""

    async def delete_run(self, run: str) -> bool:
        """As :meth:`SyncJournal.delete_run`."""

    async def load_breakers(self, tenant: str) -> BreakerRows:
        """As :meth:`SyncJournal.load_breakers`."""

    async def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        """As :meth:`SyncJournal.save_breaker`."""

    def subscribe_breakers(self, tenant: str, callback: BreakerCallback) -> Callable[[], None] | None:
        """As :meth:`SyncJournal.subscribe_breakers`."""

    async def ping(self) -> Mapping[str, Any]:
        """As :meth:`SyncJournal.ping`."""

    async def close(self) -> None:
        """As :meth:`SyncJournal.close`."""


class Store(Protocol):
    """Describes a back-end. Each gateway opens its own journal."""

    def open_sync(self) -> SyncJournal:
        """A journal for threads; each gateway opens one of its own."""

    def open_async(self) -> Journal:
        """Called inside a running event loop; one journal per loop."""

    @property
    def url(self) -> str:
        """Where it is, without secrets; two stores with the same URL hold the same records."""

    @property
    def in_process(self) -> bool:
        """Whether its records live in this process only."""


class Blobs(Protocol):
    """Content-addressed payloads within one tenant. Methods block; an event loop calls them in a thread."""

    def put(self, tenant: str, data: bytes) -> str:
        """Store *data* once; returns its reference (``sha256:…``)."""

    def get(self, tenant: str, ref: str) -> bytes:
        """Raises :class:`~antiphon.errors.NotFound`, or ``ArtifactError`` if the content does not match *ref*."""

    def delete(self, tenant: str, ref: str) -> None:
        """Delete a payload; a missing one is no error."""

    def refs(self, tenant: str) -> Iterable[str]:
        """The references of every payload of the tenant."""


class Listener(Protocol):
    """Receives what the gateway decided. Must not raise and must not block."""

    def emit(self, event: str, fields: Mapping[str, Any]) -> None:
        """Handle *event*, one of the names under Telemetry, and its fields."""


class Clock:
    """Wall time, monotonic time, randomness and sleep in production; tests pass their own."""

    def __init__(self, seed: int | None = None) -> None:
        self.random: random.Random = random.Random(seed) if seed is not None else random.Random()

    monotonic: staticmethod[[], float] = staticmethod(time.monotonic)
    """Seconds of a clock that never jumps."""

    def now_ms(self) -> int:
        """Wall clock in milliseconds."""
        return time.time_ns() // 1_000_000

    def uniform(self, low: float, high: float) -> float:
        """A random number between *low* and *high*, for delays."""
        return self.random.uniform(low, high)

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Suspend this task."""
        import asyncio

        await asyncio.sleep(seconds)


class Invocation(NamedTuple):
    """One logical call on its way to the invoker that answers it."""

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
    """How the code itself would send the request to its model, if it said so."""
    dialect: str = ""
    """The format of the body: ``openai-chat``, ``anthropic`` …"""
    written: bytes | None = None
    """The arguments of a tool as JSON, if the recording has them written in the same way."""
    earlier_answer: Callable[[], Answer | None] | None = None
    """The answer of a model from before the run was interrupted, if there was one."""
    begin: Callable[[], Awaitable[None]] | None = None
    """Records that a model is asked, for an invoker that asks it itself: called before it does."""


AS_RECORDED = "asRecorded"
"""In the metadata of an answer: a recorded result and nothing else."""
NOT_KEPT = "notKept"
"""In the metadata of an answer: why the record that answered the call had no result."""
STREAM_ABANDONED = "stream_broken_off"
"""The code of a recorded failure: the stream was not read to its end."""
BEGUN = "begun"
"""In the metadata of an answer: the start of the call is as recorded and has been counted."""


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
    """Answers calls in place of the tools and models. A run without one is live."""

    def answer_tool(self, call: Invocation) -> Answer | None:
        """The answer to a tool call, or ``None`` to let it run live. Raises ``Divergence`` to refuse."""

    async def answer(self, call: Invocation) -> Answer | None:
        """The same for any call; it may have to ask a model."""

    def draw(self, what: str, site: Any, fresh: Callable[[], Any]) -> Any:
        """A value of the clock or of randomness."""

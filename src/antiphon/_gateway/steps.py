"""What a driver does next.

The four steps of a plain call are known by identity, and the call holds what they need. Every other step is a tuple
that holds the arguments of one request, makes it (``perform``), and names the function that takes the reply (``then``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from antiphon._gateway.call import GuardedCall
from antiphon._gateway.context import CallContext
from antiphon._gateway.recording import RunEntry
from antiphon.contract.events import RunManifest
from antiphon.ports import Blobs, BreakerRow, Invocation, Row, Settlement


class Runtime(Protocol):
    """What a driver uses: each method returns the reply, or an awaitable of it."""

    @property
    def journal(self) -> Any:
        """The :class:`~antiphon.ports.SyncJournal` of a thread, or the :class:`~antiphon.ports.Journal` of a loop."""

    def sleep(self, seconds: float) -> Any: ...

    def refresh(self, seconds: float) -> Any: ...

    def try_read(self, key: str, identity: str, seconds: float) -> Any: ...

    def append(self, run: RunEntry, rows: Sequence[Row]) -> Any: ...

    def replay(self, run: RunEntry, invocation: Invocation) -> Any: ...

    def until_cancelled(self, what: str, after_ms: Any) -> Any: ...

    def invoke(self, call: GuardedCall, limit: float | None, context: CallContext | None) -> Any: ...

    def reconcile(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any: ...

    def audit(self, manifest: RunManifest, row: Row) -> Any: ...

    def blocking(self, function: Callable[..., Any], *arguments: Any) -> Any: ...


class Plain:
    """A step of a plain call."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def perform(self, runtime: Runtime) -> Any:
        raise AssertionError(f"drivers know {self.name} by name")

    def then(self, call: GuardedCall, reply: Any) -> Step:
        raise AssertionError(f"drivers know {self.name} by name")


BEGIN = Plain("BEGIN")
"""``journal.begin(call, call.events)`` -> ``claim.claimed``: insert the claim, or get the existing record."""
INVOKE = Plain("INVOKE")
"""``call.value = function(**arguments)`` -> ``attempt.returned``."""
SETTLE = Plain("SETTLE")
"""``journal.settle(call.key, call.version, call.settlement, call.events)`` -> ``settlement.settled``."""
DONE = Plain("DONE")
"""``call.outcome`` is the outcome; ``None``: the call simply succeeded with ``call.value``."""


class TakeOver(NamedTuple):
    """Replace another's claim."""

    call: GuardedCall
    version: int
    events: Sequence[Row]
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.journal.take_over(self.call, self.version, self.events)


class Reclaim(NamedTuple):
    """Request a claim again after the first request was interrupted.

    The first request may still be in transit to the store; a read could overtake it, a second request cannot.
    """

    call: GuardedCall
    version: int
    """The version of the claim to replace; 0: none."""
    events: Sequence[Row]
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        if self.version:
            return runtime.journal.take_over(self.call, self.version, self.events)
        return runtime.journal.begin(self.call, self.events)


class SettleVersion(NamedTuple):
    """Settle another's claim: as unknown, as not dispatched, or as what reconcile found."""

    key: str
    version: int
    settlement: Settlement
    then: Then
    events: Sequence[Row] = ()

    def perform(self, runtime: Runtime) -> Any:
        return runtime.journal.settle(self.key, self.version, self.settlement, self.events)


class Read(NamedTuple):
    """Read the record."""

    key: str
    identity: str
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.journal.read(self.key, self.identity)


class TryRead(NamedTuple):
    """Read the record, if that takes but a moment: there is an answer without it."""

    key: str
    identity: str
    seconds: float
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.try_read(self.key, self.identity, self.seconds)


class Forgotten(NamedTuple):
    """Ask whether a missing record was removed on purpose."""

    call: GuardedCall
    version: int
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.journal.forgotten(self.call, self.version)


class Alias(NamedTuple):
    """Let a redelivery of this very call find the answer that the call is given (D2)."""

    key: str
    identity: str
    version: int
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.journal.alias(self.key, self.identity, self.version)


class Renew(NamedTuple):
    """Renew the claim for a whole lease."""

    key: str
    version: int
    lease_ms: int
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.journal.renew(self.key, self.version, self.lease_ms)


class Wait(NamedTuple):
    """Wait for another call to settle."""

    key: str
    version: int
    seconds: float
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.journal.wait(self.key, self.version, self.seconds)


class ShareBreaker(NamedTuple):
    """Tell the other processes about a breaker."""

    tenant: str
    row: BreakerRow
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.journal.save_breaker(self.tenant, self.row)


class Append(NamedTuple):
    """Write events of a run separately."""

    run: RunEntry
    rows: Sequence[Row]
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.append(self.run, self.rows)


class Replay(NamedTuple):
    """Let the recording answer."""

    run: RunEntry
    invocation: Invocation
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.replay(self.run, self.invocation)


class GivenUp(NamedTuple):
    """Stand in for a recorded call whose caller gave up, until this caller cancels it, too."""

    what: str
    after_ms: Any
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.until_cancelled(self.what, self.after_ms)


class Dispatch(NamedTuple):
    """Call the tool with a time limit, a context, on a thread, or up to the first chunk of its stream."""

    call: GuardedCall
    limit: float | None
    context: CallContext | None
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.invoke(self.call, self.limit, self.context)


class Sleep(NamedTuple):
    seconds: float
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.sleep(self.seconds)


class Reconcile(NamedTuple):
    """Ask the tool's own read-back for the outcome of an unknown call."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.reconcile(self.function, self.arguments)


class Consult(NamedTuple):
    """Ask the approver of the tool for a decision."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.reconcile(self.function, self.arguments)


class Audit(NamedTuple):
    """Write the decision to the audit log."""

    manifest: RunManifest
    row: Row
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.audit(self.manifest, self.row)


class Put(NamedTuple):
    """Store a result that is too large for the record."""

    blobs: Blobs
    tenant: str
    data: bytes
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.blocking(self.blobs.put, self.tenant, self.data)


class Get(NamedTuple):
    blobs: Blobs
    tenant: str
    ref: str
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.blocking(self.blobs.get, self.tenant, self.ref)


class Refresh(NamedTuple):
    """Once per ``refresh_ms``: changed settings, log levels, breakers of others."""

    seconds: float
    """How long to wait for the store."""
    then: Then

    def perform(self, runtime: Runtime) -> Any:
        return runtime.refresh(self.seconds)


Request = (
    TakeOver
    | Reclaim
    | SettleVersion
    | Read
    | TryRead
    | Forgotten
    | Alias
    | Renew
    | Wait
    | ShareBreaker
    | Append
    | Replay
    | GivenUp
    | Dispatch
    | Sleep
    | Reconcile
    | Consult
    | Audit
    | Put
    | Get
    | Refresh
)
Step = Plain | Request
Then = Callable[[GuardedCall, Any], Step]
STORE_STEPS = (TakeOver, Reclaim, SettleVersion, Read, TryRead, Forgotten, Alias, Renew, Wait, ShareBreaker, Append)
"""Steps that a failing store can interrupt; BEGIN and SETTLE are the others."""

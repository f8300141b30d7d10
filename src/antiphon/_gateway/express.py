"""The straight way of a plain call: the steps of :meth:`Core.run` in two frames instead of fifty.

It is for decorated calls on a store that lives in this process, outside a run, while nobody listens and nothing is
unusual: no hook, no time limit, closed breakers, a new intent. ``open`` does everything before the tool, ``close``
everything after it succeeded. Whatever else happens goes through the pipeline: before the claim by handing the call
over, after it by :meth:`Core.resume`. Tests make the same calls both ways and compare what is left behind.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from antiphon import _scope
from antiphon._gateway import codec
from antiphon._gateway.call import Call
from antiphon._gateway.context import held
from antiphon._gateway.ids import uuid7
from antiphon._gateway.owner import owner_token
from antiphon._gateway.tool import Tool
from antiphon._gateway.turns import active_session, active_turn
from antiphon.contract._base import UNSET
from antiphon.contract.record import RecordedAttempt, RecordedRequest
from antiphon.decide.loop import ALLOW
from antiphon.errors import InvalidInput
from antiphon.ports import Ask, Final

if TYPE_CHECKING:
    from antiphon._gateway.core import Core

_new = tuple.__new__  # half the price of a named tuple's own constructor
_KEEP_BYTES = 512
"""Longer parameters are digested at once, so that records stay small."""
_MEMOS = 64
_NOBODY = ("default", "default", None)
_cursor = _scope._cursor.get
REUSED = -1
"""The ``version`` of a call that was answered from a record."""


class LateRequest(NamedTuple):
    """The request part of a claim record, made when somebody asks for the record."""

    session: str
    actor: str
    request_id: str
    canonical: bytes
    exact: bytes
    digested: bool
    """The two are digests already."""

    def __call__(self) -> RecordedRequest:
        if self.digested:
            digest, exact = self.canonical.decode(), self.exact.decode()
        else:
            digest = hashlib.sha256(self.canonical).hexdigest()
            exact = digest if self.exact is self.canonical else hashlib.sha256(self.exact).hexdigest()
        return RecordedRequest(
            session_key=self.session,
            actor_id=self.actor,
            request_id=self.request_id,
            params_digest=digest,
            identity=self.request_id,
            params_digest_exact=exact,
            tool_call_id=UNSET,
        )


class LateAttempt(NamedTuple):
    """The attempts part of a claim record: one success, made when somebody asks."""

    finished_ms: int
    took_ms: float

    def __call__(self) -> tuple[RecordedAttempt, ...]:
        began = self.finished_ms - int(self.took_ms)
        return (
            RecordedAttempt(started_at_ms=began, finished_at_ms=self.finished_ms, status="success", retriable=False),
        )


class Ticket:
    """What the straight way keeps of a call; :meth:`to_call` turns it into one that the pipeline can go on with."""

    __slots__ = (
        "answer",
        "guard",
        "idem_key",
        "journal",
        "key",
        "params",
        "permits",
        "place",
        "request_id",
        "started",
        "tool",
        "turn",
        "verdict",
        "version",
    )

    answer: Any
    guard: Any
    idem_key: str
    journal: Any
    key: str
    params: dict[str, Any]
    permits: list[tuple[Any, Any]]
    place: tuple[str, str, None]
    request_id: str
    started: float
    tool: Tool
    turn: Any
    verdict: Any
    version: int

    deadline = None
    lease = None

    def to_call(self) -> Call:
        """The same call, as the pipeline knows it."""
        tool, place = self.tool, self.place
        call = Call(tool, self.params, place[0], place[1], self.request_id)
        call.identity = self.request_id
        call.started = self.started
        call.reuse = "turn" if tool.reuse_default is None else tool.reuse_default
        call.key, call.idem_key = self.key, self.idem_key
        call.turn, call.guard, call.verdict = self.turn, self.guard, self.verdict
        call.permits, call.version = self.permits, self.version
        return call


class Express:
    """The straight way of one tool of one gateway."""

    __slots__ = (
        "_bind",
        "_budget",
        "_core",
        "_guards_on",
        "_idempotent",
        "_lease_ms",
        "_memos",
        "_monotonic",
        "_name",
        "_reuses",
        "_settings",
        "_spec",
        "_tail",
        "_tool",
        "_ttl_ms",
    )

    def __init__(self, core: Core, tool: Tool) -> None:
        self._core = core
        self._tool = tool
        self._name = tool.full_name
        self._budget = core.budget(tool)
        self._bind: Any = tool.quick_bind
        self._monotonic = core.clock.monotonic
        self._memos: dict[Any, dict[bytes, tuple[str, str]]] = {}
        """Keys of parameters seen before, for tools whose answers are reused."""
        self._prepare()

    def _prepare(self) -> None:
        """What the settings decide, read again when they have changed."""
        core, tool = self._core, self._tool
        self._settings = core.settings
        self._spec = tool.spec
        self._idempotent = tool.spec.idempotent
        self._ttl_ms, self._lease_ms = tool.ttl.done_ms, tool.ttl.lease_ms
        self._reuses = tool.spec.idempotent and tool.reuse_default == "session"
        self._guards_on = core.guards.policy.watches
        self._tail = (core.settings.tenant, core.settings.workspace, 0)

    def _usual(self, now: float) -> bool:
        """Whether nothing stands in the way that the pipeline would have to look at."""
        core = self._core
        switches = core.switches
        if core.hooks.active or switches.any_shadow or not (switches.derive_keys and switches.open_mode):
            return False
        if _scope._active or _cursor() is not None or held.get() is not None:
            return False
        if core.settings is not self._settings:
            self._prepare()
        return now < core.next_refresh and core.quiet

    def open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ticket | None:
        """A call that holds its claim (``version`` > 0), one for the pipeline (0), or ``None``: start over."""
        core, name = self._core, self._name
        now = self._monotonic()
        if not self._usual(now):
            return None
        permits: list[tuple[Any, Any]] = []
        for _, breaker in core.breakers.path(self._tool, "tool"):
            permit = breaker.pass_for_all
            if permit is None:
                return None
            permits.append((breaker, permit))
        ticket = Ticket()
        ticket.params = params = self._bind(*args, **kwargs)
        turn = active_turn.get()
        session = active_session.get() if turn is None else turn.session
        place = _NOBODY if session is None else session.place
        maker = self._tool.makers.get(place)
        if maker is None:
            return None
        memo = self._memo(place) if self._reuses else None
        try:
            key, idem_key, canonical, exact = maker.quick(params, memo)
        except InvalidInput:
            return None
        journal: Any = core.journal()
        if memo is not None and turn is None:
            kept = journal.done_now(key)
            if kept is not None:
                return self._reused(ticket, now, kept)
        request_id = uuid7()
        ticket.tool = self._tool
        ticket.place = place
        ticket.started = now
        ticket.request_id = request_id
        ticket.key = key
        ticket.idem_key = idem_key
        ticket.permits = permits
        ticket.turn = turn
        ticket.guard = ticket.verdict = None
        ticket.version = 0
        if turn is not None and not self._admitted(ticket, turn, now):
            return ticket
        long = len(canonical) > _KEEP_BYTES
        if long:
            digest = hashlib.sha256(canonical).hexdigest().encode()
            exact = digest if exact is canonical else hashlib.sha256(exact).hexdigest().encode()
            canonical = digest
        late = _new(LateRequest, (place[0], place[1], request_id, canonical, exact, long))
        ask = (key, request_id, name, idem_key, late, self._ttl_ms, self._lease_ms, owner_token(), *self._tail)
        ticket.journal = journal
        ticket.version = journal.begin_now(_new(Ask, ask))
        return ticket

    def _admitted(self, ticket: Ticket, turn: Any, now: float) -> bool:
        """What turn control and loop guard say; anything but a plain yes is for the pipeline."""
        if self._idempotent and (self._name, ticket.key) in turn.succeeded:
            return False
        guard = turn.session.known_guard
        if guard is None:
            return not self._guards_on
        spec = self._spec
        ticket.guard = guard
        ticket.verdict = verdict = guard.loop.check(self._name, ticket.key, now, poll=spec.poll, cost=spec.cost)
        return verdict is ALLOW

    def _memo(self, place: tuple[Any, ...]) -> dict[bytes, tuple[str, str]]:
        memo = self._memos.get(place)
        if memo is None:
            if len(self._memos) >= _MEMOS:
                self._memos.clear()
            memo = self._memos[place] = {}
        return memo

    def _reused(self, ticket: Ticket, now: float, kept: bytes) -> Ticket:
        """An answer that is kept for the session: no claim, no call."""
        ticket.version = REUSED
        ticket.answer = self._tool.decode(kept)
        metrics = self._core.telemetry.metrics
        if metrics is not None:
            metrics.hit(self._name, "done")
            metrics.call_ended(self._name, "success", self._spec.scope, (self._monotonic() - now) * 1000)
        return ticket

    def close(self, ticket: Ticket, value: Any) -> bool:
        """Note the success everywhere; ``False`` if the result needs the pipeline (too large, not serialisable)."""
        core, name = self._core, self._name
        try:
            payload = codec.encode(value)
        except codec.NotSerialisable:
            return False
        if len(payload) > core.keeper.payload_limit:
            return False
        now = self._monotonic()
        for breaker, permit in ticket.permits:
            breaker.success(permit, now)
        self._budget.success()
        took = (now - ticket.started) * 1000
        late = _new(LateAttempt, (time.time_ns() // 1_000_000, took))
        final = _new(Final, ("done", self._ttl_ms, payload, None, None, False, None, late, 1, True))
        key = ticket.key
        if ticket.journal.settle_now(key, ticket.version, final) is None:
            core.telemetry.fenced(ticket.to_call())
        turn = ticket.turn
        if turn is not None:
            turn.identities.add(ticket.request_id)
            turn.succeeded.setdefault((name, key), ticket.request_id)
            if ticket.guard is not None:
                ticket.guard.loop.record(name, key, payload, poll=self._spec.poll)
        metrics = core.telemetry.metrics
        if metrics is not None:
            metrics.call_ended(name, "success", self._spec.scope, took)
        return True

"""The straight way of a plain call: the steps of :meth:`Core.run` in two frames instead of fifty.

It is for decorated calls on a store that lives in this process, outside a run, while nobody listens and nothing is
unusual: no hook, no time limit, closed breakers, a new intent. ``open`` does everything before the tool, ``close``
everything after it succeeded. Whatever else happens goes through the pipeline: before the claim by handing the call
over, after it by :meth:`Core.resume`. Tests make the same calls both ways and compare what is left behind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from antiphon import _scope
from antiphon._gateway import codec, edge
from antiphon._gateway.call import Call, Outcome
from antiphon._gateway.context import held
from antiphon._gateway.ids import uuid7
from antiphon._gateway.owner import owner_token
from antiphon._gateway.settings import Settings
from antiphon._gateway.tool import Tool
from antiphon._gateway.turns import active_session, active_turn
from antiphon.contract._base import UNSET
from antiphon.contract.record import RecordedRequest
from antiphon.decide.breaker import Breaker, Permit
from antiphon.decide.loop import ALLOW
from antiphon.errors import InvalidInput
from antiphon.keys import KeyMaker
from antiphon.ports import Ask

if TYPE_CHECKING:
    from antiphon._gateway.core import Core

_KEEP_BYTES = 2048
"""Longer parameters are digested at once, so that records stay small."""
_FORMS_KEPT = 256
_NOBODY = ("default", "default", None)
_active_runs = _scope._active
_cursor = _scope._cursor.get
_held = held.get
_turn = active_turn.get
_session = active_session.get
REUSED = -1
"""The ``version`` of a call that was answered from a record."""
NOTHING: Any = object()
"""Stands for the result of a tool that has not returned one."""
Digests = tuple[str, str, str]
"""Idempotency key, digest of the normalised parameters, digest of the given ones."""


class Form:
    """What the claims of one tool, session and actor have in common; a record is made of it when somebody asks."""

    __slots__ = (
        "actor_json",
        "lease_ms",
        "maker",
        "owner",
        "session",
        "session_json",
        "tenant",
        "tool",
        "ttl_ms",
        "workspace",
    )

    def __init__(self, tool: Tool, maker: KeyMaker, settings: Settings, owner: str) -> None:
        self.tool = tool.full_name
        self.maker = maker
        self.session, actor = maker.place
        self.session_json, self.actor_json = orjson.dumps(self.session), orjson.dumps(actor)
        self.ttl_ms, self.lease_ms = tool.ttl.done_ms, tool.ttl.lease_ms
        self.tenant, self.workspace = settings.tenant, settings.workspace
        self.owner = owner

    def ask(self, key: str, identity: str, material: bytes | Digests) -> Ask:
        """The whole request for the claim; *material* is what the key was made of, or digests of it."""
        session, actor = self.maker.place
        if isinstance(material, bytes):
            idem_key = self.maker.key_of(material)
            digest = exact = hashlib.sha256(self.maker.params_of(material)).hexdigest()
        else:
            idem_key, digest, exact = material
        request = RecordedRequest(
            session_key=session,
            actor_id=actor,
            request_id=identity,
            params_digest=digest,
            identity=identity,
            params_digest_exact=exact,
            tool_call_id=UNSET,
        )
        who = (key, identity, self.tool, idem_key, request)
        return Ask(*who, self.ttl_ms, self.lease_ms, self.owner, self.tenant, self.workspace)


class Ticket:
    """What the straight way keeps of a call; :meth:`to_call` turns it into one that the pipeline can go on with."""

    __slots__ = (
        "answer",
        "guard",
        "idem_key",
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
    key: str
    params: dict[str, Any]
    permits: list[tuple[Breaker, Permit]]
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
        "_begin",
        "_bind",
        "_breaker_changes",
        "_breakers",
        "_budget",
        "_core",
        "_done",
        "_forms",
        "_guards_on",
        "_idempotent",
        "_lease_ms",
        "_monotonic",
        "_name",
        "_plain",
        "_reuses",
        "_settings",
        "_spec",
        "_succeed",
        "_tail",
        "_tally",
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
        self._breakers: tuple[Breaker, ...] = ()
        self._breaker_changes = -1
        self._forms: dict[Any, Form] = {}
        if core.in_process:  # asked without waiting, so that one view of it does for all threads and event loops
            store: Any = core.store.open_sync()
            self._begin, self._succeed, self._done = store.claim_now, store.succeed_now, store.done_now
        self._prepare()

    def _prepare(self) -> None:
        """What the settings decide, read again when they have changed."""
        core, tool = self._core, self._tool
        self._settings = core.settings
        self._spec = spec = tool.spec
        self._idempotent = spec.idempotent
        self._plain = not spec.poll and not spec.cost
        """Whether the loop guard has nothing to know but the call."""
        self._ttl_ms, self._lease_ms = tool.ttl.done_ms, tool.ttl.lease_ms
        self._reuses = spec.idempotent and tool.reuse_default == "session"
        self._guards_on = core.guards.policy.watches
        self._tail = (core.settings.tenant, core.settings.workspace, 0)
        self._forms.clear()
        self._tally: Callable[[float], None] | None = None
        """Counts a success, once there has been one."""

    def _usual(self, now: float) -> bool:
        """Whether no run is open, and nothing stands in the way that the pipeline would have to look at."""
        return not _active_runs and _cursor() is None and self._unhindered(now)

    def _unhindered(self, now: float) -> bool:
        """No hook, no shadow, no call around this one, nothing switched off, nobody listening, nothing due."""
        core = self._core
        switches = core.switches
        if core.hooks.active or switches.any_shadow or not (switches.derive_keys and switches.open_mode):
            return False
        if _held() is not None:
            return False
        if core.settings is not self._settings:
            self._prepare()
        return now < core.next_refresh and core.quiet

    def _permits(self) -> list[tuple[Breaker, Permit]] | None:
        """Leave of all breakers on the way, or ``None`` if one has to be asked."""
        breakers = self._core.breakers
        if breakers.changes != self._breaker_changes:
            self._breaker_changes = breakers.changes
            self._breakers = tuple(breaker for _, breaker in breakers.path(self._tool, "tool"))
        permits = []
        for breaker in self._breakers:
            permit = breaker.pass_for_all
            if permit is None:
                return None
            permits.append((breaker, permit))
        return permits

    def open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ticket | None:
        """A call that holds its claim (``version`` > 0), one for the pipeline (0), or ``None``: start over."""
        now = self._monotonic()
        if not self._usual(now):
            return None
        permits = self._permits()
        if permits is None:
            return None
        params = self._bind(*args, **kwargs)
        turn = _turn()
        session = _session() if turn is None else turn.session
        place = _NOBODY if session is None else session.place
        form = self._forms.get(place) or self._form(place)
        if form is None:
            return None
        reuses = self._reuses and turn is None
        try:
            key, idem_key, material, exact = form.maker.quick(params, reuses)
        except InvalidInput:
            return None
        ticket = Ticket()
        if reuses:
            kept = self._done(key)
            if kept is not None:
                return self._reused(ticket, now, kept)
        ticket.tool = self._tool
        ticket.params = params
        ticket.place = place
        ticket.started = now
        ticket.request_id = request_id = uuid7()
        ticket.key = key
        ticket.idem_key = idem_key
        ticket.permits = permits
        ticket.turn = turn
        ticket.guard = ticket.verdict = None
        if turn is not None and not self._admitted(ticket, turn, now):
            ticket.version = 0
            return ticket
        if form.owner is not owner_token():
            form = self._own_form(place)
        if exact is None and len(material) <= _KEEP_BYTES:
            ticket.version = self._begin(key, request_id, form, material)
        else:
            ticket.version = self._begin(key, request_id, form, _digests(form.maker, idem_key, material, exact))
        return ticket

    def _form(self, place: tuple[str, str, None]) -> Form | None:
        """``None`` for a session that has no keys prepared yet: the pipeline does that."""
        maker = self._tool.makers.get(place)
        if maker is None:
            return None
        if len(self._forms) >= _FORMS_KEPT:
            self._forms.clear()
        form = self._forms[place] = Form(self._tool, maker, self._settings, owner_token())
        return form

    def _own_form(self, place: tuple[str, str, None]) -> Form:
        """The form of a place whose keys are prepared, in the name of this process: a forked child makes its own."""
        form = self._forms.get(place)
        if form is None or form.owner is not owner_token():
            if form is not None:
                self._forms.clear()
            form = self._form(place)
            assert form is not None
        return form

    def _admitted(self, ticket: Ticket, turn: Any, now: float) -> bool:
        """What turn control and loop guard say; anything but a plain yes is for the pipeline."""
        call = (self._name, ticket.key)
        if self._idempotent and call in turn.succeeded:
            return False
        guard = turn.session.known_guard
        if guard is None:
            return not self._guards_on
        ticket.guard = guard
        if self._plain and guard.loop.is_new(call):
            ticket.verdict = ALLOW
            return True
        spec = self._spec
        ticket.verdict = verdict = guard.loop.check(*call, now, poll=spec.poll, cost=spec.cost)
        return verdict is ALLOW

    def _reused(self, ticket: Ticket, now: float, kept: bytes) -> Ticket:
        """An answer that is kept for the session: no claim, no call."""
        ticket.version = REUSED
        ticket.answer = self._tool.decode(kept)
        metrics = self._core.telemetry.metrics
        if metrics is not None:
            metrics.hit(self._name, "done")
            (self._tally or self._bind_tally())((self._monotonic() - now) * 1000)
        return ticket

    def _bind_tally(self) -> Callable[[float], None]:
        """What counts a success of this tool."""
        metrics: Any = self._core.telemetry.metrics
        if metrics is None:
            self._tally = _uncounted
        else:
            bound = getattr(metrics, "bound", None) or partial(partial, metrics.call_ended)
            self._tally = bound(self._name, "success", self._spec.scope)
        return self._tally

    def close(self, ticket: Ticket, value: Any) -> bool:
        """Note the success everywhere; ``False`` if the result needs the pipeline (too large, not serialisable)."""
        try:
            payload = codec.encode(value)
        except codec.NotSerialisable:
            return False
        if len(payload) > self._core.keeper.payload_limit:
            return False
        now = self._monotonic()
        for breaker, permit in ticket.permits:
            breaker.success(permit, now)
        self._budget.success()
        took = (now - ticket.started) * 1000
        key = ticket.key
        if self._succeed(key, ticket.version, payload, took) is None:
            self._core.telemetry.fenced(ticket.to_call())
        turn = ticket.turn
        if turn is not None:
            self._remember(ticket, turn, payload)
        (self._tally or self._bind_tally())(took)
        return True

    async def broke_off(self, ticket: Ticket, value: Any, error: BaseException) -> Any:
        """The tool raised, and the pipeline decides what follows; or it had returned, and an interrupt came then."""
        held.set(None)
        core = self._core
        if value is NOTHING:
            call = core.carry_on(ticket)
            return edge.unwrap(call, await core.resume(call, error))
        core.renewer.release(ticket)
        await self._interrupted(ticket, value, self._monotonic(), error)
        raise error

    async def _interrupted(self, ticket: Ticket, value: Any, now: float, interrupt: BaseException) -> None:
        """The call has succeeded, and the writing of it was interrupted."""
        core, call = self._core, ticket.to_call()
        core.complete(call)
        core.attempts.note(call, call.started, now)
        call.outcome = Outcome("success", value, 1)
        await core.interrupted(call, None, interrupt)

    def _remember(self, ticket: Ticket, turn: Any, payload: bytes) -> None:
        """Turn control and loop guard learn of a success."""
        call, request_id = (self._name, ticket.key), ticket.request_id
        turn.identities.add(request_id)
        turn.succeeded.setdefault(call, request_id)
        if ticket.guard is not None:
            if self._plain:
                ticket.guard.loop.succeeded(call, payload)
            else:
                ticket.guard.loop.record(*call, payload, poll=self._spec.poll)


def _digests(maker: KeyMaker, idem_key: str, material: bytes, exact: bytes | None) -> Digests:
    """For parameters that are long, or were not in their normal form."""
    digest = hashlib.sha256(maker.params_of(material)).hexdigest()
    return idem_key, digest, digest if exact is None else hashlib.sha256(exact).hexdigest()


def _uncounted(duration_ms: float) -> None:
    """Nobody counts."""

"""The straight way of a plain call whose store is elsewhere: SQLite, Redis, PostgreSQL.

The same idea and the same conditions as in ``express``; only the store has to be awaited, so this is one coroutine
that both faces run. The pipeline takes over with what the store has said already (``Call.first``) as soon as anything
is unusual: a record that is there, a store that fails, a tool that raises, a result that needs more than to be kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from antiphon._drive import drive
from antiphon._gateway import codec, edge, settling
from antiphon._gateway.call import Call
from antiphon._gateway.context import held
from antiphon._gateway.express import NOTHING, Express, Form, Ticket
from antiphon._gateway.ids import uuid7
from antiphon._gateway.owner import owner_token
from antiphon._gateway.tool import Tool
from antiphon._gateway.turns import active_session, active_turn
from antiphon.contract._base import UNSET
from antiphon.contract.record import RecordedAttempt, RecordedRequest
from antiphon.decide.claim import Claimant, Reuse, decide
from antiphon.errors import InvalidInput, StoreError
from antiphon.keys import CallKeys
from antiphon.ports import Ask, Claimed, Existing, Final, Row

if TYPE_CHECKING:
    from antiphon._gateway.core import Core

_new = tuple.__new__  # half the price of a named tuple's own constructor
_NOBODY = ("default", "default", None)


class Asker(Ticket):
    """A ticket with all keys of its call, and what the store answered first."""

    __slots__ = ("begun", "first", "form", "identity", "keys", "text")

    begun: bool
    """Whether it has had its claim, and its start is written."""
    first: Any
    form: Form
    identity: str
    keys: CallKeys
    text: bytes
    """The canonical form of the parameters."""

    def to_call(self) -> Call:
        call = super().to_call()
        call.first, call.identity = self.first, self.identity
        call.digest, call.exact, call.fingerprint = self.keys[2:]
        return call


class Straight(Express):
    """The straight way of one tool of one gateway."""

    __slots__ = ("_asynchronous", "_function")

    inside = False
    """Whether calls are made inside a run, and what that adds has to be done."""

    def __init__(self, core: Core, tool: Tool) -> None:
        super().__init__(core, tool)
        self._function: Callable[..., Any] = tool.function
        self._asynchronous = core.asynchronous

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asker | None:
        """A call that may ask for its claim, or ``None``: it is one for the pipeline."""
        now = self._monotonic()
        if not self._usual(now):
            return None
        ticket = Asker()
        return ticket if self._fill(ticket, now, args, kwargs) else None

    def _fill(self, ticket: Asker, now: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Write down all that is known of a call before the store is asked; ``False``: it is one for the pipeline."""
        permits = self._permits()
        if permits is None:
            return False
        turn = active_turn.get()
        session = active_session.get() if turn is None else turn.session
        place = _NOBODY if session is None else session.place
        form = self._forms.get(place) or self._form(place)
        if form is None:
            return False
        ticket.form = form
        ticket.params = params = self._bind(*args, **kwargs)
        try:
            ticket.keys, ticket.text = keys, _ = form.maker.keys_and_text(params)
        except InvalidInput:
            return False
        ticket.tool = self._tool
        ticket.place = place
        ticket.started = now
        ticket.request_id = ticket.identity = uuid7()
        ticket.key, ticket.idem_key = keys[0], keys[1]
        ticket.permits = permits
        ticket.turn = turn
        ticket.guard = ticket.verdict = ticket.first = None
        ticket.version = 0
        ticket.begun = False
        return True

    def run(self, ticket: Any) -> Any:
        """:meth:`call` for a store that a blocking caller asks without a coroutine, as long as nothing is unusual."""
        core = self._core
        journal: Any = core.journal()
        if not hasattr(journal, "start_now"):
            return drive(self.call(ticket))
        if not self._admits(ticket):
            return drive(self._hand_over(ticket, None))
        form, inside = ticket.form, self.inside
        if form.owner is not owner_token():
            form = self._own_form(ticket.place)
        events = self._started(ticket) if inside else ()
        try:
            version = journal.start_now(form, ticket.keys, ticket.identity, ticket.request_id, events)
        except StoreError as error:
            return drive(self._hand_over(ticket, error))
        except BaseException as interrupt:
            drive(core.interrupted(ticket.to_call(), None, interrupt))
            raise
        if not version:
            return drive(self._claim(ticket, journal, events))
        ticket.version = version
        ticket.begun = True
        if self._monotonic() - ticket.started > self._tool.renew_every:
            return drive(self._start_over(ticket))
        value: Any = NOTHING
        outside = None
        try:
            core.renewer.hold(ticket)
            token = held.set((ticket.key, None))
            if inside:
                outside = self._go_inside(ticket)
            value = self._function(**ticket.params)
            if inside:
                self._come_back(outside)
            held.reset(token)
            core.renewer.release(ticket)
            now = self._monotonic()
            payload = self._payload(value)
            times = self._times(ticket, now)
        except BaseException as error:
            return drive(self._broke_off(ticket, value, outside, error))
        if payload is None:
            return drive(self._finish(ticket, value))
        try:
            events = self._ended(ticket, value, payload, now) if inside else ()
            settled = journal.finish_now(ticket.key, version, self._ttl_ms, payload, times, events)
        except StoreError:
            return drive(self._finish(ticket, value))
        except BaseException as interrupt:
            drive(self._interrupted(ticket, value, now, interrupt))
            raise
        if settled is None:
            return drive(self._settle(ticket, value, payload, now, journal, events))
        self._noted(ticket, payload, settled)
        return value

    async def call(self, ticket: Any) -> Any:
        """Claim, call and settle; what a decorated function returns or raises."""
        if not self._admits(ticket):
            return await self._hand_over(ticket, None)
        return await self._claim(ticket, self._core.journal(), self._started(ticket))

    async def _claim(self, ticket: Any, journal: Any, events: Sequence[Row]) -> Any:
        core, ask = self._core, self._ask(ticket)
        try:
            if not self._asynchronous and hasattr(journal, "begin_now"):
                got = journal.begin_now(ask, events)
            else:
                got = await journal.begin(ask, events)
        except StoreError as error:
            return await self._hand_over(ticket, error)
        except BaseException as interrupt:
            await core.interrupted(ticket.to_call(), None, interrupt)
            raise
        if not isinstance(got, Claimed):
            kept = self._kept_answer(ticket, got) if self._reuses and ticket.turn is None else None
            return await self._hand_over(ticket, got) if kept is None else kept[0]
        ticket.version = got[0]
        ticket.begun = True
        if self._monotonic() - ticket.started > self._tool.renew_every:
            return await self._start_over(ticket)
        value: Any = NOTHING
        outside = None
        try:
            core.renewer.hold(ticket)
            token = held.set((ticket.key, None))
            outside = self._go_inside(ticket)
            answer = self._function(**ticket.params)
            value = await answer if self._asynchronous else answer
            self._come_back(outside)
            held.reset(token)
            core.renewer.release(ticket)
            now = self._monotonic()
            payload = self._payload(value)
        except BaseException as error:
            return await self._broke_off(ticket, value, outside, error)
        if payload is None:
            return await self._finish(ticket, value)
        return await self._settle(ticket, value, payload, now, journal, self._ended(ticket, value, payload, now))

    async def _settle(
        self, ticket: Any, value: Any, payload: bytes, now: float, journal: Any, events: Sequence[Row]
    ) -> Any:
        began, ended = self._times(ticket, now)
        attempt = RecordedAttempt(started_at_ms=began, finished_at_ms=ended, status="success", retriable=False)
        final: Final = _new(Final, ("done", self._ttl_ms, payload, None, None, False, None, (attempt,), 1, True))
        end = (ticket.key, ticket.version, final, events)
        try:
            if not self._asynchronous and hasattr(journal, "settle_now"):
                settled = journal.settle_now(*end)
            else:
                settled = await journal.settle(*end)
        except StoreError:
            return await self._finish(ticket, value)
        except BaseException as interrupt:
            await self._interrupted(ticket, value, now, interrupt)
            raise
        self._noted(ticket, payload, settled)
        return value

    # -- what a run adds -----------------------------------------------------------------------------------------

    def _admits(self, ticket: Any) -> bool:
        return ticket.turn is None or self._admitted(ticket, ticket.turn, ticket.started)

    def _started(self, ticket: Any) -> Sequence[Row]:
        """What is written with the claim."""
        return ()

    def _go_inside(self, ticket: Any) -> Any:
        """Calls that the tool makes are made inside this one; what undoes that."""
        return None

    def _come_back(self, outside: Any) -> None:
        """Undo :meth:`_go_inside`."""

    def _ended(self, ticket: Any, value: Any, payload: bytes, now: float) -> Sequence[Row]:
        """What is written with the outcome."""
        return ()

    # -- the parts -----------------------------------------------------------------------------------------------

    def _ask(self, ticket: Asker) -> Ask:
        session, actor, _ = ticket.place
        keys, identity = ticket.keys, ticket.identity
        request = RecordedRequest(
            session_key=session,
            actor_id=actor,
            request_id=ticket.request_id,
            params_digest=keys[2],
            identity=identity,
            params_digest_exact=keys[3],
            tool_call_id=UNSET,
        )
        who = (keys[0], identity, self._name, keys[1], request)
        ask: Ask = _new(Ask, (*who, self._ttl_ms, self._lease_ms, owner_token(), *self._tail))
        return ask

    def _kept_answer(self, ticket: Asker, got: Existing) -> tuple[Any] | None:
        """The result of an equal call that is kept for the session, where the rules say to reuse it."""
        keys = ticket.keys
        decision = decide(got, Claimant(ticket.request_id, keys[2], True, False, False, "session", 0))
        if not isinstance(decision, Reuse) or decision.matched_on != "completed":
            return None
        record = decision.record
        if record.state != "done" or record.payload is UNSET or record.output_redacted is True:
            return None
        try:
            value = self._tool.decode(bytes(record.payload))
        except ValueError:  # the declared type has changed since
            return None
        metrics = self._core.telemetry.metrics
        if metrics is not None:
            metrics.hit(self._name, "done")
            took = (self._monotonic() - ticket.started) * 1000
            metrics.call_ended(self._name, "success", self._spec.scope, took)
        return (value,)

    def _payload(self, value: Any) -> bytes | None:
        """The result as the record keeps it, unless it is large, secret or not serialisable."""
        keeper = self._core.keeper
        try:
            payload = codec.encode(value)
        except codec.NotSerialisable:
            return None
        if len(payload) > keeper.payload_limit:
            return None
        if keeper.redactor is not None and keeper.redactor.redact_bytes(payload)[1]:
            return None
        return payload

    def _times(self, ticket: Asker, now: float) -> tuple[int, int]:
        """When a call that has just ended began, and when it ended."""
        ended = time.time_ns() // 1_000_000
        return ended - int((now - ticket.started) * 1000), ended

    def _noted(self, ticket: Asker, payload: bytes, version: int | None) -> None:
        """Note the success everywhere."""
        name = self._name
        now = self._monotonic()
        for breaker, permit in ticket.permits:
            breaker.success(permit, now)
        self._budget.success()
        if version is None:
            self._core.telemetry.fenced(ticket.to_call())
        turn = ticket.turn
        if turn is not None:
            turn.identities.add(ticket.request_id)
            turn.succeeded.setdefault((name, ticket.key), ticket.request_id)
        if ticket.guard is not None:
            ticket.guard.loop.record(name, ticket.key, payload, poll=self._spec.poll)
        (self._tally or self._bind_tally())((now - ticket.started) * 1000)

    async def _broke_off(self, ticket: Asker, value: Any, outside: Any, error: BaseException) -> Any:
        if outside is not None:
            with suppress(RuntimeError):  # it had come back already
                self._come_back(outside)
        return await self.broke_off(ticket, value, error)

    async def _finish(self, ticket: Asker, value: Any) -> Any:
        call = self._core.carry_on(ticket)
        return edge.unwrap(call, await self._core.finish_plain(call, value))

    async def _hand_over(self, ticket: Asker, first: Any) -> Any:
        ticket.first = first
        call = ticket.to_call()
        return edge.unwrap(call, await self._core.run(call))

    async def _start_over(self, ticket: Asker) -> Any:
        """This worker was away since it asked: the claim may be another's by now, so it is given back first."""
        call = ticket.to_call()
        await settling.write(self._core, call, settling.not_dispatched(call), None)
        ticket.version = 0
        return await self._hand_over(ticket, None)

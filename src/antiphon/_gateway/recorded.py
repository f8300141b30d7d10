"""The straight way of a plain call inside a run: claim and start event in one step, outcome and end event in another.

As ``straight``, for whatever store holds both the claims and the log. What the pipeline would write is written here,
byte for byte apart from times and ids (by test); anything unusual is handed over to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from antiphon import _scope
from antiphon._gateway import edge, record
from antiphon._gateway.call import Call, Outcome
from antiphon._gateway.context import held
from antiphon._gateway.guards import Guard
from antiphon._gateway.ids import uuid7
from antiphon._gateway.owner import owner_token
from antiphon._gateway.straight import Asker, Straight
from antiphon._gateway.turns import active_session, active_turn
from antiphon._scope import RunScope, Site
from antiphon.contract._base import UNSET
from antiphon.contract.record import RecordedRequest
from antiphon.decide.loop import ALLOW
from antiphon.errors import InvalidInput, StoreError
from antiphon.ports import Ask, Claimed, Final, Row

_new = tuple.__new__
_cursor = _scope._cursor
_SMALL = 16_384
"""Longer arguments and results take the way on which they may be spilled."""
_NOBODY = ("default", "default", None)


class RunAsker(Asker):
    """A ticket of a call in a run: its place there, and its parameters as they may be written."""

    __slots__ = ("identity", "recorded", "scope", "shown", "site")

    identity: str
    recorded: bool
    scope: RunScope
    shown: tuple[bytes, str, bool]
    site: Site

    def to_call(self) -> Call:
        call = super().to_call()
        call.identity = self.identity
        call.scope, call.site = self.scope, self.site
        data, call.log_digest, call.redacted = self.shown
        call.log_params = orjson.loads(data) if call.redacted else self.params
        call.recorded = self.recorded
        return call


class Recorded(Straight):
    """The straight way of one tool of one gateway, inside runs."""

    __slots__ = ("_head", "_meta")

    def _prepare(self) -> None:
        super()._prepare()
        spec = self._spec
        head = {"kind": "tool", "name": spec.name, "namespace": spec.namespace}
        self._head = orjson.dumps(head)[:-1] + b',"arguments":'
        meta: dict[str, Any] = {"idempotent": spec.idempotent}
        if spec.effect is not None:
            meta["effect"] = spec.effect
        self._meta = orjson.dumps(meta)[1:]

    def _plain_run(self, now: float) -> RunScope | None:
        """The run of this context, if it is live and nothing stands in the way."""
        cursor = _cursor.get()
        if cursor is None:
            return None
        scope, core = cursor[0], self._core
        switches = core.switches
        if scope.invoker is not None or scope.sink is None or core.hooks.active or switches.any_shadow:
            return None
        if not (switches.derive_keys and switches.open_mode) or held.get() is not None:
            return None
        if core.settings is not self._settings:
            self._prepare()
        if now >= core.next_refresh or not core.quiet or not record.same_store(core, scope):
            return None
        return scope

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RunAsker | None:
        """A call that may ask for its claim, or ``None``: it is one for the pipeline."""
        core, tool = self._core, self._tool
        now = self._monotonic()
        scope = self._plain_run(now)
        if scope is None:
            return None
        permits: list[tuple[Any, Any]] = []
        for _, breaker in core.breakers.path(tool, "tool"):
            permit = breaker.pass_for_all
            if permit is None:
                return None
            permits.append((breaker, permit))
        turn = active_turn.get()
        session = active_session.get() if turn is None else turn.session
        place = _NOBODY if session is None else session.place
        maker = tool.makers.get(place)
        if maker is None:
            return None
        params = self._bind(*args, **kwargs)
        try:
            keys = maker.keys(params)
        except InvalidInput:
            return None
        shown = scope.shown(params, keys[3])
        if len(shown[0]) > _SMALL:
            return None
        ticket = RunAsker()
        ticket.tool = tool
        ticket.params = params
        ticket.place = place
        ticket.started = now
        ticket.request_id = uuid7()
        ticket.keys = keys
        ticket.key, ticket.idem_key = keys[0], keys[1]
        ticket.permits = permits
        ticket.turn = turn
        ticket.guard = ticket.verdict = ticket.first = None
        ticket.version = 0
        ticket.recorded = False
        ticket.scope = scope
        ticket.shown = shown
        digest = shown[1]
        ticket.site = site = scope.enter(self._name, digest)
        ticket.identity = record.identity_of(scope, site, self._name, digest)
        return ticket

    def _admitted(self, ticket: RunAsker, turn: Any, now: float) -> bool:  # type: ignore[override]
        """What turn control and loop guard say; anything but a plain yes is for the pipeline."""
        if turn is not None and self._idempotent and (self._name, ticket.key) in turn.succeeded:
            return False
        guards = self._core.guards
        if not guards.policy.watches:
            return True
        state = ticket.scope.gateway_state
        guard: Guard | None = state.get("loop")
        if guard is None:
            guard = state["loop"] = Guard(guards.policy, now)
        spec = self._spec
        ticket.guard = guard
        ticket.verdict = verdict = guard.loop.check(self._name, ticket.key, now, poll=spec.poll, cost=spec.cost)
        return verdict is ALLOW

    async def call(self, ticket: RunAsker) -> Any:  # type: ignore[override]
        """Claim, call and settle; what a decorated function returns or raises."""
        core, scope = self._core, ticket.scope
        if not self._admitted(ticket, ticket.turn, ticket.started):
            return await self._hand_over(ticket, None)
        journal: Any = core.journal()
        at_once = not self._asynchronous and hasattr(journal, "settle_now")
        try:
            ask, events = self._ask(ticket), (self._started(ticket),)
            got = journal.begin_now(ask, events) if at_once else await journal.begin(ask, events)
        except StoreError as error:
            return await self._hand_over(ticket, error)
        except BaseException as interrupt:
            await core.interrupted(ticket.to_call(), None, interrupt)
            raise
        if not isinstance(got, Claimed):
            return await self._hand_over(ticket, got)
        ticket.version = got[0]
        ticket.recorded = True
        if self._monotonic() - ticket.started > self._tool.renew_every:
            return await self._start_over(ticket)
        core.renewer.hold(ticket)
        token = held.set((ticket.key, None))
        outside = scope.go_inside(ticket.site[3])
        try:
            value = self._function(**ticket.params)
            if self._asynchronous:
                value = await value
        except BaseException as error:
            _cursor.reset(outside)
            held.reset(token)
            call = core.carry_on(ticket)
            return edge.unwrap(call, await core.resume(call, error))
        _cursor.reset(outside)
        held.reset(token)
        core.renewer.release(ticket)
        now = self._monotonic()
        final = self._final(ticket, value, now)
        try:
            if final is None:
                return await self._finish(ticket, value)
            end = (ticket.key, ticket.version, final, self._ended(ticket, value, final, now))
            version = journal.settle_now(*end) if at_once else await journal.settle(*end)
            self._noted(ticket, final, version)
        except StoreError:
            return await self._finish(ticket, value)
        except BaseException as interrupt:
            call = ticket.to_call()
            core.attempts.note(call, call.started, now)
            call.outcome = Outcome("success", value, 1)
            await core.interrupted(call, None, interrupt)
            raise
        return value

    def _ask(self, ticket: RunAsker) -> Ask:  # type: ignore[override]
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

    def _started(self, ticket: RunAsker) -> Row:
        data, digest, redacted = ticket.shown
        end = b',"keyOf":"redacted"}' if redacted else b"}"
        payload = b'%b%b,"digest":"%b","nth":%d%b' % (self._head, data, digest.encode(), ticket.site[2], end)
        ids = (ticket.request_id.encode(), ticket.keys[4].encode(), self._meta)
        return ticket.scope.compose(
            "call.started", ticket.site, payload, b'{"requestId":"%b","keyFingerprint":"%b",%b' % ids
        )

    def _ended(self, ticket: RunAsker, value: Any, final: Final, now: float) -> Sequence[Row]:
        """The outcome event of a success; what the record keeps of it has been looked at for secrets already."""
        took = round((now - ticket.started) * 1000, 3)
        scope, kept = ticket.scope, final.payload
        if self._core.keeper.redactor is None or kept is None or len(kept) > _SMALL:
            meta = {"status": "success", "attempts": 1, "durationMs": took}
            return (scope.encode("call.finished", ticket.site, {"outcome": "ok", "value": value}, meta),)
        payload = b'{"outcome":"ok","value":%b}' % kept
        ended = b'{"status":"success","attempts":1,"durationMs":%b}' % orjson.dumps(took)
        return (scope.compose("call.finished", ticket.site, payload, ended),)

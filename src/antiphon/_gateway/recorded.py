"""The straight way of a plain call inside a run: claim and start event in one step, outcome and end event in another.

As ``straight``, for whatever store holds both the claims and the log. What the pipeline would write is written here,
byte for byte apart from times and ids (by test); anything unusual is handed over to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from antiphon import _scope
from antiphon._gateway import record
from antiphon._gateway.call import Call
from antiphon._gateway.guards import Guard
from antiphon._gateway.straight import Asker, Straight
from antiphon._gateway.tool import Tool
from antiphon._scope import RunScope, Site
from antiphon.decide.loop import ALLOW
from antiphon.ports import Existing, Row

if TYPE_CHECKING:
    from antiphon._gateway.core import Core

_cursor = _scope._cursor
_SMALL = 16_384
"""Longer arguments and results take the way on which they may be spilled."""


class RunAsker(Asker):
    """A ticket of a call in a run: its place there, and its parameters as they may be written."""

    __slots__ = ("scope", "shown", "site")

    scope: RunScope
    shown: tuple[bytes, str, bool]
    site: Site

    def to_call(self) -> Call:
        call = super().to_call()
        call.scope, call.site = self.scope, self.site
        data, call.log_digest, call.redacted = self.shown
        call.log_params = orjson.loads(data) if call.redacted else self.params
        call.recorded = self.begun
        return call


class Recorded(Straight):
    """The straight way of one tool of one gateway, inside runs."""

    __slots__ = ("_head", "_meta")

    inside = True

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
        scope = cursor[0]
        if scope.invoker is not None or scope.sink is None or not self._unhindered(now):
            return None
        return scope if record.same_store(self._core, scope) else None

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RunAsker | None:
        """A call that may ask for its claim, or ``None``: it is one for the pipeline."""
        now = self._monotonic()
        scope = self._plain_run(now)
        if scope is None:
            return None
        ticket = RunAsker()
        if not self._fill(ticket, now, args, kwargs):
            return None
        ticket.shown = shown = scope.shown(ticket.params, ticket.keys[3], ticket.text)
        if len(shown[0]) > _SMALL:
            return None
        ticket.scope = scope
        ticket.site = site = scope.enter(self._name, shown[1])
        ticket.identity = record.identity_of(scope, site, self._name, shown[1])
        return ticket

    def _admits(self, ticket: RunAsker) -> bool:
        """What turn control and loop guard say; anything but a plain yes is for the pipeline."""
        turn = ticket.turn
        if turn is not None and self._idempotent and (self._name, ticket.key) in turn.succeeded:
            return False
        policy, now = self._core.guards.policy, ticket.started
        if not policy.watches:
            return True
        state = ticket.scope.gateway_state
        guard: Guard | None = state.get("loop")
        if guard is None:
            guard = state["loop"] = Guard(policy, now)
        spec = self._spec
        ticket.guard = guard
        ticket.verdict = verdict = guard.loop.check(self._name, ticket.key, now, poll=spec.poll, cost=spec.cost)
        return verdict is ALLOW

    def _kept_answer(self, ticket: Asker, got: Existing) -> None:
        """None of its own: an answer that is given again leaves a decision in the log, which the pipeline writes."""

    def _go_inside(self, ticket: RunAsker) -> Any:
        return ticket.scope.go_inside(ticket.site[3])

    def _come_back(self, outside: Any) -> None:
        _cursor.reset(outside)

    def _started(self, ticket: RunAsker) -> Sequence[Row]:
        data, digest, redacted = ticket.shown
        end = b',"keyOf":"redacted"}' if redacted else b"}"
        payload = b'%b%b,"digest":"%b","nth":%d%b' % (self._head, data, digest.encode(), ticket.site[2], end)
        ids = (ticket.request_id.encode(), ticket.keys[4].encode(), self._meta)
        meta = b'{"requestId":"%b","keyFingerprint":"%b",%b' % ids
        return (ticket.scope.compose("call.started", ticket.site, payload, meta),)

    def _ended(self, ticket: RunAsker, value: Any, payload: bytes, now: float) -> Sequence[Row]:
        """The outcome event of a success; what the record keeps of it has been looked at for secrets already."""
        took = round((now - ticket.started) * 1000, 3)
        scope = ticket.scope
        if self._core.keeper.redactor is None or len(payload) > _SMALL:
            meta = {"status": "success", "attempts": 1, "durationMs": took}
            kept = {"outcome": "ok", "value": orjson.Fragment(payload)}
            return (scope.encode("call.finished", ticket.site, kept, meta),)
        ended = b'{"status":"success","attempts":1,"durationMs":%b}' % orjson.dumps(took)
        return (scope.compose("call.finished", ticket.site, b'{"outcome":"ok","value":%b}' % payload, ended),)


def ways(core: Core, tool: Tool) -> tuple[Straight, Straight]:
    """The straight ways of a call outside of runs and inside; outside, a store of this process has ``express``."""
    inside = Recorded(core, tool)
    return inside if core.in_process else Straight(core, tool), inside

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


class Express:
    """The straight way of one tool of one gateway."""

    __slots__ = ("_budget", "_core", "_memos", "_reuses", "_tool")

    def __init__(self, core: Core, tool: Tool) -> None:
        self._core = core
        self._tool = tool
        self._budget = core.budget(tool)
        self._reuses = tool.spec.idempotent and tool.spec.reuse == "session"
        self._memos: dict[Any, dict[bytes, tuple[str, str]]] = {}
        """Keys of parameters seen before, for tools whose answers are reused."""

    def _usual(self, now: float) -> bool:
        """Whether nothing stands in the way that the pipeline would have to look at."""
        core = self._core
        switches = core.switches
        if core.hooks.active or switches.any_shadow or not (switches.derive_keys and switches.open_mode):
            return False
        if _scope._active or _scope._cursor.get() is not None or held.get() is not None:
            return False
        return now < core.next_refresh and core.quiet

    def open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """A call that holds its claim (``version`` set), one for the pipeline (not set), or ``None``: start over."""
        core, tool = self._core, self._tool
        now = core.clock.monotonic()
        if not self._usual(now):
            return None
        assert tool.quick_bind is not None
        params = tool.quick_bind(*args, **kwargs)
        turn = active_turn.get()
        session = active_session.get() if turn is None else turn.session
        place = ("default", "default", None) if session is None else (session.key, session.actor, None)
        maker = tool.makers.get(place)
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
                return self._reused(key, params, place, now, kept)
        path = core.breakers.path(tool, "tool")
        permits: list[tuple[Any, Any]] = []
        for _, breaker in path:
            permit = breaker.pass_for_all
            if permit is None:
                return None
            permits.append((breaker, permit))
        request_id = uuid7()
        call = Call(tool, params, place[0], place[1], request_id)
        call.identity = request_id
        call.started = now
        if tool.reuse_default is not None:
            call.reuse = tool.reuse_default
        call.key = key
        call.idem_key = idem_key
        if turn is not None:
            call.turn = turn
            mark = (tool.full_name, key)
            if mark in turn.succeeded and tool.spec.idempotent:
                return call
            guard = turn.session.known_guard
            if guard is None:
                return call if core.guards.policy.enabled else None
            spec = tool.spec
            verdict = guard.loop.check(tool.full_name, key, now, poll=spec.poll, cost=spec.cost)
            call.guard = guard
            if verdict is not ALLOW:
                call.verdict = verdict
                return call
            call.verdict = ALLOW
        long = len(canonical) > _KEEP_BYTES
        if long:
            digest = hashlib.sha256(canonical).hexdigest().encode()
            exact = digest if exact is canonical else hashlib.sha256(exact).hexdigest().encode()
            canonical = digest
        late = _new(LateRequest, (place[0], place[1], request_id, canonical, exact, long))
        settings = core.settings
        ask = _new(
            Ask,
            (
                key,
                request_id,
                tool.full_name,
                idem_key,
                late,
                tool.ttl.done_ms,
                tool.ttl.lease_ms,
                owner_token(),
                settings.tenant,
                settings.workspace,
                0,
            ),
        )
        call.permits = permits
        call.version = journal.begin_now(ask)
        return call

    def _memo(self, place: tuple[Any, ...]) -> dict[bytes, tuple[str, str]]:
        memo = self._memos.get(place)
        if memo is None:
            if len(self._memos) >= _MEMOS:
                self._memos.clear()
            memo = self._memos[place] = {}
        return memo

    def _reused(self, key: str, params: dict[str, Any], place: tuple[Any, ...], now: float, kept: bytes) -> Call:
        """An answer that is kept for the session: no claim, no call."""
        core, tool = self._core, self._tool
        call = Call(tool, params, place[0], place[1], "")
        call.key = key
        call.version = REUSED
        call.answer = tool.decode(kept)
        metrics = core.telemetry.metrics
        if metrics is not None:
            metrics.hit(tool.full_name, "done")
            took = (core.clock.monotonic() - now) * 1000
            metrics.call_ended(tool.full_name, "success", tool.spec.scope, took)
        return call

    def close(self, call: Call, value: Any) -> bool:
        """Note the success everywhere; ``False`` if the result needs the pipeline (too large, not serialisable)."""
        core, tool = self._core, self._tool
        try:
            payload = codec.encode(value)
        except codec.NotSerialisable:
            return False
        if len(payload) > core.keeper.payload_limit:
            return False
        now = core.clock.monotonic()
        for breaker, permit in call.permits:
            breaker.success(permit, now)
        self._budget.success()
        took = (now - call.started) * 1000
        attempt = _new(LateAttempt, (time.time_ns() // 1_000_000, took))
        final = _new(Final, ("done", tool.ttl.done_ms, payload, None, None, False, None, attempt, 1, True))
        journal: Any = core.journal()
        if journal.settle_now(call.key, call.version, final) is None:
            core.telemetry.fenced(call)
        turn = call.turn
        if turn is not None:
            turn.identities.add(call.identity)
            turn.succeeded.setdefault((tool.full_name, call.key), call.request_id)
        if call.guard is not None:
            call.guard.loop.record(tool.full_name, call.key, payload, poll=tool.spec.poll)
        metrics = core.telemetry.metrics
        if metrics is not None:
            metrics.call_ended(tool.full_name, "success", tool.spec.scope, took)
        return True

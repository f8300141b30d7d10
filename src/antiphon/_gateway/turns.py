"""Sessions and turns: what an agent loop opens around the calls of one model decision (T5, D27)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar, Token
from typing import Any, ClassVar, Self

from antiphon._gateway import codec
from antiphon._gateway.outcome import Outcome, failed
from antiphon.contract.result import ToolDenied, ToolResultEnvelope
from antiphon.decide.loop import LoopGuard, LoopPolicy, LoopVerdict

_SESSIONS = 1024
_IDENTITIES = 4096

Pair = tuple[str, str]
"""Tool and dedupe key: what makes two calls of a session the same to turn control and loop guard."""


class Guard:
    """The loop guard of one lane of agent work."""

    __slots__ = ("identities", "loop")

    def __init__(self, policy: LoopPolicy, now: float) -> None:
        self.loop: LoopGuard = LoopGuard(policy, now)
        self.identities: set[str] = set()

    def redelivered(self, identity: str) -> bool:
        """Whether this very call has been seen: a redelivery is not a loop."""
        if identity in self.identities:
            return True
        if len(self.identities) >= _IDENTITIES:
            self.identities.clear()
        self.identities.add(identity)
        return False

    def after(self, pair: Pair, outcome: Outcome, poll: bool) -> None:
        """Remember the outcome of the call."""
        if outcome.code in ("loop_blocked", "run_ended"):
            return
        name, key = pair
        if outcome.status != "success":
            self.loop.record(name, key, f"{outcome.code}: {outcome.message}", ok=False, poll=poll)
            return
        payload = outcome.payload
        if payload is None:
            try:
                payload = codec.encode(outcome.value)
            except codec.NotSerialisable:
                payload = repr(type(outcome.value)).encode()
        self.loop.record(name, key, payload, poll=poll)


def refused_by_guard(verdict: LoopVerdict) -> Outcome:
    """The outcome of a call that the loop guard stopped."""
    outcome = failed("error", "run_ended" if verdict.action == "end" else "loop_blocked", verdict.message)
    outcome.reason = verdict.reason
    return outcome


class Guards:
    """The guards of sessions that only envelopes name."""

    def __init__(self, policy: LoopPolicy) -> None:
        self.policy = policy
        self._sessions: OrderedDict[tuple[str, str], Guard] = OrderedDict()

    def of_session(self, session: str, actor: str, now: float) -> Guard:
        sessions, key = self._sessions, (session, actor)
        guard = sessions.get(key)
        if guard is None:
            guard = sessions[key] = Guard(self.policy, now)
            while len(sessions) > _SESSIONS:
                sessions.popitem(last=False)
        return guard


active_turn: ContextVar[TurnState | None] = ContextVar("antiphon_turn", default=None)
active_session: ContextVar[SessionState | None] = ContextVar("antiphon_session", default=None)


class SessionState:
    """For whom calls are made, and the loop guard they share."""

    __slots__ = ("actor", "key", "known_guard", "place")

    def __init__(self, key: str, actor: str) -> None:
        self.key: str = key
        self.actor: str = actor
        self.place: tuple[str, str, None] = (key, actor, None)
        self.known_guard: Guard | None = None
        """The loop guard, once a call has needed it."""

    def guard(self, policy: LoopPolicy, now: float) -> Guard:
        if self.known_guard is None:
            self.known_guard = Guard(policy, now)
        return self.known_guard


class TurnState:
    """Which idempotent calls have succeeded in this turn. Success is sticky (T3)."""

    __slots__ = ("identities", "session", "succeeded")

    def __init__(self, session: SessionState) -> None:
        self.session: SessionState = session
        self.succeeded: dict[Pair, str] = {}
        """The call that succeeded, by tool and dedupe key."""
        self.identities: set[str] = set()
        """Calls made in this turn: the same call again is a redelivery, not a duplicate."""


Answer = ToolResultEnvelope | ToolDenied
TurnCall = Callable[[TurnState, str, Mapping[str, Any], str | None, Any], Answer]
AsyncTurnCall = Callable[[TurnState, str, Mapping[str, Any], str | None, Any], Awaitable[Answer]]


class _Scoped:
    """Inside its ``with`` block, its state is the active one."""

    _active: ClassVar[ContextVar[Any]]
    _token: Token[Any] | None = None
    state: Any

    def __enter__(self) -> Self:
        self._token = self._active.set(self.state)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._token is not None:
            self._active.reset(self._token)
            self._token = None


class _AsyncScoped(_Scoped):
    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        self.__exit__()


class Turn(_Scoped):
    """One model decision and its calls, for synchronous code."""

    _active = active_turn

    def __init__(self, make: TurnCall, session: SessionState) -> None:
        self._make = make
        self.state: TurnState = TurnState(session)

    def call(self, tool: str, arguments: Mapping[str, Any], call_id: str | None = None, *, key: Any = None) -> Answer:
        """Make the call the model asked for. The answer is a value, whatever happened.

        *call_id* is the id that the model gave the call. *key* names what the call is about (an order, an invoice): the
        tool runs once for it, no matter who asks or in which session.
        """
        return self._make(self.state, tool, arguments, call_id, key)


class AsyncTurn(_AsyncScoped):
    """One model decision and its calls, for asyncio code."""

    _active = active_turn

    def __init__(self, make: AsyncTurnCall, session: SessionState) -> None:
        self._make = make
        self.state: TurnState = TurnState(session)

    async def call(
        self, tool: str, arguments: Mapping[str, Any], call_id: str | None = None, *, key: Any = None
    ) -> Answer:
        """Make the call the model asked for. The answer is a value, whatever happened.

        *call_id* is the id that the model gave the call. *key* names what the call is about (an order, an invoice): the
        tool runs once for it, no matter who asks or in which session.
        """
        return await self._make(self.state, tool, arguments, call_id, key)


class Session(_Scoped):
    """Calls of one actor in one session, for synchronous code."""

    _active = active_session

    def __init__(self, make: TurnCall, key: str, actor: str) -> None:
        self._make = make
        self.state: SessionState = SessionState(key, actor)

    def turn(self) -> Turn:
        """Open a turn: duplicates inside it are denied."""
        return Turn(self._make, self.state)


class AsyncSession(_AsyncScoped):
    """Calls of one actor in one session, for asyncio code."""

    _active = active_session

    def __init__(self, make: AsyncTurnCall, key: str, actor: str) -> None:
        self._make = make
        self.state: SessionState = SessionState(key, actor)

    def turn(self) -> AsyncTurn:
        """Open a turn: duplicates inside it are denied."""
        return AsyncTurn(self._make, self.state)

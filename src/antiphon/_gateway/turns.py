"""Sessions and turns: what an agent loop opens around the calls of one model decision (T5, D27)."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from antiphon._gateway.call import Call, Outcome, failed
from antiphon._gateway.guards import Guard
from antiphon.contract.result import ToolDenied, ToolResultEnvelope
from antiphon.decide.loop import LoopPolicy

if TYPE_CHECKING:
    from antiphon._gateway.faces import AsyncGateway, Gateway

active_turn: ContextVar[TurnState | None] = ContextVar("antiphon_turn", default=None)
active_session: ContextVar[SessionState | None] = ContextVar("antiphon_session", default=None)


class SessionState:
    """For whom calls are made, and the loop guard they share."""

    __slots__ = ("_token", "actor", "key", "known_guard", "place")

    def __init__(self, key: str, actor: str) -> None:
        self.key = key
        self.actor = actor
        self.place = (key, actor, None)
        self.known_guard: Guard | None = None
        """The loop guard, once a call has needed it."""
        self._token: Token[SessionState | None] | None = None

    def guard(self, policy: LoopPolicy, now: float) -> Guard:
        if self.known_guard is None:
            self.known_guard = Guard(policy, now)
        return self.known_guard

    def open(self) -> None:
        self._token = active_session.set(self)

    def close(self) -> None:
        if self._token is not None:
            active_session.reset(self._token)
            self._token = None


class TurnState:
    """Which idempotent calls have succeeded in this turn. Success is sticky (T3)."""

    __slots__ = ("_token", "identities", "session", "succeeded")

    def __init__(self, session: SessionState) -> None:
        self.session = session
        self.succeeded: dict[tuple[str, str], str] = {}
        self.identities: set[str] = set()
        self._token: Token[TurnState | None] | None = None

    def open(self) -> None:
        self._token = active_turn.set(self)

    def close(self) -> None:
        if self._token is not None:
            active_turn.reset(self._token)
            self._token = None

    def deny(self, call: Call) -> Outcome | None:
        """Skip a new call of an idempotent tool that has succeeded with these arguments in this turn."""
        if not call.tool.spec.idempotent or call.identity in self.identities:
            return None
        prior = self.succeeded.get((call.tool.full_name, call.mark))
        if prior is None:
            return None
        message = (
            f"{call.tool.spec.name} was already called with these arguments in this turn and succeeded "
            f"(call {prior}). Use that result."
        )
        return failed("error", "denied", message, reason="duplicate")

    def note(self, call: Call, outcome: Outcome) -> None:
        """Remember the outcome of a call."""
        if outcome.code == "denied":
            return
        self.identities.add(call.identity)
        if outcome.status == "success":
            self.succeeded.setdefault((call.tool.full_name, call.mark), call.call_id or call.request_id)


class Turn:
    """One model decision and its calls, in the synchronous face."""

    def __init__(self, gateway: Gateway, session: SessionState) -> None:
        self._gateway = gateway
        self.state = TurnState(session)

    def __enter__(self) -> Turn:
        self.state.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.state.close()

    def call(
        self, tool: str, arguments: Mapping[str, Any], call_id: str | None = None
    ) -> ToolResultEnvelope | ToolDenied:
        """Make the call the model asked for. The answer is a value, whatever happened."""
        return self._gateway._turn_call(self.state, tool, arguments, call_id)


class AsyncTurn:
    """One model decision and its calls, in the asynchronous face."""

    def __init__(self, gateway: AsyncGateway, session: SessionState) -> None:
        self._gateway = gateway
        self.state = TurnState(session)

    def __enter__(self) -> AsyncTurn:
        self.state.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.state.close()

    async def __aenter__(self) -> AsyncTurn:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        self.state.close()

    async def call(
        self, tool: str, arguments: Mapping[str, Any], call_id: str | None = None
    ) -> ToolResultEnvelope | ToolDenied:
        """Make the call the model asked for. The answer is a value, whatever happened."""
        return await self._gateway._turn_call(self.state, tool, arguments, call_id)


class Session:
    """Calls of one actor in one session, in the synchronous face."""

    def __init__(self, gateway: Gateway, key: str, actor: str) -> None:
        self._gateway = gateway
        self.state = SessionState(key, actor)

    def __enter__(self) -> Session:
        self.state.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.state.close()

    def turn(self) -> Turn:
        """Open a turn: duplicates inside it are denied."""
        return Turn(self._gateway, self.state)


class AsyncSession:
    """Calls of one actor in one session, in the asynchronous face."""

    def __init__(self, gateway: AsyncGateway, key: str, actor: str) -> None:
        self._gateway = gateway
        self.state = SessionState(key, actor)

    def __enter__(self) -> AsyncSession:
        self.state.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.state.close()

    async def __aenter__(self) -> AsyncSession:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        self.state.close()

    def turn(self) -> AsyncTurn:
        """Open a turn: duplicates inside it are denied."""
        return AsyncTurn(self._gateway, self.state)

"""Loop guards by run, turn session or envelope session (D25)."""

from __future__ import annotations

from collections import OrderedDict

from antiphon._gateway import codec
from antiphon._gateway.outcome import Outcome, failed
from antiphon.decide.loop import LoopGuard, LoopPolicy, LoopVerdict

_SESSIONS = 1024
_IDENTITIES = 4096

Pair = tuple[str, str]
"""Tool and dedupe key: what makes two calls of a session the same to turn control and loop guard."""


class Guard:
    """The loop guard of one strand of agent work."""

    __slots__ = ("identities", "loop")

    def __init__(self, policy: LoopPolicy, now: float) -> None:
        self.loop = LoopGuard(policy, now)
        self.identities: set[str] = set()

    def redelivered(self, identity: str) -> bool:
        """Whether this very call has been here: a redelivery is no loop."""
        if identity in self.identities:
            return True
        if len(self.identities) >= _IDENTITIES:
            self.identities.clear()
        self.identities.add(identity)
        return False

    def after(self, pair: Pair, outcome: Outcome, poll: bool) -> None:
        """Remember what came of the call."""
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
    """The guards of sessions that are known by envelopes alone."""

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

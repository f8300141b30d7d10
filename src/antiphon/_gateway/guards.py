"""Loop guards by run, turn session or envelope session (D25)."""

from __future__ import annotations

from collections import OrderedDict

from antiphon._gateway import codec, record
from antiphon._gateway.call import Call, Outcome, failed
from antiphon.decide.loop import LoopGuard, LoopPolicy

_SESSIONS = 1024
_IDENTITIES = 4096


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

    def before(self, call: Call, now: float) -> Outcome | None:
        """A refusal, or ``None``; a note is given to the model with the result."""
        if self.redelivered(call.identity):
            call.guard = None
            return None
        spec = call.tool.spec
        verdict = call.verdict
        if verdict is None:
            verdict = self.loop.check(call.tool.full_name, call.mark, now, poll=spec.poll, cost=spec.cost)
        if verdict.action == "allow":
            return None
        if not verdict.refused:
            call.loop_note = verdict.message
            return None
        outcome = failed("error", "run_ended" if verdict.action == "end" else "loop_blocked", verdict.message)
        outcome.reason = verdict.reason
        if call.scope is not None:
            record.decision(call, "loop", {"action": verdict.action, "reason": verdict.reason}, {})
        return outcome

    def after(self, call: Call, outcome: Outcome) -> None:
        """Remember what came of the call; a note for the model goes with the result."""
        if outcome.code in ("loop_blocked", "run_ended"):
            return
        if call.loop_note and outcome.status == "success":
            outcome.metadata = {**(outcome.metadata or {}), "note": call.loop_note}
        poll = call.tool.spec.poll
        if outcome.status != "success":
            text = f"{outcome.code}: {outcome.message}"
            self.loop.record(call.tool.full_name, call.mark, text, ok=False, poll=poll)
            return
        payload = outcome.payload
        if payload is None:
            try:
                payload = codec.encode(outcome.value)
            except codec.NotSerialisable:
                payload = repr(type(outcome.value)).encode()
        self.loop.record(call.tool.full_name, call.mark, payload, poll=poll)


class Guards:
    """Finds the guard a call belongs to. Calls that no agent loop makes have none."""

    def __init__(self, policy: LoopPolicy) -> None:
        self.policy = policy
        self._sessions: OrderedDict[tuple[str, str], Guard] = OrderedDict()

    def of(self, call: Call) -> Guard | None:
        if not self.policy.watches:
            return None
        scope = call.scope
        if scope is not None:
            guard = scope.gateway_state.get("loop")
            if guard is None:
                guard = scope.gateway_state["loop"] = Guard(self.policy, call.started)
            assert isinstance(guard, Guard)
            return guard
        if call.turn is not None:
            turn_guard: Guard | None = call.turn.session.guard(self.policy, call.started)
            return turn_guard
        if call.call_id is None:
            return None
        return self._of_session((call.session, call.actor), call.started)

    def _of_session(self, key: tuple[str, str], now: float) -> Guard:
        sessions = self._sessions
        guard = sessions.get(key)
        if guard is None:
            guard = sessions[key] = Guard(self.policy, now)
            while len(sessions) > _SESSIONS:
                sessions.popitem(last=False)
        return guard

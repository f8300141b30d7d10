"""A second, naive breaker to compare with, and a machine that drives both (R9, D8)."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from antiphon.contract.spec import BreakerPolicy
from antiphon.decide.breaker import Breaker, Permit

POLICY = BreakerPolicy(
    consecutive=3,
    rate=0.5,
    window_calls=6,
    min_calls=4,
    window_ms=20_000,
    cooldown_ms=5_000,
    probes=1,
    close_after=2,
    probe_lease_ms=4_000,
)


class Model:
    """The requirements in plain lists: slow, without locks, without tricks."""

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self.state = "CLOSED"
        self.period = 0
        self.until = math.inf
        self.throttled = -math.inf
        self.votes: list[tuple[float, str]] = []
        self.probes: dict[int, float] = {}
        self.good = 0
        self.tickets = 0

    def enter(self, state: str, until: float = math.inf) -> None:
        self.state, self.until = state, until
        self.period += 1
        self.votes, self.probes, self.good = [], {}, 0

    def tick(self, now: float) -> None:
        if self.state == "HALF_OPEN" and self.probes and min(self.probes.values()) <= now:
            self.enter("OPEN", min(self.probes.values()) + self.policy.cooldown_ms / 1000)
        if self.state == "FORCED_OPEN" and self.until <= now:
            self.enter("CLOSED")

    def ask(self, now: float) -> tuple[int, int] | None:
        """A ticket (period, probe number or 0), or None."""
        self.tick(now)
        if self.state == "FORCED_OPEN" or (self.state == "OPEN" and now < self.until):
            return None
        if now < self.throttled - 0.005:
            return None
        if self.state == "CLOSED":
            return self.period, 0
        if self.state == "OPEN":
            self.enter("HALF_OPEN")
        if len(self.probes) >= self.policy.probes:
            return None
        self.tickets += 1
        self.probes[self.tickets] = now + self.policy.probe_lease_ms / 1000
        return self.period, self.tickets

    def tell(self, ticket: tuple[int, int], now: float, vote: str, retry_after_ms: int = 0) -> None:
        self.tick(now)
        period, probe = ticket
        if period != self.period or (probe and probe not in self.probes):
            return
        if probe:
            del self.probes[probe]
            if vote == "success":
                self.good += 1
                if self.good >= self.policy.close_after:
                    self.enter("CLOSED")
            elif vote != "none":
                pause = self.policy.cooldown_ms
                if vote == "rate_only":
                    pause = max(pause, retry_after_ms)
                self.enter("OPEN", now + pause / 1000)
            return
        if vote == "none":
            return
        self.votes.append((now, vote))
        if vote == "rate_only" and retry_after_ms:
            self.throttled = max(self.throttled, now + retry_after_ms / 1000)
        if vote != "success" and self.sick(now):
            self.enter("OPEN", now + self.policy.cooldown_ms / 1000)

    def sick(self, now: float) -> bool:
        since = now - self.policy.window_ms / 1000
        row = 0
        for ended, vote in reversed(self.votes):
            if vote == "success" or ended < since:
                break
            row += vote == "failure"
        recent = [vote for ended, vote in self.votes[-self.policy.window_calls :] if ended >= since]
        bad = sum(vote != "success" for vote in recent)
        return row >= self.policy.consecutive or (
            len(recent) >= self.policy.min_calls and bad >= self.policy.rate * len(recent)
        )


class Comparison(RuleBasedStateMachine):
    """Ask and tell both the same; they must agree on every answer and every state."""

    kind: type[Breaker] = Breaker
    permits: Bundle[Any] = Bundle("permits")

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.model = Model(POLICY)
        self.breaker = self.kind(POLICY)
        self.epoch = 0

    @rule(target=permits)
    def ask(self) -> Any:
        return self.ask_both()

    def ask_both(self) -> Any:
        peeked = self.breaker.peek(self.now)
        given = self.breaker.permit(self.now)
        ticket = self.model.ask(self.now)
        assert isinstance(given, Permit) == (ticket is not None), (given, ticket)
        assert (peeked is None) == (ticket is not None), "peek tells what permit would do"
        return (given, ticket)

    @precondition(lambda self: self.breaker.state != "CLOSED")
    @rule(callers=st.integers(2, 50))
    def herd(self, callers: int) -> None:
        """Many ask at once: at most one gets through, and it is cancelled."""
        given = [self.breaker.permit(self.now) for _ in range(callers)]
        tickets = [self.model.ask(self.now) for _ in range(callers)]
        assert [isinstance(one, Permit) for one in given] == [ticket is not None for ticket in tickets]
        for permit, ticket in zip(given, tickets, strict=True):
            if isinstance(permit, Permit) and ticket is not None:
                self.breaker.neutral(permit, self.now)
                self.model.tell(ticket, self.now, "none")

    @rule(pair=consumes(permits), vote=st.sampled_from(["success", "failure", "failure", "rate_only", "none"]))
    def tell(self, pair: Any, vote: Any) -> None:
        self.tell_both(pair, vote)

    def tell_both(self, pair: Any, vote: Any) -> None:
        permit, ticket = pair
        if ticket is None:
            return
        if vote == "success":
            self.breaker.success(permit, self.now)
        elif vote == "none":
            self.breaker.neutral(permit, self.now)
        else:
            self.breaker.failure(permit, self.now, vote)
        self.model.tell(ticket, self.now, vote)

    @rule(pairs=st.lists(consumes(permits), min_size=2, max_size=4))
    def all_fail(self, pairs: list[Any]) -> None:
        for pair in pairs:
            self.tell_both(pair, "failure")

    @rule(pair=consumes(permits), retry_after_ms=st.sampled_from([1_000, 8_000]))
    def throttle(self, pair: Any, retry_after_ms: int) -> None:
        permit, ticket = pair
        if ticket is not None:
            self.breaker.failure(permit, self.now, "rate_only", retry_after_ms)
            self.model.tell(ticket, self.now, "rate_only", retry_after_ms)

    @rule(seconds=st.sampled_from([0.25, 1.0, 4.0, 5.0, 21.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.breaker.state == "CLOSED")
    @rule()
    def trip(self) -> None:
        """As many failures in a row as it takes."""
        for _ in range(POLICY.consecutive):
            permit, ticket = self.breaker.permit(self.now), self.model.ask(self.now)
            if isinstance(permit, Permit) and ticket is not None:
                self.breaker.failure(permit, self.now)
                self.model.tell(ticket, self.now, "failure")

    @precondition(lambda self: self.breaker.state == "OPEN")
    @rule(target=permits)
    def cool_down(self) -> Any:
        """Wait until the first probe is due, and take it."""
        return self.cool_down_and_ask()

    def cool_down_and_ask(self) -> Any:
        if self.model.state == "OPEN":
            self.now = max(self.now, self.model.until, self.model.throttled)
        return self.ask_both()

    @precondition(lambda self: self.breaker.state == "OPEN")
    @rule()
    def recover(self) -> None:
        """Wait, and let the probes do well."""
        for _ in range(POLICY.close_after):
            permit, ticket = self.cool_down_and_ask()
            if isinstance(permit, Permit) and ticket is not None:
                self.breaker.success(permit, self.now)
                self.model.tell(ticket, self.now, "success")

    @rule(what=st.sampled_from(["reset", "reset elsewhere", "force", "force for two seconds"]), often=st.integers(0, 4))
    def operator(self, what: str, often: int) -> None:
        if often:
            return
        self.model.tick(self.now)
        if what.startswith("reset"):
            if what == "reset":
                self.breaker.reset(self.now)
            else:
                self.breaker.adopt("CLOSED", self.breaker.export(self.now).epoch + 2, 0, "reset: over", self.now)
            self.model.throttled = -math.inf
            self.model.enter("CLOSED")
            return
        for_ms = None if what == "force" else 2_000
        self.breaker.force_open(self.now, "operator", for_ms)
        self.model.enter("FORCED_OPEN", math.inf if for_ms is None else self.now + for_ms / 1000)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "breaker"):
            return
        state = self.breaker.export(self.now)
        projected = Model.__new__(Model)
        projected.__dict__.update(self.model.__dict__, probes=dict(self.model.probes))
        projected.tick(self.now)
        assert state.state == projected.state
        if state.state == "CLOSED":
            assert state.remaining_ms == math.ceil(max(0.0, self.model.throttled - self.now) * 1000)
        assert state.epoch >= self.epoch, "epochs only grow"
        self.epoch = state.epoch
        assert len(self.breaker._probes) <= POLICY.probes

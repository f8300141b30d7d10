"""Recorded attempts through the rules of breakers and retries with tighter limits: what would have been sent?

The recording says when each attempt began, when it ended and how. With tighter limits some of these attempts would not
have been made, and the others would have ended as they did. A limit that is looser than the recorded one would need
attempts that never happened; it is ignored. A tighter one can need them too, when a breaker that opened earlier lets a
call through earlier: such calls are counted as missing, and the numbers are then a lower bound.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from antiphon.contract.spec import BreakerPolicy, RetryPolicy, ToolSpec
from antiphon.decide.breaker import Breaker, Permit, Refusal, Transition
from antiphon.decide.failure import Failure
from antiphon.decide.retry import Retry, TokenBucket, after_failure
from antiphon.ops.traffic import Call

REFUSED = "circuit_open"


class Limits(NamedTuple):
    """The limits of a tool: when its breaker opens, and how often a call is attempted."""

    breaker: BreakerPolicy
    max_attempts: int

    def tighter(self, wanted: TriedLimits) -> tuple[Limits, list[str]]:
        """These limits tightened by *wanted*, and the names of those that would loosen them."""
        recorded = {**msgspec.structs.asdict(self.breaker), "max_attempts": self.max_attempts}
        changed: dict[str, Any] = {}
        looser = []
        for name, given in wanted._asdict().items():
            if given is None:
                continue
            loosens = given < recorded[name] if name == "cooldown_ms" else given > recorded[name]
            if loosens:
                looser.append(name)
            else:
                changed[name] = given
        attempts = changed.pop("max_attempts", self.max_attempts)
        return Limits(msgspec.structs.replace(self.breaker, **changed), attempts), looser


class TriedLimits(NamedTuple):
    """The limits to try; ``None`` keeps the recorded one."""

    consecutive: int | None = None
    rate: float | None = None
    min_calls: int | None = None
    cooldown_ms: int | None = None
    max_attempts: int | None = None


class Opening(NamedTuple):
    """A breaker opened."""

    tool: str
    at_ms: int
    reason: str


class Outcome(NamedTuple):
    """What is sent under given limits."""

    calls: int
    sent: int
    attempts: int
    refused: int
    opened: list[Opening]
    missing: int
    """Calls that would need an attempt that never happened."""
    least_tokens: float
    """Tokens left of the retry budget that came closest to exhaustion."""

    def to_wire(self) -> dict[str, Any]:
        """The JSON form."""
        opened = [{"tool": one.tool, "atMs": one.at_ms, "reason": one.reason} for one in self.opened]
        wire = {**self._asdict(), "opened": opened, "retries": self.attempts - self.sent}
        wire["leastTokens"] = round(wire.pop("least_tokens"), 1)
        wire["amplification"] = round(self.attempts / self.sent, 3) if self.sent else None
        return wire


class _Lane:
    """Breaker and budget of one tool in one process."""

    def __init__(self, name: str, limits: Limits) -> None:
        self.name = name
        self.limits = limits
        self.breaker = Breaker(limits.breaker)
        self.budget = TokenBucket()
        self.opened: list[Opening] = []

    def note(self, moves: tuple[Transition, ...], at_ms: int) -> None:
        self.opened += [Opening(self.name, at_ms, move.reason) for move in moves if move.to_state == "OPEN"]


def limits_of(call: Call, spec: ToolSpec | None) -> Limits:
    """The limits under which a call was recorded, as far as this process knows its tool."""
    if spec is not None:
        return Limits(spec.breaker_policy, (spec.retry or RetryPolicy()).max_attempts)
    effect: Any = call.effect if call.effect in ("read", "write") else None
    guessed = ToolSpec(name="tool", effect=effect, idempotent=True)
    return Limits(guessed.breaker_policy, RetryPolicy().max_attempts)


_END, _START = 0, 1
"""At the same moment, an attempt ends before another one begins."""


def sent_under(calls: Iterable[Call], limits: Callable[[Call], Limits]) -> Outcome:
    """Which recorded attempts would be sent, by the rules that decide live calls."""
    lanes: dict[tuple[str, str], _Lane] = {}
    due: list[tuple[int, int, int, int]] = []
    chosen: list[Call] = []
    for call in calls:
        if call.kind == "llm" or call.ended_ms is None or call.reused or (not call.tries and call.code != REFUSED):
            continue
        number = len(chosen)
        chosen.append(call)
        due.append((call.tries[0][0] if call.tries else call.started_ms, _START, number, 0))
        lanes.setdefault((call.process, call.name), _Lane(call.name, limits(call)))
    heapq.heapify(due)
    permits: dict[int, Permit] = {}
    sent = attempts = refused = missing = 0
    least = math.inf
    while due:
        at_ms, kind, number, nth = heapq.heappop(due)
        call, now = chosen[number], at_ms / 1000
        lane = lanes[call.process, call.name]
        if not call.tries:
            refused += 1
            missing += lane.breaker.peek(now) is None
            continue
        _, ended_ms, code, retriable = call.tries[nth]
        if kind == _START:
            permit = lane.breaker.permit(now)
            lane.note(permit.transitions, at_ms)
            if isinstance(permit, Refusal):
                refused += nth == 0
                continue
            permits[number] = permit
            attempts += 1
            sent += nth == 0
            heapq.heappush(due, (ended_ms, _END, number, nth))
            continue
        permit = permits.pop(number)
        if not code:
            lane.note(lane.breaker.success(permit, now), at_ms)
            lane.budget.success()
            continue
        failure = failed_with(code, retriable)
        lane.note(lane.breaker.failure(permit, now, failure.breaker_vote), at_ms)
        if nth + 1 == len(call.tries):  # the recording gave up here
            continue
        step = after_failure(
            failure,
            attempt=nth + 1,
            max_attempts=lane.limits.max_attempts,
            elapsed_ms=0.0,
            max_elapsed_ms=math.inf,
            remaining_ms=None,
            policy=RetryPolicy(),
            idempotent=True,
            retry_safe=True,
            breaker_open=lane.breaker.is_open(now),
            budget=lane.budget,
            now=now,
            chance=0.0,
        )
        least = min(least, lane.budget.tokens(now))
        if isinstance(step, Retry):
            heapq.heappush(due, (call.tries[nth + 1][0], _START, number, nth + 1))
    openings = sorted((one for lane in lanes.values() for one in lane.opened), key=lambda one: one.at_ms)
    left = TokenBucket().tokens(0.0) if math.isinf(least) else least
    return Outcome(len(chosen), sent, attempts, refused, openings, missing, left)


def failed_with(code: str, retriable: bool) -> Failure:
    """A recorded failure, classified as far as its code allows."""
    status = int(code[5:]) if code.startswith("http_") and code[5:].isdecimal() else None
    if status is not None:
        return Failure(code, "", "answer", retriable, "answered", status=status)
    kind: Any = "timeout" if code in ("ETIMEDOUT", "timeout") else "transport" if retriable else "unclassified"
    return Failure(code, "", kind, retriable, "sent")


def what_if(calls: Iterable[Call], wanted: TriedLimits, specs: Callable[[str], ToolSpec | None]) -> dict[str, Any]:
    """The recording under its own limits and under tighter ones, side by side."""
    chosen = sorted(calls, key=lambda call: call.started_ms)
    looser: set[str] = set()

    def tight(call: Call) -> Limits:
        found, loose = limits_of(call, specs(call.name)).tighter(wanted)
        looser.update(loose)
        return found

    before = sent_under(chosen, lambda call: limits_of(call, specs(call.name)))
    after = sent_under(chosen, tight)
    recorded = sum(len(call.tries) for call in chosen if call.kind != "llm" and not call.reused)
    return {
        "recordedAttempts": recorded,
        "before": before.to_wire(),
        "after": after.to_wire(),
        "looser": sorted(looser),
    }

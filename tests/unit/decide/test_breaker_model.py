"""The breaker agrees with a naive model on random histories, and planted bugs do not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from antiphon.decide.breaker import Breaker, Permit, Refusal, Transition
from antiphon.decide.failure import Vote
from tests.unit.decide.breaker_model import Comparison

THOROUGH = settings(max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
HUNT = settings(
    max_examples=2_000,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    report_multiple_bugs=False,
    database=None,
)


def test_agrees_with_the_model() -> None:
    run_state_machine_as_test(Comparison, settings=THOROUGH)


class NoEpoch(Breaker):
    """A result counts in whatever period it happens to come in."""

    __slots__ = ()

    def success(self, permit: Permit, now: float) -> tuple[Transition, ...]:
        if self.state == "HALF_OPEN":
            return self._good_probe()
        return super().success(permit, now)


class CancelledIsSuccess(Breaker):
    """A cancelled probe closes the circuit."""

    __slots__ = ()

    def neutral(self, permit: Permit, now: float) -> tuple[Transition, ...]:
        return self.success(permit, now)


class CancelledIsFailure(Breaker):
    """Impatient callers open a healthy circuit."""

    __slots__ = ()

    def neutral(self, permit: Permit, now: float) -> tuple[Transition, ...]:
        return self.failure(permit, now)


class Herd(Breaker):
    """Half-open lets everybody through."""

    __slots__ = ()

    def _refusal(self, now: float) -> Refusal | None:
        refusal = super()._refusal(now)
        return None if refusal is not None and refusal.state == "HALF_OPEN" else refusal


class LostProbe(Breaker):
    """A probe that never reports blocks for ever."""

    __slots__ = ()

    def _projected(self, now: float) -> Any:
        return (self.state, self._until) if self.state == "HALF_OPEN" else super()._projected(now)


class RefusalsExtend(Breaker):
    """Whoever is refused prolongs the cool-down."""

    __slots__ = ()

    def permit(self, now: float) -> Permit | Refusal:
        given = super().permit(now)
        if isinstance(given, Refusal) and self.state == "OPEN":
            self._until += 1.0
        return given


class ThrottleIsFailure(Breaker):
    """A 429 counts as consecutive."""

    __slots__ = ()

    def failure(
        self, permit: Permit, now: float, vote: Vote = "failure", retry_after_ms: int | None = None
    ) -> tuple[Transition, ...]:
        return super().failure(permit, now, "failure" if vote == "rate_only" else vote, retry_after_ms)


class ResetElsewhereKeepsThePause(Breaker):
    """What an operator resets stays throttled in all processes but one."""

    __slots__ = ()

    def adopt(self, *row: Any, **options: Any) -> tuple[Transition, ...]:
        throttled = self._throttled
        moves = super().adopt(*row, **options)
        if throttled != self._throttled:
            self._throttled, self.pass_for_all = throttled, None
        return moves


PLANTED = [
    NoEpoch,
    CancelledIsSuccess,
    CancelledIsFailure,
    Herd,
    LostProbe,
    RefusalsExtend,
    ThrottleIsFailure,
    ResetElsewhereKeepsThePause,
]


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_planted_bug_is_found(bug: type[Breaker]) -> None:
    broken = seed(20240501)(type(f"Comparison{bug.__name__}", (Comparison,), {"kind": bug}))
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(broken, settings=HUNT)

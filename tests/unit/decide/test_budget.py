"""D22: the retry budget, and what it makes of an outage."""

from __future__ import annotations

import heapq
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.contract.spec import RetryPolicy
from antiphon.decide.breaker import Breaker, Permit
from antiphon.decide.classify import Failure
from antiphon.decide.retry import Retry, TokenBucket, after_failure

DOWN = Failure("http_503", "down", "answer", True, "answered", 503)


def outage(rate: float, *, calls: int = 10_000, budget: TokenBucket | None, breaker: Breaker | None = None) -> float:
    """Attempts per call while nothing works, in virtual time: *rate* calls per second, four attempts each."""
    chance = random.Random(7)
    due: list[tuple[float, int, float, int]] = [(n / rate, n, n / rate, 1) for n in range(calls)]
    heapq.heapify(due)
    attempts = 0
    while due:
        now, call, started, attempt = heapq.heappop(due)
        if breaker is not None:
            permit = breaker.permit(now)
            if not isinstance(permit, Permit):
                continue
            breaker.failure(permit, now)
        attempts += 1
        decision = after_failure(
            DOWN,
            attempt=attempt,
            max_attempts=4,
            elapsed_ms=(now - started) * 1000,
            max_elapsed_ms=30_000,
            remaining_ms=None,
            policy=RetryPolicy(),
            idempotent=True,
            retry_safe=False,
            breaker_open=breaker is not None and breaker.is_open(now),
            budget=budget,
            now=now,
            chance=chance.random(),
        )
        if isinstance(decision, Retry):
            heapq.heappush(due, (now + decision.delay_ms / 1000, call, started, attempt + 1))
    return attempts / calls


@pytest.mark.parametrize("rate", [12, 50, 100, 1_000])
def test_d22_total_outage_costs_at_most_a_tenth_more(rate: float) -> None:
    assert outage(rate, budget=TokenBucket()) <= 1.1


@pytest.mark.parametrize("rate", [0.5, 1, 5, 12, 100, 1_000])
def test_d22_total_outage_with_the_breaker_at_any_rate(rate: float) -> None:
    assert outage(rate, budget=TokenBucket(), breaker=Breaker()) <= 1.1


def test_d22_after_a_long_healthy_time_the_bound_still_holds() -> None:
    budget = TokenBucket()
    for _ in range(2_000):
        budget.success()
    assert budget.tokens(0.0) == 100
    assert outage(50, budget=budget) <= 1.1


def test_planted_bug_no_budget_is_found() -> None:
    assert outage(100, budget=None) == 4.0


def test_planted_bug_charging_after_the_sleep_is_found() -> None:
    class ChargesLater(TokenBucket):
        """Looks, but takes only when the retry goes out, as some proxies do: sleeping retries are not seen."""

        __slots__ = ()

        def withdraw(self, now: float) -> bool:
            return self.tokens(now) >= 1.0

    assert outage(1_000, budget=ChargesLater()) > 1.1


def test_start_success_cap_and_price() -> None:
    bucket = TokenBucket()
    assert bucket.tokens(0.0) == 10
    assert bucket.withdraw(0.0)
    assert bucket.tokens(0.0) == 9
    for _ in range(10):
        bucket.success()
    assert bucket.tokens(0.0) == pytest.approx(10)
    for _ in range(5_000):
        bucket.success()
    assert bucket.tokens(0.0) == 100


def test_floor_brings_retries_back_without_a_success() -> None:
    bucket = TokenBucket()
    while bucket.withdraw(0.0):
        pass
    assert not bucket.withdraw(0.5)
    assert bucket.withdraw(1.0)
    assert not bucket.withdraw(1.5)
    assert bucket.withdraw(2.0)


def test_idle_time_saves_up_no_burst() -> None:
    bucket = TokenBucket()
    while bucket.withdraw(0.0):
        pass
    assert bucket.tokens(100_000.0) == 10


def test_ten_successes_pay_for_one_retry() -> None:
    bucket = TokenBucket(start=0, floor_per_s=0)
    for _ in range(9):
        bucket.success()
    assert not bucket.withdraw(0.0)
    bucket.success()
    assert bucket.withdraw(0.0)
    assert not bucket.withdraw(0.0)


@given(st.lists(st.tuples(st.sampled_from(["success", "retry"]), st.floats(0, 0.3)), min_size=25, max_size=200))
def test_never_more_retries_than_paid_for(steps: list[tuple[str, float]]) -> None:
    bucket = TokenBucket()
    now, paid, taken = 0.0, 10.0, 0
    for what, pause in steps:
        now += pause
        if what == "success":
            bucket.success()
            paid += 0.1
        else:
            taken += bucket.withdraw(now)
        assert 0 <= bucket.tokens(now) <= 100
    assert taken <= paid + now + 1e-6


def test_a_clock_that_steps_back_gives_nothing() -> None:
    bucket = TokenBucket()
    bucket.withdraw(100.0)
    assert bucket.tokens(50.0) == 9
    assert bucket.tokens(50.5) == 9.5


def test_threads_do_not_lose_withdrawals() -> None:
    bucket = TokenBucket(start=1_000, cap=1_000, floor_per_s=0, per_success=0)
    taken: list[int] = []

    def work() -> None:
        taken.append(sum(bucket.withdraw(0.0) for _ in range(500)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 1_000

"""R1, R8, D3, D5, D22: the retry table, row by row."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.contract.spec import RetryPolicy
from antiphon.decide import retry as module
from antiphon.decide.classify import Failure, timed_out
from antiphon.decide.retry import Retry, Stop, TokenBucket, after_failure, delay_ms, pause_ms

POLICY = RetryPolicy()

UNAVAILABLE = Failure("http_503", "busy", "answer", True, "answered", 503)
UNAVAILABLE_LATER = UNAVAILABLE._replace(retry_after_ms=1_000)
THROTTLED = Failure("rate_limited", "slow down", "throttle", True, "answered", 429)
REFUSED = Failure("ECONNREFUSED", "refused", "transport", True, "not_sent")
RESET = Failure("ECONNRESET", "reset", "transport", True, "sent")
TIMEOUT = timed_out(5.0)
BAD_REQUEST = Failure("http_400", "bad", "answer", False, "answered", 400)
UNKNOWN = Failure("unclassified", "?", "unclassified", False, "sent", unclassified=True)
QUOTA = Failure("quota_exhausted", "pay", "quota", False, "answered", 429)
REFUSAL = Failure("refusal", "no", "refusal", False, "answered", 400)

CERTAIN = (REFUSED, THROTTLED, UNAVAILABLE_LATER)
OPEN_RETRIABLE = (RESET, TIMEOUT, UNAVAILABLE)
TERMINAL = (BAD_REQUEST, QUOTA, REFUSAL)


def decide(failure: Failure, **overrides: Any) -> Retry | Stop:
    """The defaults: first attempt of four just failed, plenty of time, idempotent."""
    arguments: dict[str, Any] = {
        "attempt": 1,
        "max_attempts": 4,
        "elapsed_ms": 0.0,
        "max_elapsed_ms": 30_000,
        "remaining_ms": None,
        "policy": POLICY,
        "idempotent": True,
        "retry_safe": False,
        "breaker_open": False,
        "budget": None,
        "now": 0.0,
        "chance": 0.5,
    }
    return after_failure(failure, **(arguments | overrides))


# -- R8: the delay -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry", "ceiling"), [(0, 200), (1, 400), (2, 800), (3, 1_600), (4, 3_200), (5, 4_000), (6, 4_000), (900, 4_000)]
)
def test_r8_full_jitter(retry: int, ceiling: int) -> None:
    assert delay_ms(retry, POLICY, 0.0) == 0
    assert delay_ms(retry, POLICY, 0.5) == ceiling / 2
    assert delay_ms(retry, POLICY, 0.999999) < ceiling


def test_r8_first_retry_uses_exponent_zero() -> None:
    assert decide(UNAVAILABLE, attempt=1) == Retry(100)
    assert decide(UNAVAILABLE, attempt=2) == Retry(200)
    assert decide(UNAVAILABLE, attempt=3) == Retry(400)


@pytest.mark.parametrize("floor", [1, 100])
def test_r8_without_room_for_the_jitter_the_pause_is_the_retry_after(floor: int) -> None:
    """At half a chance the pause would be 100 ms and the floor, which is all there is."""
    told = UNAVAILABLE_LATER._replace(retry_after_ms=floor)
    assert decide(told, max_elapsed_ms=100 + floor) == Retry(floor)
    assert decide(told, remaining_ms=100 + floor) == Retry(floor)
    assert decide(told, max_elapsed_ms=101 + floor) == Retry(100 + floor)


def test_r8_retry_after_is_a_floor() -> None:
    for chance in (0.0, 0.5, 0.99):
        decision = decide(UNAVAILABLE_LATER, chance=chance)
        assert isinstance(decision, Retry)
        assert 1_000 <= decision.delay_ms < 1_200, "the jitter comes on top: nobody comes back in step"


def test_r8_per_tool_override() -> None:
    policy = RetryPolicy(base_ms=10, max_delay_ms=15)
    assert decide(UNAVAILABLE, policy=policy, attempt=3, chance=1.0) == Retry(15)


# -- the rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", CERTAIN + OPEN_RETRIABLE)
def test_row_10_idempotent_call_is_tried_again(failure: Failure) -> None:
    assert isinstance(decide(failure), Retry)


@pytest.mark.parametrize("failure", [*TERMINAL, UNKNOWN])
def test_row_2_terminal(failure: Failure) -> None:
    assert decide(failure) == Stop("error", "terminal")


@pytest.mark.parametrize("failure", CERTAIN)
def test_row_3_d5_certainly_no_effect_is_tried_again_even_if_not_idempotent(failure: Failure) -> None:
    assert isinstance(decide(failure, idempotent=False), Retry)


@pytest.mark.parametrize("failure", [*OPEN_RETRIABLE, UNKNOWN])
def test_row_3_d3_everything_open_is_unknown_if_not_idempotent(failure: Failure) -> None:
    decision = decide(failure, idempotent=False)
    assert isinstance(decision, Stop)
    assert decision.status == "outcome_unknown"


@pytest.mark.parametrize("failure", TERMINAL)
def test_d5_definite_answer_stays_an_error_if_not_idempotent(failure: Failure) -> None:
    assert decide(failure, idempotent=False) == Stop("error", "terminal")


def test_d5_a_definite_answer_that_a_tool_lists_as_retriable_says_so_if_not_idempotent() -> None:
    listed = BAD_REQUEST._replace(retriable=True)
    assert decide(listed, idempotent=False) == Stop("retriable_error", "not_safe")
    assert isinstance(decide(listed), Retry)


@pytest.mark.parametrize("failure", OPEN_RETRIABLE)
def test_d5_leave_to_repeat_allows_the_retry(failure: Failure) -> None:
    assert isinstance(decide(failure, idempotent=False, retry_safe=True), Retry)


def test_d3_leave_to_repeat_still_ends_as_unknown() -> None:
    assert decide(RESET, idempotent=False, retry_safe=True, attempt=4) == Stop("outcome_unknown", "attempts")


def test_d3_doubt_of_an_earlier_attempt_is_not_forgotten() -> None:
    last = {"idempotent": False, "retry_safe": True, "attempt": 4}
    assert decide(REFUSED, **last) == Stop("retry_exhausted", "attempts")
    assert decide(REFUSED, **last, may_have_applied=True) == Stop("outcome_unknown", "attempts")
    assert decide(BAD_REQUEST, **last, may_have_applied=True) == Stop("outcome_unknown", "terminal")
    assert decide(BAD_REQUEST, attempt=4, may_have_applied=True) == Stop("error", "terminal"), "idempotent: harmless"


@pytest.mark.parametrize("retry_safe", [False, True])
def test_row_1_r8_running_thread_is_never_doubled(retry_safe: bool) -> None:
    running = timed_out(1.0, still_running=True)
    assert decide(running, idempotent=False, retry_safe=retry_safe) == Stop("outcome_unknown", "not_safe")
    assert isinstance(decide(running, idempotent=True), Retry)


@pytest.mark.parametrize("failure", CERTAIN + OPEN_RETRIABLE)
def test_row_4_r9_no_retry_while_the_breaker_is_open(failure: Failure) -> None:
    assert decide(failure, breaker_open=True) == Stop("retriable_error", "breaker")


def test_row_4_d3_beats_the_breaker() -> None:
    assert decide(RESET, breaker_open=True, idempotent=False, retry_safe=True) == Stop("outcome_unknown", "breaker")


def test_row_5_r1_one_attempt_allowed() -> None:
    assert decide(TIMEOUT, max_attempts=1) == Stop("timeout", "not_allowed")
    assert decide(UNAVAILABLE, max_attempts=1) == Stop("retriable_error", "not_allowed")
    assert decide(TIMEOUT, max_attempts=1, idempotent=False) == Stop("outcome_unknown", "not_safe")


def test_row_5_r1_two_attempts_allowed() -> None:
    assert isinstance(decide(TIMEOUT, max_attempts=2), Retry)
    assert decide(TIMEOUT, max_attempts=2, attempt=2) == Stop("retry_exhausted", "attempts")


@pytest.mark.parametrize("failure", CERTAIN + OPEN_RETRIABLE)
def test_row_6_r8_attempts_used_up(failure: Failure) -> None:
    assert isinstance(decide(failure, attempt=3), Retry)
    assert decide(failure, attempt=4) == Stop("retry_exhausted", "attempts")


def test_row_7_d22_wait_too_long() -> None:
    assert isinstance(decide(THROTTLED._replace(retry_after_ms=30_000), max_elapsed_ms=60_000), Retry)
    assert decide(THROTTLED._replace(retry_after_ms=30_001)) == Stop("retriable_error", "retry_after")
    tool = RetryPolicy(retry_after_cap_ms=500)
    assert decide(THROTTLED._replace(retry_after_ms=501), policy=tool) == Stop("retriable_error", "retry_after")


def test_row_8_r8_elapsed_only_forbids_another_start() -> None:
    assert isinstance(decide(UNAVAILABLE, elapsed_ms=29_899), Retry)
    assert decide(UNAVAILABLE, elapsed_ms=29_900) == Stop("retry_exhausted", "elapsed")
    assert decide(UNAVAILABLE, max_elapsed_ms=0, chance=0.0) == Stop("retry_exhausted", "elapsed")


def test_row_8_r8_deadline() -> None:
    assert isinstance(decide(UNAVAILABLE, remaining_ms=101), Retry)
    assert decide(UNAVAILABLE, remaining_ms=100) == Stop("retry_exhausted", "deadline")
    assert decide(UNAVAILABLE, remaining_ms=-5, chance=0.0) == Stop("retry_exhausted", "deadline")


def test_row_8_r8_retry_after_beyond_the_deadline_stops() -> None:
    assert decide(UNAVAILABLE_LATER, remaining_ms=1_000) == Stop("retry_exhausted", "deadline")
    assert decide(UNAVAILABLE_LATER, remaining_ms=1_001) == Retry(1_000), "the jitter gives way, the floor does not"


def test_row_9_d22_budget() -> None:
    budget = TokenBucket()
    for _ in range(10):
        assert isinstance(decide(UNAVAILABLE, budget=budget), Retry)
    assert decide(UNAVAILABLE, budget=budget) == Stop("retry_exhausted", "budget")
    assert decide(UNAVAILABLE_LATER, budget=budget, idempotent=False) == Stop("retry_exhausted", "budget")
    assert decide(RESET, budget=budget, idempotent=False, retry_safe=True) == Stop("outcome_unknown", "budget")


@pytest.mark.parametrize(
    "overrides",
    [{"attempt": 4}, {"max_attempts": 1}, {"breaker_open": True}, {"remaining_ms": 0}, {"elapsed_ms": 1e9}, {}],
)
def test_d22_budget_is_charged_once_and_only_for_a_retry(overrides: dict[str, Any]) -> None:
    budget = TokenBucket()
    decision = decide(UNAVAILABLE, budget=budget, **overrides)
    assert budget.tokens(0.0) == (9.0 if isinstance(decision, Retry) else 10.0)


# -- what always holds -----------------------------------------------------------------------------------


FAILURES = st.sampled_from([*CERTAIN, *OPEN_RETRIABLE, *TERMINAL, UNKNOWN])


@given(
    failure=FAILURES,
    retry_after=st.one_of(st.none(), st.integers(0, 100_000)),
    attempt=st.integers(1, 6),
    max_attempts=st.integers(1, 6),
    elapsed=st.floats(0, 40_000),
    remaining=st.one_of(st.none(), st.floats(-10, 40_000)),
    chance=st.floats(0, 1, exclude_max=True),
    idempotent=st.booleans(),
    retry_safe=st.booleans(),
    breaker_open=st.booleans(),
    may_have_applied=st.booleans(),
)
def test_invariants(
    failure: Failure,
    retry_after: int | None,
    attempt: int,
    max_attempts: int,
    elapsed: float,
    remaining: float | None,
    chance: float,
    idempotent: bool,
    retry_safe: bool,
    breaker_open: bool,
    may_have_applied: bool,
) -> None:
    failure = failure._replace(retry_after_ms=retry_after)
    decision = decide(
        failure,
        attempt=attempt,
        max_attempts=max_attempts,
        elapsed_ms=elapsed,
        remaining_ms=remaining,
        chance=chance,
        idempotent=idempotent,
        retry_safe=retry_safe,
        breaker_open=breaker_open,
        may_have_applied=may_have_applied,
    )
    if isinstance(decision, Retry):
        assert failure.retriable
        assert not breaker_open
        assert attempt < max_attempts
        assert idempotent or retry_safe or failure.certainly_no_effect, "D5"
        assert decision.delay_ms >= (retry_after or 0), "R8: never sleep less than Retry-After"
        assert elapsed + decision.delay_ms < 30_000
        assert remaining is None or decision.delay_ms < remaining, "never sleep past the deadline"
    else:
        unknown = decision.status == "outcome_unknown"
        assert unknown == (not idempotent and (may_have_applied or failure.may_have_applied)), "D3"
        assert unknown or decision.status != "timeout" or failure.kind == "timeout"
        assert unknown or (decision.status == "error") == (not failure.retriable)


def test_planted_bug_retrying_open_outcomes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = module._stopped

    def careless(failure: Failure, safe: bool, *others: Any) -> Stop | None:
        return honest(failure, True, *others)

    monkeypatch.setattr(module, "_stopped", careless)
    with pytest.raises(AssertionError):
        test_row_3_d3_everything_open_is_unknown_if_not_idempotent(RESET)


def test_planted_bug_sleeping_less_than_retry_after_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(retry: int, policy: RetryPolicy, chance: float, retry_after_ms: int | None = None) -> float:
        return chance * min(policy.max_delay_ms, policy.base_ms << retry)

    monkeypatch.setattr(module, "delay_ms", impatient)
    with pytest.raises(AssertionError):
        test_r8_retry_after_is_a_floor()


def test_every_stop_reason_is_reachable() -> None:
    seen = set()
    for failure, attempt, allowed, elapsed, remaining, safe, broken in product(
        [UNAVAILABLE, THROTTLED._replace(retry_after_ms=40_000), BAD_REQUEST],
        [1, 4],
        [1, 4],
        [0.0, 1e9],
        [None, 1.0],
        [True, False],
        [True, False],
    ):
        decision = decide(
            failure,
            attempt=min(attempt, allowed),
            max_attempts=allowed,
            elapsed_ms=elapsed,
            remaining_ms=remaining,
            idempotent=safe,
            breaker_open=broken,
        )
        if isinstance(decision, Stop):
            seen.add(decision.reason)
    empty = TokenBucket()
    while empty.withdraw(0.0):
        pass
    last = decide(UNAVAILABLE, budget=empty)
    assert isinstance(last, Stop)
    seen.add(last.reason)
    assert seen == set(module.StopReason.__args__)  # type: ignore[attr-defined]


@given(asked=st.one_of(st.none(), st.integers(0, 10**12)), cap=st.integers(0, 100_000))
def test_a_dependency_is_left_alone_as_long_as_it_asks_up_to_the_cap(asked: int | None, cap: int) -> None:
    pause = pause_ms(THROTTLED._replace(retry_after_ms=asked), RetryPolicy(retry_after_cap_ms=cap))
    assert pause == (None if asked is None else asked if asked < cap else cap)

"""R9, D8 and the pitfalls with breakers: herd, lost probe, stale result, cancellation, 429."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from antiphon.contract.spec import READ_BREAKER, WRITE_BREAKER, BreakerPolicy, ToolSpec
from antiphon.decide.breaker import THROTTLED_REASON, Breaker, Permit, Refusal, Snapshot, Transition
from antiphon.decide.failure import Vote


def permit(breaker: Breaker, now: float) -> Permit:
    given = breaker.permit(now)
    assert isinstance(given, Permit), given
    return given


def refusal(breaker: Breaker, now: float) -> Refusal:
    given = breaker.permit(now)
    assert isinstance(given, Refusal)
    return given


def state(breaker: Breaker) -> str:
    """Read anew each time, also in the eyes of the type checker."""
    return breaker.state


def fail(breaker: Breaker, now: float, times: int = 1) -> tuple[Transition, ...]:
    moves: tuple[Transition, ...] = ()
    for _ in range(times):
        moves += breaker.failure(permit(breaker, now), now)
    return moves


def succeed(breaker: Breaker, now: float, times: int = 1) -> tuple[Transition, ...]:
    moves: tuple[Transition, ...] = ()
    for _ in range(times):
        given = permit(breaker, now)
        moves += given.transitions + breaker.success(given, now)
    return moves


def opened(at: float = 0.0, policy: BreakerPolicy | None = None) -> Breaker:
    breaker = Breaker(policy or BreakerPolicy())
    fail(breaker, at, breaker.policy.consecutive)
    assert state(breaker) == "OPEN"
    return breaker


# -- R9: opening ---------------------------------------------------------------------------------------


def test_r9_five_consecutive_failures_open() -> None:
    breaker = Breaker()
    assert fail(breaker, 0.0, 4) == ()
    (move,) = fail(breaker, 1.0)
    assert move == Transition("CLOSED", "OPEN", "5 consecutive failures", 1)
    assert refusal(breaker, 1.0) == Refusal("OPEN", "5 consecutive failures", 30_000)


def test_r9_a_success_ends_the_row() -> None:
    breaker = Breaker(BreakerPolicy(min_calls=20))
    fail(breaker, 0.0, 4)
    succeed(breaker, 0.0)
    assert fail(breaker, 0.0, 4) == ()


def check_the_row_lies_within_the_window(kind: type[Breaker]) -> None:
    breaker = kind()
    fail(breaker, 0.0, 4)
    assert fail(breaker, 120.1) == (), "four of the five are older than 120 s"
    assert fail(breaker, 120.2, 4)


def test_r9_the_row_lies_within_the_window() -> None:
    check_the_row_lies_within_the_window(Breaker)


class NoWindow(Breaker):
    """Failures of yesterday still count."""

    __slots__ = ()

    def _tripped(self, now: float) -> str:
        return super()._tripped(min(now, min(self._closed.fails, default=now)))


def test_planted_bug_no_window_is_found() -> None:
    with pytest.raises(AssertionError):
        check_the_row_lies_within_the_window(NoWindow)


def test_r9_half_of_at_least_ten_opens() -> None:
    breaker = Breaker(BreakerPolicy(consecutive=100))
    for second in range(4):
        succeed(breaker, second)
        assert fail(breaker, second) == ()
    succeed(breaker, 4)
    (move,) = fail(breaker, 5)
    assert move.reason == "5 of the last 10 attempts failed"


def test_r9_under_half_of_the_last_twenty_stays_closed() -> None:
    breaker = Breaker(BreakerPolicy(consecutive=100))
    succeed(breaker, 0.0, 11)
    assert fail(breaker, 0.0, 9) == ()
    assert fail(breaker, 0.0), "the oldest success has left the last twenty"


def test_r9_rate_looks_at_the_rolling_window_only() -> None:
    breaker = Breaker(BreakerPolicy(consecutive=100))
    fail(breaker, 0.0, 9)
    assert fail(breaker, 121.0) == (), "only one attempt is recent: too few to judge"


def test_r9_a_success_never_opens() -> None:
    breaker = Breaker(BreakerPolicy(consecutive=100))
    fail(breaker, 0.0, 9)
    assert succeed(breaker, 0.0) == ()
    assert state(breaker) == "CLOSED"


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        (ToolSpec(name="t", idempotent=True), BreakerPolicy()),
        (ToolSpec(name="t", idempotent=True, effect="read"), READ_BREAKER),
        (ToolSpec(name="t", idempotent=True, effect="write"), WRITE_BREAKER),
    ],
)
def test_r9_presets_follow_the_effect(spec: ToolSpec, policy: BreakerPolicy) -> None:
    breaker = Breaker(spec.breaker_policy)
    assert fail(breaker, 0.0, policy.consecutive - 1) == ()
    assert fail(breaker, 0.0)
    assert refusal(breaker, 0.0).retry_after_ms == policy.cooldown_ms


def test_r9_write_preset_opens_at_thirty_per_cent() -> None:
    breaker = Breaker(WRITE_BREAKER)
    succeed(breaker, 0.0, 7)
    assert fail(breaker, 0.0, 2) == ()
    assert fail(breaker, 0.0)


# -- R9: open, half-open, closed ---------------------------------------------------------------------------


def test_r9_recovery_takes_cooldown_and_two_good_probes() -> None:
    breaker = opened()
    assert breaker.peek(29.9) is not None
    assert breaker.peek(30.0) is None
    first = permit(breaker, 30.0)
    assert first.transitions == (Transition("OPEN", "HALF_OPEN", "cooled down", 2),)
    assert breaker.success(first, 31.0) == ()
    assert breaker.success(permit(breaker, 31.0), 32.0) == (Transition("HALF_OPEN", "CLOSED", "2 good probes", 3),)
    assert fail(breaker, 33.0, 4) == (), "counters are fresh"


def test_r9_failing_probe_reopens_and_restarts_the_cooldown() -> None:
    breaker = opened()
    succeed(breaker, 30.0)
    (move,) = breaker.failure(permit(breaker, 31.0), 40.0)
    assert (move.to_state, move.reason) == ("OPEN", "probe failed")
    assert refusal(breaker, 69.9).retry_after_ms == 100
    succeed(breaker, 70.0)
    assert state(breaker) == "HALF_OPEN", "the good probe of before does not count any more"


def test_pitfall_15_half_open_lets_1_of_50_through() -> None:
    breaker = opened()
    answers = [breaker.permit(30.0) for _ in range(50)]
    assert sum(isinstance(answer, Permit) for answer in answers) == 1
    assert answers[1] == Refusal("HALF_OPEN", "a probe is under way", 1_000)


def test_pitfall_15_herd_of_threads() -> None:
    breaker = opened()
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        barrier = threading.Barrier(8)
        given: list[Permit | Refusal] = []

        def ask() -> None:
            barrier.wait()
            given.extend(breaker.permit(30.0) for _ in range(10))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert sum(isinstance(answer, Permit) for answer in given) == 1


def test_pitfall_16_lost_probe_does_not_block_for_ever() -> None:
    breaker = opened()
    lost = permit(breaker, 30.0)
    assert isinstance(breaker.permit(89.9), Refusal)
    answer = refusal(breaker, 90.0)
    assert [move.reason for move in answer.transitions] == ["probe lost"]
    assert (answer.state, answer.retry_after_ms) == ("OPEN", 30_000)
    second = permit(breaker, 120.0)
    assert breaker.success(lost, 121.0) == (), "a result after its lease counts nowhere"
    assert breaker.failure(lost, 121.0) == ()
    breaker.success(second, 122.0)
    succeed(breaker, 122.0)
    assert state(breaker) == "CLOSED"


def test_pitfall_16_cooldown_of_a_lost_probe_runs_from_the_end_of_its_lease() -> None:
    breaker = opened()
    permit(breaker, 30.0)
    late = permit(breaker, 5_000.0)
    assert [move.to_state for move in late.transitions] == ["OPEN", "HALF_OPEN"]


def test_the_policy_of_a_slow_tool_may_allow_a_longer_probe() -> None:
    breaker = opened(policy=BreakerPolicy(probe_lease_ms=600_000))
    given = breaker.permit(30.0)
    assert isinstance(given, Permit)
    assert isinstance(breaker.permit(500.0), Refusal)
    breaker.success(given, 600.0)
    assert state(breaker) == "HALF_OPEN"


def check_stale_results(kind: type[Breaker], outcome: str) -> None:
    breaker = kind()
    stale = [permit(breaker, 0.0) for _ in range(10)]
    fail(breaker, 1.0, 5)
    probe = permit(breaker, 31.0)
    for late in stale:
        assert getattr(breaker, outcome)(late, 32.0) == ()
    assert state(breaker) == "HALF_OPEN"
    breaker.success(probe, 33.0)
    succeed(breaker, 33.0)
    assert state(breaker) == "CLOSED"
    for late in stale:
        assert getattr(breaker, outcome)(late, 34.0) == ()
    assert state(breaker) == "CLOSED"


@pytest.mark.parametrize("outcome", ["success", "failure"])
def test_pitfall_17_stale_result_never_moves_the_state(outcome: str) -> None:
    check_stale_results(Breaker, outcome)


class StaleFailure(Breaker):
    """A failure of an attempt from before the trip reopens a breaker that has just been closed."""

    __slots__ = ()

    def failure(
        self, permit: Permit, now: float, vote: Vote = "failure", retry_after_ms: int | None = None
    ) -> tuple[Transition, ...]:
        if not permit.probe:
            permit = self._closed
        return super().failure(permit, now, vote, retry_after_ms)


def test_planted_bug_stale_failure_is_found() -> None:
    with pytest.raises(AssertionError):
        check_stale_results(StaleFailure, "failure")


def test_pitfall_18_cancellations_never_trip() -> None:
    breaker = Breaker()
    for _ in range(100):
        assert breaker.neutral(permit(breaker, 0.0), 0.0) == ()
    assert state(breaker) == "CLOSED"


def test_pitfall_18_cancelled_probe_gives_its_permit_back_and_proves_nothing() -> None:
    breaker = opened()
    for second in range(10):
        assert breaker.neutral(permit(breaker, 30.0 + second), 30.5 + second) == ()
    assert state(breaker) == "HALF_OPEN"
    fail(breaker, 50.0)
    assert state(breaker) == "OPEN"


def test_refused_calls_never_extend_the_cooldown() -> None:
    breaker = opened()
    for tenth in range(299):
        refusal(breaker, tenth / 10)
    assert isinstance(breaker.permit(30.0), Permit)


# -- D8: votes ------------------------------------------------------------------------------------------------


def test_d8_definite_answers_never_open_and_close_like_successes() -> None:
    breaker = Breaker()
    for _ in range(50):
        assert breaker.failure(permit(breaker, 0.0), 0.0, "success") == ()
    breaker = opened()
    for second in (30.0, 31.0):
        breaker.failure(permit(breaker, second), second, "success")
    assert state(breaker) == "CLOSED", "a completed round trip is a good probe, whatever it says"


def test_d8_no_vote() -> None:
    breaker = Breaker()
    fail(breaker, 0.0, 4)
    breaker.failure(permit(breaker, 0.0), 0.0, "none")
    assert fail(breaker, 0.0), "no vote neither counts nor ends the row"


def test_d8_429_pauses_until_retry_after_without_a_change_of_state() -> None:
    breaker = Breaker()
    assert breaker.failure(permit(breaker, 0.0), 0.0, "rate_only", 10_000) == ()
    answer = refusal(breaker, 4.0)
    assert (answer.state, answer.retry_after_ms) == ("OPEN", 6_000)
    assert "throttled" in answer.reason
    assert state(breaker) == "CLOSED"
    assert not breaker.is_open(4.0), "the caller who got the 429 may wait for it"
    assert isinstance(breaker.permit(9.999), Permit), "a timer may fire a tick early"
    assert isinstance(breaker.permit(10.0), Permit)


def test_d8_429_is_not_consecutive_and_does_not_end_the_row() -> None:
    breaker = Breaker(BreakerPolicy(min_calls=20))
    for _ in range(10):
        breaker.failure(permit(breaker, 0.0), 0.0, "rate_only")
    assert state(breaker) == "CLOSED"
    assert fail(breaker, 0.0, 4) == ()
    breaker.failure(permit(breaker, 0.0), 0.0, "rate_only")
    assert fail(breaker, 0.0)


def test_d8_429_counts_in_the_rate() -> None:
    breaker = Breaker()
    succeed(breaker, 0.0, 5)
    for _ in range(4):
        breaker.failure(permit(breaker, 0.0), 0.0, "rate_only")
    assert breaker.failure(permit(breaker, 0.0), 0.0, "rate_only")


def test_d8_429_fails_a_probe_and_its_retry_after_prolongs_the_cooldown() -> None:
    breaker = opened()
    breaker.failure(permit(breaker, 30.0), 30.0, "rate_only", 90_000)
    assert refusal(breaker, 31.0).retry_after_ms == 89_000


def test_d8_shorter_retry_after_does_not_shorten_the_pause() -> None:
    breaker = Breaker()
    first, second = permit(breaker, 0.0), permit(breaker, 0.0)
    breaker.failure(first, 0.0, "rate_only", 10_000)
    breaker.failure(second, 1.0, "rate_only", 1_000)
    assert refusal(breaker, 5.0).retry_after_ms == 5_000


def test_after_a_throttle_calls_pass_as_before_and_are_no_probes() -> None:
    breaker = Breaker()
    first = permit(breaker, 0.0)
    breaker.failure(first, 0.0, "rate_only", 10_000)
    refusal(breaker, 9.9)
    again = permit(breaker, 10.1)
    assert not again.probe
    assert again.epoch == first.epoch
    assert permit(breaker, 10.2) is again
    assert fail(breaker, 10.3, breaker.policy.consecutive), "failures count on"


def test_a_late_answer_of_an_earlier_time_throttles_nobody() -> None:
    breaker = Breaker()
    early = permit(breaker, 0.0)
    fail(breaker, 0.0, breaker.policy.consecutive)
    breaker.reset(1.0)
    assert breaker.failure(early, 2.0, "rate_only", 10_000) == ()
    assert not permit(breaker, 2.1).probe


# -- R9: operators ----------------------------------------------------------------------------------------------


def in_every_state() -> Iterator[Breaker]:
    yield Breaker()
    yield opened()
    half = opened()
    permit(half, 30.0)
    yield half
    forced = Breaker()
    forced.force_open(0.0, "before")
    yield forced


@pytest.mark.parametrize("breaker", tuple(in_every_state()), ids=lambda breaker: breaker.state)
def test_r9_forced_from_any_state_until_reset(breaker: Breaker) -> None:
    before = breaker.state
    assert breaker.force_open(31.0, "maintenance")[-1][:3] == (before, "FORCED_OPEN", "maintenance")
    assert refusal(breaker, 1e9) == Refusal("FORCED_OPEN", "maintenance", None)
    assert breaker.is_open(1e9)
    (move,) = breaker.reset(1e9, "done")
    assert move[:3] == ("FORCED_OPEN", "CLOSED", "reset: done")
    assert isinstance(breaker.permit(1e9), Permit)


def test_r9_expiry_only_if_the_operator_gives_one() -> None:
    breaker = Breaker()
    breaker.force_open(0.0, "maintenance", for_ms=5_000)
    assert refusal(breaker, 4.0).retry_after_ms == 1_000
    given = permit(breaker, 5.0)
    assert [move.reason for move in given.transitions] == ["forced state expired"]
    assert fail(breaker, 5.0, 4) == ()
    assert breaker.failure(given, 5.0), "the permit that brought the news counts like any other"


@pytest.mark.parametrize("breaker", tuple(in_every_state()), ids=lambda breaker: breaker.state)
def test_r9_reset_closes_at_once_from_any_state(breaker: Breaker) -> None:
    breaker.reset(31.0)
    assert state(breaker) == "CLOSED"
    assert fail(breaker, 31.0, 4) == ()


def test_r9_reset_ends_a_pause() -> None:
    breaker = Breaker()
    breaker.failure(permit(breaker, 0.0), 0.0, "rate_only", 10_000)
    breaker.reset(1.0)
    assert isinstance(breaker.permit(1.0), Permit)


def test_r9_forced_by_config() -> None:
    breaker = Breaker(BreakerPolicy(forced_open=True))
    assert refusal(breaker, 0.0) == Refusal("FORCED_OPEN", "configured", None)
    breaker.reset(0.0)
    assert state(breaker) == "CLOSED"


# -- R9: kept and shared ------------------------------------------------------------------------------------------


def test_r9_state_survives_a_restart() -> None:
    kept = opened(at=1_000.0).export(1_010.0)
    assert kept == Snapshot("OPEN", 1, 20_000, "5 consecutive failures")
    again = Breaker()
    (move,) = again.adopt(*kept, now=3.0)
    assert (move.to_state, again.epoch) == ("OPEN", 1)
    assert refusal(again, 3.0).retry_after_ms == 20_000
    assert isinstance(again.permit(23.0), Permit)


def test_r9_forced_state_survives_a_restart_without_end() -> None:
    breaker = Breaker()
    breaker.force_open(0.0, "maintenance")
    again = Breaker()
    again.adopt(*breaker.export(50.0), now=0.0)
    assert refusal(again, 1e9) == Refusal("FORCED_OPEN", "maintenance", None)


def test_r9_half_open_elsewhere_is_open_here_and_sends_its_own_probe() -> None:
    other = opened()
    permit(other, 30.0)
    here = Breaker()
    here.adopt(*other.export(30.0), now=100.0)
    assert here.state == "OPEN"
    assert isinstance(here.permit(100.0), Permit)


def test_older_news_are_ignored() -> None:
    breaker = opened()
    breaker.reset(1.0)
    assert breaker.adopt("OPEN", 1, 30_000, "old", 2.0) == ()
    assert breaker.adopt("OPEN", 2, 30_000, "same age", 2.0) == ()
    assert state(breaker) == "CLOSED"


def test_newer_trip_and_recovery_are_taken_over() -> None:
    breaker = Breaker()
    assert breaker.adopt("OPEN", 7, 10_000, "tripped elsewhere", 0.0)[0].epoch == 7
    assert breaker.adopt("CLOSED", 9, 0, "2 good probes", 5.0)[0].to_state == "CLOSED"
    assert isinstance(breaker.permit(5.0), Permit)
    assert breaker.adopt("CLOSED", 12, 0, "", 6.0) == ()
    assert breaker.epoch == 12


def test_forced_wins_at_the_same_epoch() -> None:
    breaker = opened()
    assert breaker.adopt("FORCED_OPEN", breaker.epoch, 0, "operator", 0.0)[0].to_state == "FORCED_OPEN"


def test_forced_is_not_lifted_by_a_process_that_had_not_heard_of_it() -> None:
    breaker = Breaker()
    breaker.force_open(0.0, "operator")
    for name, reason in (("OPEN", "5 consecutive failures"), ("CLOSED", "2 good probes")):
        (move,) = breaker.adopt(name, breaker.epoch + 3, 1_000, reason, 1.0)  # type: ignore[arg-type]
        assert (move.to_state, move.reason) == ("FORCED_OPEN", "operator"), "published again, newer than the other"
    assert breaker.adopt("CLOSED", breaker.epoch + 1, 0, "reset: done", 2.0)[0].to_state == "CLOSED"


def test_threads_lose_no_failure() -> None:
    """The closed path takes no lock: a trip must still come exactly once."""
    breaker = Breaker(BreakerPolicy(consecutive=4_000, min_calls=1_000_000))
    moves: list[Transition] = []
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        for _ in range(1_000):
            given = breaker.permit(0.0)
            if isinstance(given, Permit):
                moves.extend(breaker.failure(given, 0.0))

    threads = [threading.Thread(target=work) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert [move.to_state for move in moves] == ["OPEN"]


# -- to the number ------------------------------------------------------------------------------------------------


def test_retries_are_pointless_while_it_is_open() -> None:
    breaker = Breaker()
    assert not breaker.is_open(0.0)
    breaker = opened()
    assert breaker.is_open(0.0)
    assert breaker.is_open(29.9)
    assert not breaker.is_open(30.0)
    breaker.force_open(40.0, "by hand")
    assert breaker.is_open(1_000.0)


def test_a_probe_that_says_nothing_comes_back() -> None:
    breaker = opened()
    probe = permit(breaker, 30.0)
    assert breaker.failure(probe, 30.1, "none") == ()
    assert state(breaker) == "HALF_OPEN"
    assert permit(breaker, 30.2).probe


def test_a_throttled_probe_without_a_time_keeps_the_cool_down() -> None:
    breaker = opened(policy=BreakerPolicy(cooldown_ms=0))
    breaker.failure(permit(breaker, 0.0), 0.0, "rate_only")
    assert breaker.export(0.0) == Snapshot("OPEN", 3, 0, "probe failed")


def test_a_cool_down_that_is_over_is_exported_as_over() -> None:
    assert opened().export(100.0) == Snapshot("OPEN", 1, 0, "5 consecutive failures")


def test_a_closed_breaker_of_another_process_has_no_end() -> None:
    breaker = opened()
    breaker.adopt("CLOSED", 7, 5_000, "2 good probes", 10.0)
    assert breaker.export(10.0) == Snapshot("CLOSED", 7, 0, "2 good probes")


def test_a_forced_state_is_not_replaced_by_one_of_the_same_epoch() -> None:
    breaker = Breaker()
    breaker.force_open(0.0, "by hand")
    assert breaker.adopt("FORCED_OPEN", breaker.epoch, 5_000, "somebody else", 0.0) == ()
    assert refusal(breaker, 100.0) == Refusal("FORCED_OPEN", "by hand", None)


def test_throttled_until_just_before_the_time_is_up() -> None:
    breaker = Breaker()
    breaker.failure(permit(breaker, 0.0), 0.0, "rate_only", 1_000)
    assert refusal(breaker, 0.9949).retry_after_ms == 6
    assert isinstance(breaker.permit(1.0 - 0.005), Permit)


def test_a_pause_is_told_without_a_change_of_state() -> None:
    breaker = Breaker()
    breaker.failure(permit(breaker, 0.0), 0.0, "rate_only", 10_000)
    assert breaker.export(4.0) == Snapshot("CLOSED", 0, 6_000, THROTTLED_REASON)
    assert breaker.export(10.0) == Snapshot("CLOSED", 0, 0, THROTTLED_REASON)
    breaker.force_open(4.0, "by hand")
    assert breaker.export(4.0) == Snapshot("FORCED_OPEN", 1, 0, "by hand"), "a forced state does not end with a pause"


def test_a_reset_elsewhere_ends_a_pause_and_starts_anew() -> None:
    breaker = Breaker()
    fail(breaker, 0.0, 4)
    breaker.failure(permit(breaker, 0.0), 0.0, "rate_only", 10_000)
    assert breaker.adopt("CLOSED", 1, 0, "reset: it is back", 1.0) == (), "it was closed and is closed"
    assert breaker.export(1.0) == Snapshot("CLOSED", 1, 0, "reset: it is back")
    assert breaker.pass_for_all is not None, "nobody has to ask"
    assert fail(breaker, 1.0) == (), "failures before the reset do not count"


def test_what_else_is_told_does_not_end_a_pause() -> None:
    breaker = Breaker()
    breaker.failure(permit(breaker, 0.0), 0.0, "rate_only", 10_000)
    assert breaker.adopt("CLOSED", 1, 0, "2 good probes", 1.0) == ()
    assert refusal(breaker, 1.0).reason == THROTTLED_REASON


def test_a_caller_is_sent_away_for_the_rest_of_a_short_probe() -> None:
    breaker = opened(policy=BreakerPolicy(probe_lease_ms=500))
    assert isinstance(breaker.permit(30.0), Permit)
    assert refusal(breaker, 30.25).retry_after_ms == 250


@pytest.mark.parametrize("second", [119.95, 120.0])
def test_failures_count_for_the_whole_window(second: float) -> None:
    breaker = Breaker()
    fail(breaker, 0.0, 4)
    assert fail(breaker, second)
    breaker = Breaker(BreakerPolicy(consecutive=100))
    fail(breaker, 0.0, 9)
    assert fail(breaker, second)


def test_a_forced_state_that_ends_does_not_end_a_pause() -> None:
    breaker = Breaker()
    breaker.failure(permit(breaker, 0.0), 0.0, "rate_only", 100_000)
    breaker.force_open(0.0, "by hand", for_ms=1_000)
    for _ in range(2):
        assert "throttled" in refusal(breaker, 2.0).reason
    breaker.reset(3.0)
    assert breaker.pass_for_all is not None, "nobody has to ask"

"""The campaign of real kills and pauses in small, and its checker, which has to see what is wrong in a history."""

from __future__ import annotations

from typing import Any

from tests.faults import campaign
from tests.faults.history import Event, check


def test_kills_and_pauses_double_and_lose_nothing() -> None:
    verdict = campaign.run("sqlite", campaign.Goals(kills=2, pauses=1, faults=1))
    assert verdict.violations == []
    assert verdict.counts["kill"] == 2
    assert verdict.counts["pause"] == verdict.counts["disk full"] == verdict.counts["clock stepped"] == 1
    assert verdict.counts["effects"] > 0


def _call(number: int, order: str = "o1", worker: str = "w1", at: float = 1.0, final: bool = False) -> Event:
    return {"event": "call", "call": number, "order": order, "worker": worker, "at": at, "final": final}


def _answer(number: int, value: Any = None, code: str = "", at: float = 2.0, cached: bool = False) -> Event:
    answer = {"event": "answer", "call": number, "at": at, "code": code, "value": value, "fromCache": cached}
    return {**answer, "status": "error" if code else "success", "attempts": 1, "metadata": {}}


def _effect(number: int, order: str = "o1", call: int = 1, worker: str = "w1", at: float = 1.5) -> Event:
    return {"number": number, "order": order, "call": call, "worker": worker, "at": at}


def _fault(what: str, at: float, worker: str = "") -> Event:
    return {"event": what, "at": at, **({"worker": worker} if worker else {})}


def _over(what: str, at: float) -> Event:
    return {"event": "over", "what": what, "at": at}


def test_a_history_without_faults_is_fine() -> None:
    verdict = check([_call(1), _answer(1, 1), _call(2, at=3), _answer(2, 1, at=4, cached=True)], [_effect(1)])
    assert verdict.violations == []
    assert verdict.counts["effects"] == 1


def test_a_second_effect_is_a_violation_even_after_a_kill() -> None:
    driver = [_call(1), _fault("kill", 1.6, "w1"), _call(2, worker="w2", at=1.7), _answer(2, 2)]
    verdict = check(driver, [_effect(1), _effect(2, call=2, worker="w2", at=1.8)])
    assert ["twice" in violation for violation in verdict.violations] == [True]


def test_a_second_effect_after_a_loss_is_matched_to_it_once() -> None:
    calls = [_call(1), _answer(1, 1), _fault("server killed", 3), _fault("writes lost", 3), _over("server killed", 4)]
    calls += [_call(2, at=5), _answer(2, 2, at=6)]
    effects = [_effect(1), _effect(2, call=2, at=5.5)]
    verdict = check(calls, effects)
    assert verdict.violations == []
    assert len(verdict.matched) == 1
    third = [*calls, _call(3, at=7), _answer(3, 3, at=8)]
    verdict = check(third, [*effects, _effect(3, call=3, at=7.5)])
    assert len(verdict.violations) == 1, "one loss does not explain two duplicates"


def test_a_loss_explains_the_orders_that_it_lost() -> None:
    driver = [_call(1), _answer(1, 1), {**_fault("writes lost", 3), "orders": ["o2"]}, _call(2, at=5), _answer(2, 2)]
    effects = [_effect(1), _effect(2, call=2, at=5.5)]
    assert "twice" in check(driver, effects).violations[0]
    driver[2]["orders"] = ["o1"]
    assert check(driver, effects).violations == []
    late = [_call(1), _answer(1, 1), {**_fault("writes lost", 3), "orders": ["o1"]}, _call(2, at=9)]
    late += [_answer(2, code="outcome_unknown", at=10)]
    assert check(late, [_effect(1)]).violations == [], "its settlement was lost"


def test_a_clock_that_jumps_does_not_excuse_a_store_that_is_away() -> None:
    driver = [_call(1), _fault("clock stepped", 1.5), _over("clock stepped", 1.7), _answer(1, code="store_unavailable")]
    assert "it was there" in check(driver, []).violations[0]
    driver[3] = _answer(1, code="outcome_unknown")
    assert check(driver, []).violations == []
    driver[1]["excuses"] = False  # the clock of a server decides
    assert "no fault explains it" in check(driver, []).violations[0]


def test_a_pause_in_the_middle_of_a_write_holds_up_everybody() -> None:
    pause: Event = {"event": "pause", "worker": "w9", "at": 1.2, "locks": True}
    driver = [_call(1), pause, {"event": "resume", "worker": "w9", "at": 4.0}, _answer(1, code="outcome_unknown", at=5)]
    assert check(driver, []).violations == []
    pause["locks"] = False
    assert "no fault explains it" in check(driver, []).violations[0]


def test_a_starved_worker_may_lose_its_lease() -> None:
    driver = [_call(1, "r1"), _call(2, "r1", worker="w2", at=1.1), _answer(2, 2, at=4.0), _answer(1, 1, at=4.1)]
    effects = [_effect(1, "r1"), _effect(2, "r1", call=2, worker="w2", at=3.5)]
    assert "although nothing was wrong" in check(driver, effects).violations[0]
    stall: Event = {"stalled": "w1", "at": 1.2, "until": 3.4, "locks": False}
    verdict = check(driver, [*effects, stall])
    assert verdict.violations == []
    assert (verdict.counts["stall"], verdict.counts["effects"]) == (1, 2)
    assert check(driver, [*effects, {**stall, "stalled": "w9"}]).violations, "another worker"
    assert check(driver, [*effects, {**stall, "stalled": "w9", "locks": True}]).violations == [], "in a write to a file"
    paused = [*driver, _fault("pause", 1.3, "w9"), {"event": "resume", "worker": "w9", "at": 3.3}]
    verdict = check(paused, [*effects, {**stall, "stalled": "w9", "locks": True}])
    assert verdict.violations, "a pause of another worker, which was not in a write"
    assert verdict.counts["stall"] == 0


def test_a_recording_that_is_not_in_the_bucket_is_lost() -> None:
    driver = [_call(1), {**_answer(1, 1), "run": "run-1"}]
    assert "is lost" in check(driver, [_effect(1)]).violations[0]
    stored = {"event": "stored", "run": "run-1", "output": 1, "at": 9.0}
    assert check([*driver, stored], [_effect(1)]).violations == []
    assert "says 2" in check([*driver, {**stored, "output": 2}], [_effect(1)]).violations[0]


def test_a_worker_that_nobody_killed_is_a_violation() -> None:
    assert "ended by itself" in str(check([_call(1), _fault("crash", 2, "w1")], []).violations)


def test_an_effect_that_happens_twice_is_noticed_in_a_campaign() -> None:
    verdict = campaign.run("sqlite", campaign.Goals(kills=1, pauses=0, workers=2), planted="effect-counted-twice")
    assert any("took effect twice" in violation for violation in verdict.violations)


def test_an_unknown_outcome_needs_a_fault() -> None:
    assert "no fault explains" in check([_call(1), _answer(1, code="outcome_unknown")], []).violations[0]
    explained = [_call(1), _fault("kill", 1.5, "w1"), _call(2, worker="w2", at=1.6)]
    assert check([*explained, _answer(2, code="outcome_unknown")], []).violations == []
    other = [_call(1, "o2"), _fault("kill", 1.5, "w1"), _call(2, worker="w2", at=1.6)]
    assert check([*other, _answer(2, code="outcome_unknown")], []).violations, "a fault of another order"
    again = [_call(1, "r1"), _fault("kill", 1.5, "w1"), _call(2, "r1", worker="w2", at=1.6)]
    assert check([*again, _answer(2, code="outcome_unknown")], []).violations, "it may be repeated"


def test_lost_calls_results_and_effects_are_violations() -> None:
    assert "never answered" in check([_call(1)], []).violations[0]
    assert "no effect" in check([_call(1), _answer(1, 1)], []).violations[0]
    assert "nobody asked" in check([], [_effect(1)]).violations[0]
    assert "nobody asked" in check([_call(1), _answer(1, 1)], [_effect(1, worker="w9")]).violations[0]
    unasked = check([_call(1), _answer(1, code="store_unavailable"), _fault("server killed", 1)], [_effect(1)])
    assert any("took effect, but was answered" in violation for violation in unasked.violations)
    two = [_call(1), _answer(1, 1), _call(2, at=3), _answer(2, 2, at=4)]
    assert any("several results" in text for text in check(two, [_effect(1), _effect(2, call=2, at=3.5)]).violations)

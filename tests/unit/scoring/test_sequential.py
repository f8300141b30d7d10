"""The verdict by betting: recomputed here in another way, and right as often as it says."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from antiphon.scoring.sequential import Bets, Comparison, compare, shares


def recomputed(values: list[float], m: Fraction, bold: Fraction) -> Fraction:
    """The capital of approximate GRAPA from its definition, in exact fractions without running sums."""
    capital = Fraction(1)
    for t in range(len(values)):
        past = [Fraction(value) for value in values[:t]]
        means = [(Fraction(1, 2) + sum(past[: i + 1])) / (i + 2) for i in range(t)]
        mean = means[-1] if means else Fraction(1, 2)
        variance = (Fraction(1, 4) + sum((x - mu) ** 2 for x, mu in zip(past, means, strict=True))) / (t + 1)
        bet = (mean - m) / (variance + (mean - m) ** 2)
        capital *= 1 + min(max(bet, Fraction(0)), bold / m) * (Fraction(values[t]) - m)
    return capital


@pytest.mark.parametrize("m", [0.5, 0.475, 0.25])
def test_the_capital_is_that_of_the_definition(m: float) -> None:
    chance = random.Random(3)
    values = [chance.choice([0.0, 0.25, 0.5, 1.0]) for _ in range(60)]
    bets = Bets(m)
    for value in values:
        bets.see(value)
    assert bets.capital == pytest.approx(float(recomputed(values, Fraction(m), Fraction(3, 4))), rel=1e-9)


def test_betting_against_the_truth_wins_nothing_on_average() -> None:
    """All sequences of 12 fair values: the mean capital is 1, exactly what makes the test valid at every moment."""
    total = 0.0
    for number in range(2**12):
        bets = Bets(0.5)
        for bit in range(12):
            bets.see(float(number >> bit & 1))
        total += bets.capital
    assert total / 2**12 == pytest.approx(1.0, rel=1e-12)


def test_the_rounds_share_alpha() -> None:
    for rounds in range(1, 12):
        assert sum(shares(rounds)) == pytest.approx(1.0)
        assert len(shares(rounds)) == rounds


def test_clear_cases_are_decided_early_and_for_good() -> None:
    assert compare((0, run, -1.0) for run in range(100)).decision == "worse"
    assert compare((0, run, -1.0) for run in range(100)).pairs < 15
    fine = compare((0, run, 0.0) for run in range(500))
    assert fine.decision == "not worse"
    test = Comparison()
    for run in range(100):
        test.add_pair(0, run, -1.0)
    seen = test.result()
    for run in range(1000):
        test.add_pair(0, run, 1.0)
    assert test.result() == seen


def test_pairs_of_one_run_count_as_one() -> None:
    """Twenty runs that are always worse by half say no more in round 5 than in round 1: the runs are the sample."""
    once = Comparison(shares=shares(1))
    often = Comparison(shares=(0.2,) * 5)
    for round_ in range(5):
        for run in range(20):
            difference = -0.5 if run % 2 else 0.25
            if round_ == 0:
                once.add_pair(0, run, difference)
            often.add_pair(round_, run, difference)
    assert often.result().evidence_worse == pytest.approx(once.result().evidence_worse / 5)


@pytest.mark.parametrize("wrong", [1.5, -1.01, math.nan])
def test_what_is_no_difference_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError):
        Comparison().add_pair(0, "run", wrong)


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"margin": 1.0}, {"shares": (0.7, 0.7)}])
def test_settings_that_prove_nothing_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Comparison(**options)  # type: ignore[arg-type]


def test_false_alarms_stay_below_alpha() -> None:
    """The short form of ``make bench ONLY=matrix``: 200 comparisons of equal models with 100 runs."""
    from bench.matrix import simulate

    found = simulate(runs=100, drop=0.0, trials=200, seed=7)
    assert found.worse <= 20  # the 99 % bound of 5 % of 200

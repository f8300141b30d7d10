"""The benchmark's arithmetic: medians, ratios round by round, goals that can be missed."""

from __future__ import annotations

import pytest

from bench import Race, Row, Timing
from bench._report import table


def _timing(*cpu: float) -> Timing:
    return Timing(n=1, cpu=cpu, wall=tuple(2 * value for value in cpu), rss_mb=1.0, extra={})


def test_a_ratio_pairs_the_rounds() -> None:
    race = Race({"ours": _timing(1e-6, 2e-6, 9e-6), "peer": _timing(2e-6, 4e-6, 18e-6)})
    assert race.ratio("ours", "peer") == pytest.approx(0.5)
    assert race["ours"].us() == pytest.approx(2.0)
    assert race["ours"].us("wall") == pytest.approx(4.0)


@pytest.mark.parametrize(("faster", "met"), [(1.9, True), (2.1, False)])
def test_faster_is_a_bound_on_the_ratio(faster: float, met: bool) -> None:
    race = Race({"ours": _timing(1.0), "peer": _timing(2.0)})
    assert race.row("x", "ours", "peer", faster=faster).met is met


def test_goals_bound_the_ratio_or_else_the_value() -> None:
    assert Row(name="x", value=5, ratio=0.5, at_most=1).met is True
    assert Row(name="x", value=5, at_most=1).met is False
    assert Row(name="x", value=5, at_least=6).met is False
    assert Row(name="x", value=5).met is None


def test_the_table_says_what_was_missed() -> None:
    text = table([Row(name="call", value=12.34, peer="other", peer_value=48.0, ratio=0.25, at_most=0.2)])
    assert "| call | 12.3 µs" in text
    assert "0.25 (4× faster)" in text
    assert "≤ 0.2 MISSED" in text

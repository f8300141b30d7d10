"""The benchmark's arithmetic: medians, ratios round by round, goals that can be missed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bench import Race, Row, Timing, _envs
from bench._calls import Setup
from bench._envs import RELEASE, PeerUnavailable, python_of
from bench._report import table

CASES = Path(_envs.__file__).parent / "cases"


def _timing(*cpu: float) -> Timing:
    return Timing(n=1, cpu=cpu, wall=tuple(2 * value for value in cpu), rss_mb=1.0, extra={})


def test_a_ratio_pairs_the_rounds() -> None:
    race = Race({"ours": _timing(1e-6, 2e-6, 9e-6), "peer": _timing(2e-6, 4e-6, 18e-6)})
    assert race.ratio("ours", "peer") == pytest.approx(0.5)
    assert race["ours"].us() == pytest.approx(2.0)
    assert race["ours"].us("wall") == pytest.approx(4.0)


def test_a_ratio_says_how_far_it_may_be_off() -> None:
    race = Race({"ours": _timing(*[1.0] * 8, 1.2, 0.8), "peer": _timing(*[1.0] * 10), "noisy": _timing(*range(1, 11))})
    assert race.margin("ours", "peer") == pytest.approx(0)
    assert race.margin("noisy", "peer") == pytest.approx(1.57 * 5.5 / 10**0.5)
    assert "| 5.5 ± 2.7 " in table([race.row("x", "noisy", "peer")])


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


def test_release_0_1_0_stands_beside_with_its_own_ratio() -> None:
    race = Race({"ours": _timing(1e-6), "peer": _timing(4e-6), "old": _timing(2e-6)})
    row = race.row("call", "ours", "peer", release="old", setup=Setup("FULL", asyncio=True))
    assert (row.release, row.release_ratio) == pytest.approx((2.0, 0.5))
    text = table([row])
    assert "| 2 µs (ratio 0.5)" in text
    assert "| SQLite FULL, asyncio, 100 B, no logs, built-in metrics |" in text
    assert "configured" not in table([Row(name="x", value=1)])


def test_a_row_whose_peer_is_missing_says_why_and_has_not_met_its_goal() -> None:
    race = Race({"ours": _timing(1e-6)}, {"peer": "peer: no such package"})
    row = race.row("call", "ours", "peer", at_most=1)
    assert row.met is False
    assert "≤ 1 FAILED" in table([row])
    assert "FAILED: peer: no such package" in table([row])
    with pytest.raises(PeerUnavailable, match="no such package"):
        race["peer"]


def test_a_release_that_is_not_in_the_clone_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_envs, "ENVS", tmp_path)
    monkeypatch.setattr(_envs, "SOURCES", {RELEASE: "0" * 40})
    monkeypatch.setattr(_envs, "_unavailable", {})
    with pytest.raises(PeerUnavailable, match=r"commit 0000000 is not in this clone.*git fetch --unshallow"):
        python_of(RELEASE)


@pytest.mark.parametrize("name", ["gateway", "recording"])
def test_cases_that_measure_a_release_use_public_names(name: str) -> None:
    tree = ast.parse((CASES / f"{name}.py").read_text(encoding="utf-8"))
    used = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    used |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert [module for module in used if module.startswith("antiphon") and "._" in module] == []
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert [attribute for attribute in attributes if attribute.startswith("_") and not attribute.endswith("__")] == []

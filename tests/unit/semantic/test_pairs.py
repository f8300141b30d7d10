"""Labelled pairs: our own arguments, and answers that contradict or do not, in six languages."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from antiphon.similarity import Embedder, SemanticIndex, arguments, contradictions, lexical, similar_arguments
from antiphon.similarity.arguments import Leaf

DATA = Path(__file__).parents[2] / "data"
PAIRS: list[dict[str, Any]] = json.loads((DATA / "argument_pairs.json").read_text())["pairs"]
HELD_OUT = [pair for pair in PAIRS if pair["held_out"]]
ANSWERS = [line.split("\t") for line in (DATA / "contradictions.tsv").read_text("utf-8").splitlines()[1:]]


def precision_and_recall(pairs: list[dict[str, Any]], embedder: Embedder | None) -> tuple[float, float]:
    hits = [pair["same"] for pair in pairs if similar_arguments(pair["recorded"], pair["live"], embedder).hit]
    return sum(hits) / len(hits), sum(hits) / sum(pair["same"] for pair in pairs)


def test_the_set_is_large_and_has_no_double() -> None:
    assert len(PAIRS) >= 200
    assert len({json.dumps([pair["recorded"], pair["live"]], sort_keys=True) for pair in PAIRS}) == len(PAIRS)
    assert {True, False} == {pair["same"] for pair in HELD_OUT}


@pytest.mark.parametrize("embedder", [None, lexical], ids=["none", "lexical"])
@pytest.mark.parametrize("pairs", [PAIRS, HELD_OUT], ids=["all", "held out"])
def test_precision_and_recall_without_a_model(pairs: list[dict[str, Any]], embedder: Embedder | None) -> None:
    precision, recall = precision_and_recall(pairs, embedder)
    assert precision >= 0.99
    assert recall >= 0.65


def test_swapping_recorded_and_live_changes_nothing() -> None:
    for pair in PAIRS:
        there = similar_arguments(pair["recorded"], pair["live"])
        back = similar_arguments(pair["live"], pair["recorded"])
        assert there.hit == back.hit, pair
        assert there.score == pytest.approx(back.score), pair


@pytest.mark.parametrize("embedder", [None, lexical], ids=["none", "lexical"])
def test_the_index_finds_what_a_comparison_one_by_one_finds(embedder: Embedder | None) -> None:
    index: SemanticIndex[int] = SemanticIndex(embedder)
    for number, pair in enumerate(PAIRS):
        index.add(pair["tool"], pair["recorded"], number)
    for pair in PAIRS[::40]:
        slow = {
            number
            for number, other in enumerate(PAIRS)
            if other["tool"] == pair["tool"] and similar_arguments(other["recorded"], pair["live"], embedder).hit
        }
        assert {found.ref for found in index.find(pair["tool"], pair["live"])} == slow, pair


PLANTED: dict[str, tuple[str, Any]] = {
    "nothing has to agree": ("_disagreement", lambda *_: ""),
    "every leaf is free text": ("leaves", lambda a, *_: [Leaf("$", "text", json.dumps(a))]),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_costs_precision(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, broken = PLANTED[bug]
    monkeypatch.setattr(arguments, name, broken)
    assert precision_and_recall(PAIRS, None)[0] < 0.99


def test_the_answers_cover_every_kind_and_language() -> None:
    assert Counter(contradicts for contradicts, *_ in ANSWERS) == {"yes": 154, "no": 135}
    assert {language for _, language, *_ in ANSWERS} == {"en", "de", "fr", "es", "zh", "ja", "sign"}
    kinds = {kind for contradicts, _, kind, *_ in ANSWERS if contradicts == "yes"}
    assert kinds == {"negation", "number", "day", "month", "state", "emoji"}


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "zh", "ja", "sign"])
def test_contradicting_answers_are_flagged_and_harmless_ones_are_not(language: str) -> None:
    flagged: dict[str, list[bool]] = {"yes": [], "no": []}
    for contradicts, spoken, _, recorded, replayed in ANSWERS:
        if spoken == language:
            for old, new in ((recorded, replayed), (replayed, recorded)):
                flagged[contradicts].append(bool(contradictions(old, new)))
    assert sum(flagged["yes"]) >= 0.95 * len(flagged["yes"])
    assert sum(flagged["no"]) <= 0.05 * len(flagged["no"])


def test_opposites_by_another_hand_are_flagged_and_harmless_answers_are_not() -> None:
    rows = [line.split("\t") for line in (DATA / "opposites.tsv").read_text("utf-8").splitlines() if line[0] != "#"]
    wrong: Counter[str] = Counter()
    for _, _, label, recorded, replayed in rows:
        for old, new in ((recorded, replayed), (replayed, recorded)):
            wrong[label] += bool(contradictions(old, new)) != (label == "opposite")
    assert Counter(label for _, _, label, *_ in rows) == {"opposite": 118, "harmless": 112}
    assert wrong["opposite"] <= 0.05 * 2 * 118
    assert wrong["harmless"] <= 0.05 * 2 * 112

"""The labelled pairs: precision ≥ 0.99 at recall ≥ 0.8 without any model (D11)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.similarity import Embedder, SemanticIndex, _alike, arguments, lexical, similar_arguments
from antiphon.similarity._alike import alike
from antiphon.similarity._phrase import lexicon
from antiphon.similarity.arguments import Leaf

PAIRS: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data" / "argument_pairs.json").read_text())[
    "pairs"
]
HELD_OUT = [pair for pair in PAIRS if pair["held_out"]]


def precision_and_recall(pairs: list[dict[str, Any]], embedder: Embedder | None) -> tuple[float, float]:
    hits = [pair["same"] for pair in pairs if similar_arguments(pair["recorded"], pair["live"], embedder).hit]
    return sum(hits) / len(hits), sum(hits) / sum(pair["same"] for pair in pairs)


def test_the_set_is_large_and_has_no_double() -> None:
    assert len(PAIRS) >= 200
    assert len({json.dumps([pair["recorded"], pair["live"]], sort_keys=True) for pair in PAIRS}) == len(PAIRS)
    assert {True, False} == {pair["same"] for pair in HELD_OUT}


@pytest.mark.parametrize("embedder", [None, lexical], ids=["none", "lexical"])
@pytest.mark.parametrize("pairs", [PAIRS, HELD_OUT], ids=["all", "held out"])
def test_precision_and_recall(pairs: list[dict[str, Any]], embedder: Embedder | None) -> None:
    precision, recall = precision_and_recall(pairs, embedder)
    assert precision >= 0.99
    assert recall >= 0.8


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


def test_no_content_word_may_be_dropped() -> None:
    known = lexicon()
    small = set().union(known.fillers, known.openers, known.asking, known.about, known.links, known.roles)
    small |= {
        *known.pronouns,
        *known.courtesies,
        *known.regions,
        *known.states,
        "a",
        "me",
        "up",
        "current",
        "whats",
        "-",
        "",
    }
    values = [value for pair in PAIRS for value in (*pair["recorded"].values(), *pair["live"].values())]
    tried = 0
    for text in {value for value in values if isinstance(value, str)}:
        words = text.split()
        for place, word in enumerate(words):
            if "".join(c for c in word.lower() if c.isalnum() or c == "-") not in small:
                tried += 1
                assert alike(text, " ".join(words[:place] + words[place + 1 :])).score == 0.0, (text, word)
    assert tried > 2000


def _nothing(*_: Any) -> str:
    return ""


def _no_regions(*_: Any) -> tuple[int, str]:
    return 0, ""


PLANTED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "roles and order are not looked at": (_alike, "_roles", _nothing),
    "what only one side says is not looked at": (_alike, "_near_words", _nothing),
    "regions are not looked at": (_alike, "_regions", _no_regions),
    "every leaf is free text": (arguments, "leaves", lambda a, *_: [Leaf("$", "text", json.dumps(a))]),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_costs_precision(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, broken = PLANTED[bug]
    monkeypatch.setattr(module, name, broken)
    assert precision_and_recall(PAIRS, None)[0] < 0.99

"""MiniLM in NumPy gives the reference's vectors, and makes the scores what they should be (K5, D11)."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from antiphon._minilm.model import MiniLM
from antiphon.scoring import output_similarity
from antiphon.similarity import similar_arguments
from tests.unit.semantic.test_pairs import HELD_OUT, PAIRS, precision_and_recall

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "minilm_vectors.json").read_text())[
    "vectors"
]


def cosine(minilm: MiniLM, left: str, right: str) -> float:
    a, b = minilm([left, right])
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_the_vectors_of_the_reference(minilm: MiniLM) -> None:
    for text, vector in zip(VECTORS, minilm(list(VECTORS)), strict=True):
        assert vector[:12] == pytest.approx(VECTORS[text], abs=2e-6), text
        assert math.isclose(sum(x * x for x in vector), 1.0, rel_tol=1e-5)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("San Francisco, CA", "San Francisco", 0.932),
        ("San Francisco, CA", "San Jose, CA", 0.794),
        ("Paris", "paris", 1.000),
        ("list files in /tmp", "show the contents of the /tmp directory", 0.805),
        ("order 1234", "order 1235", 0.907),
        ("cancel", "do not cancel", 0.926),
        ("weather NYC", "delete all rows", 0.029),
    ],
)
def test_pair_scores(minilm: MiniLM, left: str, right: str, expected: float) -> None:
    assert cosine(minilm, left, right) == pytest.approx(expected, abs=0.01)


def test_a_vector_does_not_depend_on_its_batch(minilm: MiniLM) -> None:
    texts = ["short", "a somewhat longer text than the first", "x " * 120]
    together = minilm(texts)
    for text, vector in zip(texts, together, strict=True):
        assert minilm([text])[0] == pytest.approx(vector, abs=1e-5)
    assert minilm([]) == []


def test_the_end_of_a_long_text_counts(minilm: MiniLM) -> None:
    start = "The committee met on Monday and discussed the budget of the next year. " * 40
    assert cosine(minilm, start, start + "It was rejected because of a volcano on Mars. " * 10) < 0.99


def test_threads_may_share_a_model(minilm: MiniLM) -> None:
    alone = minilm(["one text"])[0]
    found: list[list[float]] = []
    threads = [threading.Thread(target=lambda: found.append(minilm(["one text"])[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(vector == pytest.approx(alone, abs=1e-6) for vector in found)


def test_the_documents_example_is_a_hit_of_93_percent(minilm: MiniLM) -> None:
    match = similar_arguments(
        {"location": "San Francisco, CA", "units": "metric"}, {"location": "San Francisco", "units": "metric"}, minilm
    )
    assert match.hit
    assert f"{match.score:.0%}" == "93%"


@pytest.mark.parametrize("pairs", [PAIRS, HELD_OUT], ids=["all", "held out"])
def test_precision_and_recall(minilm: MiniLM, pairs: list[dict[str, Any]]) -> None:
    precision, recall = precision_and_recall(pairs, minilm)
    assert precision >= 0.95
    assert recall >= 0.75


@pytest.mark.parametrize(
    ("recorded", "replayed"), [("Refund: ✅", "Refund: ❌"), ("退款已批准", "退款未批准"), ("👍", "👎")]
)
def test_what_the_model_cannot_read_is_compared_by_characters(minilm: MiniLM, recorded: str, replayed: str) -> None:
    result = output_similarity([recorded], [replayed], minilm)
    assert result.interactions[0].how == "characters"
    assert result < 0.9
    assert result.contradictions


def test_a_sign_that_both_answers_have_does_not_keep_them_from_being_read(minilm: MiniLM) -> None:
    result = output_similarity(["Your order has shipped! 🎉"], ["The order was shipped 🎉"], minilm)
    assert result.interactions[0].how == "meaning"


def test_paraphrases_score_high_and_opposites_are_flagged(minilm: MiniLM) -> None:
    same = output_similarity(["Paris is the capital of France."], ["France's capital city is Paris."], minilm)
    assert same > 0.9
    assert same.contradictions == []
    for old, new in (
        ("The answer is yes.", "The answer is no."),
        ("refund approved for order 12", "refund denied for order 12"),
        ("Total: $100", "Total: $900"),
    ):
        assert output_similarity([old], [new], minilm).contradictions
    assert same.embedder == "minilm-l6-v2"

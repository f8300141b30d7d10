"""Output similarity and the contradictions beside it (K5)."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest

from antiphon.scoring import contradictions, output_similarity
from antiphon.similarity import lexical
from antiphon.similarity._reading import _LONGEST_PREFIX, lexicon


def one_vector(texts: Sequence[str]) -> list[list[float]]:
    """An embedder that sees no difference at all."""
    return [[1.0, 0.0]] * len(texts)


def opposite_vectors(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0 if number % 2 else -1.0] for number in range(len(texts))]


def test_the_mean_over_interactions() -> None:
    assert output_similarity(["a", "b"], ["a", "b"], lexical) == 1.0
    assert output_similarity([], [], lexical) == 1.0
    three = output_similarity(["a", "b", "c"], ["a"], lexical)
    assert three == pytest.approx(1 / 3)
    assert [entry.how for entry in three.interactions] == ["equal", "missing", "missing"]
    extra = output_similarity(["a"], ["a", "b"], lexical)
    assert (extra, extra.interactions[1].how) == (0.5, "extra")


def test_a_cosine_is_clipped() -> None:
    assert output_similarity(["a"], ["b"], opposite_vectors) == 0.0
    assert output_similarity(["a"], ["b"], lambda texts: [[3.0, 4.0]] * len(texts)) == 1.0
    assert output_similarity(["a"], [""], one_vector) == 0.0


def test_only_unequal_texts_are_embedded_in_one_batch() -> None:
    batches: list[list[str]] = []

    def counting(texts: Sequence[str]) -> list[list[float]]:
        batches.append(list(texts))
        return [[1.0]] * len(texts)

    output_similarity(["a", "b", "c"], ["a", "x", "x"], counting)
    assert batches == [["b", "x", "c"]]
    output_similarity(["a"], ["a"], counting)
    assert len(batches) == 1


def test_outputs_that_are_not_text() -> None:
    assert output_similarity([{"n": 1, "m": 2}], [{"m": 2, "n": 1}], lexical) == 1.0
    wrapped = output_similarity([{"input": "q", "output": "yes"}], ["yes"], lexical)
    assert wrapped == 1.0
    hidden = output_similarity([{"text": "ok", "amount": 100}], [{"text": "ok", "amount": 900}], one_vector)
    assert [found.kind for _, found in hidden.contradictions] == ["number"]
    assert output_similarity([{1, 2}], [{1, 2}], lexical) == 1.0


def test_the_embedder_is_named() -> None:
    result = output_similarity(["a"], ["b"], lexical)
    assert result.embedder == "lexical"
    assert result.to_wire()["embedder"] == "lexical"
    assert pickle.loads(pickle.dumps(result)).interactions == result.interactions


@pytest.mark.parametrize(
    ("recorded", "replayed", "kind"),
    [
        ("refund approved for order 12", "refund denied for order 12", "opposite"),
        ("Approved.", "Denied.", "opposite"),
        ("The answer is yes.", "The answer is no.", "opposite"),
        ("Yes, you can.", "No, you cannot.", "opposite"),
        ("The door is open.", "The door is closed.", "opposite"),
        ("The flight is available.", "The flight is unavailable.", "opposite"),
        ("The payment was sent.", "The payment was not sent.", "negation"),
        ("You should take it with food.", "You shouldn't take it with food.", "negation"),
        ("Total: $100", "Total: $900", "number"),
        ("It costs 1,000 in all.", "It costs 1,001 in all.", "number"),
        ("There are two seats.", "There are 3 seats.", "number"),
        ("Meet on 2024-05-01.", "Meet on 2024-05-02.", "number"),
        ("The price is $50.", "The price is €50.", "currency"),
        ("It is 50 dollars.", "It is 50 euros.", "currency"),
        ("The cat sat on the mat", "The mat sat on the cat", "roles"),
        ("Ann paid Bob.", "Bob paid Ann.", "roles"),
        (
            "Thank you for waiting. Your claim was accepted. We wish you a good day.",
            "Thanks for waiting. Your claim was rejected. We wish you a good day.",
            "opposite",
        ),
    ],
)
def test_opposite_answers_are_flagged(recorded: str, replayed: str, kind: str) -> None:
    assert kind in [found.kind for found in contradictions(recorded, replayed)]
    assert kind in [found.kind for found in contradictions(replayed, recorded)]
    assert output_similarity([recorded], [replayed], one_vector).contradictions


@pytest.mark.parametrize(
    ("recorded", "replayed"),
    [
        ("Paris is the capital of France.", "France's capital city is Paris."),
        ("The total is $1,000.00.", "The total comes to $1000."),
        ("There are two seats left.", "2 seats are left."),
        ("In 2020 Ann met Bob.", "Ann met Bob in 2020."),
        ("Your order has shipped.", "The order was shipped to you."),
        ("Done.", "All done!"),
        ("The weather in Rome is sunny.", "It is sunny in Rome."),
        ("I found 3 hotels. The best one is Hotel Roma.", "I found 3 hotels."),
        ("It is not raining.", "There isn't any rain."),
        ("", "Anything at all."),
    ],
)
def test_paraphrases_are_not_flagged(recorded: str, replayed: str) -> None:
    assert contradictions(recorded, replayed) == []


def test_the_similarity_stays_the_documented_one() -> None:
    flagged = output_similarity(["Total: $100"], ["Total: $900"], one_vector)
    assert flagged == 1.0
    assert [(index, found.recorded, found.replayed) for index, found in flagged.contradictions] == [(0, "100", "900")]


def test_a_word_as_long_as_a_text_is_read_in_one_pass() -> None:
    assert contradictions("x" * 1_000_000, "y") == []  # took minutes when every beginning of the word was looked up
    assert max(map(len, lexicon().prefixes)) <= _LONGEST_PREFIX

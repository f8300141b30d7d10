"""The lexical embedder: spelling only, the same everywhere, and it says what it is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ConfigError
from antiphon.similarity import LexicalEmbedder, lexical, load, name_of


def cosine(left: str, right: str) -> float:
    a, b = lexical([left, right])
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_it_says_that_it_is_lexical() -> None:
    assert lexical.name == "lexical"
    assert name_of(load("lexical")) == "lexical"
    assert name_of(None) == "none"
    assert name_of(lambda texts: []) == "<lambda>"


def test_spelling_counts_and_meaning_does_not() -> None:
    assert cosine("San Francisco", "san francisco!") == pytest.approx(1.0)
    assert cosine("electric cars", "electric car") > cosine("electric cars", "automobiles") + 0.4
    assert abs(cosine("car", "automobile")) < 0.3


def test_the_vectors_are_pinned() -> None:
    (vector,) = LexicalEmbedder(dimensions=16)(["Paris"])
    places = {place: round(x, 4) for place, x in enumerate(vector) if x}
    assert places == {1: -0.4082, 2: -0.4082, 6: 0.4082, 8: -0.4082, 10: -0.4082, 12: 0.4082}


@given(st.text(max_size=40))
def test_vectors_have_length_one_or_zero(text: str) -> None:
    (vector,) = lexical([text])
    length = math.sqrt(sum(x * x for x in vector))
    assert length == pytest.approx(1.0) or length == 0.0


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="no embedder 'word2vec'"):
        load("word2vec")

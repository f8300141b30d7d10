"""Determinism score (K3)."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidInput
from antiphon.scoring import THRESHOLD, determinism

FULL: dict[str, Any] = {"model_name": "gpt-4", "provider": "openai", "temperature": 0.0, "seed": 42}


def test_the_documents_example() -> None:
    score = determinism(FULL, {**FULL, "temperature": 0.5})
    assert score == 0.875
    assert score.score == 0.875
    assert float(score) == 0.875
    assert score.parts == {"temperature": 0.5, "seed": 1.0, "model": 1.0, "provider": 1.0}
    assert score >= THRESHOLD == 0.8


@pytest.mark.parametrize(
    ("old", "new", "part", "expected"),
    [
        (0.0, 0.3, "temperature", 0.7),
        (0.0, 1.5, "temperature", 0.0),
        (None, None, "temperature", 1.0),
        (None, 0.0, "temperature", 0.5),
        (1, 1.0, "temperature", 1.0),
        (42, 42, "seed", 1.0),
        (42, 43, "seed", 0.0),
        (42, None, "seed", 0.5),
        (None, None, "seed", 0.5),
        ("gpt-4", "gpt-4o", "model", 0.0),
        (None, None, "model", 1.0),
        (None, "gpt-4", "model", 0.0),
        ("openai", "anthropic", "provider", 0.0),
        (None, None, "provider", 1.0),
        ("openai", None, "provider", 0.0),
    ],
)
def test_each_rule(old: Any, new: Any, part: str, expected: float) -> None:
    name = {"model": "model_name"}.get(part, part)
    assert determinism({**FULL, name: old}, {**FULL, name: new}).parts[part] == expected


def test_nested_parameters_are_read_like_flat_ones() -> None:
    nested = {"model_name": "gpt-4", "provider": "openai", "parameters": {"temperature": 0.0, "seed": 42}}
    assert determinism(nested, FULL) == 1.0
    assert determinism(FULL, {**nested, "parameters": {"temperature": 0.5, "seed": 42}}) == 0.875
    assert determinism({"model": "gpt-4", "provider": "openai", "temperature": 0, "seed": 42}, FULL) == 1.0


def test_an_unseeded_configuration_is_never_certain() -> None:
    unseeded = {"model_name": "gpt-4", "provider": "openai", "temperature": 0.0}
    assert determinism(unseeded, unseeded) == 0.875


@pytest.mark.parametrize("bad", [True, "0.5", float("nan")])
def test_a_temperature_that_is_no_number_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="temperature"):
        determinism(FULL, {**FULL, "temperature": bad})
    with pytest.raises(InvalidInput, match="mapping"):
        determinism(FULL, None)  # type: ignore[arg-type]


@given(st.floats(-10, 10), st.floats(-10, 10))
def test_a_score_stays_between_0_and_1_and_is_symmetric(old: float, new: float) -> None:
    there = determinism({**FULL, "temperature": old}, {**FULL, "temperature": new})
    back = determinism({**FULL, "temperature": new}, {**FULL, "temperature": old})
    assert 0.0 <= there <= 1.0
    assert there == back


def test_a_score_is_a_plain_number_to_others() -> None:
    score = determinism(FULL, {**FULL, "temperature": 0.5})
    assert json.dumps(score) == "0.875"
    assert f"{score:.2f}" == "0.88"
    again = pickle.loads(pickle.dumps(score))
    assert again == score
    assert again.parts == score.parts
    assert score.to_wire() == {"score": 0.875, "parts": dict(score.parts)}

"""The names of 0.1.0's documentation still work, and say where they went."""

from __future__ import annotations

from importlib import import_module

import pytest

from antiphon import similarity


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("antiphon.decide.semantic", "SemanticIndex"),
        ("antiphon.decide.semantic", "similar_arguments"),
        ("antiphon.embed", "load"),
        ("antiphon.embed", "install_model"),
    ],
)
def test_an_old_name_is_the_new_one(module: str, name: str) -> None:
    with pytest.deprecated_call(match=f"now antiphon.similarity.{name}"):
        found = getattr(import_module(module), name)
    assert found is getattr(similarity, name)


@pytest.mark.parametrize("module", ["antiphon.decide.semantic", "antiphon.embed"])
def test_an_unknown_name_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = import_module(module).nothing

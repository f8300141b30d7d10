"""The examples in the docstrings of the pure base are true."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

MODULES = (
    "antiphon.canonical",
    "antiphon.contract.spec",
    "antiphon.decide.turn",
    "antiphon.keys",
    "antiphon.llm.key",
    "antiphon.llm.request",
    "antiphon.llm.response",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    done = doctest.testmod(import_module(name))
    assert done.attempted
    assert not done.failed

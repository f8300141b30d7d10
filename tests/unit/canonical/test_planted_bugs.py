"""The oracles can fail: each planted bug is found by them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
import rfc8785

from antiphon import canonical
from antiphon.errors import CanonicalError
from tests.unit.canonical.documents import document


def _always(*_: Any) -> bool:
    return True


def _python_number(value: float) -> Any:
    return orjson.Fragment(repr(value))


def _python_exponents(value: float) -> Any:
    return int(value) if value.is_integer() and abs(value) < 2**53 else orjson.Fragment(repr(value))


def _by_code_point(field: tuple[str, Any]) -> bytes:
    return field[0].encode()


PLANTED: dict[str, tuple[str, Callable[..., Any]]] = {
    "every float is taken as plain": ("is_plain", _always),
    "numbers as Python prints them": ("_number", _python_number),
    "exponents as Python prints them": ("_number", _python_exponents),
    "UTF-8 order taken for UTF-16 order": ("_sorted_alike", _always),
    "names sorted by code point": ("_utf16_units", _by_code_point),
}


def _first_difference() -> Any:
    rng = random.Random(7)
    for _ in range(5000):
        value = document(rng)
        if canonical.canonical_json(value) != rfc8785.dumps(value):
            return value
    return None


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, broken = PLANTED[bug]
    assert _first_difference() is None
    monkeypatch.setattr(canonical, name, broken)
    assert _first_difference() is not None


def test_a_forgiving_parser_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CanonicalError):
        canonical.parse_json('{"a":1,"a":2}')
    monkeypatch.setattr(canonical, "_DECODER", json.JSONDecoder())
    assert canonical.parse_json('{"a":1,"a":2}') == {"a": 2}

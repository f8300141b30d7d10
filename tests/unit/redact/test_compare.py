"""D21: replay compares secrets by kind and equality pattern, not by value."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon import redact
from antiphon.redact import Redactor, _compare
from antiphon.redact._compare import EqualityPattern, same_after_redaction
from tests.unit.redact.corpus import Forge, tokens

SALT = "0011223344"
KEYS = [p.secret for p in tokens(Forge(31)) if p.kind == "github"]
OTHER = [p.secret for p in tokens(Forge(32)) if p.kind == "github"]
RECORDER = Redactor(salt=SALT)


def call(*keys: str) -> dict[str, Any]:
    return {"tool": "push", "arguments": {"remotes": [f"https://x:{key}@git.example.test" for key in keys], "n": 1}}


def test_the_same_value_is_the_same() -> None:
    assert same_after_redaction(RECORDER.redact(call(KEYS[0], KEYS[1])), call(KEYS[0], KEYS[1]), SALT)
    assert same_after_redaction(RECORDER.redact(call(KEYS[0])), call(KEYS[0]), RECORDER)


def test_another_secret_of_the_same_kind_is_the_same() -> None:
    assert same_after_redaction(RECORDER.redact(call(KEYS[0], KEYS[0])), call(OTHER[0], OTHER[0]), SALT)


def test_another_pattern_is_not() -> None:
    recorded = RECORDER.redact(call(KEYS[0], KEYS[0], KEYS[1]))
    assert not same_after_redaction(recorded, call(OTHER[0], OTHER[1], OTHER[1]), SALT)
    assert not same_after_redaction(recorded, call(OTHER[0], OTHER[0], OTHER[0]), SALT)
    assert same_after_redaction(recorded, call(OTHER[2], OTHER[2], OTHER[0]), SALT)


def test_another_kind_is_not() -> None:
    stripe = next(p.secret for p in tokens(Forge(31)) if p.kind == "stripe")
    assert not same_after_redaction(RECORDER.redact({"x": KEYS[0]}), {"x": stripe}, SALT)


def test_anything_else_must_be_equal() -> None:
    recorded = RECORDER.redact(call(KEYS[0]))
    for change in ({"tool": "pull"}, {"arguments": {"remotes": [], "n": 1}}, {"extra": 1}):
        assert not same_after_redaction(recorded, {**call(KEYS[0]), **change}, SALT)
    assert not same_after_redaction([1, 2], [1], SALT)
    assert not same_after_redaction({"a": True}, {"a": 1}, SALT)
    assert not same_after_redaction("a", None, SALT)


def test_a_pattern_holds_over_a_whole_run() -> None:
    pattern = EqualityPattern()
    first, second = RECORDER.redact(call(KEYS[0])), RECORDER.redact(call(KEYS[1]))
    assert same_after_redaction(first, call(OTHER[0]), SALT, pattern=pattern)
    assert not same_after_redaction(second, call(OTHER[0]), SALT, pattern=pattern)
    assert same_after_redaction(second, call(OTHER[1]), SALT, pattern=pattern)
    assert not same_after_redaction(first, call(OTHER[1]), SALT, pattern=pattern)


def test_secrets_as_keys_of_a_mapping() -> None:
    recorded = RECORDER.redact({KEYS[0]: 1, "b": 2})
    assert same_after_redaction(recorded, {OTHER[0]: 1, "b": 2}, SALT)
    assert not same_after_redaction(recorded, {OTHER[0]: 2, "b": 2}, SALT)


@pytest.mark.parametrize("name", _compare.__all__)
def test_old_names_warn(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"antiphon.redact.{name} is deprecated"):
        assert getattr(redact, name) is getattr(_compare, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = redact.nothing

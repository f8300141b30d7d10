"""A document and its canonical form are redacted with one look, and come out as if each had been looked at alone."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.canonical import canonical_json
from antiphon.redact import Redactor

TEXTS = st.sampled_from(
    [
        "ana@example.org",
        "write to bob@example.com, soon",
        "a @ b",
        "@home",
        "é@example.org",
        "quiet",
        "1 < 2",
        "a\\b",
        "x",
    ]
)
NAMES = st.sampled_from(["to", "cc", "z", "A", "ana@example.org", "é", "password", "\U0001f600", "\ue000"])
LEAVES = TEXTS | st.integers(-9, 9) | st.floats(-2, 2, allow_nan=False) | st.none() | st.booleans()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4))
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=5)


def long_way(redactor: Redactor, document: bytes) -> tuple[bytes, bytes]:
    clean, changed = redactor.redact_bytes(document)
    value = orjson.loads(clean)
    return orjson.dumps(value) if changed else document, canonical_json(value)


@given(DOCUMENTS)
def test_both_come_out_as_on_the_long_way(document: dict[str, Any]) -> None:
    redactor = Redactor(salt="run")
    data, canonical = orjson.dumps(document), canonical_json(document)
    both = redactor.redact_both(data, canonical)
    if both is not None:
        assert both == long_way(redactor, data)


@pytest.mark.parametrize(
    ("document", "is_quick"),
    [
        ({"b": "ana@example.org", "a": [1.0, {"to": "bob@example.com"}]}, True),
        ({"text": "all quiet", "n": 1.0}, True),
        ({"b": 1, "ana@example.org": 2}, False),
        ({"password": "hunter2-hunter2", "to": "ana@example.org"}, False),
        ({"to": 'the "ana@example.org" of old'}, False),
    ],
)
def test_only_plain_addresses_are_quick(document: dict[str, Any], is_quick: bool) -> None:
    """Without this the comparison above might compare nothing."""
    redactor = Redactor(salt="run")
    both = redactor.redact_both(orjson.dumps(document), canonical_json(document))
    assert (both is not None) is is_quick
    if both is not None:
        assert both == long_way(redactor, orjson.dumps(document))
        assert b"ana@example.org" not in both[0] + both[1]

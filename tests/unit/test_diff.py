"""Where two values differ, and which recorded call comes nearest (D15)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon._diff import ABSENT, Edit, FieldDiff, diff_values, flatten, mark_words, nearest, shorten, word_diff

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)


def test_every_kind_of_difference_has_its_path() -> None:
    old = {"a": 1, "b": {"c": [1, 2, {"d": None}]}, "odd key": True, "gone": 0}
    new = {"a": 2, "b": {"c": [1, 2, {"d": 0}]}, "odd key": 1, "new": None}
    assert diff_values(old, new) == [
        FieldDiff("$.a", 1, 2),
        FieldDiff("$.b.c[2].d", None, 0),
        FieldDiff("$['odd key']", True, 1),
        FieldDiff("$.gone", 0, ABSENT),
        FieldDiff("$.new", ABSENT, None),
    ]
    assert [d.to_wire() for d in diff_values({"x": 1}, {})] == [{"path": "$.x", "recorded": 1}]


def test_json_equality() -> None:
    assert diff_values({"a": 1, "n": float("nan"), "t": (1, 2)}, {"a": 1.0, "n": float("nan"), "t": [1, 2]}) == []
    assert diff_values(0, False) == [FieldDiff("$", 0, False)]
    assert diff_values("1", 1) == [FieldDiff("$", "1", 1)]


def test_an_inserted_element_is_one_difference() -> None:
    messages = [{"role": "user", "content": str(n)} for n in range(6)]
    longer = [*messages[:2], {"role": "system", "content": "new"}, *messages[2:]]
    assert diff_values(messages, longer) == [FieldDiff("$[2]", ABSENT, longer[2])]
    assert diff_values(longer, messages) == [FieldDiff("$[2]", longer[2], ABSENT)]


def test_depth_and_foreign_types_do_not_break_it() -> None:
    deep: Any = "end"
    for _ in range(5000):
        deep = [deep]

    class Stubborn:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

    assert diff_values(deep, deep) == []
    assert len(diff_values(Stubborn(), Stubborn())) == 1
    assert len(diff_values({"a": 1, "b": 2}, {"a": 2, "b": 3}, limit=1)) == 1


@given(JSON)
def test_a_value_never_differs_from_its_copy(value: Any) -> None:
    assert diff_values(value, copy.deepcopy(value)) == []


@given(JSON, st.data())
def test_every_changed_leaf_is_found(value: Any, data: st.DataObject) -> None:
    tree = {"root": value}
    paths = sorted(flatten(tree))
    target = data.draw(st.sampled_from(paths))
    changed = copy.deepcopy(tree)
    replaced = _replace(changed, "", target)
    assert replaced
    assert len(diff_values(tree, changed)) == 1


def _replace(node: Any, path: str, target: str) -> bool:
    """Put a value that occurs nowhere else in place of the leaf at *target*."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, inner in list(items):
        here = f"{path}.{key}" if isinstance(node, dict) else f"{path}[{key}]"
        if here == target and not (isinstance(inner, (dict, list)) and inner):
            node[key] = "another value than any other"
            return True
        if isinstance(inner, (dict, list)) and inner and _replace(inner, here, target):
            return True
    return False


@given(st.text(max_size=60), st.text(max_size=60))
def test_word_edits_lead_from_left_to_right(left: str, right: str) -> None:
    edits = word_diff(left, right)
    assert "".join(edit.text for edit in edits if edit.op != "+") == left
    assert "".join(edit.text for edit in edits if edit.op != "-") == right
    assert all(edit.text for edit in edits)


def test_word_edits_are_words() -> None:
    assert mark_words("Refund approved for order 12", "Refund denied for order 12") == (
        "Refund [-approved-]{+denied+} for order 12"
    )
    assert word_diff("same", "same") == [Edit("=", "same")]
    assert word_diff("", "") == []


def test_very_long_texts_are_compared_by_lines() -> None:
    old = "\n".join(f"{n} alpha beta" for n in range(3000))
    new = "\n".join(f"{n + 1} alpha beta" for n in range(3000))
    edits = word_diff(old, new)
    assert "".join(edit.text for edit in edits if edit.op != "+") == old
    one_line = word_diff("a " * 3000, "b " * 3000)
    assert "".join(edit.text for edit in one_line if edit.op != "-") == "b " * 3000


def test_the_nearest_call() -> None:
    recorded = [
        ("search", {"q": "weather in Paris", "n": 5}),
        ("send", {"to": "ann", "body": "hello"}),
        ("send", {"to": "bob", "body": "hello dear Bob"}),
    ]
    found = nearest("send", {"to": "bob", "body": "hello dear Ben"}, recorded)
    assert found is not None
    assert found.place == 2
    assert [diff.path for diff in found.diffs] == ["$.body"]
    renamed = nearest("sent", {"to": "ann", "body": "hello"}, recorded)
    assert renamed is not None
    assert (renamed.place, renamed.diffs) == (1, [FieldDiff("name", "send", "sent")])
    assert nearest("send", {}, []) is None


def test_the_first_of_equally_near_calls_wins() -> None:
    found = nearest("f", {"a": 9}, [("f", {"a": 1}), ("f", {"a": 2})])
    assert found is not None
    assert found.place == 0


@pytest.mark.parametrize(("value", "shown"), [("ab", "'ab'"), ("a" * 100, "'" + "a" * 78 + "…"), (ABSENT, "absent")])
def test_shortening(value: Any, shown: str) -> None:
    assert shorten(value) == shown

"""Turn control: the document's table, its example turn, and what success means (T1-T4)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.contract.spec import ToolSpec
from antiphon.decide.turn import ReplayControl
from antiphon.errors import CanonicalError

SEARCH = ToolSpec(name="web_search", idempotent=True)
EMAIL = ToolSpec(name="send_email", idempotent=False)
ARGS = {"q": "capital of France"}


@pytest.mark.parametrize(
    ("spec", "before", "skip"),
    [
        (EMAIL, None, False),
        (EMAIL, "success", False),
        (EMAIL, "failure", False),
        (EMAIL, "timeout", False),
        (EMAIL, "denied", False),
        (SEARCH, None, False),
        (SEARCH, "success", True),
        (SEARCH, "failure", False),
        (SEARCH, "timeout", False),
        (SEARCH, "denied", False),
        (None, None, False),
        (None, "success", True),
        (None, "failure", False),
        (None, "timeout", False),
        (None, "denied", False),
    ],
)
def test_the_table_of_the_document(spec: ToolSpec | None, before: str | None, skip: bool) -> None:
    control = ReplayControl()
    if before is not None:
        getattr(control, f"record_{before}")("tool", ARGS, spec)
    decided, reason = control.should_skip("tool", ARGS, spec)
    assert decided is skip
    assert ("duplicate" in reason) is skip
    assert bool(reason) is skip


def test_the_example_turn_of_the_document() -> None:
    control = ReplayControl()
    france = {"q": "capital of France"}
    assert not control.should_skip("web_search", france, SEARCH)[0]
    control.record_failure("web_search", france, SEARCH)
    assert not control.should_skip("web_search", france, SEARCH)[0]
    control.record_success("web_search", france, SEARCH)
    skip, reason = control.should_skip("web_search", france, SEARCH)
    assert skip
    assert "web_search" in reason
    assert not control.should_skip("web_search", {"q": "population of France"}, SEARCH)[0]
    control.record_success("web_search", {"q": "population of France"}, SEARCH)
    assert control.history_size() == 2


@pytest.mark.parametrize("later", ["failure", "timeout", "denied"])
def test_success_is_sticky(later: str) -> None:
    control = ReplayControl()
    control.record_success("t", ARGS)
    getattr(control, f"record_{later}")("t", ARGS)
    assert control.should_skip("t", ARGS)[0]


def test_asking_records_nothing() -> None:
    control = ReplayControl()
    control.should_skip("t", ARGS)
    assert control.history_size() == 0
    control.record_success("t", ARGS)
    control.should_skip("t", ARGS)
    assert control.history_size() == 1


def test_history_counts_distinct_calls_idempotent_or_not() -> None:
    control = ReplayControl()
    control.record_success("a", {"x": 1, "y": 2}, EMAIL)
    control.record_failure("a", {"y": 2, "x": 1}, EMAIL)
    control.record_denied("b", {}, SEARCH)
    control.record_timeout("b", None)
    assert control.history_size() == 3


def test_order_of_arguments_never_matters_and_names_separate_tools() -> None:
    control = ReplayControl()
    control.record_success("t", {"b": {"d": 1, "c": 2}, "a": 1})
    assert control.should_skip("t", {"a": 1, "b": {"c": 2, "d": 1}})[0]
    assert not control.should_skip("u", {"a": 1, "b": {"c": 2, "d": 1}})[0]


def test_any_object_that_says_idempotent_is_a_spec() -> None:
    @dataclass
    class Registered:
        idempotent: bool

    control = ReplayControl()
    control.record_success("t", ARGS, Registered(True))
    assert control.should_skip("t", ARGS, Registered(True))[0]
    assert not control.should_skip("t", ARGS, Registered(False))[0]


@pytest.mark.parametrize(
    "method", ["should_skip", "record_success", "record_failure", "record_timeout", "record_denied"]
)
@pytest.mark.parametrize("spec", [SEARCH, EMAIL, None])
def test_arguments_that_are_not_json_raise_the_typed_error(method: str, spec: ToolSpec | None) -> None:
    control = ReplayControl()
    with pytest.raises(CanonicalError):
        getattr(control, method)("t", {"when": object()}, spec)
    assert control.history_size() == 0


OUTCOMES = ("success", "failure", "timeout", "denied")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.sampled_from(OUTCOMES))))
def test_a_call_is_skipped_exactly_if_it_has_ever_succeeded(history: list[tuple[str, int, str]]) -> None:
    control = ReplayControl()
    succeeded: set[str] = set()
    seen: set[str] = set()
    for tool, number, outcome in history:
        arguments: dict[str, Any] = {"n": number}
        key = hashlib.md5(f"{tool}:{json.dumps(arguments, sort_keys=True)}".encode()).hexdigest()
        assert control.should_skip(tool, arguments, SEARCH)[0] is (key in succeeded)
        getattr(control, f"record_{outcome}")(tool, arguments, SEARCH)
        seen.add(key)
        if outcome == "success":
            succeeded.add(key)
    assert control.history_size() == len(seen)

"""Schema check and smallest instance, identities, the mock provider, provider requests, node classes."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidInput
from antiphon.host.llm import MockProvider, ProviderError, body_of
from antiphon.host.workflow.model import Node
from antiphon.host.workflow.nodes import implementation, logical_invocation_id, ordinal
from antiphon.host.workflow.schema import minimal, violation

LEAVES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": [3, "x"]},
    ]
)
SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(
            lambda properties: {"type": "object", "properties": properties, "required": list(properties)}
        ),
        inner.map(lambda item: {"type": "array", "items": item, "minItems": 1}),
    ),
    max_leaves=8,
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3), st.floats(-2, 2)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=8,
)


@given(SCHEMAS)
def test_the_smallest_instance_fits(schema: dict[str, Any]) -> None:
    jsonschema.validate(minimal(schema), schema)
    assert violation(minimal(schema), schema) is None


@given(SCHEMAS, VALUES)
def test_the_check_agrees_with_jsonschema(schema: dict[str, Any], value: Any) -> None:
    plain = {**schema, "minItems": 0} if schema.get("type") == "array" else schema
    valid = jsonschema.Draft202012Validator(_without_min(plain)).is_valid(value)
    assert (violation(value, plain) is None) == valid


def _without_min(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    return {
        name: {key: _without_min(part) for key, part in value.items()} if name == "properties" else _without_min(value)
        for name, value in schema.items()
        if name != "minItems"
    }


def test_a_violation_quotes_nothing_of_the_answer() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    for value in ({"a": "SECRET"}, {"SECRET": 1}, "SECRET", ["SECRET"]):
        said = violation(value, schema)
        assert said is not None
        assert "SECRET" not in said


def test_the_logical_invocation_id_is_the_published_formula() -> None:
    text = b"openwop:activity:v2\0t\0r\0n\x003\0p"
    expected = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
    assert logical_invocation_id("t", "r", "n", 3, "p") == expected
    assert len({ordinal(execution, call) for execution in range(4) for call in range(5)}) == 20


def test_the_mock_answers_as_programmed_then_minimally() -> None:
    mock = MockProvider()

    def program(entries: Any) -> None:
        mock.program("t", {"nodeId": "n", "program": entries})

    schema = {"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}}
    program([{"content": "one"}, {"errorCode": "overloaded"}, {"refusalText": "no"}])
    assert mock.answer("t", "n", schema)["content"] == "one"
    with pytest.raises(ProviderError, match="overloaded"):
        mock.answer("t", "n", schema)
    assert mock.answer("t", "n", schema)["kind"] == "refusal"
    assert not mock.staged("t", "n")
    assert mock.answer("t", "n", schema)["content"] == '{"ok":true}'
    program([{}])
    program([{"content": "new"}])
    assert mock.answer("t", "n", schema)["content"] == "new"
    program([{}])
    assert not mock.staged("other", "n")
    assert (mock.reset("t"), mock.staged("t", "n")) == (1, False)
    wrong: list[Any] = [None, {}, [7], [{"stopReason": "tired"}], [{"content": 3}]]
    for entries in wrong:
        with pytest.raises(InvalidInput):
            program(entries)


def test_provider_requests() -> None:
    request = {
        "provider": "p",
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "temperature": 0.5,
        "maxOutputTokens": 9,
        "stop": ["x"],
        "responseSchema": {"type": "object"},
    }
    chat = body_of("openai-chat", request)
    assert (chat["max_completion_tokens"], chat["stop"], len(chat["messages"])) == (9, ["x"], 2)
    assert chat["response_format"]["json_schema"]["schema"] == {"type": "object"}
    messages = body_of("anthropic", request)
    assert (messages["system"], messages["max_tokens"], messages["stop_sequences"]) == ("s", 9, ["x"])
    assert [one["role"] for one in messages["messages"]] == ["user"]


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (Node(id="n", type_id="core.noop"), "pure"),
        (Node(id="n", type_id="core.noop", role="side-effect"), "observed"),
        (Node(id="n", type_id="core.noop", config={"role": "side-effect"}), "observed"),
        (Node(id="n", type_id="core.noop", config={"nondeterministic": True}), "observed"),
        (Node(id="n", type_id="core.conformance.hold"), "pure"),
        (Node(id="n", type_id="core.conformance.side-effect"), "observed"),
        (Node(id="n", type_id="core.delay"), "observed"),
        (Node(id="n", type_id="core.ai.anything"), "model"),
        (Node(id="n", type_id="core.llm.chat"), "model"),
        (Node(id="n", type_id="tool:a/b"), "observed"),
        (Node(id="n", type_id="agent:x"), "observed"),
    ],
)
def test_what_a_replay_does_with_a_node(node: Node, kind: str) -> None:
    found = implementation(node)
    assert found is not None
    assert found[0] == kind


def test_unknown_node_types_are_not_guessed() -> None:
    assert implementation(Node(id="n", type_id="vendor.thing")) is None

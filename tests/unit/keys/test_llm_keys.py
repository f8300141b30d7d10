"""LLM keys (L1, D14, D24) against our vectors and the public ones; noise never influences, each field does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import CanonicalError, InvalidInput
from antiphon.keys import Conversation, Recipe, llm_cache_key, llm_cache_key_parts, variant_digest, variant_parts

VECTORS = Path(__file__).parents[2] / "vectors"
OURS = json.loads((VECTORS / "keys.json").read_text())["llm"]
PUBLIC = json.loads((VECTORS / "openwop-semantic-request-v2.json").read_text())["vectors"]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)

BASE: dict[str, Any] = {"provider": "openai", "model": "m", "messages": [{"role": "user", "content": "hi"}]}
NOISE: dict[str, Any] = {
    "requestId": "r",
    "traceparent": "00-1-2-01",
    "tenantId": "acme",
    "runId": "run",
    "stream": True,
    "metadata": {"a": 1},
    "user": "u",
    "timeout": 30,
    "retryCount": 2,
    "apiKey": "sk-1",
}
SIX = {
    "model": "n",
    "provider": "other",
    "messages": [{"role": "user", "content": "ho"}],
    "tools": [{"name": "t", "parameters": {}}],
    "temperature": 0.1,
    "responseSchema": {"type": "object"},
}
V2 = {
    "model": "n",
    "provider": "other",
    "messages": [{"role": "user", "content": "ho"}],
    "tools": [{"name": "t", "parameters": {}}],
    "temperature": 0.1,
    "topP": 0.5,
    "topK": 3,
    "maxOutputTokens": 5,
    "seed": 0,
    "stop": [],
    "responseFormat": {},
    "safetySettings": {},
    "providerOptions": {},
}


@pytest.mark.parametrize("vector", OURS, ids=lambda vector: vector["id"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_our_vectors(vector: dict[str, Any], recipe: Recipe) -> None:
    assert llm_cache_key(vector["request"], recipe=recipe) == vector[recipe]["key"]
    parts = llm_cache_key_parts(vector["request"], recipe=recipe)
    assert rfc8785.dumps(parts).decode() == vector[recipe]["canonical"]


@pytest.mark.parametrize("vector", OURS, ids=lambda vector: vector["id"])
def test_our_variant_vectors(vector: dict[str, Any]) -> None:
    assert variant_digest(vector["request"]) == vector["variant"]["digest"]
    assert rfc8785.dumps(variant_parts(vector["request"])).decode() == vector["variant"]["canonical"]


@pytest.mark.parametrize("vector", PUBLIC, ids=lambda vector: vector["id"])
def test_public_vectors(vector: dict[str, Any]) -> None:
    assert llm_cache_key(vector["input"], recipe="semantic-request-v2") == vector["digest"]
    parts = llm_cache_key_parts(vector["input"], recipe="semantic-request-v2")
    assert rfc8785.dumps(parts).decode() == vector["canonical"]


def test_all_thirteen_public_vectors_are_here() -> None:
    assert len(PUBLIC) == 13


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", NOISE)
def test_noise_never_influences_a_key(recipe: Recipe, name: str) -> None:
    assert llm_cache_key({**BASE, name: NOISE[name]}, recipe=recipe) == llm_cache_key(BASE, recipe=recipe)
    assert variant_digest({**BASE, name: NOISE[name]}) == variant_digest(BASE)


@pytest.mark.parametrize(("recipe", "name"), [("rfc0041", n) for n in SIX] + [("semantic-request-v2", n) for n in V2])
def test_each_field_of_a_recipe_changes_its_key(recipe: Recipe, name: str) -> None:
    field = SIX if recipe == "rfc0041" else V2
    assert llm_cache_key({**BASE, name: field[name]}, recipe=recipe) != llm_cache_key(BASE, recipe=recipe)


@pytest.mark.parametrize("name", [name for name in V2 if name not in SIX])
def test_what_the_six_fields_leave_out_is_in_the_variant(name: str) -> None:
    assert llm_cache_key({**BASE, name: V2[name]}) == llm_cache_key(BASE)
    assert variant_digest({**BASE, name: V2[name]}) != variant_digest(BASE)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["model", "provider", "messages"])
@pytest.mark.parametrize("value", [None, "", 1, {}])
def test_a_missing_or_wrong_required_field_is_an_error(recipe: Recipe, name: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        llm_cache_key({**BASE, name: value}, recipe=recipe)
    assert caught.value.path == f"$.{name}"


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("temperature", True, "$.temperature"),
        ("temperature", "hot", "$.temperature"),
        ("tools", {}, "$.tools"),
        ("tools", [{"name": "a"}, {}], "$.tools[1]"),
        ("tools", ["a"], "$.tools[0]"),
        ("messages", ["hi"], "$.messages"),
    ],
)
@pytest.mark.parametrize("recipe", RECIPES)
def test_wrong_fields_are_errors(recipe: Recipe, field: str, value: Any, path: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        llm_cache_key({**BASE, field: value}, recipe=recipe)
    assert caught.value.path == path


@pytest.mark.parametrize(("field", "value"), [("topP", "1"), ("stop", "END"), ("seed", False), ("safetySettings", [])])
def test_wrong_fields_of_the_second_recipe_are_errors_not_silence(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput):
        llm_cache_key({**BASE, field: value}, recipe="semantic-request-v2")


def test_wrong_schema_recipe_and_request_are_errors() -> None:
    with pytest.raises(InvalidInput, match="responseSchema"):
        llm_cache_key({**BASE, "responseSchema": []})
    with pytest.raises(InvalidInput, match="recipe"):
        llm_cache_key(BASE, recipe="mine")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        llm_cache_key([])  # type: ignore[arg-type]
    with pytest.raises(CanonicalError):
        llm_cache_key({**BASE, "temperature": float("nan")})
    with pytest.raises(CanonicalError) as caught:
        llm_cache_key({**BASE, "messages": [{"role": "user", "content": b"x"}]})
    assert caught.value.path == "$.messages[0].content"


messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "content": st.text() | st.lists(st.floats(-9, 9))}
    ),
    max_size=6,
)
rest: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"model": st.just("m"), "provider": st.just("p")},
    optional={
        "temperature": st.none() | st.floats(0, 2),
        "maxOutputTokens": st.integers(1, 9),
        "topP": st.floats(0, 1),
        "stop": st.lists(st.just("END")),
        "tools": st.just([{"name": "t", "parameters": {"messages": []}}]),
        "providerOptions": st.just({"vendor.p.x": {"messages": []}}),
        "responseSchema": st.just({"type": "object"}),
    },
)


@given(messages, messages, rest, st.sampled_from(RECIPES))
def test_a_growing_conversation_has_the_same_keys(
    first: list[dict[str, Any]], more: list[dict[str, Any]], settings: dict[str, Any], recipe: Recipe
) -> None:
    talk = Conversation(first)
    assert talk.key(settings, recipe=recipe) == llm_cache_key({**settings, "messages": first}, recipe=recipe)
    for count, message in enumerate(more, 1):
        talk.add(message)
        request = {**settings, "messages": first + more[:count]}
        assert talk.key(settings, recipe=recipe) == llm_cache_key(request, recipe=recipe)
    assert len(talk) == len(first) + len(more)


def test_a_conversation_takes_messages_as_they_are_when_added() -> None:
    message = {"role": "user", "content": "hi"}
    talk = Conversation([message])
    message["content"] = "changed"
    assert talk.key(BASE) == llm_cache_key(BASE)
    with pytest.raises(InvalidInput) as caught:
        talk.add(message, "text")  # type: ignore[arg-type]
    assert caught.value.path == "$.messages[2]"
    assert len(talk) == 1

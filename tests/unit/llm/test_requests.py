"""Provider requests map into the canonical request (L2): vectors, equality across vendors, nothing lost, bad input."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.canonical import canonical_json
from antiphon.errors import ContractError, InvalidInput
from antiphon.keys import llm_cache_key, variant_digest
from antiphon.llm.request import canonical_request
from scripts.llm_contract import CanonicalRequest

ROOT = Path(__file__).parents[3]
VECTORS = json.loads((ROOT / "tests" / "vectors" / "requests.json").read_text())["requests"]
SCHEMA = jsonschema.Draft202012Validator(
    json.loads((ROOT / "schemas" / "llm-canonical-request.schema.json").read_text())
)
MESSAGE = jsonschema.Draft202012Validator(
    json.loads((ROOT / "schemas" / "llm-canonical-message.schema.json").read_text())
)
by_id = pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])


def mapped(vector: dict[str, Any], body: Any = None) -> dict[str, Any]:
    return canonical_request(
        vector["body"] if body is None else body,
        provider=vector["provider"],
        model=vector.get("model"),
        vendor=vector.get("vendor"),
    )


@by_id
def test_vectors(vector: dict[str, Any]) -> None:
    before = json.dumps(vector["body"])
    found = mapped(vector)
    assert found == vector["canonical"]
    assert json.dumps(vector["body"]) == before
    keys = vector["keys"]
    assert llm_cache_key(found) == keys["rfc0041"]
    assert llm_cache_key(found, recipe="semantic-request-v2") == keys["semantic-request-v2"]
    assert variant_digest(found) == keys["variant"]


@by_id
def test_the_result_has_the_published_shape(vector: dict[str, Any]) -> None:
    request = mapped(vector)
    SCHEMA.validate(request)
    for message in request["messages"]:
        MESSAGE.validate(message)
    typed = CanonicalRequest.from_wire(request)
    assert canonical_json(typed.to_wire()) == canonical_json(request)


def test_the_same_talk_is_the_same_for_all_vendors() -> None:
    talks = [mapped(vector) for vector in VECTORS if vector.get("same") == "talk"]
    assert len(talks) == 4
    for talk in talks[1:]:
        for part in ("messages", "tools", "temperature", "maxOutputTokens", "toolChoice"):
            assert canonical_json(talk[part]) == canonical_json(talks[0][part])


def places(value: Any, path: str = "$") -> Iterator[tuple[str, list[str | int]]]:
    """All leaves with their path as text and as steps."""
    steps = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for step, item in steps:
        here = f"{path}.{step}" if isinstance(step, str) else f"{path}[{step}]"
        if isinstance(item, (dict, list)) and item:
            for text, below in places(item, here):
                yield text, [step, *below]
        else:
            yield here, [step]


def changed(body: Any, steps: list[str | int], value: Any) -> Any:
    body = copy.deepcopy(body)
    node = body
    for step in steps[:-1]:
        node = node[step]
    node[steps[-1]] = value
    return body


def other(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, str):
        return "QUJD" if value.startswith("iVBOR") else value + "x"
    return value + 1 if isinstance(value, (int, float)) else {"new": 1}


EQUAL_BY_DESIGN = ("type", "status", "annotations")
"""A discriminator without a rival, a server's own mark, notes about a text: they do not reach the model."""


@by_id
def test_every_leaf_of_a_body_matters_or_is_named_as_ignored(vector: dict[str, Any]) -> None:
    original = canonical_json(mapped(vector))
    for text, steps in places(vector["body"]):
        value: Any = vector["body"]
        for step in steps:
            value = value[step]
        try:
            found = mapped(vector, changed(vector["body"], steps, other(value)))
        except InvalidInput:
            continue
        ignored = any(text.startswith(path) for path in vector["ignored"])
        if canonical_json(found) == original and not ignored:
            assert steps[-1] in EQUAL_BY_DESIGN, f"{text} was dropped without a word"


BAD: list[tuple[str, Any, str]] = [
    ("openai-chat", [], "$"),
    ("openai-chat", {"messages": []}, "$.model"),
    ("openai-chat", {"model": "", "messages": []}, "$.model"),
    ("openai-chat", {"model": "m"}, "$.messages"),
    ("openai-chat", {"model": "m", "messages": {}}, "$.messages"),
    ("openai-chat", {"model": "m", "messages": ["hi"]}, "$.messages[0]"),
    ("openai-chat", {"model": "m", "messages": [{"role": "king", "content": ""}]}, "$.messages[0].role"),
    ("openai-chat", {"model": "m", "messages": [{"role": "user", "content": 5}]}, "$.messages[0].content"),
    ("openai-chat", {"model": "m", "messages": [{"role": "user", "content": [5]}]}, "$.messages[0].content[0]"),
    ("openai-chat", {"model": "m", "messages": [], "temperature": True}, "$.temperature"),
    ("openai-chat", {"model": "m", "messages": [], "temperature": "1"}, "$.temperature"),
    ("openai-chat", {"model": "m", "messages": [], "max_tokens": 1.5}, "$.max_tokens"),
    ("openai-chat", {"model": "m", "messages": [], "stop": [1]}, "$.stop[0]"),
    (
        "openai-chat",
        {"model": "m", "messages": [], "tools": [{"type": "function", "function": {}}]},
        "$.tools[0].function.name",
    ),
    (
        "openai-chat",
        {
            "model": "m",
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}],
        },
        "$.messages[0].content[0].image_url.url",
    ),
    ("openai-responses", {"model": "m"}, "$.input"),
    ("openai-responses", {"model": "m", "input": 5}, "$.input"),
    ("openai-responses", {"model": "m", "input": [{"type": "function_call", "name": "f"}]}, "$.input[0].call_id"),
    ("anthropic", {"model": "m", "messages": [{"role": "user"}]}, "$.messages[0].content"),
    ("anthropic", {"model": "m", "messages": [{"role": "tool", "content": ""}]}, "$.messages[0].role"),
    (
        "anthropic",
        {
            "model": "m",
            "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "%"}}]}],
        },
        "$.messages[0].content[0].source.data",
    ),
    ("gemini", {"contents": []}, "$.model"),
    ("gemini", {"model": "m"}, "$.contents"),
    ("gemini", {"model": "m", "contents": [{"role": "king", "parts": []}]}, "$.contents[0].role"),
    ("gemini", {"model": "m", "contents": [{"role": "user"}]}, "$.contents[0].parts"),
    (
        "gemini",
        {"model": "m", "contents": [], "safetySettings": [{"category": "A", "threshold": "x"}] * 2},
        "$.safetySettings[1].category",
    ),
]


@pytest.mark.parametrize(("provider", "body", "path"), BAD)
def test_bad_input_names_the_place(provider: Any, body: Any, path: str) -> None:
    with pytest.raises(ContractError) as caught:
        canonical_request(body, provider=provider)
    assert caught.value.path == path


def test_an_unknown_provider_is_refused() -> None:
    with pytest.raises(InvalidInput, match="openai-chat"):
        canonical_request({}, provider="clippy")  # type: ignore[arg-type]


def test_a_missing_model_says_what_to_do() -> None:
    with pytest.raises(ContractError, match="model="):
        canonical_request({"contents": "hi"}, provider="gemini")


@pytest.mark.parametrize("spelling", ["generationConfig", "generation_config"])
def test_both_spellings_of_gemini_give_one_key(spelling: str) -> None:
    camel = {"generationConfig": {"topP": 1, "candidateCount": 2}, "contents": "hi", "model": "m"}
    snake = {
        "generation_config": {"top_p": 1, "candidate_count": 2},
        "contents": [{"parts": [{"text": "hi"}]}],
        "model": "m",
    }
    body = camel if spelling == "generationConfig" else snake
    request = canonical_request(body, provider="gemini")
    assert request["providerOptions"] == {"vendor.google.generationConfig.candidateCount": 2}
    assert request["topP"] == 1


@pytest.mark.parametrize("data", ["aGk=", "aGk", "aG\nk="])
def test_one_image_has_one_digest_however_it_is_written(data: str) -> None:
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    body = {"model": "m", "messages": [{"role": "user", "content": [url]}]}
    inline = {"model": "m", "contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": data}}]}]}
    one = canonical_request(body, provider="openai-chat")["messages"]
    assert one == canonical_request(inline, provider="gemini")["messages"]
    assert one[0]["content"][0]["digest"] == "sha256:8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4"


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(-2, 2)
    | st.sampled_from(["", "text", "function", "image", "user"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "text", "name", "role", "content", "parts", "source", "url"]), inner, max_size=3
        )
    ),
    max_leaves=4,
)


@given(st.data())
def test_a_damaged_body_gives_a_canonical_request_or_a_typed_error(data: st.DataObject) -> None:
    vector = data.draw(st.sampled_from(VECTORS))
    everywhere = [steps for _, steps in places(vector["body"])]
    steps = data.draw(st.sampled_from(everywhere))
    steps = steps[: data.draw(st.integers(1, len(steps)))]
    try:
        request = mapped(vector, changed(vector["body"], steps, data.draw(junk)))
    except InvalidInput:
        return
    CanonicalRequest.from_wire(request)
    llm_cache_key(request, recipe="semantic-request-v2")

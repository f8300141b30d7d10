"""The short way of everyday requests says what the readers of the dialects say, or leaves the request to them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from antiphon.errors import InvalidInput
from antiphon.llm import _plain
from antiphon.llm._plain import plain_chat, plain_responses
from antiphon.llm.key import llm_cache_key
from antiphon.llm.request import canonical_request, canonical_request_with_refs

ROOT = Path(__file__).parents[3]
VECTORS = json.loads((ROOT / "tests" / "vectors" / "requests.json").read_text())["requests"]
WAYS: dict[str, Any] = {"openai-chat": plain_chat, "openai-responses": plain_responses}

odd: st.SearchStrategy[Any] = st.sampled_from([None, "", 0, 1.5, True, [], {}, "x", ["x"], {"type": "image"}, [{}]])
words = st.sampled_from(["a", "hello there", "é😀", "call_1", "f", "\ud800"])
json_texts = st.sampled_from(
    [
        "",
        "{}",
        '{"a": 1}',
        '{"b":[1.0,-0,2e3],"a":"x"}',
        '{"a":1,"a":2}',
        "9007199254740993",
        "[NaN]",
        "nonsense",
        '"s"',
    ]
)


def record(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each container of *value* with each of its steps."""
    steps = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [found for step in steps for found in [(value, step), *places(value[step])]]


def spoiled(body: dict[str, Any], where: int, value: Any, name: str) -> dict[str, Any]:
    """The body with one of its values replaced by something else, or with a field nobody expects."""
    body = copy.deepcopy(body)
    node, step = (found := places(body))[where % len(found)]
    if isinstance(node, dict) and where % 3 == 0:
        node[name] = value
    else:
        node[step] = value
    return body


def now_and_then_odd(bodies: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(["refusal", "name", "type", "id", "tool_calls", "status", "cache_control", "metadata"])
    return st.one_of(bodies, st.builds(spoiled, bodies, st.integers(0, 10_000), odd, names))


roles = st.sampled_from(["system", "user", "assistant", "tool"])
parts = record({"type": st.sampled_from(["text", "input_text", "output_text"]), "text": words}, {})
contents = st.one_of(words, words, st.none(), st.lists(parts, max_size=2))
functions = record({"name": words, "arguments": json_texts}, {})
calls = record({"id": words, "type": st.just("function"), "function": functions}, {})
messages = record(
    {"role": roles, "content": contents},
    {"tool_calls": st.lists(calls, max_size=2), "tool_call_id": words, "name": words},
)
items = st.one_of(
    record({"role": roles, "content": contents}, {"type": st.just("message"), "id": words, "status": words}),
    record({"type": st.just("function_call"), "call_id": words, "name": words, "arguments": json_texts}, {"id": words}),
    record({"type": st.just("function_call_output"), "call_id": words, "output": contents}, {"status": words}),
    record({"type": st.just("reasoning"), "id": words, "summary": st.just([])}, {}),
)
schemas = st.sampled_from(
    [
        {},
        {"type": "object", "properties": {"a": {"type": "string"}}},
        {"default": None},
        {"default": float("nan")},
        {"default": 1.0},
        {"\uffff": 1, "😀": 2},
    ]
)
described = {"description": words, "strict": st.booleans()}
chat_tools = record(
    {"type": st.just("function"), "function": record({"name": words, "parameters": schemas}, described)}, {}
)
flat_tools = record({"type": st.just("function"), "name": words, "parameters": schemas}, described)
forms = record({"name": words, "schema": schemas}, {"strict": st.booleans()})
common: dict[str, Any] = {
    "temperature": st.sampled_from([0, 0.7, 1.0, 1e-7, 2**60]),
    "top_p": st.just(0.5),
    "top_k": st.just(3),
    "seed": st.sampled_from([7, 7.0]),
    "stop": st.just(["x"]),
    "tool_choice": st.sampled_from(["auto", "required", "f", {"type": "function", "name": "f"}]),
    "parallel_tool_calls": st.booleans(),
    "stream": st.booleans(),
    "previous_response_id": words,
    "max_tokens": st.just(5),
}
chat_bodies = record(
    {"model": st.just("m"), "messages": st.lists(messages, max_size=4)},
    {
        **common,
        "tools": st.lists(chat_tools, max_size=3),
        "max_completion_tokens": st.just(6),
        "response_format": record({"type": st.just("json_schema"), "json_schema": forms}, {}),
    },
)
responses_bodies = record(
    {"model": st.just("m"), "input": st.one_of(words, st.lists(items, max_size=6))},
    {
        **common,
        "instructions": words,
        "tools": st.lists(flat_tools, max_size=3),
        "max_output_tokens": st.just(6),
        "text": record({"format": forms.map(lambda form: {"type": "json_schema", **form})}, {}),
    },
)


def agree(body: dict[str, Any], dialect: Any, vendor: str | None = None) -> str:
    """Which way the request went. If it was the short one, both ways have to give the same bytes and the same key."""
    before = json.dumps(body)
    found = WAYS[dialect](body, vendor or "openai")
    if found is None:
        return ""
    assert json.dumps(body) == before
    short, key = found
    long = canonical_request_with_refs(body, provider=dialect, vendor=vendor).request
    assert json.dumps(short) == json.dumps(long)
    assert key is None or key == llm_cache_key(long)
    return "mapped" if key is None else "mapped with its key"


@given(body=now_and_then_odd(chat_bodies))
@settings(max_examples=400)
def test_chat(body: dict[str, Any]) -> None:
    event(agree(body, "openai-chat", "acme"))


@given(body=now_and_then_odd(responses_bodies))
@settings(max_examples=400)
def test_responses(body: dict[str, Any]) -> None:
    event(agree(body, "openai-responses"))


@pytest.mark.parametrize("dialect", list(WAYS))
def test_vectors(dialect: Any) -> None:
    ways = set()
    for vector in VECTORS:
        if vector["provider"] == dialect and "model" not in vector:
            ways.add(agree(vector["body"], dialect, vector.get("vendor")))
            found = canonical_request(vector["body"], provider=dialect, vendor=vector.get("vendor"))
            assert orjson.dumps(found) == orjson.dumps(vector["canonical"])
    assert "mapped with its key" in ways


TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q": "x"}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "found", "name": "look"},
    {"role": "assistant", "content": [{"type": "text", "text": "It is x."}]},
]
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"type": "message", "id": "m1", "status": "completed", "role": "assistant", "content": []},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"q":"x"}', "id": "f1"},
    {"type": "function_call_output", "call_id": "c1", "output": "found"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "It is x.", "annotations": []}]},
    {"role": "assistant", "content": "More."},
]
TOOL = {"name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}


def test_what_agents_send_goes_the_short_way() -> None:
    chat = {"model": "m", "messages": TALK, "tools": [{"type": "function", "function": TOOL}], "temperature": 0.2}
    assert agree(chat, "openai-chat") == "mapped with its key"
    assert agree({"model": "m", "messages": TALK[:2]}, "openai-chat") == "mapped with its key"
    responses = {"model": "m", "input": ITEMS, "tools": [{"type": "function", **TOOL, "strict": True}], "store": False}
    responses |= {"instructions": "Be brief.", "parallel_tool_calls": True}
    assert agree(responses, "openai-responses") == "mapped with its key"


def test_a_call_is_read_anew_each_time() -> None:
    first, second = plain_chat({"model": "m", "messages": TALK}, "v"), plain_chat({"model": "m", "messages": TALK}, "v")
    assert first is not None
    assert second is not None
    first[0]["messages"][2]["content"][0]["arguments"]["q"] = "changed"
    assert second[0]["messages"][2]["content"][0]["arguments"] == {"q": "x"}


def test_what_orjson_prints_in_another_way_needs_the_walk() -> None:
    for odd_one in ({"default": 1.0}, {"\uffff": 1, "😀": 2}, {"default": float("nan")}):
        tool = {"type": "function", "function": {**TOOL, "parameters": odd_one}}
        body = {"model": "m", "messages": TALK, "tools": [tool]}
        for _ in range(2):
            found = plain_chat(body, "v")
            assert found is not None
            assert found[1] is None
            assert plain_chat({**body, "tools": [{**tool, "function": {**TOOL, "parameters": {"default": None}}}]}, "v")


def test_what_it_does_not_know_is_still_refused() -> None:
    body: Any = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": ""}
    with pytest.raises(InvalidInput):
        canonical_request(body, provider="openai-chat")


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short way that forgets what a tool message answers would not agree."""
    right = _plain._said
    monkeypatch.setattr(_plain, "_said", lambda role, blocks: {**right(role, blocks), "role": "user"})
    with pytest.raises(AssertionError):
        agree({"model": "m", "messages": TALK}, "openai-chat")

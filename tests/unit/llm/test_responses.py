"""Answers of all providers: their account, whole or streamed, and whether they are refusals (L4, D23)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.llm.response import envelope_kind, response_dialect, summarise, usage_and_stop
from antiphon.llm.stream import assemble_response, assemble_stream, sse_events

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "responses.json").read_text())
DIALECTS = ("openai-chat", "openai-responses", "anthropic", "gemini", "bedrock")


@pytest.mark.parametrize("vector", VECTORS["responses"], ids=lambda vector: vector["id"])
def test_answers(vector: dict[str, Any]) -> None:
    before = json.dumps(vector["response"])
    assert summarise(vector["response"], vector["provider"]) == vector["summary"]
    usage, stop = usage_and_stop(vector["response"], vector["provider"])
    assert (usage, stop) == (vector["summary"]["usage"], vector["summary"]["stopReason"])
    kind, reason = envelope_kind(vector["response"], vector["provider"])
    assert (kind, reason) == (vector["summary"]["kind"], vector["summary"]["refusal"])
    assert json.dumps(vector["response"]) == before


@pytest.mark.parametrize("vector", VECTORS["responses"], ids=lambda vector: vector["id"])
def test_the_shape_alone_tells_the_provider(vector: dict[str, Any]) -> None:
    if vector["summary"]["kind"] != "unknown":
        assert envelope_kind(vector["response"]) == envelope_kind(vector["response"], vector["provider"])


@pytest.mark.parametrize("vector", VECTORS["streams"], ids=lambda vector: vector["id"])
def test_streams(vector: dict[str, Any]) -> None:
    assert assemble_stream(vector["events"], vector["provider"]) == vector["summary"]


@pytest.mark.parametrize("vector", VECTORS["streams"], ids=lambda vector: vector["id"])
@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_a_raw_event_stream_gives_the_same_wherever_it_is_cut(vector: dict[str, Any], size: int) -> None:
    lines = "".join(f"event: e\r\ndata: {json.dumps(event, ensure_ascii=False)}\r\n\r\n" for event in vector["events"])
    raw = (": hello\r\n\r\n" + lines + "data: [DONE]\r\n\r\n").encode()
    pieces = [raw[start : start + size] for start in range(0, len(raw), size)]
    assert assemble_stream(pieces, vector["provider"]) == vector["summary"]


@pytest.mark.parametrize("vector", VECTORS["streams"], ids=lambda vector: vector["id"])
def test_a_broken_off_stream_is_never_complete_and_never_an_error(vector: dict[str, Any]) -> None:
    if vector["summary"]["kind"] == "unknown":
        return
    text = vector["summary"]["text"]
    for count in range(len(vector["events"])):
        summary = assemble_stream(vector["events"][:count], vector["provider"])
        assert text.startswith(summary["text"])
        if count < vector["endsWith"]:
            assert summary["complete"] is False


@pytest.mark.parametrize("vector", VECTORS["streams"], ids=lambda vector: vector["id"])
def test_a_stream_says_what_the_whole_answer_would_have_said(vector: dict[str, Any]) -> None:
    if "whole" in vector:
        whole = summarise(vector["whole"], vector["provider"])
        assert {**whole, "complete": True} == vector["summary"]
        assert summarise(assemble_response(vector["events"], vector["provider"]), vector["provider"]) == whole


@pytest.mark.parametrize(
    "response",
    [None, 5, "text", [], {}, {"choices": []}, {"choices": "x"}, {"error": {"code": "overloaded"}}, object()],
)
@pytest.mark.parametrize("provider", [*DIALECTS, None, "clippy"])
def test_an_unknown_shape_is_unknown_and_kept(response: Any, provider: str | None) -> None:
    assert envelope_kind(response, provider) == ("unknown", None)
    summary = summarise(response, provider)
    assert summary["kind"] == "unknown"
    assert summary["raw"] is response


def test_a_refusal_in_prose_is_not_guessed() -> None:
    answer = {"choices": [{"message": {"content": "I'm sorry, I can't help with that."}, "finish_reason": "stop"}]}
    assert envelope_kind(answer) == ("valid", None)


def test_several_choices_are_a_refusal_only_if_all_refuse() -> None:
    refused = {"message": {"refusal": "no"}, "finish_reason": "stop"}
    answered = {"message": {"content": "yes"}, "finish_reason": "stop"}
    assert envelope_kind({"choices": [refused, refused]}) == ("refusal", "no")
    assert envelope_kind({"choices": [refused, answered]}) == ("valid", None)


@pytest.mark.parametrize(
    ("envelope", "verdict"),
    [
        ({"kind": "refusal", "reason": "policy"}, ("refusal", "policy")),
        ({"kind": "refusal", "refusalReason": "policy"}, ("refusal", "policy")),
        ({"kind": "refusal"}, ("refusal", "refusal")),
        ({"kind": "valid", "payload": {}}, ("valid", None)),
        ({"stopReason": "refusal", "refusalText": "no"}, ("refusal", "no")),
        ({"error": {"code": "content_filter", "message": "…"}}, ("refusal", "content_filter")),
        (
            {"error": {"innererror": {"code": "ResponsibleAIPolicyViolation"}}},
            ("refusal", "ResponsibleAIPolicyViolation"),
        ),
    ],
)
@pytest.mark.parametrize("provider", [*DIALECTS, None])
def test_envelopes(envelope: dict[str, Any], verdict: tuple[str, str | None], provider: str | None) -> None:
    assert envelope_kind(envelope, provider) == verdict


def test_snake_case_of_an_sdk_is_read_too() -> None:
    blocked = {"candidates": [{"finish_reason": "SAFETY"}], "usage_metadata": {"prompt_token_count": 3}}
    assert envelope_kind(blocked, "gemini") == ("refusal", "SAFETY")
    assert summarise(blocked, "gemini")["usage"]["inputTokens"] == 3
    assert response_dialect({"prompt_feedback": {"block_reason": "OTHER"}}) == "gemini"


def test_event_data_over_several_lines() -> None:
    assert list(sse_events(['data: {"a":\ndata: 1}\n\n', b"data: [2]"])) == [{"a": 1}, [2]]


def test_a_byte_order_mark_is_no_part_of_a_stream() -> None:
    assert list(sse_events([b"", b"\xef", b'\xbb\xbfdata: {"a": 1}\n\n', b"data: 2\n\n"])) == [{"a": 1}, 2]
    assert list(sse_events(['\ufeffdata: {"a": 1}\n\n'])) == [{"a": 1}]


NAMES = """choices message content delta tool_calls function arguments index usage output item type candidates parts
functionCall args promptFeedback stop_reason stopReason finishReason response content_block error status"""
junk: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES.split()),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(junk, st.sampled_from([*DIALECTS, None]))
def test_no_answer_is_an_exception(response: Any, provider: str | None) -> None:
    assert summarise(response, provider)["kind"] in ("valid", "refusal", "unknown")


@given(st.lists(junk | st.binary(max_size=9), max_size=5), st.sampled_from(DIALECTS))
def test_no_stream_is_an_exception(events: list[Any], provider: str) -> None:
    assert "complete" in assemble_stream(events, provider)


@given(st.data())
def test_no_damaged_stream_is_an_exception(data: st.DataObject) -> None:
    vector = data.draw(st.sampled_from(VECTORS["streams"]))
    events = list(vector["events"])
    index = data.draw(st.integers(0, len(events) - 1))
    event = dict(events[index])
    if event:
        event[data.draw(st.sampled_from(sorted(event)))] = data.draw(junk)
    events[index] = event
    assert "complete" in assemble_stream(events, vector["provider"])


def test_an_index_below_zero_is_the_first() -> None:
    head = {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "content": []}}
    deltas = [
        {"type": "response.output_text.delta", "output_index": 0, "content_index": index, "delta": text}
        for index, text in ((0, "Hel"), (-2, "lo"))
    ]
    assert assemble_stream([head, *deltas], "openai-responses")["text"] == "Hello"

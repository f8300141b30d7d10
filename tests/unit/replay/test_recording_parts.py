"""What a recording knows of its events: places, chunks, answers, nested lanes, and what is read again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon._drive import AFTER
from antiphon._replay import recording as module
from antiphon._replay.recording import RecordedCall, not_kept, refusal_divergence, set_at
from antiphon.canonical import canonical_digest
from antiphon.contract.events import AFTER_END, UNSERIALISABLE, Event
from antiphon.errors import ArtifactError, InvalidInput
from antiphon.ports import AS_RECORDED, BEGUN, Answer
from tests.unit.replay.made import RUN, Log, Script

# -- places -----------------------------------------------------------------------------------------------------------


def test_a_call_is_found_by_lane_name_digest_and_occurrence() -> None:
    script = Script()
    script.call("look", {"n": 1}, "first")
    script.call("look", {"n": 1}, "second", nth=1)
    script.call("look", {"n": 1}, "elsewhere", lane="0/1")
    recording = script.recording()

    def value(lane: str, digest: str, nth: int) -> Any:
        found = recording.find(lane, "tools/look", digest, nth)
        return None if found is None else recording.answer(found).value

    digest = "look{'n': 1}"
    assert value("0", digest, 0) == "first"
    assert value("0", digest, 1) == "second"
    assert value("0/1", digest, 0) == "elsewhere"
    assert value("0", digest, 2) is value("0", "other", 0) is value("1", digest, 0) is None
    assert recording.answered == 3
    recording.rewind()
    assert recording.answered == 0


def test_of_a_call_that_was_made_again_inside_a_tool_the_first_stands() -> None:
    script = Script()
    script.call("look", {"n": 1}, "first")
    again = script.call("look", {"n": 1}, "again")
    recording = script.recording()
    (call,) = recording.by_name["tools/look"]
    assert call.call != again
    assert recording.answer(call).value == "first"


@pytest.mark.parametrize(("value", "number"), [(None, 0), (0, 0), (3, 3), (True, -1), ("1", -1), (1.0, -1)])
def test_numbers_of_a_damaged_recording_match_nothing(value: Any, number: int) -> None:
    event = Event(run=RUN, seq=0, type="call.started", at_ms=1, lane="0", index=0, payload={"name": "x", "nth": value})
    call = RecordedCall.of(event)
    assert call.nth == number
    assert (call.kind, call.name, call.digest, call.call) == ("tool", "x", "", "")


def test_draws_prompts_and_interactions() -> None:
    script = Script()
    script.add("draw", {"what": "uuid4", "value": "first"})
    script.add("draw", {"what": "uuid4", "value": "again"})
    script.add("draw", {"what": "uuid4", "nth": 1, "value": "second"})
    script.add("prompt", {"name": "p", "text": "hello"})
    script.add("interaction.finished", {"output": 1})
    recording = script.recording()
    assert recording.draws == {("0", "uuid4", 0): "first", ("0", "uuid4", 1): "second"}
    assert recording.prompts == [{"name": "p", "text": "hello"}]
    assert recording.interactions == [{"output": 1}]
    assert recording.input() == {"question": 1}
    assert recording.output() is None
    script.add("run.finished", {"status": "completed", "output": 7})
    assert script.recording().output() == 7


def test_the_last_attempt_of_a_resumed_run_counts() -> None:
    script = Script()
    script.call("look", {"n": 1}, "before")
    script.add("draw", {"what": "uuid4", "value": "before"})
    script.add("prompt", {"name": "before"})
    script.add("interaction.finished", {"output": "before"})
    script.add("run.finished", {"status": "failed"})
    script.add("run.started", {"name": "made", "input": 2})
    script.call("look", {"n": 2}, "after")
    recording = script.recording()
    assert [call.digest for call in recording.calls.values()] == ["look{'n': 2}"]
    assert list(recording.by_name) == ["tools/look"]
    assert (recording.draws, recording.prompts, recording.interactions) == ({}, [], [])
    assert (recording.input(), recording.last) == (2, None)
    assert len(recording.lanes["0"]) == 2


def test_a_run_without_events_is_no_recording() -> None:
    script = Script()
    script.events.clear()
    with pytest.raises(ArtifactError, match="has no events"):
        script.recording()


def test_what_came_after_the_end_has_its_place_behind_it() -> None:
    script = Script()
    script.call("look", {"n": 1}, "in time")
    script.call("look", {"n": 2}, "late", meta={AFTER_END: True})
    undo = "0/1:~undo 01a1edbd-1eed-7000-bd36-6cbcdd990001#0"
    script.call("look", {"n": 3}, "undone by an operator", lane=undo, meta={AFTER_END: True})
    recording = script.recording()
    late = recording.find("0", "tools/look", "look{'n': 2}", 0)
    assert late is not None
    assert late.after_end
    assert recording.answer(late).value == "late"
    assert recording.lanes == {"0": [0, 1, 3]}
    assert list(recording.late["0"]) == [3]
    assert [call.digest for call in recording.top_calls()] == ["look{'n': 1}"]


# -- lanes ------------------------------------------------------------------------------------------------------------


def test_lanes_inside_a_call_that_was_answered_as_a_whole() -> None:
    script = Script()
    outer = script.call("outer", {}, 1)
    inner = script.call("inner", {}, 2, lane="0/a", parent=outer)
    script.call("innermost", {}, 3, lane="0/a/b", parent=inner)
    script.call("other", {}, 4, lane="0/c")
    script.call("orphan", {}, 5, lane="0/d", parent="nobody")
    recording = script.recording()
    lanes = ("0", "0/a", "0/a/b", "0/c", "0/d", "nowhere")
    assert [recording.covered(lane) for lane in lanes] == [False] * 6
    recording.answer(recording.by_name["tools/inner"][0])
    assert [recording.covered(lane) for lane in lanes] == [False, False, True, False, False, False]
    recording.answer(recording.by_name["tools/outer"][0])
    assert [recording.covered(lane) for lane in lanes] == [False, True, True, False, False, False]
    assert [call.name for call in recording.top_calls()] == ["tools/outer", "tools/other"]


def test_lanes_below_an_ambiguous_one_are_ambiguous() -> None:
    script = Script()
    script.add("decision", {"what": "ambiguous", "detail": {"lanes": ["0/a"]}})
    script.add("decision", {"what": "retry", "detail": {"lanes": ["0/b"]}})
    recording = script.recording()
    lanes = ("0/a", "0/a/1", "0/a@2", "0/ab", "0/b", "0")
    assert [recording.is_ambiguous(lane) for lane in lanes] == [True, True, True, False, False, False]


# -- answers ----------------------------------------------------------------------------------------------------------


def only(script: Script, **more: Any) -> tuple[Any, Answer]:
    recording = script.recording()
    (call,) = recording.calls.values()
    return recording, recording.answer(call, **more)


def test_a_plain_answer() -> None:
    script = Script()
    script.call("look", {}, {"a": 1})
    _, answer = only(script)
    assert answer == Answer("ok", {"a": 1}, None, None, "recording", {AS_RECORDED: True})
    _, answer = only(script, begun=True, source="cache")
    assert answer.meta == {BEGUN: True, AS_RECORDED: True}
    assert answer.source == "cache"


@pytest.mark.parametrize(
    "end", [{"outcome": "ok"}, {"outcome": "ok", "value": 1, "note": "x"}, {"outcome": "ok", "v": 1}]
)
def test_an_answer_that_says_more_or_less(end: dict[str, Any]) -> None:
    script = Script()
    script.call("look", {}, end=end)
    _, answer = only(script)
    assert answer.meta == {}
    assert answer.value == end.get("value")


def test_an_error_an_unknown_end_and_none() -> None:
    script = Script()
    script.call("look", {}, end={"outcome": "error", "error": {"code": "no", "message": "no"}})
    _, answer = only(script)
    assert (answer.outcome, answer.error, answer.meta) == ("error", {"code": "no", "message": "no"}, {})
    script = Script()
    script.call("look", {}, end=None)
    _, answer = only(script)
    assert answer.outcome == "error"
    assert answer.error is not None
    assert answer.error["code"] == "outcome_unknown"
    script = Script()
    script.call("look", {}, end={"outcome": "perhaps"})
    with pytest.raises(ArtifactError, match="unknown outcome 'perhaps'"):
        only(script)
    script = Script()
    script.call("look", {}, end={"value": 5})
    _, answer = only(script)
    assert (answer.outcome, answer.value) == ("ok", 5)


def test_of_two_ends_the_good_one_counts() -> None:
    script = Script()
    call = script.call("look", {}, end={"outcome": "error", "error": {"code": "no", "message": ""}})
    script.add("call.finished", {"outcome": "ok", "value": 2}, call=call)
    script.add("call.finished", {"outcome": "error", "error": {"code": "late", "message": ""}}, call=call)
    script.add("call.finished", {"outcome": "ok", "value": 9}, call="nobody")
    _, answer = only(script)
    assert (answer.outcome, answer.value) == ("ok", 2)


def test_a_stream_with_and_without_its_pauses() -> None:
    script = Script()
    call = script.call("look", {}, end=None)
    script.add("call.chunk", {"n": 0, "data": "a"}, call=call, meta={"gapMs": 5})
    script.add("call.chunk", {"data": "b"}, call=call)
    script.add("call.chunk", {"n": 0, "data": "of nobody"}, call="nobody")
    script.add(
        "call.finished", {"outcome": "ok", "value": None}, call=call, meta={"headers": {"a": "1"}, "layout": "x"}
    )
    recording, answer = only(script)
    assert answer.chunks == ["a", "b"]
    assert answer.meta == {"headers": {"a": "1"}, "layout": "x"}
    _, answer = only(script, realtime=True)
    assert answer.meta["gapsMs"] == [5, 0]
    (found,) = recording.calls.values()
    assert len(found.chunks) == 2


def test_an_empty_stream_is_one() -> None:
    script = Script()
    script.call("look", {}, None, end_meta={"stream": True})
    _, answer = only(script)
    assert (answer.chunks, answer.meta) == ([], {})


@pytest.mark.parametrize("number", [1, -1, "0"])
def test_a_chunk_out_of_place_is_damage(number: Any) -> None:
    script = Script()
    call = script.call("look", {}, end=None)
    script.add("call.chunk", {"n": number, "data": "a"}, call=call)
    with pytest.raises(ArtifactError, match="not the next chunk"):
        script.recording()


@pytest.mark.parametrize(("told", "reused"), [({}, False), ({"fromCache": "completed"}, True)])
def test_a_write_of_a_saga_says_where_it_was_settled(told: dict[str, Any], reused: bool) -> None:
    script = Script()
    script.call("pay", {}, 1, meta={"saga": "s"}, end_meta=told)
    _, answer = only(script)
    assert (answer.meta["settled"], answer.meta["reused"]) == (2, reused)


def test_arguments_are_those_of_a_tool_or_of_a_model() -> None:
    script = Script()
    script.call("look", {"n": 1}, 2)
    start = {"kind": "llm", "name": "llm", "request": {"model": "m"}, "digest": "d"}
    script.add("call.started", start, call="0@9")
    recording = script.recording()
    assert [recording.arguments(call) for call in recording.calls.values()] == [{"n": 1}, {"model": "m"}]


# -- written in the same way ------------------------------------------------------------------------------------------


def test_arguments_written_as_before_need_no_digest() -> None:
    script = Script()
    digest = canonical_digest({"n": 1})
    script.call("look", {"n": 1}, 2, digest=digest)
    recording = script.recording()
    known = recording.known_arguments({"n": 1})
    assert known == (b'{"n":1}', digest)
    assert recording.known_arguments({"n": 2**70}) is None
    assert recording.known_arguments({"n": {1: 2}}) is None
    assert recording.known_arguments({"n": 2}) is None
    assert recording.known_arguments({"n": {1}}) is None
    (call,) = recording.calls.values()
    assert recording.begins(call, b'{"n":1}')
    assert not recording.begins(call, b'{"n": 1}')
    assert not recording.begins(call, None)
    recording.edit(2, "value", 3)
    assert not recording.begins(call, b'{"n":1}'), "something was edited"


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"approval": "always"}, False),
        ({"arguments": [1]}, False),
        ({"kind": "mcp"}, False),
        ({"digest": "d"}, False),
    ],
)
def test_a_start_that_says_more_is_looked_at(changes: dict[str, Any], kept: bool) -> None:
    script = Script()
    start = {"kind": "tool", "name": "look", "namespace": "tools", "arguments": {"n": 1}, "nth": 0}
    start["digest"] = canonical_digest({"n": 1})
    script.add("call.started", {**start, **changes}, call="0@1")
    assert (script.recording().known_arguments({"n": 1}) is not None) is kept


def test_a_start_without_its_check_sum_is_looked_at() -> None:
    script = Script()
    start = {"kind": "tool", "name": "look", "namespace": "tools", "arguments": {"n": 1}, "nth": 0}
    script.add("call.started", {**start, "digest": canonical_digest({"n": 1})}, call="0@1", sealed=False)
    assert script.recording().known_arguments({"n": 1}) is None


def test_a_request_to_a_model_written_as_before() -> None:
    script = Script()
    start = {"kind": "llm", "name": "llm", "request": {"model": "m"}, "digest": "d", "variant": "v"}
    start |= {"provider": "openai", "providerRequest": {"model": "m", "n": 1}}
    at = script.add("call.started", start, call="0@1")
    recording = script.recording()
    assert recording.known_request("openai", {"model": "m", "n": 1}) == recording.event(at).payload
    assert recording.known_request("openai", {"model": "m", "n": 2}) is None
    assert recording.known_request("anthropic", {"model": "m", "n": 1}) is None
    assert recording.known_request("openai", {"model": object()}) is None
    assert Script().recording().known_request("openai", {}) is None


def test_an_event_that_is_not_as_it_was_written() -> None:
    script = Script()
    script.call("look", {"n": 1}, 2)
    assert script.recording().altered == []
    script.events[2].payload["value"] = 3
    assert script.recording().altered == [2]


# -- memory -----------------------------------------------------------------------------------------------------------


def test_small_events_are_kept_and_large_ones_are_read_again_some_at_a_time() -> None:
    script = Script()
    for number in range(70):
        script.call("look", {"n": number}, "x" * 5_000)
    log = Log(script.events)
    recording = module.Recording.load(script.recording().manifest, log)
    loaded = len(log.asked)
    calls = list(recording.calls.values())
    assert all(call.started in recording._kept and call.finished not in recording._kept for call in calls)
    assert [len(recording.answer(call).value) for call in calls] == [5_000] * 70
    assert len(log.asked) - loaded == pytest.approx(140 / module.READ_AHEAD, abs=1)
    assert log.asked[loaded] == (2, 2 + module.READ_AHEAD)


def test_an_event_that_is_gone_is_damage() -> None:
    script = Script()
    script.call("look", {"n": 1}, "x" * 5_000)
    log = Log(script.events)
    recording = module.Recording.load(script.recording().manifest, log)
    log.kept = log.kept[:1]
    with pytest.raises(ArtifactError, match="Event 2 of run run-1 cannot be read"):
        recording.answer(next(iter(recording.calls.values())))


@pytest.mark.parametrize(
    ("value", "size"),
    [("abc", 53), ({}, 100), ({"a": 1}, 181), ([1, 2], 120), ((1,), 90), (None, 30), ([[]], 120), ("x" * 200, 250)],
)
def test_about_how_large_a_payload_is(value: Any, size: int) -> None:
    assert module._rough_size(value, 10_000) == size
    assert module._rough_size([value] * 1_000, 100) <= 100 + 60 + size


def test_an_edit_changes_one_event_of_this_replay() -> None:
    script = Script()
    script.call("look", {"n": 1}, {"status": "sent", "items": [1, 2]})
    recording = script.recording()
    recording.edit(2, "value.status", "lost")
    recording.edit(2, "value.items.1", 9)
    (call,) = recording.calls.values()
    assert recording.answer(call).value == {"status": "lost", "items": [1, 9]}
    assert recording.event(1).payload["arguments"] == {"n": 1}
    for seq in (-1, 3):
        with pytest.raises(InvalidInput, match=f"no event {seq} to edit") as raised:
            recording.edit(seq, "value", 1)
        assert raised.value.hint == "It has 0 to 2."
    recording.edit(0, "input", 5)
    assert recording.input() == 5


def test_a_place_that_is_not_there_says_what_is() -> None:
    for document, path, known in (({"a": 1, "b": 2}, "c.d", "a, b"), ([1, 2], "2", "0 to 1"), ([], "0", "nothing")):
        with pytest.raises(InvalidInput) as raised:
            set_at(document, path, 1, "event 3")
        assert raised.value.hint == f"There is: {known}."


def test_a_result_that_was_recorded_as_its_type() -> None:
    kept = Answer("ok", {"a": 1}, None, None, "recording", {})
    assert not_kept(kept) is None
    assert not_kept(kept._replace(chunks=["a", "b"])) is None


NOT_KEPT = {UNSERIALISABLE: "Thing"}


@pytest.mark.parametrize(
    ("value", "chunks", "said"),
    [
        (1, None, None),
        (NOT_KEPT, None, "it returned a Thing, which cannot be recorded"),
        (None, ["a", NOT_KEPT], "it returned a Thing, which cannot be recorded"),
        (NOT_KEPT, ["a"], "it returned a Thing, which cannot be recorded"),
        (None, ["a", "b"], None),
    ],
)
def test_a_result_that_was_recorded_as_the_name_of_its_type(value: Any, chunks: Any, said: str | None) -> None:
    assert not_kept(Answer("ok", value, None, chunks, "recording", {})) == said


def test_the_rest_of_a_list_stays() -> None:
    assert set_at([1, 2, 3], "0", 9, "event 3") == [9, 2, 3]
    assert set_at({"a": [1, [2, 3]]}, "a.1.0", 9, "event 3") == {"a": [1, [9, 3]]}
    with pytest.raises(InvalidInput):
        set_at([1, 2], "2", 9, "event 3")


def test_a_call_that_was_given_up_says_after_how_long() -> None:
    error = {"code": "cancelled", "message": "It was interrupted: CancelledError.", "class": ""}
    script = Script()
    script.call("look", {}, end={"outcome": "error", "error": error}, end_meta={"durationMs": 5.0})
    recording = script.recording()
    (call,) = recording.calls.values()

    async def inside() -> Answer:
        return recording.answer(call)

    assert asyncio.run(inside()).meta == {AFTER: 5.0}


def test_a_call_that_never_ended_says_so() -> None:
    script = Script()
    script.call("look", {}, end=None)
    _, answer = only(script)
    assert answer.error == {"code": "outcome_unknown", "message": "The recording ends before this call was answered."}


def test_who_looks_at_the_events_sees_each_once() -> None:
    script = Script()
    script.call("look", {}, 1)
    script.call("look", {"n": 2}, end=None)
    seen: list[int] = []
    recording = script.recording(seen=lambda event: seen.append(event.seq))
    assert seen == [0, 1, 2, 3]
    assert recording._open == {}


@pytest.mark.parametrize(("length", "kept"), [(3_895, True), (3_896, False)])
def test_an_event_of_four_kilobytes_is_kept(length: int, kept: bool) -> None:
    script = Script()
    at = script.add("prompt", {"a": "x" * length})
    assert (at in script.recording()._kept) is kept


def test_events_are_kept_until_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()
    for _ in range(5):
        script.add("prompt", {"a": "x"})  # 202 bytes each, and 434 for the start of the run
    sizes = [module._rough_size(event.payload, 10_000) for event in script.events]
    monkeypatch.setattr(module, "KEEP_TOTAL_BYTES", sizes[0] + 3 * sizes[1])
    recording = script.recording()
    assert sorted(recording._kept) == [0, 1, 2, 3]
    assert recording._kept_bytes == sizes[0] + 3 * sizes[1]
    monkeypatch.setattr(module, "KEEP_TOTAL_BYTES", sizes[0] + 3 * sizes[1] - 1)
    assert sorted(script.recording()._kept) == [0, 1, 2]


@pytest.mark.parametrize(
    ("request_", "vendor"), [({"provider": "__main__"}, "__main__"), ({"provider": "openai"}, None), (None, None)]
)
def test_the_model_of_a_script_is_known_by_its_first_call(request_: Any, vendor: str | None) -> None:
    script = Script()
    for provider in (request_, {"provider": "__main__"} if vendor else None):
        start = {"kind": "llm", "name": "llm", "request": provider, "digest": "d", "variant": "v"}
        script.add("call.started", start, call=f"0@{len(script.events)}")
    recording = script.recording()
    assert recording.script_vendor == vendor
    assert recording.plain == {"d"}


def test_a_call_without_a_variant_says_nothing_of_a_script() -> None:
    script = Script()
    start = {"kind": "llm", "name": "llm", "request": {"provider": "__main__"}, "digest": "d"}
    script.add("call.started", start, call="0@1")
    assert script.recording().script_vendor is None


def test_a_key_made_from_placeholders_says_nothing_of_its_arguments() -> None:
    script = Script()
    start = {"kind": "tool", "name": "look", "namespace": "tools", "arguments": {"n": 1}, "digest": "d", "nth": 0}
    script.add("call.started", {**start, "keyOf": "old"}, call="0@1")
    assert script.recording().plain == set()


def test_a_rewound_recording_has_forgotten_what_its_masks_stood_for() -> None:
    recording = Script().recording()
    rewound: list[int] = []
    recording.masks.rewind = lambda: rewound.append(1)  # type: ignore[method-assign]
    recording.rewind()
    assert rewound == [1]


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "differs"),
    [
        ("ok", "ok", False),
        ("refusal", "refusal", False),
        ("ok", "refusal", True),
        ("refusal", "ok", True),
        ("error", "ok", False),
        ("ok", "error", False),
        ("denied", "refusal", False),
    ],
)
def test_a_model_that_refuses_where_it_had_answered(before: str, now: str, differs: bool) -> None:
    script = Script()
    script.call("llm", {}, end={"outcome": before, "value": 1}, end_meta={"refusalReason": "policy"})
    recording = script.recording()
    (call,) = recording.calls.values()
    found = refusal_divergence(recording, call, now, "safety")
    assert (found is not None) is differs
    if found is not None:
        kinds = {"ok": "valid", "refusal": "refusal"}
        assert found.payload == {
            "sourceRunId": RUN,
            "atSequence": 2,
            "originalEnvelopeKind": kinds[before],
            "replayEnvelopeKind": kinds[now],
            "originalEventId": f"{RUN}:2",
            "nodeId": call.call,
            "refusalReason": "safety" if now == "refusal" else "policy",
        }
        assert found.error.code == "replay_diverged_at_refusal"
    call.finished = None
    assert refusal_divergence(recording, call, now, None) is None

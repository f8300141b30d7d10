"""A replay compared with its recording, event by event: what is a difference, where it is, and what follows from it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from antiphon._diff import FieldDiff
from antiphon._replay.observe import Composed, DivergenceFound, Observer, Seen, equal, escape_of
from antiphon._scope import ORPHAN_LANE, Site
from antiphon.ports import Invocation
from tests.unit.replay.made import RUN, Script, site


def observer(script: Script, **more: Any) -> Observer:
    return Observer(script.recording(**more), lambda value: value)


def started(name: str, arguments: Any, at: Site | None = None, **more: Any) -> Seen:
    payload: dict[str, Any] = {"kind": "tool", "name": name, "namespace": "tools", "arguments": arguments}
    return Seen("call.started", at or site(), {**payload, "digest": f"{name}{arguments}", "nth": 0, **more}, {})


def finished(value: Any, at: Site | None = None) -> Seen:
    return Seen("call.finished", at or site(), {"outcome": "ok", "value": value}, {})


BEGAN = Seen("run.started", None, {"name": "made", "input": {"question": 1}}, {})


def kinds(seen: Observer) -> list[str]:
    return [found.kind for found in seen.divergences]


# -- the same ---------------------------------------------------------------------------------------------------------


def test_the_same_events_are_no_difference() -> None:
    script = Script()
    script.call("look", {"n": 1}, "one")
    seen = observer(script)
    (call,) = seen.recording.calls.values()
    seen.see([BEGAN, started("look", {"n": 1})])
    seen.answered(site(), call)
    call.used = 1
    seen.see([finished("one")])
    seen.finish()
    assert (seen.divergences, seen.total, seen.consequences, seen.notes) == ([], 0, [], [])


def test_bytes_that_are_equal_are_not_read() -> None:
    script = Script()
    script.call("look", {"n": 1}, "one")
    seen = observer(script)
    same = Composed("run.started", site(), orjson.dumps(BEGAN.payload), b"")
    seen.see([same])
    assert seen.divergences == []
    other = Composed("call.started", site(), orjson.dumps(started("look", {"n": 2}).payload), b"")
    seen.see([other])
    assert kinds(seen) == ["changed"]


# -- differences ------------------------------------------------------------------------------------------------------


def test_another_argument_or_result() -> None:
    script = Script()
    script.call("look", {"n": 1}, "one", index=4)
    seen = observer(script)
    (call,) = seen.recording.calls.values()
    seen.see([BEGAN, started("look", {"n": 2})])
    seen.answered(site(index=4), call)
    seen.see([finished("two", site(index=4))])
    start, end = seen.divergences
    assert (start.kind, start.lane, start.at, start.seq) == ("changed", "0", 1, 1)
    assert start.what == "call.started tools/look"
    assert [diff.path for diff in start.fields] == ["$.arguments.n"]
    assert (end.kind, end.at, end.seq, end.what) == ("changed", 4, 2, "call.finished")
    assert [diff.path for diff in end.fields] == ["$.value"]
    assert seen.total == 2


def test_another_draw_is_named() -> None:
    script = Script()
    script.add("draw", {"what": "uuid4", "value": 1})
    seen = observer(script)
    seen.see([BEGAN, Seen("draw", site(), {"what": "uuid4", "value": 2}, {})])
    (found,) = seen.divergences
    assert (found.kind, found.what, found.seq) == ("draw", "draw uuid4", 1)


def test_another_kind_of_event_ends_the_comparison_of_its_lane() -> None:
    script = Script()
    script.call("look", {"n": 1}, "one")
    seen = observer(script)
    seen.see([BEGAN, Seen("draw", site(), {"what": "uuid4", "value": 2}, {}), started("look", {"n": 9})])
    seen.finish()
    (found,) = seen.divergences
    assert (found.kind, found.at, found.seq, found.what) == ("type", 1, 1, "draw uuid4")
    assert found.note == "recorded call.started, now draw"


def test_after_another_kind_of_event_the_lane_is_not_compared() -> None:
    script = Script()
    script.call("look", {"n": 1}, "one")
    script.call("look", {"n": 2}, "two")
    seen = observer(script)
    seen.see([BEGAN, Seen("prompt", site(), {}, {}), started("look", {"n": 9})])
    assert kinds(seen) == ["type"]


def test_true_for_one_is_a_difference_unless_the_digest_found_the_call() -> None:
    script = Script()
    script.events.clear()
    script.add("run.started", {"input": 1})
    script.call("look", {"n": 1}, "one", digest="d")
    seen = observer(script)
    seen.see([Seen("run.started", None, {"input": True}, {}), started("look", {"n": True}, digest="d")])
    assert [(found.kind, found.seq) for found in seen.divergences] == [("changed", 0)]


def test_the_end_of_a_call_whose_recorded_end_is_missing() -> None:
    script = Script()
    script.call("look", {"n": 1}, end=None)
    seen = observer(script)
    seen.answered(site(), next(iter(seen.recording.calls.values())))
    seen.see([finished("one"), finished("of nobody", site("nobody"))])
    assert seen.divergences == []


def test_five_notes_of_a_call_are_told() -> None:
    script = Script()
    start: dict[str, Any] = {"kind": "llm", "name": "llm", "request": {}, "digest": "d"}
    script.add("call.started", {**start, "providerRequest": dict.fromkeys("abcdefg", 1)}, call="0@1")
    seen = observer(script)
    seen.see([BEGAN, Seen("call.started", site(), {**start, "providerRequest": dict.fromkeys("abcdefg", 2)}, {})])
    assert len(seen.notes) == 5


def test_an_event_too_many() -> None:
    seen = observer(Script())
    seen.see([BEGAN, Seen("prompt", site(), {"name": "p"}, {}), Seen("prompt", site(), {"name": "q"}, {})])
    (found,) = seen.divergences
    assert (found.kind, found.lane, found.at, found.seq, found.what) == ("extra", "0", 1, None, "prompt")
    seen = observer(Script())
    seen.see([BEGAN, started("look", {})])
    assert seen.divergences == [], "that was reported as a miss"


def test_notes_are_no_divergence() -> None:
    script = Script()
    start = {"kind": "llm", "name": "llm", "request": {"model": "m"}, "digest": "d", "providerRequest": {"a": 1}}
    script.add("call.started", {**start, "key": "k", "keyOf": "old"}, call="0@1")
    seen = observer(script)
    seen.see([BEGAN, Seen("call.started", site(), {**start, "providerRequest": {"a": 2}, "key": "k"}, {})])
    assert seen.divergences == []
    assert [note.path for note in seen.notes] == ["$.providerRequest.a"]


# -- what did not happen ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "said"), [(1, "1 recorded event of this lane"), (2, "2 recorded events of this lane")]
)
def test_what_is_missing(calls: int, said: str) -> None:
    script = Script()
    for number in range(calls):
        script.call("look", {"n": number}, "one")
    seen = observer(script)
    seen.see([BEGAN])
    seen.finish()
    (found,) = seen.divergences
    assert (found.kind, found.lane, found.at, found.seq) == ("missing", "0", 1, 1)
    assert found.what == "call.started tools/look"
    assert found.note == f"{said} did not happen"


def test_a_call_that_did_not_finish() -> None:
    script = Script()
    script.call("look", {"n": 1}, "one", index=2)
    script.call("look", {"n": 2}, end=None)
    seen = observer(script)
    first, second = seen.recording.calls.values()
    seen.see([BEGAN, started("look", {"n": 1}), started("look", {"n": 2})])
    seen.answered(site("a"), first)
    seen.answered(site("b"), second)
    seen.finish()
    (found,) = seen.divergences
    assert (found.kind, found.at, found.seq, found.what) == ("missing", 2, 2, "call.finished tools/look")
    seen = observer(script)
    first, second = seen.recording.calls.values()
    seen.see([BEGAN, started("look", {"n": 1}), started("look", {"n": 2})])
    seen.answered(site("a"), first)
    seen.ended(site("a"))
    seen.ended(site("nobody"))
    seen.finish()
    assert seen.divergences == []


def test_what_follows_from_the_first_difference_is_no_further_one() -> None:
    script = Script()
    script.call("look", {"n": 1}, "one")
    script.call("late", {}, "one", lane="0/a")
    script.add("run.finished", {})
    seen = observer(script)
    seen.see([BEGAN, started("look", {"n": 2})])
    seen.finish()
    assert kinds(seen) == ["changed"]
    assert seen.consequences == ["call.started tools/late"]


def test_what_had_begun_before_the_first_difference_is_one() -> None:
    script = Script()
    script.call("early", {}, "one", lane="0/a")
    script.call("look", {"n": 1}, "one")
    seen = observer(script)
    seen.see([BEGAN, started("look", {"n": 2})])
    seen.finish()
    assert kinds(seen) == ["changed", "missing"]
    assert seen.consequences == []


def test_what_is_left_of_the_lane_that_went_its_own_way_is_missing() -> None:
    script = Script()
    script.call("look", {"n": 1}, "one")
    seen = observer(script)
    seen.see([BEGAN._replace(payload={"name": "other"})])
    seen.finish()
    assert kinds(seen) == ["changed", "missing"]


def test_a_miss_beyond_the_end_of_its_lane_is_at_its_last_event() -> None:
    script = Script()
    script.call("look", {"n": 1}, "one")
    script.call("other", {}, "one", lane="0/a")
    script.call("look", {"n": 2}, "two")
    seen = observer(script)
    seen.missed(Invocation("tool", "tools/none", {}, "d", site(index=10)))
    seen.missed(Invocation("tool", "tools/none", {}, "d", site(lane="0/b")))
    seen.finish()
    assert kinds(seen) == ["miss", "miss", "missing"], "the other lane had begun before"
    assert seen.consequences == []


def test_another_output_is_no_way_of_its_own() -> None:
    script = Script()
    script.call("look", {"n": 1}, "one")
    seen = observer(script)
    seen.see([BEGAN])
    seen.add(DivergenceFound("output", "0", 0, 0, "the output"))
    seen.finish()
    assert kinds(seen) == ["output", "missing"]


def test_the_first_difference_stays_the_first() -> None:
    script = Script()
    script.call("one", {}, 1)
    script.call("two", {}, 2, lane="0/a")
    seen = observer(script)
    seen.add(DivergenceFound("changed", "0", 0, 5, "x"))
    seen.add(DivergenceFound("changed", "0", 0, 0, "x"))
    seen.finish()
    assert seen.consequences == []


def test_lanes_inside_an_answered_call_are_not_missing() -> None:
    script = Script()
    outer = script.call("outer", {}, 1)
    script.call("inner", {}, 2, lane="0/a", parent=outer)
    seen = observer(script)
    seen.see([BEGAN, started("outer", {})])
    seen.recording.by_name["tools/outer"][0].used = 1
    seen.finish()
    assert seen.divergences == []


# -- lanes without order ----------------------------------------------------------------------------------------------


def test_calls_of_threads_without_the_run_have_no_order() -> None:
    script = Script()
    script.call("one", {}, 1, lane=ORPHAN_LANE)
    script.call("two", {}, 2, lane=ORPHAN_LANE)
    seen = observer(script)
    one, two = seen.recording.calls.values()
    seen.see([BEGAN])
    for call, name in ((two, "two"), (one, "one")):
        at = site(name, lane=ORPHAN_LANE)
        seen.answered(at, call)
        call.used = 1
        seen.see([started(name, {}, at)])
        seen.ended(at)
    seen.finish()
    assert seen.divergences == []


def test_one_that_was_not_made_is_named() -> None:
    script = Script()
    script.call("one", {}, 1, lane=ORPHAN_LANE)
    script.call("two", {}, 2, lane=ORPHAN_LANE)
    seen = observer(script)
    one, two = seen.recording.calls.values()
    at = site("two", lane=ORPHAN_LANE)
    seen.answered(at, two)
    two.used = 1
    seen.see([BEGAN, started("two", {"changed": 1}, at)])
    seen.ended(at)
    seen.finish()
    changed, missing = seen.divergences
    assert (changed.kind, changed.seq) == ("changed", two.started)
    assert (missing.kind, missing.seq, missing.lane) == ("missing", one.started, ORPHAN_LANE)


def test_the_second_that_was_not_made_is_named() -> None:
    script = Script()
    script.call("elsewhere", {}, 0)
    script.call("one", {}, 1, lane=ORPHAN_LANE)
    script.call("two", {}, 2, lane=ORPHAN_LANE)
    seen = observer(script)
    _, one, two = seen.recording.calls.values()
    one.used = 1
    seen.see([BEGAN, started("elsewhere", {}), started("one", {}, site("one", lane=ORPHAN_LANE))])
    seen.finish()
    (found,) = seen.divergences
    assert (found.kind, found.seq) == ("missing", two.started)


def test_a_call_that_begins_as_recorded_is_counted() -> None:
    script = Script()
    script.call("one", {}, 1)
    script.call("two", {}, 2)
    seen = observer(script)
    one, two = seen.recording.calls.values()
    assert not seen.begun(site(), one), "the start of the run comes first"
    seen.see([BEGAN])
    assert not seen.begun(site(), two)
    assert seen.begun(site(), one)
    assert seen.begun(site(), two)
    assert not seen.begun(site(), two), "nothing more is recorded"
    seen.finish()
    assert seen.divergences == []
    assert seen.begun(site(lane=ORPHAN_LANE), two)
    assert seen.begun(site(lane=ORPHAN_LANE), one)


# -- a call that nobody recorded --------------------------------------------------------------------------------------


def asked(name: str, arguments: Any, *, kind: str = "tool", lane: str = "0", nth: int = 0) -> Invocation:
    digest = f"{name.removeprefix('tools/')}{arguments}"
    return Invocation(kind, name, arguments, digest, site(lane=lane, index=3, nth=nth))


def test_a_miss_names_the_nearest_call() -> None:
    script = Script()
    script.call("look", {"n": 1, "of": "a"}, 1)
    script.call("look", {"n": 7, "of": "b"}, 1)
    seen = observer(script)
    found = seen.missed(asked("tools/look", {"n": 8, "of": "b"}))
    assert (found.kind, found.lane, found.at, found.seq, found.nearest) == ("miss", "0", 3, None, 3)
    assert found.what == "tool tools/look"
    assert [diff.path for diff in found.fields] == ["$.n"]
    assert found.note == ""
    again = seen.missed(asked("llm", {"n": 8}, kind="llm"))
    assert again.what == "this model request"
    assert again.note == "after an earlier divergence in this lane"
    seen.finish()
    assert kinds(seen) == ["miss", "miss"], "what follows in the lane is a consequence"


def test_an_equal_call_elsewhere_is_said_to_be_there() -> None:
    script = Script()
    script.call("look", {"n": 1}, 1, lane="0/a")
    seen = observer(script)
    found = seen.missed(asked("tools/look", {"n": 1}, nth=2))
    assert found.note == "recorded in lane 0/a as occurrence 1, requested in lane 0 as occurrence 3"
    assert (found.fields, found.nearest) == ((), 1)


def test_candidates_are_unused_ones_of_the_lane_then_of_the_name_then_any() -> None:
    script = Script()
    script.call("look", {"n": 1}, 1)
    script.call("look", {"n": 2}, 1)
    script.call("look", {"n": 3}, 1, lane="0/a")
    script.call("other", {"n": 4}, 1)
    seen = observer(script)
    one, two, elsewhere, other = seen.recording.calls.values()
    assert seen._candidates(asked("tools/look", {})) == [one, two]
    one.used = 1
    assert seen._candidates(asked("tools/look", {})) == [two]
    two.used = 1
    assert seen._candidates(asked("tools/look", {})) == [elsewhere]
    elsewhere.used = 1
    assert seen._candidates(asked("tools/look", {})) == [one, two]
    assert seen._candidates(asked("tools/none", {})) == [one, two, elsewhere, other]
    for number in range(300):
        script.call("many", {"n": number}, 1)
    assert len(observer(script)._candidates(asked("tools/many", {}))) == 200


def test_a_recording_without_calls_has_no_nearest_one() -> None:
    found = observer(Script()).missed(asked("tools/look", {"n": 1}))
    assert (found.nearest, found.fields, found.note) == (None, (), "")
    assert found.where == "call 4"


# -- altered, escaped, cancelled --------------------------------------------------------------------------------------


def test_what_was_changed_in_the_recording() -> None:
    script = Script()
    script.call("look", {"n": 1}, "one", lane="0/a", index=6)
    script.events[2].payload["value"] = "two"
    seen = observer(script, manifest={"tags": {"altered": "true"}, "events": 5})
    seen.untouched()
    event, artifact, end = seen.divergences
    assert {found.kind for found in seen.divergences} == {"altered"}
    assert (event.lane, event.at, event.seq, event.what) == ("0/a", 6, 2, "call.finished")
    assert event.note == "the recorded event was changed after it was written"
    assert (artifact.lane, artifact.at, artifact.seq, artifact.what) == ("0", 0, None, "the recording")
    assert artifact.note == "the artifact was edited after it was exported"
    assert (end.lane, end.at, end.note) == ("0", 3, "2 events of the recording are missing at its end")
    plain = observer(Script(), manifest={"tags": {"altered": "false"}, "events": 1})
    plain.untouched()
    assert plain.divergences == []


def test_escapes_and_late_work() -> None:
    seen = observer(Script())
    seen.escaped(["socket.connect", "open"])
    places = [(found.kind, found.lane, found.at, found.seq) for found in seen.divergences]
    assert places == [("escape", "0", 0, None)] * 2
    assert seen.divergences[0].message() == (
        "the code tried to bypass Antiphon: socket.connect [refused; see --no-sandbox]"
    )
    late = escape_of("open", late=True)
    assert late.message().startswith("after the end of the replay, work that it had started tried: open")
    told: list[str] = []
    seen.late = told.append
    seen.add(late)
    assert (told, seen.total) == ([late.message()], 2)


def test_tasks_that_are_not_awaited_any_more() -> None:
    script = Script()
    script.add("run.finished", {}, meta={"tasks": {"a": {"cancelled": 1}, "b": "damaged", "c": {"cancelled": "x"}}})
    seen = observer(script)
    now = {"a": {"cancelled": 1, "notAwaited": 2}, "b": {"neverRun": 1}, "c": {"cancelled": 1}, "d": {"cancelled": 0}}
    seen.loose_tasks(now)
    assert {(found.lane, found.at) for found in seen.divergences} == {("0", 0)}
    assert [(found.kind, found.what, found.note, found.seq) for found in seen.divergences] == [
        ("task", "the task a is not awaited any more", "2 now, 0 in the recording", 1),
        ("task", "the coroutine b is never awaited now", "1 now, 0 in the recording", 1),
        ("task", "the task c is cancelled now", "1 now, 0 in the recording", 1),
    ]
    for without in (Script(), script):
        if without is script:
            script.events.pop()
            script.add("run.finished", {})
        seen = observer(without)
        seen.loose_tasks(now)
        assert seen.divergences == [], "recorded before runs told that"


def test_a_difference_in_an_ambiguous_lane_says_how_to_settle_it() -> None:
    script = Script()
    script.add("decision", {"what": "ambiguous", "detail": {"lanes": ["0/a"]}})
    seen = observer(script)
    seen.add(DivergenceFound("changed", "0/a", 0, 1, "x"))
    seen.add(DivergenceFound("changed", "0/a", 0, 1, "x", note="why"))
    seen.add(DivergenceFound("changed", "0", 0, 1, "x"))
    ambiguous = "the recording marked this lane as ambiguous: name parallel work with antiphon.branch"
    assert [found.note for found in seen.divergences] == [ambiguous, f"why; {ambiguous}", ""]


def test_fifty_are_shown_and_all_are_counted() -> None:
    seen = observer(Script())
    for _ in range(60):
        seen.add(DivergenceFound("changed", "0", 0, 0, "x"))
    assert (len(seen.divergences), seen.total) == (50, 60)


# -- in words ---------------------------------------------------------------------------------------------------------

DIFFS = tuple(FieldDiff(f"f{number}", 1, 2) for number in range(5))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (DivergenceFound("miss", "0", 2, None, "tool x"), "the recording has no answer for tool x (call 3)"),
        (
            DivergenceFound("miss", "0/a", 2, None, "tool x", nearest=7),
            "the recording has no answer for tool x (nearest recorded: event 7, lane 0/a)",
        ),
        (DivergenceFound("missing", "0", 2, 5, "x"), "x did not happen (event 5)"),
        (DivergenceFound("extra", "0", 2, None, "x"), "x is not in the recording (call 3)"),
        (DivergenceFound("changed", "0", 2, 0, "x"), "x differs from the recording (event 0)"),
        (DivergenceFound("task", "0", 0, 1, "the task a is cancelled now"), "the task a is cancelled now"),
        (DivergenceFound("changed", "0", 2, 5, "x", note="why"), "x differs from the recording (event 5) [why]"),
    ],
)
def test_a_difference_in_one_sentence(found: DivergenceFound, said: str) -> None:
    assert found.message() == said


def test_three_fields_are_said() -> None:
    three, four = (DivergenceFound("changed", "0", 0, 1, "x", DIFFS[:count]).message() for count in (3, 4))
    assert three.count("; ") == four.count("; ") == 2
    assert "more" not in three
    assert four.endswith(" and 1 more")


def test_the_wire_form() -> None:
    found = DivergenceFound("changed", "0/a", 2, 0, "x", DIFFS[:1], note="why")
    wire = found.to_wire(RUN)
    assert wire == {
        "kind": "changed",
        "lane": "0/a",
        "index": 2,
        "what": "x",
        "message": found.message(),
        "fields": [DIFFS[0].to_wire()],
        "seq": 0,
        "note": "why",
        "show": f"antiphon show {RUN} --event 0",
    }
    near = DivergenceFound("miss", "0", 2, None, "x", nearest=0).to_wire(RUN)
    assert (near["nearest"], near["show"]) == (0, f"antiphon show {RUN} --event 0")
    assert not {"seq", "note"} & near.keys()
    assert not {"seq", "nearest", "show"} & DivergenceFound("miss", "0", 2, None, "x").to_wire(RUN).keys()


# -- equality ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (1, 1, True),
        (1, True, False),
        (0, False, False),
        (1, 1.0, False),
        ("a", "a", True),
        ({"a": "x"}, {"a": "x"}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": {"b": 1}}, {"a": {"b": 1}}, True),
        ({"a": {"b": 1}}, {"a": {"b": True}}, False),
        ({"a": [1, "x"]}, {"a": [1, "x"]}, True),
        ([0], [False], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"b": 1}, False),
        ({"a": {1}}, {"a": {1}}, False),
    ],
)
def test_true_is_not_one(left: Any, right: Any, same: bool) -> None:
    assert equal(left, right) is same


def test_a_value_is_equal_to_itself() -> None:
    strange = {1}
    assert equal(strange, strange)
    assert equal({"a": strange, "b": "x" * 99}, {"a": strange, "b": "".join(["x"] * 99)})

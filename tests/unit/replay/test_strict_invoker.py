"""Answers of a strict replay: which recorded call stands behind one, and what is compared afterwards."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from antiphon._replay.observe import Observer, Seen
from antiphon._replay.strict import StrictInvoker, VerifyInvoker
from antiphon.contract.events import UNSERIALISABLE
from antiphon.errors import ReplayMiss
from antiphon.ports import BEGUN, Invocation
from tests.unit.replay.made import Script, site

DIGEST = "look{'n': 1}"


def invoker(script: Script, kind: type[StrictInvoker] = StrictInvoker, **more: Any) -> tuple[Any, Observer]:
    recording = script.recording()
    observer = Observer(recording, lambda value: value)
    observer.see([Seen("run.started", None, {"name": "made", "input": {"question": 1}}, {})])
    return kind(recording, observer, **more), observer


def look(kind: str = "tool", name: str = "tools/look", written: bytes | None = None) -> Invocation:
    return Invocation(kind, name, {"n": 1}, DIGEST, site(), written=written)


@pytest.mark.parametrize("kind", [StrictInvoker, VerifyInvoker])
def test_a_stream_comes_without_its_pauses_unless_they_are_wanted(kind: type[StrictInvoker]) -> None:
    script = Script()
    call = script.call("look", {"n": 1}, end=None)
    script.add("call.chunk", {"n": 0, "data": "a"}, call=call, meta={"gapMs": 5})
    script.add("call.finished", {"outcome": "ok", "value": None}, call=call)
    plain, _ = invoker(script, kind)
    assert plain.answer_tool(look()).meta == {}
    slow, _ = invoker(script, kind, realtime=True)
    assert slow.answer_tool(look()).meta == {"gapsMs": [5]}


@pytest.mark.parametrize(
    ("end", "compared"),
    [({"outcome": "ok", "value": 1}, False), ({"outcome": "error", "error": {"code": "no", "message": ""}}, True)],
)
def test_a_call_that_begins_as_recorded_is_compared_only_where_it_may_end_otherwise(
    end: dict[str, Any], compared: bool
) -> None:
    script = Script()
    script.call("look", {"n": 1}, end=end)
    strict, observer = invoker(script)
    answer = strict.answer_tool(look(written=orjson.dumps({"n": 1})))
    assert answer.meta[BEGUN] is True
    assert bool(observer._answered) is compared
    strict, observer = invoker(script)
    assert BEGUN not in strict.answer_tool(look()).meta
    assert observer._answered


def test_a_model_may_have_answered_what_a_tool_may_not() -> None:
    script = Script()
    script.call("look", {"n": 1}, {UNSERIALISABLE: "Thing"})
    strict, _ = invoker(script)
    assert strict.answer_tool(look("llm")).value == {UNSERIALISABLE: "Thing"}
    strict, observer = invoker(script)
    with pytest.raises(ReplayMiss, match="it returned a Thing, which cannot be recorded"):
        strict.answer_tool(look())
    (found,) = observer.divergences
    assert (found.kind, found.lane, found.at, found.seq, found.what) == ("miss", "0", 0, 2, "tools/look")


def test_a_request_is_known_as_it_was_mapped_then() -> None:
    script = Script()
    start = {"kind": "llm", "name": "llm", "request": {"model": "m"}, "digest": "d", "variant": "v"}
    script.add("call.started", {**start, "provider": "openai", "providerRequest": {"model": "m"}}, call="0@1")
    strict, _ = invoker(script)
    assert strict.known_request("openai", {"model": "m"})["request"] == {"model": "m"}
    assert strict.known_request("openai", {"model": "n"}) is None

"""Recordings that hold only calls, seen from outside: answered by content, in any order, and what is missing named."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

import antiphon
from antiphon._replay.by_content import ByContent, ContentObserver
from antiphon._replay.observe import DivergenceFound, Seen
from antiphon._replay.strict import StrictInvoker
from antiphon.contract.events import summed
from antiphon.errors import ReplayMiss
from antiphon.ports import BEGUN, Invocation
from tests.unit.replay.kit import OK, memory_app, says
from tests.unit.replay.made import Script, site


class Code:
    """Code under replay: each call comes from a lane of its own."""

    def __init__(self, script: Script) -> None:
        self.recording = script.recording()
        calls = ByContent(self.recording)
        self.observer = ContentObserver(self.recording, lambda value: value, calls)
        self.invoker = StrictInvoker(self.recording, self.observer, calls=calls)
        self._number = itertools.count()

    def call(self, name: str, arguments: dict[str, Any], **more: Any) -> Any:
        """A call of a tool, with its events."""
        digest = more.pop("digest", f"{name}{arguments}")
        number = next(self._number)
        here = site(f"0/{number}:there#0@0", lane=f"0/{number}:there#0")
        answer = self.invoker.answer_tool(Invocation("tool", f"tools/{name}", arguments, digest, here))
        start = {"kind": "tool", "name": name, "namespace": "tools", "arguments": arguments, "digest": digest, "nth": 0}
        self.observer.see([Seen("call.started", here, {**start, **more}, {})])
        self.observer.see([Seen("call.finished", here, {"outcome": answer.outcome, "value": answer.value}, {})])
        return answer.value

    def ended(self) -> list[DivergenceFound]:
        self.observer.finish()
        return self.observer.divergences


@pytest.fixture
def crowd() -> Script:
    """Three tasks that overlapped: their lanes are those of whoever watched them."""
    script = Script(callsOnly=True)
    script.call("look", {"n": 1}, "first", lane="0")
    script.call("look", {"n": 2}, "two", lane="0/1:look#0")
    script.call("look", {"n": 1}, "second", lane="0/1:look#1")
    return script


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 1])))
def test_calls_come_in_any_order_and_equal_ones_get_their_answers_in_recorded_order(
    crowd: Script, order: tuple[int, ...]
) -> None:
    code = Code(crowd)
    heard = [(n, code.call("look", {"n": n})) for n in order]
    assert [value for n, value in heard if n == 1] == ["first", "second"]
    assert [value for n, value in heard if n == 2] == ["two"]
    assert code.ended() == []


def test_a_changed_argument_is_a_miss_that_names_the_nearest_call_and_the_field(crowd: Script) -> None:
    code = Code(crowd)
    code.call("look", {"n": 1})
    code.call("look", {"n": 1})
    with pytest.raises(ReplayMiss) as missed:
        code.call("look", {"n": 3})
    assert missed.value.message == (
        "The recording has no answer for tool tools/look (nearest recorded: event 3).\n  $.n: 2 -> 3"
    )
    [found] = code.ended()
    assert (found.kind, found.nearest, found.lane) == ("miss", 3, "0")
    assert code.observer.consequences == ["call.started tools/look"]


def test_a_call_that_is_not_made_is_reported(crowd: Script) -> None:
    code = Code(crowd)
    code.call("look", {"n": 1})
    code.call("look", {"n": 2})
    assert [found.message() for found in code.ended()] == ["call.started tools/look did not happen (event 5)"]


def test_no_answer_is_given_twice(crowd: Script) -> None:
    code = Code(crowd)
    for _ in range(2):
        code.call("look", {"n": 1})
    with pytest.raises(ReplayMiss, match="recorded 2 times, and asked once more than that"):
        code.call("look", {"n": 1})


def test_other_fields_of_a_call_are_compared_but_not_its_place(crowd: Script) -> None:
    code = Code(crowd)
    code.call("look", {"n": 2}, approval="payments")
    [changed] = code.observer.divergences
    assert (changed.kind, changed.seq, changed.lane) == ("changed", 3, "0")
    assert [diff.path for diff in changed.fields] == ["$.approval"]


def test_a_client_may_list_tools_by_itself() -> None:
    script = Script(callsOnly=True)
    start = {"kind": "mcp", "name": "tools/list", "arguments": {}, "digest": "d", "nth": 0}
    script.add("call.started", start, call="0@0")
    assert Code(script).ended() == []
    script.call("look", {"n": 1})
    assert [found.seq for found in Code(script).ended()] == [2]


def test_what_was_recorded_before_a_miss_is_missing_and_what_came_after_it_follows_from_it(crowd: Script) -> None:
    crowd.call("pay", {"cents": 5})
    crowd.call("look", {"n": 4})
    code = Code(crowd)
    with pytest.raises(ReplayMiss, match=r"\$.cents: 5 -> 6"):
        code.call("pay", {"cents": 6})
    with pytest.raises(ReplayMiss, match="nearest recorded: event 1"):  # the first divergence counts
        code.call("look", {"n": 0})
    found = [(one.kind, one.seq or one.nearest) for one in code.ended()]
    assert found == [("miss", 7), ("miss", 1), ("missing", 1), ("missing", 3), ("missing", 5)]
    assert code.observer.consequences == ["call.started tools/pay", "call.started tools/look"]


def test_a_miss_of_an_unknown_name_is_compared_with_all_calls_and_says_nothing_of_lanes(crowd: Script) -> None:
    code = Code(crowd)
    for _ in range(2):
        with pytest.raises(ReplayMiss) as missed:
            code.call("lock", {"n": 2})
        assert str(missed.value).splitlines()[1:-1] == ["  name: 'tools/look' -> 'tools/lock'"]
    with pytest.raises(ReplayMiss, match="the arguments are equal as JSON, but not of the same types"):
        code.call("look", {"n": 1}, digest="of another type")
    assert [one.note for one in code.ended()[:2]] == ["", ""]


def test_a_call_that_begins_as_recorded_is_not_compared_again(crowd: Script) -> None:
    code = Code(crowd)
    written = orjson.dumps({"n": 2})
    answer = code.invoker.answer_tool(
        Invocation("tool", "tools/look", {"n": 2}, "look{'n': 2}", site(), written=written)
    )
    assert answer.meta[BEGUN] is True


class Chat(Script):
    """Model calls with one key: they differ in their variant, or in the form of their answers."""

    def __init__(self) -> None:
        super().__init__(callsOnly=True)

    def ask(self, text: str | None, *, stream: bool = False, **more: Any) -> int:
        """A call and its answer, unless that is missing."""
        request = {"model": "m", "messages": [], **more}
        start = {"kind": "llm", "name": "llm", "request": request, "digest": "d", "nth": len(self.events)}
        place: dict[str, Any] = {"call": f"0@{len(self.events)}"}
        asked = self.add("call.started", {**start, "providerRequest": {"stream": stream}}, **place)
        if text is not None:
            self.add("call.finished", {"outcome": "ok", "value": text}, **place, meta={"stream": stream})
        return asked


def _chat(*, stream: bool = False, **more: Any) -> Invocation:
    return Invocation("llm", "llm", {"model": "m", "messages": [], **more}, "d", site(), stream=stream)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_the_form_that_was_asked_for(stream: bool) -> None:
    chat = Chat()
    for text in ("whole", "stream", "another"):
        chat.ask(text, stream=(text == "stream") is stream)
    code = Code(chat)
    assert [code.invoker.answer_tool(_chat(stream=not stream)).value for _ in range(2)] == ["whole", "another"]
    with pytest.raises(ReplayMiss) as missed:
        code.invoker.answer_tool(_chat(stream=not stream))
    asked, kept = ("as a whole", "as a stream") if stream else ("as a stream", "as a whole")
    assert missed.value.message.splitlines()[1:] == [
        f"  $.stream: {stream} -> {not stream}",
        f"  asked {asked}, recorded only {kept}",
    ]
    assert missed.value.data["divergence"]["nearest"] == 3
    assert code.invoker.answer_tool(_chat(stream=stream)).value == "stream"
    with pytest.raises(ReplayMiss, match="recorded 3 times, and asked once more than that"):
        code.invoker.answer_tool(_chat(stream=stream))


def test_a_call_of_the_same_variant_comes_first_and_then_the_first_that_is_left() -> None:
    chat = Chat()
    for number in (1, 2, 3):
        chat.ask(f"at most {number}", max_tokens=number)
    code = Code(chat)
    order = [code.invoker.answer_tool(_chat(max_tokens=number)).value for number in (2, 9, 9)]
    assert order == ["at most 2", "at most 1", "at most 3"]
    with pytest.raises(ReplayMiss):
        code.invoker.answer_tool(_chat(max_tokens=1))


def test_the_second_of_two_variants_may_be_asked_for_first() -> None:
    chat = Chat()
    for number in (1, 2):
        chat.ask(f"at most {number}", max_tokens=number)
    code = Code(chat)
    assert [code.invoker.answer_tool(_chat(max_tokens=n)).value for n in (2, 1)] == ["at most 2", "at most 1"]


def test_one_recorded_call_is_recorded_once() -> None:
    chat = Chat()
    chat.ask("only")
    code = Code(chat)
    code.invoker.answer_tool(_chat())
    with pytest.raises(ReplayMiss, match="recorded once, and asked once more than that"):
        code.invoker.answer_tool(_chat())


def test_only_calls_with_an_outcome_can_be_wanted() -> None:
    chat = Chat()
    open_call, closed = chat.ask(None), chat.ask("answered")
    recording = chat.recording()
    assert [call.started for call in ByContent(recording).unasked()] == [open_call, closed]
    calls = ByContent(recording, finished=True)
    assert [call.started for call in calls.unasked()] == [closed]
    found = calls.take(_chat())
    assert found is not None
    assert found.started == closed


def test_a_call_that_answered_one_with_other_masked_values_is_not_taken_again() -> None:
    chat = Chat()
    chat.ask("first")
    chat.ask("second")
    recording = chat.recording()
    calls = ByContent(recording)
    first, second = calls.unasked()
    recording.answer(first)
    assert calls.take(_chat()) is second


def test_headers_of_a_model_call_are_compared() -> None:
    chat = Chat()
    seq = chat.ask("yes")
    meta = {"transport": "http", "requestHeaders": {"anthropic-beta": "one"}}
    chat.events[seq] = summed(msgspec.structs.replace(chat.events[seq], meta=meta))
    code = Code(chat)
    code.invoker.answer_tool(_chat())
    start = {"kind": "llm", "name": "llm", "request": {"model": "m", "messages": []}, "digest": "d", "nth": 0}
    sent = {**start, "providerRequest": {"stream": False}}
    code.observer.see([Seen("call.started", site(), sent, {**meta, "requestHeaders": {"anthropic-beta": "two"}})])
    [changed] = code.observer.divergences
    assert [diff.path for diff in changed.fields] == ["$.headers['anthropic-beta'][0]"]


def test_one_credential_stands_for_one_of_the_recording() -> None:
    app = memory_app()
    tokens = [f"sk-test-{letter * 36}" for letter in ("Zx9", "Qw7")]
    recorded = _seen_from_outside(app, *(f"{what} {tokens[0]}" for what in ("use", "keep")))

    def again(first: str, second: str) -> Any:
        function = _asking(f"use {first}", f"keep {second}")
        return antiphon.replay(recorded, app=app, mode="strict", function=function)

    assert again(tokens[1], tokens[1]).passed  # another machine has another one
    mixed = again(tokens[1], tokens[0])
    assert not mixed.passed
    assert mixed.divergences[0]["note"] == "recorded with another credential"


def _seen_from_outside(app: antiphon.Antiphon, *texts: str) -> Any:
    """A run as the proxy records it."""
    run = app.run("outside")
    run.calls_only = True
    with run:
        for text in texts or ("a", "b"):
            run.llm({**OK, "messages": [{"role": "user", "content": text}]}, lambda _: says("hi"))
    return run


def test_what_cannot_be_seen_from_outside_is_not_compared() -> None:
    app = memory_app()
    recorded = _seen_from_outside(app)

    def agent() -> str:
        run = antiphon.current_run()
        run.now()
        run.prompt("greet", "Hello {name}", {"name": "Ada"})
        with run.interaction("question") as interaction:
            asked = [{**OK, "messages": [{"role": "user", "content": text}]} for text in ("b", "a")]
            for body in asked:
                run.llm(body, lambda _: says("live"))
            interaction.finish("said")
        return "an output"

    report = antiphon.replay(recorded, app=app, mode="strict", function=agent)
    assert report.passed, report.divergences
    assert "Not Compared: order and output" in report.text()


def _asking(*texts: str) -> Callable[[], None]:
    def agent() -> None:
        for text in texts:
            body = {**OK, "messages": [{"role": "user", "content": text}]}
            antiphon.current_run().llm(body, lambda _: says("live"))

    return agent


def test_models_can_be_verified_in_any_order() -> None:
    app = memory_app()
    asked: list[str] = []

    def ask(body: dict[str, Any]) -> Any:
        asked.append(body["messages"][0]["content"])
        return says("hello")

    recorded = _seen_from_outside(app)
    report = antiphon.replay(recorded, app=app, mode="strict", function=_asking("b", "a"), verify=True, llm=ask)
    assert report.passed, report.divergences
    assert (asked, report["verifiedModelCalls"]) == (["b", "a"], 2)


@pytest.mark.parametrize("masked", [False, True])
def test_masked_values_are_compared_like_everywhere(masked: bool) -> None:
    app = memory_app()
    texts = [f"write to {name}@example.com" for name in ("ada", "bob", "eve")]
    recorded = _seen_from_outside(app, *texts)

    def again(*texts: str) -> Any:
        return antiphon.replay(recorded, app=app, mode="strict", function=_asking(*texts), masked=masked)

    report = again(*texts[::-1])
    assert report.passed, report.divergences
    assert again(*texts[:2], "write to mallory@example.com").passed is masked  # nothing tells the two apart
    missing = again(*texts[:2])
    assert [found["kind"] for found in missing.divergences] == ["missing"]
    assert not again(*texts[:2], "read from eve@example.com").passed


@pytest.mark.parametrize("refuses", [False, True])
def test_an_explore_replay_compares_refusals_of_equal_requests(
    refuses: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviewed = tmp_path / "side_effects.yaml"
    reviewed.write_text("tools: {}\ndone: true\n")
    monkeypatch.setattr("antiphon.ops.side_effects.file_of", lambda entry: reviewed)
    app = memory_app()
    run = app.run("outside")
    run.calls_only = True

    async def ask(text: str) -> None:
        async def send(_: Any) -> Any:
            return says("", refusal="no") if text == "a" else says("yes")

        await run.llm({**OK, "messages": [{"role": "user", "content": text}]}, send)

    async def crowd() -> None:
        await asyncio.gather(*map(ask, "ab"))

    with run:
        asyncio.run(crowd())

    def model(body: dict[str, Any]) -> Any:
        is_refused = refuses and body["messages"][0]["content"] == "a"
        return says("", refusal="no") if is_refused else says("yes")

    report = antiphon.replay(run, app=app, mode="explore", function=_asking("b", "a"), llm=model)
    assert len(report.to_wire().get("refusals", ())) == (0 if refuses else 1)


def test_an_exception_of_the_code_is_a_divergence() -> None:
    app = memory_app()
    recorded = _seen_from_outside(app)

    def agent() -> None:
        run = antiphon.current_run()
        for text in ("a", "b"):
            run.llm({**OK, "messages": [{"role": "user", "content": text}]}, lambda _: says("live"))
        raise ValueError("after its last call")

    report = antiphon.replay(recorded, app=app, mode="strict", function=agent)
    assert [found["kind"] for found in report.divergences] == ["error"]

"""Recordings that hold only calls, seen from outside: answered by content, in any order, and what is missing named."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon._replay.by_content import ByContent, ContentObserver
from antiphon._replay.observe import DivergenceFound, Seen
from antiphon._replay.strict import StrictInvoker
from antiphon.errors import ReplayMiss
from antiphon.ports import Invocation
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

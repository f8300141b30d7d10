"""Models in an exploring replay: which one answers, with what its answer is compared, and what ends with the replay."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.decide.effects import BoundaryRule, BoundaryTable
from antiphon.errors import ReplayMiss
from antiphon.ops.reports import Report
from tests.unit.replay.kit import memory_app, says

YES, NO = says("yes"), says("", refusal="I cannot help with that")


class Agent:
    """Asks its model one question after the other."""

    def __init__(self, *answers: Any) -> None:
        self.app = memory_app()
        self.answers = list(answers)
        self.style = "brief"
        self.asked = 0
        self.looked: list[Any] = []

        def look(**arguments: Any) -> Any:
            self.looked.append(arguments)
            return len(self.looked)

        self.look = self.app.gateway.tool(effect="read", idempotent=True)(look)

    def send(self, body: Any) -> Any:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]

    def ask(self, number: int) -> Any:
        question = {"role": "user", "content": f"{self.style}: question {number}"}
        return antiphon.current_run().llm({"model": "m", "messages": [question]}, self.send)

    def main(self) -> Any:
        return [self.ask(number)["choices"][0]["message"]["content"] for number in range(len(self.answers))]

    def record(self, main: Any = None) -> Any:
        run = self.app.record(main or self.main)
        self.asked = 0
        self.looked.clear()
        return run

    def explore(self, run: Any, main: Any = None, **options: Any) -> Report:
        return antiphon.replay(run, app=self.app, mode="explore", function=main or self.main, **options)

    def refused_at(self, report: Report) -> list[int]:
        events = self.app.journal.events(report["replayRun"])
        return [event.payload["atSequence"] for event in events if event.type == "replay.divergedAtRefusal"]


@pytest.fixture(autouse=True)
def _reviewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "side_effects.yaml"
    path.write_text("tools:\n  look: true\ndone: true\n")
    monkeypatch.setattr("antiphon.ops.side_effects.file_of", lambda entry: path)


@pytest.mark.parametrize("answer", [YES, NO], ids=["answers", "refuses"])
def test_a_model_that_is_given_answers_in_place_of_the_codes_own(answer: Any) -> None:
    agent = Agent(answer)
    run = agent.record()
    report = agent.explore(run, llm=lambda body: answer)
    assert agent.asked == 0
    assert report["liveModelCalls"] == 1
    assert agent.refused_at(report) == []


def test_a_model_that_is_given_and_fails_is_counted() -> None:
    agent = Agent(YES)
    run = agent.record()
    assert agent.explore(run)["liveModelErrors"] == 0

    def down(body: Any) -> Any:
        raise ConnectionError("no route")

    report = agent.explore(run, llm=down)
    assert report["liveModelErrors"] == 1
    assert not report.passed


@pytest.mark.parametrize("given", [False, True], ids=["its own model", "a model that is given"])
def test_other_requests_are_compared_turn_by_turn(given: bool) -> None:
    agent = Agent(YES, NO, YES, YES)
    run = agent.record()
    ends = [event.seq for event in run.events() if event.type == "call.finished"]
    agent.style = "at length"
    answers = [YES, NO, YES, NO]

    def model(body: Any) -> Any:
        return answers[int(body["messages"][-1]["content"][-1])]

    agent.answers = answers
    report = agent.explore(run, llm=model) if given else agent.explore(run)
    assert agent.refused_at(report) == [ends[3]]


def test_an_equal_request_is_compared_with_its_own_answer_whatever_its_turn() -> None:
    agent = Agent(YES, NO)
    run = agent.record()

    def main() -> Any:
        agent.ask(1)

    agent.answers = [NO]
    assert agent.refused_at(agent.explore(run, main)) == []


def test_a_question_more_than_was_recorded_is_compared_with_nothing() -> None:
    agent = Agent(YES)
    run = agent.record()
    agent.answers = [YES, NO]
    assert agent.refused_at(agent.explore(run)) == []


def test_a_frozen_model_answers_an_equal_request_from_elsewhere_in_the_code() -> None:
    agent = Agent(YES)
    run = agent.record()
    outer = agent.app.gateway.tool(name="outer", effect="read", idempotent=True)(lambda: agent.main())
    report = agent.explore(run, outer, table=BoundaryTable())
    assert report["outputsB"] == [["yes"]]
    assert agent.asked == 0
    agent.style = "at length"
    report = agent.explore(run, table=BoundaryTable())
    assert "The model is frozen" in str(report["error"])


def test_a_pseudonym_is_not_sent_to_a_model() -> None:
    agent = Agent(YES)

    def main(who: str) -> Any:
        body = {"model": "m", "messages": [{"role": "user", "content": f"{agent.style} {who}"}]}
        return antiphon.current_run().llm(body, agent.send)

    run = agent.app.record(main, "write to ada.lovelace@example.org")
    agent.style = "at length"
    for masked in (True, False):
        agent.asked = 0
        report = agent.explore(run, main, masked=masked)
        assert (agent.asked == 0) is masked
        assert ("masked_argument" in str(report.to_wire().get("error"))) is masked


@pytest.mark.parametrize("given", [False, True])
def test_nothing_is_made_live_after_the_end_of_the_replay(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(YES)
    told: list[str] = []
    monkeypatch.setattr("antiphon._lineage.on_late", [lambda replay, what: told.append(what)])  # else the session fails
    go, ended = threading.Event(), threading.Event()
    late: list[Any] = []

    def after() -> None:
        go.wait(20)
        calls: list[Callable[[], Any]] = [
            lambda: agent.look(q="recorded"),
            lambda: agent.look(q="new"),
            lambda: agent.ask(9),
        ]
        for call in calls:
            try:
                late.append(call())
            except ReplayMiss as error:
                late.append(str(error))
        ended.set()

    def main() -> Any:
        return agent.look(q="recorded")

    def leaves_a_thread() -> Any:
        threading.Thread(target=copy_context().run, args=(after,), daemon=True).start()
        return main()

    run = agent.record(main)
    agent.explore(run, leaves_a_thread, llm=(lambda body: YES) if given else None)
    go.set()
    assert ended.wait(20)
    assert late[0] == 1
    assert "The replay has ended, and the recording has no answer for tools/look" in late[1]
    assert "The replay has ended, and the recording has no answer for llm" in late[2]
    assert told == [f"{what} after the end of the replay" for what in ("tool tools/look", "llm llm")]
    assert agent.looked == []
    assert agent.asked == 0


def test_white_space_counts_in_code() -> None:
    agent = Agent(YES)
    run = agent.record(lambda: agent.look(code="if a:\n    b()\nc()"))
    other = "if a:\n    b()\n    c()"
    report = agent.explore(run, lambda: agent.look(code=other))
    assert report["semanticHits"] == []
    assert agent.looked == [{"code": other}]


@pytest.mark.parametrize("exact", [[], ["q"]])
def test_white_space_counts_where_a_tool_says_so(exact: list[str]) -> None:
    agent = Agent(YES)
    looked: list[Any] = []

    def grep(q: str) -> Any:
        looked.append(q)
        return len(looked)

    tool = agent.app.gateway.tool(effect="read", idempotent=True, exact=exact)(grep)
    run = agent.record(lambda: tool(q="two  words"))
    report = agent.explore(run, lambda: tool(q="two words"))
    assert len(report["semanticHits"]) == (0 if exact else 1)
    assert looked == (["two  words", "two words"] if exact else ["two  words"])


def test_a_model_by_rule_is_not_asked() -> None:
    agent = Agent(YES)
    run = agent.record()
    table = BoundaryTable(rules=(BoundaryRule(match="llm", mode="static", value=says("static")),))
    report = agent.explore(run, table=table)
    assert report["outputsB"] == [["static"]]
    assert agent.asked == 0
    assert report["liveModelCalls"] == 0


def test_a_prompt_that_changed_is_named() -> None:
    agent = Agent(YES)
    template = "Be brief, {who}"

    def main() -> Any:
        antiphon.current_run().prompt("system", template, {"who": "agent"})
        return agent.main()

    run = agent.record(main)
    assert "prompt" not in agent.explore(run, main)["changes"]
    template = "Be careful, {who}"
    changed = agent.explore(run, main)["changes"]["prompt"]
    assert changed == {"system": {"artifact": "Be brief, {who}", "current": "Be careful, {who}"}}


def test_a_stream_that_its_reader_leaves_was_answered() -> None:
    app = memory_app()

    def chunks(body: Any) -> Any:
        for word in ("a", "b", "c"):
            yield {"choices": [{"index": 0, "delta": {"content": word}}]}

    def main() -> str:
        request = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "go"}]}
        for chunk in antiphon.current_run().llm(request, chunks):
            return str(chunk["choices"][0]["delta"]["content"])
        return ""

    run = app.record(main)
    report = antiphon.replay(run, app=app, function=main, mode="explore")
    assert report.passed, report["verdictReasons"]
    assert report["unanswered"] == []
    assert run.events()[-2].payload["error"]["code"] == "stream_broken_off"


@pytest.mark.parametrize("first", [0, 1], ids=["cancelled before the answer", "cancelled after the answer"])
def test_a_task_that_was_not_needed_is_no_failure(first: int) -> None:
    app = memory_app()

    async def main() -> str:
        request = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def never(body: Any) -> Any:
            begun.set_result(None)
            await asyncio.get_running_loop().create_future()

        async def now(body: Any) -> Any:
            return says("yes")

        run = antiphon.current_run()
        slow = asyncio.ensure_future(run.llm(request, never))
        await begun
        if not first:
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
        said = await run.llm(request, now)
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        return str(said["choices"][0]["message"]["content"])

    async def recorded() -> Any:
        return await app.record(main)

    run = asyncio.run(recorded())
    report = antiphon.replay(run, app=app, function=main, mode="explore")
    assert report["unanswered"] == []

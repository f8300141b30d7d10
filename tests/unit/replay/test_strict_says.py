"""What a strict replay says to the code and in its report: where, what, how it differs, where to look (D15, D28)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

import antiphon
from antiphon.errors import ReplayMiss
from antiphon.ops.reports import Report
from tests.unit.replay.kit import memory_app, says

CHAT = {"model": "m", "messages": [{"role": "user", "content": "q"}]}


class Agent:
    """Calls a tool with what it is told; the arguments of its replay can be others."""

    def __init__(self, **arguments: Any) -> None:
        self.app = memory_app()
        self.arguments = arguments
        self.caught: ReplayMiss | None = None
        self.value: Any = "found"

        @self.app.gateway.tool(idempotent=True, effect="read")
        def search(**arguments: Any) -> Any:
            return self.value

        self.search = search

    def main(self) -> Any:
        try:
            return self.search(**self.arguments)
        except ReplayMiss as miss:
            self.caught = miss
            raise

    def again(self, run: Any, **arguments: Any) -> Report:
        self.arguments = arguments
        return antiphon.replay(run, app=self.app, mode="strict", function=self.main)


def _started(run: Any) -> int:
    return int(next(event.seq for event in run.events() if event.type == "call.started"))


def test_a_miss_names_the_place_each_difference_and_the_nearest_call() -> None:
    agent = Agent(query="a", limit=1)
    run = agent.app.record(agent.main)
    report = agent.again(run, query="b", limit=2)
    assert not report.passed
    assert agent.caught is not None
    at = _started(run)
    lines = str(agent.caught).splitlines()
    assert lines[0] == f"The recording has no answer for tool tools/search (nearest recorded: event {at})."
    assert [line.strip().split(" ")[0] for line in lines[1:]] == ["$.query:", "$.limit:", "Nearest:"]
    assert agent.caught.hint == f"Nearest: antiphon show {run.id} --event {at}"
    assert agent.caught.data["divergence"] == report.divergences[0]
    assert report.divergences[0]["kind"] == "miss"
    assert report["cacheHits"] == 0


@dataclass
class Order:
    id: int
    payee: str


TYPED: dict[str, Any] = {
    "order": Order(7, "Ada"),
    "total": Decimal("5.10"),
    "day": date(2024, 2, 29),
    "note": {"$ref": "mine"},
    "tags": {"b", "a"},
}


@pytest.mark.parametrize(
    ("changed", "path", "sides"),
    [
        ({"order": Order(7, "Eve")}, "$.order.payee", ("Ada", "Eve")),
        ({"total": Decimal("5.20")}, "$.total", ("5.10", "5.20")),
        ({"day": date(2024, 3, 1)}, "$.day", ("2024-02-29", "2024-03-01")),
        ({"note": {"$ref": "yours"}}, "$.note['$ref']", ("mine", "yours")),
        ({"tags": {"a", "c"}}, "$.tags[1]", ("b", "c")),
    ],
    ids=["object", "decimal", "date", "dollar", "set"],
)
def test_a_miss_with_typed_arguments_names_what_changed_as_the_recording_shows_it(
    changed: dict[str, Any], path: str, sides: tuple[Any, Any]
) -> None:
    agent = Agent(**TYPED)
    run = agent.app.record(agent.main)
    assert agent.again(run, **TYPED).passed
    report = agent.again(run, **{**TYPED, **changed})
    assert report.divergences[0]["fields"] == [{"path": path, "recorded": sides[0], "current": sides[1]}]
    assert agent.caught is not None
    assert agent.caught.message.splitlines()[1:] == [f"  {path}: {sides[0]!r} -> {sides[1]!r}"]


def test_a_miss_says_that_only_the_types_differ() -> None:
    agent = Agent(total=Decimal("5.10"))
    run = agent.app.record(agent.main)
    report = agent.again(run, total="5.10")
    assert report.divergences[0]["fields"] == []
    assert report.divergences[0]["note"] == "the arguments are equal as JSON, but not of the same types"


def test_a_miss_shows_ten_differences() -> None:
    agent = Agent(**{f"n{place:02}": place for place in range(12)})
    run = agent.app.record(agent.main)
    agent.again(run, **{f"n{place:02}": place + 1 for place in range(12)})
    assert agent.caught is not None
    assert len(str(agent.caught).splitlines()) == 12  # the first says what, the last where to look


def test_a_miss_without_a_nearest_call_has_no_hint() -> None:
    agent = Agent()
    run = agent.app.record(lambda: None)
    assert not agent.again(run).passed
    assert agent.caught is not None
    assert agent.caught.hint == ""
    assert str(agent.caught).splitlines() == ["The recording has no answer for tool tools/search (call 1)."]


def test_a_result_that_was_not_recorded_is_a_miss_with_the_reason() -> None:
    agent = Agent()
    agent.value = object()
    run = agent.app.record(agent.main)
    report = agent.again(run)
    assert agent.caught is not None
    assert [(found["kind"], found["what"]) for found in report.divergences] == [("miss", "tools/search")]
    assert "it returned a builtins.object, which cannot be recorded" in report.divergences[0]["note"]
    assert report.divergences[0]["note"] in str(agent.caught)


def test_a_model_may_answer_what_cannot_be_given_again() -> None:
    app = memory_app()

    def main() -> Any:
        return type(antiphon.current_run().llm(CHAT, lambda body: object())).__name__

    run = app.record(main)
    report = antiphon.replay(run, app=app, mode="strict", function=main)
    assert [found["kind"] for found in report.divergences] != ["miss"]


def test_a_draw_that_was_not_recorded_is_a_divergence_of_its_own() -> None:
    app = memory_app()
    run = app.record(lambda: None)
    report = antiphon.replay(run, app=app, mode="strict", function=lambda: antiphon.current_run().now())
    assert not report.passed
    found = report.divergences[0]
    assert (found["kind"], found["note"]) == ("draw", "the recording has no such draw here")
    assert found["what"].startswith("draw ")


@pytest.mark.parametrize("how", ["value", "iterator", "asynchronous iterator", "coroutine"])
def test_a_model_that_is_verified_may_answer_in_every_way(how: str) -> None:
    app = memory_app()
    part = {"choices": [{"index": 0, "delta": {"refusal": "no"}, "finish_reason": "stop"}]}

    async def parts() -> AsyncIterator[Any]:
        yield part

    async def answer() -> Any:
        return says("", refusal="no")

    ways: dict[str, Callable[[Any], Any]] = {
        "value": lambda body: says("", refusal="no"),
        "iterator": lambda body: iter([part]),
        "asynchronous iterator": lambda body: parts(),
        "coroutine": lambda body: answer(),
    }
    bodies: list[Any] = []

    def ask(body: Any) -> Any:
        bodies.append(body)
        return ways[how](body)

    def main() -> Any:
        return antiphon.current_run().llm(CHAT, lambda body: says("yes"))

    run = app.record(main)
    report = antiphon.replay(run, app=app, mode="strict", function=main, verify=True, llm=ask)
    assert report["error"]["code"] == "replay_diverged_at_refusal"
    assert (report.divergences[0]["kind"], report.divergences[0]["what"]) == ("refusal", "llm")
    assert bodies == [CHAT]


def test_a_model_that_cannot_be_asked_is_a_divergence_of_its_own() -> None:
    app = memory_app()

    def main() -> Any:
        return antiphon.current_run().llm(CHAT, lambda body: says("yes"))

    def down(body: Any) -> Any:
        raise ConnectionError("no route")

    run = app.record(main)
    report = antiphon.replay(run, app=app, mode="strict", function=main, verify=True, llm=down)
    found = report.divergences[0]
    assert (found["kind"], found["what"]) == ("verify", "llm")
    assert found["note"] == "the model could not be called: ConnectionError: no route"
    assert report["verifiedModelCalls"] == 0


def test_calls_inside_of_tools_are_counted_because_they_are_not_compared() -> None:
    app, prompt = memory_app(), ["be kind"]

    @app.gateway.tool(idempotent=False, effect="write")
    def pay(amount: int) -> str:
        return f"paid {amount}"

    @app.gateway.tool(idempotent=True, effect="read")
    def helper(question: str) -> str:
        request = {"model": "m", "messages": [{"role": "user", "content": prompt[0]}]}
        antiphon.current_run().llm(request, lambda body: says("ok"))
        return pay(amount=len(prompt[0]))

    def main() -> str:
        pay(amount=1)
        return helper(question="q")

    run = app.record(main)
    prompt[0] = "be rude"
    report = antiphon.replay(run, app=app, mode="strict", function=main)
    assert (report.passed, report["insideTools"]) == (True, 2)
    assert "Not Compared: 2 recorded calls inside of tools" in report.text()
    run = app.record(lambda: pay(amount=2))
    assert antiphon.replay(run, app=app, mode="strict", function=lambda: pay(amount=2))["insideTools"] == 0

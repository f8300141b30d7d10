"""What other replays answer wrongly without a word is reported here, and never answered (D15, D17)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, time, timedelta, timezone
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import attrs
import pytest

import antiphon
from antiphon._recording.run import Run
from antiphon.ops.reports import Report
from tests.unit.replay.kit import memory_app, says


class Tools:
    """Two reads and a poll; every real execution is counted."""

    def __init__(self) -> None:
        self.app = memory_app()
        self.executed = 0

        @self.app.gateway.tool(idempotent=True, effect="read", reuse="never")
        def find(what: str, city: str = "Rome") -> str:
            self.executed += 1
            return f"{what} in {city}"

        @self.app.gateway.tool(idempotent=True, effect="read", reuse="never", poll=True)
        def status(job: str) -> str:
            self.executed += 1
            return ("pending", "running", "done")[self.executed - 1]

        @self.app.async_gateway.tool(idempotent=True, effect="read")
        async def square(n: int) -> int:
            self.executed += 1
            return n * n

        self.find, self.status, self.square = find, status, square

    def replay(self, run: Run, code: Callable[..., Any]) -> Report:
        before = self.executed
        report = antiphon.replay(run, app=self.app, mode="strict", function=code, keep=False)
        assert self.executed == before
        return report


def _miss(report: Report) -> dict[str, Any]:
    assert not report.passed
    return next(found for found in report.divergences if found["kind"] in ("miss", "changed"))


def test_changed_arguments_of_a_step() -> None:
    tools = Tools()
    run = tools.app.record(lambda: tools.find(what="hotels"))
    found = _miss(tools.replay(run, lambda: tools.find(what="hostels")))
    assert found["fields"] == [{"path": "$.what", "recorded": "hotels", "current": "hostels"}]
    assert found["show"] == f"antiphon show {run.id} --event {found['nearest']}"


def test_an_argument_that_was_left_to_its_default() -> None:
    tools = Tools()
    run = tools.app.record(lambda: tools.find(what="hotels"))
    found = _miss(tools.replay(run, lambda: tools.find(what="hotels", city="Oslo")))
    assert found["fields"][0]["path"] == "$.city"


def test_swapped_arguments_of_parallel_calls_follow_their_arguments() -> None:
    """A peer hands back t(2) -> 10 and t(1) -> 20 after such an edit."""
    tools = Tools()

    async def before() -> list[int]:
        return list(await asyncio.gather(tools.square(n=1), tools.square(n=2)))

    async def after() -> list[int]:
        return list(await asyncio.gather(tools.square(n=2), tools.square(n=1)))

    run = tools.app.record(before)
    report = tools.replay(run, after)
    assert report["outputsB"] == [[4, 1]]
    assert not report.passed
    assert [found["kind"] for found in report.divergences] == ["output"]


def test_no_first_in_first_out() -> None:
    """The answer about flights is not given to the question about hotels."""
    tools = Tools()
    run = tools.app.record(lambda: [tools.find(what="flights"), tools.find(what="hotels")])
    seen: list[str] = []

    def reordered() -> list[str]:
        seen.append(tools.find(what="hotels"))
        seen.append(tools.find(what="flights"))
        return seen

    report = tools.replay(run, reordered)
    assert seen == ["hotels in Rome", "flights in Rome"]
    assert not report.passed
    assert {found["kind"] for found in report.divergences} >= {"changed"}


def test_the_last_write_does_not_win() -> None:
    tools = Tools()

    def poll() -> list[str]:
        return [tools.status(job="7") for _ in range(3)]

    run = tools.app.record(poll)
    report = tools.replay(run, poll)
    assert report.passed
    assert report["outputsB"] == [["pending", "running", "done"]]
    more = tools.replay(run, lambda: [tools.status(job="7") for _ in range(4)])
    assert "occurrence 4" in _miss(more)["note"]


def test_recordings_share_nothing() -> None:
    tools = Tools()

    def ask() -> Any:
        return antiphon.current_run().llm({"model": "m", "messages": [{"role": "user", "content": "q"}]}, answer)

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return says(words)

    words = "first"
    one = tools.app.record(ask)
    words = "second"
    two = tools.app.record(ask)
    words = "live"
    assert tools.replay(one, ask)["outputsB"][0]["choices"][0]["message"]["content"] == "first"
    assert tools.replay(two, ask)["outputsB"][0]["choices"][0]["message"]["content"] == "second"


def test_a_field_outside_the_key_is_a_divergence() -> None:
    """The six fields are equal, so the recorded answer is returned; the variant fails the replay all the same (D14)."""
    tools = Tools()
    request = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "q"}]}

    def ask(**more: Any) -> Callable[[], Any]:
        return lambda: antiphon.current_run().llm({**request, **more}, lambda body: says("hello"))

    run = tools.app.record(ask(max_tokens=5))
    report = tools.replay(run, ask(max_tokens=50))
    assert report["outputsB"] == report["outputsA"]
    found = _miss(report)
    assert [field["path"] for field in found["fields"]] == ["$.request.maxOutputTokens"]


def test_true_is_not_one() -> None:
    tools = Tools()
    run = tools.app.record(lambda: antiphon.current_run().prompt("p", "{x}", {"x": 1}) and None)
    report = tools.replay(run, lambda: antiphon.current_run().prompt("p", "{x}", {"x": True}) and None)
    assert not report.passed


def test_a_call_that_was_dropped_and_one_that_was_added() -> None:
    tools = Tools()

    def find(words: str) -> None:
        for word in words:
            tools.find(what=word)

    run = tools.app.record(find, "ab")
    dropped = tools.replay(run, lambda _: find("a"))
    assert [found["kind"] for found in dropped.divergences] == ["missing"]
    assert dropped["unusedToolCalls"] == 1
    added = tools.replay(run, lambda _: find("abc"))
    assert added.divergences[0]["kind"] == "miss"
    assert added["newToolCalls"] == 1


def test_an_agent_that_swallows_the_miss_does_not_pass() -> None:
    tools = Tools()
    run = tools.app.record(lambda: tools.find(what="a"))

    def careless() -> str:
        try:
            tools.find(what="z")
        except Exception:
            return "a in Rome"
        return ""

    report = tools.replay(run, careless)
    assert report["outputsA"] == report["outputsB"]
    assert not report.passed


@dataclass
class Scored:
    score: float


@attrs.define
class Parcel:
    weight: float
    _code: str = "a"


class Opaque:
    pass


@pytest.mark.parametrize(
    ("recorded", "now"),
    [
        (Path("a"), Path("b")),
        (Path("a"), "a"),
        ({"a": [Path("x")]}, {"a": [Path("y")]}),
        (timedelta(1), timedelta(2)),
        (time(1, 2, 3, 4), time(1, 2, 3)),
        (time(1, 2, tzinfo=UTC), time(1, 2)),
        ({"at": [time(1, 2, tzinfo=UTC)]}, {"at": [time(1, 2, tzinfo=timezone(timedelta(hours=5)))]}),
        (time(1, 2, tzinfo=ZoneInfo("Europe/Berlin")), time(1, 2, tzinfo=ZoneInfo("Europe/Paris"))),
        (math.nan, math.inf),
        (math.nan, None),
        (math.inf, -math.inf),
        (Scored(math.nan), Scored(math.inf)),
        ({math.nan}, [None]),
        (Parcel(1.5), Parcel(2.5)),
        ([Parcel(1.5, "a")], [Parcel(1.5, "b")]),
        ("a\ud800b", "a?b"),
        ("a\ud800", "a\udfff"),
        ({"a\ud800": 1}, {"a?": 1}),
        (math.nan, {"$float": "nan"}),
        ({1: "a", "1": "b"}, {1: "c", "1": "b"}),
    ],
)
def test_another_output_is_seen_and_the_same_one_passes(recorded: Any, now: Any) -> None:
    tools = Tools()
    run = tools.app.record(lambda: recorded)
    assert tools.replay(run, lambda: recorded).passed
    assert [found["kind"] for found in tools.replay(run, lambda: now).divergences] == ["output"]

    def turn(output: Any) -> None:
        with antiphon.current_run().interaction("hi") as exchange:
            exchange.output = output

    run = tools.app.record(lambda: turn(recorded))
    assert tools.replay(run, lambda: turn(recorded)).passed
    assert [found["kind"] for found in tools.replay(run, lambda: turn(now)).divergences] == ["changed"]


@pytest.mark.parametrize("output", [Opaque(), Fraction(1, 3), 1j, {"a": [1, Opaque()]}, Scored(Opaque())])  # type: ignore[arg-type]
def test_an_output_that_cannot_be_recorded_does_not_pass(output: Any) -> None:
    tools = Tools()
    run = tools.app.record(lambda: output)
    [found] = tools.replay(run, lambda: output).divergences
    assert found["kind"] == "uncompared"
    assert "run.finished cannot be compared" in found["message"]

    def turn() -> None:
        with antiphon.current_run().interaction("hi") as exchange:
            exchange.output = output

    run = tools.app.record(turn)
    assert [found["kind"] for found in tools.replay(run, turn).divergences] == ["uncompared"]


def test_the_place_and_type_of_what_cannot_be_recorded_is_named() -> None:
    tools = Tools()
    run = tools.app.record(lambda: {"a": [1, 1j]})
    [found] = tools.replay(run, lambda: {"a": [1, 1j]}).divergences
    assert found["note"].startswith("$.output.a[1] is a builtins.complex, which cannot be recorded")


def test_an_output_that_looks_like_a_value_that_cannot_be_recorded_is_compared() -> None:
    tools = Tools()
    run = tools.app.record(lambda: {"$unserialisable": "builtins.complex"})
    assert tools.replay(run, lambda: {"$unserialisable": "builtins.complex"}).passed
    assert not tools.replay(run, lambda: 1j).passed


@pytest.mark.parametrize(
    ("recorded", "now"),
    [
        (10**40, 10**40 + 1),
        (10**40, {"$int": str(10**40)}),
        ({1: "a"}, {1: "b"}),
        ({1: "a"}, {"1": "a"}),
        ({True: "a"}, {"true": "a"}),
        ({1: "a", "1": "b"}, {1: "c", "1": "b"}),
    ],
)
def test_arguments_without_a_json_form_find_their_answer_and_no_others_do(recorded: Any, now: Any) -> None:
    tools = Tools()

    def find(what: Any) -> None:
        tools.find(what="before")
        tools.find(what=what)

    run = tools.app.record(lambda: find(recorded))
    assert tools.replay(run, lambda: find(recorded)).divergences == []
    assert [found["kind"] for found in tools.replay(run, lambda: find(now)).divergences] == ["miss"]

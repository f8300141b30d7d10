"""What an exploring replay answers, blocks and lets through, call by call (D11, K4, K6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.decide.effects import BoundaryRule, BoundaryTable, Fault
from antiphon.errors import InvalidInput
from antiphon.ops.reports import Report
from tests.unit.replay.kit import memory_app, says

CHAT = {"model": "m", "messages": [{"role": "user", "content": "q"}]}


class Bench:
    """One tool, and a function that calls it with the arguments that it is given."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.app = memory_app()
        self.file = folder / "side_effects.yaml"
        monkeypatch.chdir(folder)
        monkeypatch.setattr("antiphon.ops.side_effects.file_of", lambda entry: self.file)
        self.review("true")
        self.ran: list[Any] = []
        self.fails: Exception | None = None

        def look(**arguments: Any) -> Any:
            self.ran.append(arguments)
            if self.fails is not None:
                raise self.fails
            return {"n": len(self.ran)}

        self.tool = self.app.gateway.tool(**options)(look)
        self.asks: list[dict[str, Any]] = []

    def review(self, value: str | None) -> None:
        self.file.write_text(f"tools:\n{f'  look: {value}' if value else '  other: true'}\ndone: true\n")

    def main(self) -> Any:
        return [self.tool(**arguments) for arguments in self.asks]

    def record(self, *asks: dict[str, Any]) -> Any:
        self.asks = [*asks]
        run = self.app.record(self.main)
        self.ran.clear()
        return run

    def explore(self, run: Any, *asks: dict[str, Any], **options: Any) -> Report:
        self.asks = [*asks]
        return antiphon.replay(run, app=self.app, mode="explore", function=self.main, **options)

    def finished(self, report: Report) -> list[Any]:
        return [event for event in self.app.journal.events(report["replayRun"]) if event.type == "call.finished"]

    def told(self, report: Report) -> list[Any]:
        return [event.payload.get("value") for event in self.finished(report)]


@pytest.mark.parametrize("reviewed", ["true", "false", None])
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("effect", ["read", "write", None])
def test_only_reads_are_matched_by_meaning(
    effect: Any, idempotent: bool, reviewed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, effect=effect, idempotent=idempotent)
    run = bench.record({"q": "the  tides of today"})
    bench.review(reviewed)
    report = bench.explore(run, {"q": "the tides of today"})
    is_read = effect == "read" or (effect is None and idempotent)
    hits = report["semanticHits"]
    assert len(hits) == (1 if is_read and reviewed != "false" else 0)
    assert report["cacheHits"] == len(hits)
    if effect == "write":
        assert bench.ran == []
    if hits:
        assert bench.told(report) == [{"n": 1}]
        assert hits[0]["score"] == 1.0
        assert (hits[0]["recorded"], hits[0]["live"]) == ({"q": "the  tides of today"}, {"q": "the tides of today"})


@pytest.mark.parametrize(
    ("recorded", "asked"),
    [
        ({"q": " a  b "}, {"q": "a b"}),
        ({"q": {"deep": ["a  b", 1]}}, {"q": {"deep": ["a b", 1]}}),
        ({"q": ["a  b"]}, {"q": ["a b"]}),
    ],
)
def test_white_space_is_no_difference_anywhere(
    recorded: dict[str, Any], asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, effect="read", idempotent=True)
    report = bench.explore(bench.record(recorded), asked)
    assert bench.ran == []
    assert [hit["score"] for hit in report["semanticHits"]] == [1.0]


@pytest.mark.parametrize(
    ("recorded", "asked"),
    [({"q": ["a b"]}, {"q": ["b a"]}), ({"q": {"x": 1}}, {"q": {"x": 2}}), ({"q": 1}, {"q": 2})],
)
def test_other_values_are_another_call(
    recorded: dict[str, Any], asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, effect="read", idempotent=True)
    report = bench.explore(bench.record(recorded), asked)
    assert bench.ran == [asked]
    assert report["semanticHits"] == []


def test_a_recorded_call_answers_one_that_is_alike_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, effect="read", idempotent=False)
    run = bench.record({"q": "the  tides"}, {"q": "the   tides"})
    report = bench.explore(run, {"q": "the tides"}, {"q": "the tides"}, {"q": "the tides"})
    assert bench.told(report) == [{"n": 1}, {"n": 2}, {"n": 1}]
    assert len(report["semanticHits"]) == 2
    assert len(bench.ran) == 1


def test_arguments_that_a_tool_declares_exact_are_not_matched_by_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for exact, hits in (([], 1), (["place"], 0)):
        bench = Bench(tmp_path, monkeypatch, effect="read", idempotent=True, exact=exact)
        run = bench.record({"place": "San Francisco, CA", "units": "metric"})
        report = bench.explore(run, {"place": "San Francisco", "units": "metric"})
        assert len(report["semanticHits"]) == hits
        assert len(bench.ran) == 1 - hits


def test_an_idempotent_call_is_answered_again_and_another_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for idempotent in (True, False):
        bench = Bench(tmp_path, monkeypatch, effect="read", idempotent=idempotent)
        run = bench.record({"q": 1})
        report = bench.explore(run, {"q": 1}, {"q": 1})
        assert len(bench.ran) == (0 if idempotent else 1)
        assert report["cacheHits"] == (2 if idempotent else 1)


def test_what_a_new_call_brought_answers_the_next_equal_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, effect="read", idempotent=True)
    report = bench.explore(bench.record(), {"q": 1}, {"q": 1}, {"q": 2})
    assert bench.told(report) == [{"n": 1}, {"n": 1}, {"n": 2}]
    assert report["reusedNewCalls"] == 1


def test_an_error_of_a_new_call_is_the_answer_of_the_next_equal_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, effect="read", idempotent=True)
    bench.fails = ValueError("no such place")

    def main() -> Any:
        said = []
        for _ in range(2):
            try:
                bench.tool(q=1)
            except ValueError as error:
                said.append(str(error))
        return said

    report = antiphon.replay(bench.record(), app=bench.app, mode="explore", function=main)
    assert report["outputsB"] == [["no such place", "no such place"]]
    assert len(bench.ran) == 1


def test_faults_of_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, effect="read", idempotent=True)
    run = bench.record({"q": 1})
    ends: dict[Fault, tuple[str, str | None]] = {
        "malformed": ("ok", None),
        "timeout": ("error", "builtins.TimeoutError"),
    }
    for fault, told in ends.items():
        rule = BoundaryRule(match="tool:look", mode="fault", fault=fault)
        report = bench.explore(run, {"q": 1}, table=BoundaryTable(rules=(rule,)))
        found = bench.finished(report)[0]
        assert (found.payload["outcome"], (found.payload.get("error") or {}).get("class")) == told
        assert found.payload.get("value") == ({"malformed": "\u0000"} if fault == "malformed" else None)
        assert found.meta["metadata"] == {"answeredBy": "fault"}
        assert not any("never injected" in reason for reason in report["verdictReasons"])


def test_a_model_that_refuses_by_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Bench(tmp_path, monkeypatch, idempotent=True).app

    def main() -> Any:
        return antiphon.current_run().llm(CHAT, lambda body: says("yes"))

    run = app.record(main)
    rule = BoundaryRule(match="llm", mode="fault", fault="refusal")
    report = antiphon.replay(run, app=app, mode="explore", function=main, table=BoundaryTable(rules=(rule,)))
    found = [event for event in app.journal.events(report["replayRun"]) if event.type == "call.finished"]
    assert found[0].payload["outcome"] == "refusal"
    assert found[0].payload["value"] == {"kind": "refusal", "reason": "injected refusal"}


@pytest.mark.parametrize("match", ["tool", "tool:look", "mcp:*", "*:look"])
def test_only_models_refuse(match: str) -> None:
    with pytest.raises(InvalidInput, match="Only models refuse"):
        BoundaryTable(rules=(BoundaryRule(match=match, mode="fault", fault="refusal"),))


@pytest.mark.parametrize("how", ["recording", "semantic", "static", "blocked", "kept"])
def test_events_say_where_an_answer_came_from(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, effect="write" if how == "blocked" else "read", idempotent=True)
    run = bench.record({"q": "the  tides"})
    ways: dict[str, list[dict[str, Any]]] = {
        "recording": [{"q": "the  tides"}],
        "semantic": [{"q": "the tides"}],
        "static": [{"q": 1}],
        "blocked": [{"q": 1}],
        "kept": [{"q": 1}, {"q": 1}],
    }
    rules = (BoundaryRule(match="tool:look", mode="static", value=7),) if how == "static" else ()
    report = bench.explore(run, *ways[how], table=BoundaryTable(rules=rules) if rules else None)
    assert bench.finished(report)[-1].meta["metadata"] == {"answeredBy": how}


def test_draws_come_from_the_recording_and_new_ones_are_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Bench(tmp_path, monkeypatch, idempotent=True).app
    more = False

    def main() -> Any:
        run = antiphon.current_run()
        return [str(run.uuid4()), str(run.uuid4())] if more else [str(run.uuid4())]

    first = app.record(main).output
    more = True
    run = app.record(main)
    more = False
    short = app.record(main)
    more = True
    again = antiphon.replay(run, app=app, mode="explore", function=main)
    assert again["outputsB"] == [run.output]
    other = antiphon.replay(short, app=app, mode="explore", function=main)["outputsB"][0]
    assert other[0] == short.output[0]
    assert other[1] not in (first[0], run.output[1], short.output[0])


@pytest.mark.parametrize("answers", [says("yes"), says("", refusal="no")], ids=["answer", "refusal"])
def test_a_model_that_is_given_is_recorded_with_its_account(
    answers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, effect="read", idempotent=True)

    def plain() -> Any:
        return antiphon.current_run().llm(CHAT, lambda body: answers)

    run = bench.app.record(plain)

    async def model(body: Any) -> Any:
        return answers

    for ask in (lambda body: answers, model):
        report = antiphon.replay(run, app=bench.app, mode="explore", function=plain, llm=ask, table=None)
        found = bench.finished(report)
        assert found[0].meta["usage"] == run.events()[2].meta["usage"]
        assert found[0].meta["stopReason"] == "stop"
        refused = "message" in answers["choices"][0] and "refusal" in answers["choices"][0]["message"]
        assert found[0].payload["outcome"] == ("refusal" if refused else "ok")
        assert found[0].meta.get("refusalReason") == ("no" if refused else None)
        assert report["liveModelCalls"] == 1

"""Explore replay: the model is asked again, tools answer from the recording, side effects do not happen (K4, K6)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.decide.effects import BoundaryRule, BoundaryTable
from antiphon.errors import InvalidInput, ReplayBlocked
from antiphon.ops.reports import Report
from antiphon.ops.side_effects import file_of
from tests.unit.replay.kit import asks, memory_app, says

Script = list[Any]


class Agent:
    """Does what its model says: each answer of the script is one turn."""

    def __init__(self, script: Script) -> None:
        self.app = memory_app()
        self.script = script
        self.executed: list[str] = []
        gateway = self.app.gateway

        def made(name: str, **options: Any) -> Callable[..., Any]:
            def tool(**arguments: Any) -> Any:
                self.executed.append(f"{name} {json.dumps(arguments, sort_keys=True)}")
                return {"from": name, "n": len(self.executed)}

            tool.__name__ = name
            return gateway.tool(**options)(tool)

        self.tools = {
            "search_web": made("search_web", idempotent=True, effect="read"),
            "send_email": made("send_email", idempotent=False, effect="write"),
            "lookup": made("lookup", idempotent=True),
            "frobnicate": made("frobnicate", idempotent=False),
        }

    def answer(self, body: dict[str, Any]) -> Any:
        turns = sum(message["role"] == "assistant" for message in body["messages"])
        return self.script[turns]

    def main(self, question: str) -> Any:
        run = antiphon.current_run()
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": question},
        ]
        while True:
            request = {"model": "gpt-4", "temperature": 0, "seed": 42, "messages": messages}
            message = run.llm(request, self.answer)["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return message["content"]
            for call in message["tool_calls"]:
                arguments = json.loads(call["function"]["arguments"])
                result = self.tools[call["function"]["name"]](**arguments)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})

    def record(self) -> str:
        run = self.app.record(self.main, "weather?")
        self.executed.clear()
        return str(run.id)

    def explore(self, run: str, script: Script | None = None, **options: Any) -> Report:
        if script is not None:
            self.script = script
        return antiphon.replay(run, app=self.app, mode="explore", function=self.main, **options)


@pytest.fixture(autouse=True)
def reviewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("antiphon.ops.side_effects.file_of", lambda entry: tmp_path / "side_effects.yaml")
    path = tmp_path / "side_effects.yaml"
    path.write_text("tools:\n  search_web: true\n  send_email: true\n  lookup: true\n  frobnicate: true\ndone: true\n")
    return path


SF = asks("search_web", location="San Francisco, CA", units="metric")


def test_the_documents_example_is_a_hit() -> None:
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    report = agent.explore(run, [asks("search_web", location="San Francisco", units="metric"), says("sunny")])
    assert agent.executed == []
    assert report.passed, report.text()
    assert report["cacheHits"] == 1
    hit = report["semanticHits"][0]
    assert hit["recorded"] == {"location": "San Francisco, CA", "units": "metric"}
    assert hit["live"] == {"location": "San Francisco", "units": "metric"}
    assert report.ars["toolAccuracy"] == 1.0
    assert "Semantic Hit: search_web" in report.text()


def test_exact_only_is_one_flag_away() -> None:
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    script = [asks("search_web", location="San Francisco", units="metric"), says("sunny")]
    report = agent.explore(run, script, exact_only=True)
    assert report["semanticHits"] == []
    assert len(agent.executed) == 1


def test_white_space_alone_is_a_hit_and_other_units_are_not() -> None:
    agent = Agent([asks("search_web", q="python  history"), says("old")])
    run = agent.record()
    assert agent.explore(run, [asks("search_web", q="python history"), says("old")])["cacheHits"] == 1
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    other = [asks("search_web", location="San Francisco, CA", units="imperial"), says("sunny")]
    assert agent.explore(run, other)["newToolCalls"] == 1


def test_results_of_new_calls_are_kept_and_used_again() -> None:
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    twice = [asks("search_web", q="tides"), asks("search_web", q="tides"), says("sunny")]
    report = agent.explore(run, twice)
    assert len(agent.executed) == 1
    assert report["newToolCalls"] == 1
    assert report["reusedNewCalls"] == 1


def test_a_declared_side_effect_never_runs_whatever_the_file_says() -> None:
    agent = Agent([asks("send_email", to="ann"), says("sent")])
    run = agent.record()
    report = agent.explore(
        run,
        [asks("send_email", to="bob"), says("sent")],
        table=BoundaryTable(rules=(BoundaryRule(match="llm", mode="live"), BoundaryRule(match="tool", mode="live"))),
    )
    assert agent.executed == []
    assert [entry["name"] for entry in report["blocked"]] == ["tools/send_email"]
    assert not report.passed
    told = [event.payload for event in agent.app.journal.events(report["replayRun"]) if event.type == "call.finished"]
    assert told[1]["value"] == "[Antiphon] Tool 'send_email' blocked (side effect, no cache available)"


def test_the_recorded_side_effect_answers_once() -> None:
    agent = Agent([asks("send_email", to="ann"), says("sent")])
    run = agent.record()
    again = [asks("send_email", to="ann"), asks("send_email", to="ann"), says("sent")]
    report = agent.explore(run, again)
    assert agent.executed == []
    assert report["cacheHits"] == 1
    assert len(report["blocked"]) == 1


def test_unknown_tools_never_run_whatever_the_file_says_about_them() -> None:
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    report = agent.explore(run, [asks("frobnicate", n=1), says("sunny")])
    assert agent.executed == []
    assert len(report["blocked"]) == 1


def test_a_tool_that_nobody_listed_is_blocked(reviewed: Path) -> None:
    reviewed.write_text("tools:\n  search_web: true\ndone: true\n")
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    report = agent.explore(run, [asks("lookup", id=3), says("sunny")])
    assert agent.executed == []
    assert "unknown" in report["blocked"][0]["reason"]


def test_a_reviewed_tool_may_run_and_is_no_side_effect() -> None:
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    report = agent.explore(run, [SF, asks("lookup", id=3), says("sunny")])
    assert agent.executed == ['lookup {"id": 3}']
    assert report.passed, report.text()
    assert report.ars["toolAccuracy"] == pytest.approx(0.9)


def test_a_dropped_side_effect_fails_whatever_the_score_says() -> None:
    agent = Agent([*[asks("search_web", q=f"page {n}") for n in range(30)], asks("send_email", to="ann"), says("done")])
    run = agent.record()
    report = agent.explore(run, [*agent.script[:30], says("done")], min_ars=0.5)
    assert report.ars["score"] > 0.9
    assert not report.passed
    assert "send_email" in report["verdictReasons"][0]


def test_it_is_blocked_until_somebody_has_reviewed_the_file(reviewed: Path) -> None:
    reviewed.unlink()
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    with pytest.raises(ReplayBlocked) as blocked:
        agent.explore(run)
    text = blocked.value.message
    assert "REPLAY BLOCKED: Side Effect Configuration Required" in text
    assert "has been auto-generated" in text
    assert "  send_email: false  [SIDE EFFECT]" in text
    assert "  search_web: true  [SAFE]" in text
    assert "done: false" in reviewed.read_text()
    with pytest.raises(ReplayBlocked):
        agent.explore(run)
    reviewed.write_text(reviewed.read_text().replace("done: false", "done: true"))
    assert agent.explore(run).passed


def test_static_answers_and_faults_by_table() -> None:
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    fixed = BoundaryTable(rules=(BoundaryRule(match="tool:search_web", mode="static", value={"fixed": 1}),))
    assert (
        agent.explore(run, table=fixed).data["error"]["code"] == "replay_miss"
    )  # the frozen model was never asked this
    live = (BoundaryRule(match="llm", mode="live"),)
    report = agent.explore(run, table=BoundaryTable(rules=(*fixed.rules, *live)))
    told = [event.payload for event in agent.app.journal.events(report["replayRun"]) if event.type == "call.finished"]
    assert told[1]["value"] == {"fixed": 1}
    for fault, expected in (("timeout", "TimeoutError"), ("rate_limited", "CallFailed")):
        broken = BoundaryTable(rules=(BoundaryRule(match="llm", mode="fault", fault=fault),))  # type: ignore[arg-type]
        assert agent.explore(run, table=broken)["error"]["class"] == expected
    assert agent.executed == []


def test_a_fault_that_no_call_met_fails_the_replay() -> None:
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    rules = (
        BoundaryRule(match="tool:search_web", mode="fault", fault="timeout"),
        BoundaryRule(match="llm", mode="live"),
    )
    report = agent.explore(run, [says("sunny")], table=BoundaryTable(rules=rules))
    assert "the fault timeout was never injected: there was no call of tool:search_web" in report["verdictReasons"]
    assert not report.passed


def test_the_recorded_model_with_live_tools() -> None:
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    table = BoundaryTable(rules=(BoundaryRule(match="tool:search_web", mode="live"),))
    report = agent.explore(run, table=table)
    assert len(agent.executed) == 1
    assert report["liveModelCalls"] == 0
    assert (report["newToolCalls"], report["unusedToolCalls"], report.passed) == (0, 0, True)


def test_a_live_call_is_new_unless_it_was_recorded() -> None:
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    live = BoundaryTable(rules=(BoundaryRule(match="llm", mode="live"), BoundaryRule(match="tool", mode="live")))
    twice = agent.explore(run, [SF, SF, says("sunny")], table=live)
    assert (twice["newToolCalls"], twice["unusedToolCalls"]) == (1, 0)
    other = agent.explore(run, [asks("search_web", q="tides"), says("sunny")], table=live)
    assert (other["newToolCalls"], other["unusedToolCalls"]) == (1, 1)
    assert len(agent.executed) == 3


def test_a_fork_is_frozen_before_and_live_after() -> None:
    agent = Agent([SF, asks("search_web", q="tides"), says("low")])
    run = agent.record()
    events = agent.app.journal.events(run)
    second = [event.seq for event in events if event.type == "call.started" and event.payload["kind"] == "llm"][1]
    report = agent.explore(run, [says("unreachable"), says("high")], from_event=second)
    assert report["liveModelCalls"] == 1
    assert report["modelHits"] == 1
    assert report["outputsB"] == ["high"]


@pytest.mark.parametrize("change", [{"model": "gpt-5"}, {"prompt": "Be long."}])
def test_a_fork_changes_no_request_before_it(change: dict[str, Any]) -> None:
    """A changed request has no recorded answer: the run would be live from its beginning."""
    agent = Agent([SF, SF, says("low")])
    run = agent.record()
    events = agent.app.journal.events(run)
    second = [event.seq for event in events if event.type == "call.started" and event.payload["kind"] == "llm"][1]
    asked: list[tuple[int, str, str]] = []

    def model(body: dict[str, Any]) -> Any:
        asked.append((len(body["messages"]), body["model"], body["messages"][0]["content"]))
        return says("high")

    report = agent.explore(run, from_event=second, llm=model, **change)
    assert asked == [(4, change.get("model", "gpt-4"), change.get("prompt", "Be brief."))]
    assert (report["liveModelCalls"], report["modelHits"], report["cacheHits"]) == (1, 1, 1)
    assert report["outputsB"] == ["high"]


def test_an_edit_changes_what_the_code_is_told() -> None:
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    finished = [event.seq for event in agent.app.journal.events(run) if event.type == "call.finished"][1]
    seen: list[str] = []

    def model(body: dict[str, Any]) -> dict[str, Any]:
        seen.append(body["messages"][-1]["content"])
        return says("stormy")

    report = antiphon.replay(
        run,
        app=agent.app,
        function=agent.main,
        from_event=finished,
        edits={finished: {"value.from": "a storm"}},
        llm=model,
    )
    assert report.replay_type == "B"
    assert json.loads(seen[-1])["from"] == "a storm"
    with pytest.raises(InvalidInput, match="no 'nowhere'"):
        agent.explore(run, edits={finished: {"value.nowhere.x": 1}})


def test_samples_tell_their_spread_and_the_baseline_stands_beside() -> None:
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    answers = iter(["sunny", "sunny", "it will rain", "sunny", "sunny", "sunny"])

    def model(body: dict[str, Any]) -> dict[str, Any]:
        models.append(body["model"])
        return SF if body["messages"][-1]["role"] == "user" else says(next(answers))

    models: list[str] = []
    report = agent.explore(run, llm=model, model="gpt-5", samples=3, baseline=True)
    spread = report["spread"]
    assert spread["samples"] == 3
    assert spread["failed"] == 1
    assert spread["score"]["max"] == 1.0
    assert spread["score"]["min"] < spread["score"]["mean"] < 1.0
    assert not report.passed
    assert report["baseline"]["score"]["min"] == 1.0
    assert models == ["gpt-5"] * 6 + ["gpt-4"] * 6


def test_a_model_change_by_flag_is_decided_to_explore() -> None:
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    report = antiphon.replay(run, app=agent.app, function=agent.main, model="gpt-4o")
    assert report.replay_type == "B"
    assert report["changes"]["llm_config"]["model_name"] == {"artifact": "gpt-4", "current": "gpt-4o"}
    assert report["determinismScore"] == 0.75
    report = antiphon.replay(run, app=agent.app, function=agent.main, temperature=0.5)
    assert (report.replay_type, report["determinismScore"]) == ("A", 0.875)


def test_another_prompt_reaches_the_model() -> None:
    agent = Agent([SF, says("sunny")])
    run = agent.record()
    prompts = []

    def model(body: dict[str, Any]) -> dict[str, Any]:
        prompts.append(body["messages"][0])
        return SF if len(prompts) == 1 else says("sunny")

    report = agent.explore(run, llm=model, prompt="Be kind.")
    assert prompts[0] == {"role": "system", "content": "Be kind."}
    assert report["changes"]["prompt"]


def test_tools_of_the_recording_that_are_alike_by_enum_must_be_equal() -> None:
    """The schema that the model was given says which texts are no free text."""
    agent = Agent([asks("search_web", q="all open tickets please", state="open now"), says("3")])
    schema = {"type": "object", "properties": {"q": {"type": "string"}, "state": {"enum": ["open now", "open"]}}}

    def main(question: str) -> Any:
        run = antiphon.current_run()
        tools = [{"type": "function", "function": {"name": "search_web", "parameters": schema}}]
        request = {"model": "m", "messages": [{"role": "user", "content": question}], "tools": tools}
        call = run.llm(request, agent.answer)["choices"][0]["message"]["tool_calls"][0]
        return agent.tools["search_web"](**json.loads(call["function"]["arguments"]))

    run = agent.app.record(main, "x")
    agent.executed.clear()
    agent.script = [asks("search_web", q="all open tickets please", state="open")]
    report = antiphon.replay(run, app=agent.app, mode="explore", function=main)
    assert report["semanticHits"] == []
    assert len(agent.executed) == 1


def test_the_file_lies_beside_a_script_and_else_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert file_of("agents/mine.py:main") == tmp_path / "agents" / "side_effect" / "side_effects.yaml"
    assert file_of("json:loads") == tmp_path / "side_effect" / "side_effects.yaml"
    assert file_of(None) == tmp_path / "side_effect" / "side_effects.yaml"

"""Explore replays of framework agents: blocked side effects, and another model, temperature, prompt or answerer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel

import antiphon
from antiphon import Antiphon
from antiphon._recording.model import OptionRefused
from antiphon.adapters.langchain import chat_model
from antiphon.cli.show import _tree
from antiphon.errors import InvalidInput
from antiphon.ops.runs import timeline
from tests.fake_provider import Reply, ToolCall
from tests.integration.adapters.subjects import SUBJECTS, Subject
from tests.integration.adapters.world import World

FRAMEWORKS = [subject for subject in SUBJECTS if subject.name != "mcp"]


@pytest.fixture(autouse=True)
def reviewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "side_effects.yaml"
    path.write_text("tools: {}\ndone: true\n")
    monkeypatch.setattr("antiphon.ops.side_effects.file_of", lambda entry: path)


@pytest.mark.parametrize("subject", FRAMEWORKS, ids=lambda subject: subject.name)
def test_a_blocked_side_effect_is_told_to_the_model_and_the_agent_goes_on(
    app: Antiphon, world: World, subject: Subject
) -> None:
    def main() -> str:
        return subject.ask(subject.make(world), "hello", "s-1")

    run = app.record(main)
    asked: list[str] = []

    def answer(body: dict[str, Any]) -> Reply:
        asked.append(json.dumps(body))
        if len(asked) > 1:
            return Reply("hello there, friend: it was not charged")
        return Reply(calls=(ToolCall("charge", {"order": "A"}, "call_A"),))

    world.provider._answer = answer
    report = antiphon.replay(run, app=app, mode="explore", function=main, min_ars=0.0)
    assert [blocked["name"] for blocked in report["blocked"]] == ["tools/charge"]
    assert world.done == []
    assert "error" not in report.to_wire(), report.text()
    assert report["outputsB"] == ["hello there, friend: it was not charged"]
    assert "blocked (side effect" in asked[1]
    manifest = app.journal.manifest(report["replayRun"])
    assert manifest is not None
    shown = timeline(app, manifest)
    line = next(line for line in _tree(shown) if "tools/charge" in line)
    assert "blocked" in line
    assert "ok" not in line
    assert shown["counts"]["blocked"] == 1
    assert shown["counts"]["reused"] == 0


@pytest.mark.parametrize("subject", FRAMEWORKS, ids=lambda subject: subject.name)
def test_another_model_and_temperature_are_really_asked(app: Antiphon, world: World, subject: Subject) -> None:
    def main() -> str:
        return subject.ask(subject.make(world), "hello", "s-1")

    run = app.record(main)
    bodies: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> Reply:
        bodies.append(body)
        return Reply("hello there, friend")

    world.provider._answer = answer
    report = antiphon.replay(run, app=app, function=main, model="fake-2", temperature=0.25)
    assert report.replay_type == "B"
    assert [(body["model"], body["temperature"]) for body in bodies] == [("fake-2", 0.25)]
    changed = report["changes"]["llm_config"]
    assert changed["model_name"] == {"artifact": "fake-1", "current": "fake-2"}
    assert changed["temperature"]["current"] == 0.25
    assert report.passed, report.text()


@pytest.mark.parametrize("subject", FRAMEWORKS, ids=lambda subject: subject.name)
def test_a_function_answers_the_models_of_a_framework(app: Antiphon, world: World, subject: Subject) -> None:
    def main() -> str:
        return subject.ask(subject.make(world), "charge A please", "s-1")

    run = app.record(main)
    assert world.done == ["A"]
    requests = world.provider.requests

    def llm(request: dict[str, Any]) -> dict[str, Any]:
        charged = "charged A" in json.dumps(request)
        if "input" in request:  # the Responses API
            call = {"type": "function_call", "name": "charge", "call_id": "call_A", "arguments": '{"order": "A"}'}
            said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "all done"}]}
            return {"id": "r", "output": [said if charged else call], "usage": {"input_tokens": 1, "output_tokens": 1}}
        function = {"name": "charge", "arguments": '{"order": "A"}'}
        message: dict[str, Any] = {"role": "assistant", "content": "all done"}
        if not charged:
            message = {"content": None, "tool_calls": [{"id": "call_A", "type": "function", "function": function}]}
        return {"model": "mine", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    report = antiphon.replay(run, app=app, mode="explore", function=main, llm=llm, model="mine")
    assert report.passed, report.text()
    assert report["outputsB"] == ["all done"]
    assert world.provider.requests == requests
    assert world.done == ["A"]


def test_what_a_framework_cannot_be_given_is_refused_before_anything_runs(app: Antiphon, world: World) -> None:
    ran: list[str] = []
    subject = next(subject for subject in SUBJECTS if subject.name == "openai-agents")

    def main() -> str:
        ran.append("ran")
        return subject.ask(subject.make(world), "hello", "s-1")

    run = app.record(main)
    with pytest.raises(OptionRefused, match="an openai-agents agent cannot be given --seed"):
        antiphon.replay(run, app=app, mode="explore", function=main, seed=7)
    with pytest.raises(InvalidInput, match="--provider alone"):
        antiphon.replay(run, app=app, mode="explore", function=main, provider="other")
    assert ran == ["ran"]


def test_a_chat_model_without_a_temperature_cannot_be_given_one(app: Antiphon) -> None:
    ran: list[str] = []

    def main() -> str:
        ran.append("ran")
        return str(chat_model(FakeListChatModel(responses=["hello"])).invoke("hi").text)

    run = app.record(main)
    with pytest.raises(OptionRefused, match="a langchain agent cannot be given --model, --temperature"):
        antiphon.replay(run, app=app, function=main, model="m", temperature=0.5)
    assert ran == ["ran"]

"""Explore replays of framework agents: blocked side effects, and another model, temperature, prompt or answerer."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel

import antiphon
from antiphon import Antiphon
from antiphon._recording.model import OptionRefused
from antiphon.adapters.langchain import chat_model
from antiphon.cli.show import _tree
from antiphon.errors import InvalidInput, ReplayBlocked
from antiphon.ops.runs import timeline
from tests.fake_provider import FakeProvider, Reply, ToolCall
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


def test_code_between_the_chunks_of_a_live_model_stays_in_the_sandbox(app: Antiphon) -> None:
    acts = False

    def main() -> str:
        client = antiphon.wrap(openai.OpenAI(api_key="none", base_url=f"{provider.url}/v1"))
        asked = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
        said = []
        for chunk in asked:
            said.append(chunk.choices[0].delta.content or "")
            if acts:
                with contextlib.suppress(ReplayBlocked), socket.create_connection(world.getsockname()) as link:
                    link.sendall(b"x")
        return "".join(said)

    with socket.create_server(("127.0.0.1", 0)) as world, FakeProvider(lambda body: Reply("a b c")) as provider:
        run = app.record(main)
        acts = True
        report = antiphon.replay(run, app=app, mode="explore", function=main, min_ars=0.0)
        world.setblocking(False)
        with pytest.raises(BlockingIOError):
            world.accept()
        assert provider.requests == 2
    assert report["outputsB"] == [run.output]
    assert not report.passed
    assert "the code tried to bypass Antiphon: socket" in report.text()


def test_a_server_of_the_process_answers_nobody_outside_while_a_replay_runs(app: Antiphon) -> None:
    """It may answer the process itself: the tests above have their provider in it. Others could be told by the code."""
    push, pushed = threading.Event(), threading.Event()
    refused: list[str] = []

    def serve() -> None:
        link, _ = world.accept()
        push.wait(30)
        try:
            link.sendall(b"x")
        except ReplayBlocked as error:
            refused.append(str(error))
        pushed.set()
        link.close()

    def main() -> str:
        if acts:
            push.set()
            pushed.wait(30)
        return "done"

    acts = False
    run = app.record(main)
    listen = "import socket, sys; print(len(socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(9)))"
    with socket.create_server(("127.0.0.1", 0)) as world:
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        port = str(world.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", listen, port], stdout=subprocess.PIPE, text=True) as other:
            acts = True
            report = antiphon.replay(run, app=app, function=main)
            server.join(30)
            assert other.communicate(timeout=30)[0].strip() == "0"
    assert len(refused) == 1
    assert not report.passed

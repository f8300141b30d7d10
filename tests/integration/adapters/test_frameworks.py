"""Every framework behaves the same: recorded, replayed without a provider, writes made once, refusals kept (K2)."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon import Antiphon
from antiphon.ops.replay import replay
from tests.integration.adapters.subjects import SUBJECTS, Subject
from tests.integration.adapters.world import World


@pytest.fixture(params=SUBJECTS, ids=lambda subject: subject.name)
def subject(request: pytest.FixtureRequest) -> Subject:
    found: Subject = request.param
    return found


def _calls(run: Any, kind: str) -> list[Any]:
    started = {e.call: e for e in run.events() if e.type == "call.started" and e.payload["kind"] == kind}
    return [e for e in run.events() if e.type == "call.finished" and e.call in started]


def test_a_second_run_on_the_recording_asks_nobody(subject: Subject, world: World, app: Antiphon) -> None:
    def agent(question: str) -> str:
        return subject.ask(subject.make(world), question, "s1")

    run = app.record(agent, "charge A please")
    assert run.output == "all done"
    assert world.provider.requests == 2
    assert world.done == ["A"]
    assert [e.payload["outcome"] for e in _calls(run, "llm")] == ["ok", "ok"]
    assert len(_calls(run, "tool")) == 1
    world.provider.switch_off()
    report = replay(run, app=app, function=agent, mode="strict")
    assert report.divergences == []
    assert report.passed
    assert world.provider.requests == 2
    assert world.done == ["A"]


def test_a_changed_question_is_a_divergence(subject: Subject, world: World, app: Antiphon) -> None:
    def agent(question: str) -> str:
        return subject.ask(subject.make(world), question, "s1")

    run = app.record(agent, "charge A please")
    changed = replay(run, app=app, function=lambda question: agent(question + " now"), mode="strict")
    assert not changed.passed
    assert world.provider.requests == 2


def test_a_write_is_made_once_across_a_resume(subject: Subject, world: World, app: Antiphon) -> None:
    subject.crash_and_resume(world)
    assert world.done == ["A"]


def test_parallel_calls_each_happen_once(subject: Subject, world: World, app: Antiphon) -> None:
    def agent(question: str) -> str:
        return subject.ask(subject.make(world), question, "s2")

    run = app.record(agent, "charge A and B")
    assert sorted(world.done) == ["A", "B"]
    world.provider.switch_off()
    report = replay(run, app=app, function=agent, mode="strict")
    assert report.divergences == []
    assert sorted(world.done) == ["A", "B"]


def test_a_refusal_is_recorded_as_one(subject: Subject, world: World, app: Antiphon) -> None:
    def agent(question: str) -> str:
        return subject.ask(subject.make(world), question, "s3")

    run = app.record(agent, "refuse this")
    assert [e.payload["outcome"] for e in _calls(run, "llm")] == ["refusal"]
    world.provider.switch_off()
    assert replay(run, app=app, function=agent, mode="strict").divergences == []

"""A gate that can fail: every field of every recorded call, changed one at a time, is reported (D15, D17)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import antiphon
from antiphon._recording.run import Run
from antiphon.contract.events import Event
from antiphon.errors import AntiphonError
from tests.unit.replay.kit import asks, copied, memory_app, mutations, says


class Agent:
    """Looks something up, sends it, and answers with all it was told."""

    def __init__(self) -> None:
        self.app = memory_app()
        self.sent = 0

        @self.app.gateway.tool(idempotent=True, effect="read")
        def search(q: str, limit: int) -> dict[str, Any]:
            return {"hits": ["a", "b"], "total": 2.5, "more": False, "next": None}

        @self.app.gateway.tool(idempotent=False, effect="write")
        def send(to: str, body: dict[str, Any]) -> str:
            self.sent += 1
            return f"sent to {to}"

        @self.app.gateway.tool(idempotent=True, effect="read")
        def broken(q: str) -> str:
            raise LookupError(f"nothing for {q}")

        self.search, self.send, self.broken = search, send, broken

    def main(self, question: str) -> list[Any]:
        run = antiphon.current_run()
        request = {"model": "m", "temperature": 0.5, "top_p": 0.9, "messages": [{"role": "user", "content": question}]}
        first = run.llm(request, lambda body: asks("search", q="x", limit=3))
        found = self.search(q="x", limit=3)
        try:
            failed = self.broken(q="y")
        except LookupError as error:
            failed = f"{type(error).__name__}: {error}"
        pieces = list(run.llm({**request, "stream": True}, lambda body: iter(["Hel", "lo"])))
        sent = self.send(to="ann", body={"at": run.now().isoformat(), "id": str(run.uuid4()), "n": run.random()})
        last = run.llm({**request, "model": "m2"}, lambda body: says("done"))
        return [first, found, failed, pieces, sent, last]


@pytest.fixture(scope="module")
def recorded() -> tuple[Agent, Run]:
    agent = Agent()
    return agent, agent.app.record(agent.main, "hello")


def _reported(agent: Agent, run: Run, changed: Event, place: int) -> bool:
    def change(events: list[Event]) -> list[Event]:
        return [*events[:place], changed, *events[place + 1 :]]

    other = copied(agent.app, run, change)
    try:
        report = antiphon.replay(run.id, app=other, mode="strict", function=agent.main, keep=False)
    except AntiphonError:  # a recording that cannot be read any more
        return True
    return not report.passed and bool(report.divergences)


def test_nothing_is_reported_when_nothing_changed(recorded: tuple[Agent, Run]) -> None:
    agent, run = recorded
    other = copied(agent.app, run, lambda events: events)
    for _ in range(20):
        report = antiphon.replay(run.id, app=other, mode="strict", function=agent.main, keep=False)
        assert report.passed, report.text()
    assert agent.sent == 1


def test_each_changed_field_of_each_call_is_reported(recorded: tuple[Agent, Run]) -> None:
    agent, run = recorded
    missed, tried = [], 0
    for place, event in enumerate(run.events()):
        if event.type.startswith("call."):
            for name, changed in mutations(event, sealed=True):
                tried += 1
                if not _reported(agent, run, changed, place):
                    missed.append(f"{event.type} {event.seq} {name}")
    assert tried > 200
    assert not missed
    assert agent.sent == 1


NOT_ASKED_FOR_AGAIN = {"index", "parent", "call", "lane"}
"""Fields that say where an event stood; the lane of a call's start decides, and is looked at below."""
NOT_COMPARED = ("providerRequest", "key", "error.code", "error.status", "error.retriable", "error.terminal")
"""Provider details that the canonical request stands for are noted; an error's account is not shown to the code."""


def test_what_the_code_can_see_is_reported_without_check_sums(recorded: tuple[Agent, Run]) -> None:
    agent, run = recorded
    missed = []
    for place, event in enumerate(run.events()):
        if event.type.startswith("call."):
            for name, changed in mutations(event, sealed=False):
                moved = name in NOT_ASKED_FOR_AGAIN and (event.type, name) != ("call.started", "lane")
                if moved or name.startswith(NOT_COMPARED):
                    continue
                if not _reported(agent, run, changed, place):
                    missed.append(f"{event.type} {event.seq} {name}")
    assert not missed


def test_a_planted_blind_spot_is_found(recorded: tuple[Agent, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate would notice a replay that no longer compares what it was given."""
    agent, run = recorded
    monkeypatch.setattr("antiphon._replay.observe.Observer._compare", lambda *given: None)
    monkeypatch.setattr("antiphon._replay.recording.sum_holds", lambda event: None)
    event = next(event for event in run.events() if event.payload.get("name") == "search")
    changed = msgspec.structs.replace(event, payload={**event.payload, "arguments": {"q": "z", "limit": 3}})
    assert not _reported(agent, run, changed, event.seq)


def test_an_edited_artifact_is_a_divergence_of_its_own(recorded: tuple[Agent, Run]) -> None:
    agent, run = recorded
    other = copied(agent.app, run, lambda events: events)

    manifest = other.journal.manifest(run.id)
    assert manifest is not None
    other.journal.update_run(msgspec.structs.replace(manifest, tags={"altered": "true"}))
    for execute in (True, False):
        function = agent.main if execute else None
        report = antiphon.replay(run.id, app=other, mode="strict", function=function, execute=execute, keep=False)
        assert not report.passed
        assert [found["kind"] for found in report.divergences] == ["altered"]


def test_a_recording_that_lost_its_end_is_reported(recorded: tuple[Agent, Run]) -> None:
    agent, run = recorded
    other = copied(agent.app, run, lambda events: events[:-1])
    report = antiphon.replay(run.id, app=other, mode="strict", function=agent.main, keep=False)
    assert [found["kind"] for found in report.divergences] == ["altered"]

"""A model that refuses where it had answered, or answers where it had refused, is never passed over (L4, D28)."""

from __future__ import annotations

from typing import Any

import pytest

import antiphon
from antiphon.ops.reports import Report
from tests.unit.replay.kit import memory_app, says

CHAT = {"model": "m", "messages": [{"role": "user", "content": "q"}]}
GEMINI = {"model": "g", "contents": [{"role": "user", "parts": [{"text": "q"}]}]}
CLAUDE = {**CHAT, "max_tokens": 5}

SHAPES: dict[str, tuple[str, dict[str, Any], Any, Any]] = {
    "openai": ("openai-chat", CHAT, says("yes"), says("", refusal="I cannot help with that")),
    "openai filter": (
        "openai-chat",
        CHAT,
        says("yes"),
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "content_filter"}]},
    ),
    "anthropic": (
        "anthropic",
        CLAUDE,
        {"type": "message", "content": [{"type": "text", "text": "yes"}], "stop_reason": "end_turn"},
        {"type": "message", "content": [], "stop_reason": "refusal"},
    ),
    "gemini": (
        "gemini",
        GEMINI,
        {"candidates": [{"content": {"parts": [{"text": "yes"}]}, "finishReason": "STOP"}]},
        {"candidates": [{"finishReason": "SAFETY"}]},
    ),
    "gemini prompt": (
        "gemini",
        GEMINI,
        {"candidates": [{"content": {"parts": [{"text": "yes"}]}, "finishReason": "STOP"}]},
        {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}},
    ),
    "envelope": ("openai-chat", CHAT, {"kind": "valid", "value": 1}, {"kind": "refusal", "reason": "policy"}),
}


class Agent:
    def __init__(self, provider: str, request: dict[str, Any], answer: Any) -> None:
        self.app = memory_app()
        self.provider = provider
        self.request = request
        self.answer = answer
        self.asked = 0

    def send(self, body: dict[str, Any]) -> Any:
        self.asked += 1
        return self.answer

    def main(self) -> Any:
        return antiphon.current_run().llm(self.request, self.send, provider=self.provider)


def _events(app: antiphon.Antiphon, report: Report) -> list[dict[str, Any]]:
    found = app.journal.events(report["replayRun"])
    return [event.payload for event in found if event.type == "replay.divergedAtRefusal"]


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any], Any, Any]:
    return SHAPES[request.param]


@pytest.mark.parametrize("direction", ["answered, now refused", "refused, now answered"])
@pytest.mark.parametrize("how", ["verify", "explore", "explore with a model of its own"])
def test_both_directions(
    shape: tuple[str, dict[str, Any], Any, Any],
    direction: str,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "side_effect").mkdir()
    (tmp_path / "side_effect" / "side_effects.yaml").write_text("tools: {}\ndone: true\n")
    provider, request, valid, refusal = shape
    before, after = (valid, refusal) if direction.startswith("answered") else (refusal, valid)
    agent = Agent(provider, request, before)
    run = agent.app.record(agent.main)
    agent.answer = after
    if how == "verify":
        report = antiphon.replay(run, app=agent.app, mode="strict", function=agent.main, verify=True)
    elif how == "explore":
        report = antiphon.replay(run, app=agent.app, mode="explore", function=agent.main)
    else:
        report = antiphon.replay(run, app=agent.app, mode="explore", function=agent.main, llm=lambda body: after)
    assert not report.passed
    assert report["error"]["code"] == "replay_diverged_at_refusal"
    assert report.divergences[0]["kind"] == "refusal"
    events = _events(agent.app, report)
    assert len(events) == 1
    kinds = ("valid", "refusal") if before is valid else ("refusal", "valid")
    assert (events[0]["originalEnvelopeKind"], events[0]["replayEnvelopeKind"]) == kinds
    assert events[0]["sourceRunId"] == run.id
    recorded = run.events()[events[0]["atSequence"]]
    assert recorded.type == "call.finished"
    assert events[0]["refusalReason"]


def test_a_recorded_refusal_replays_as_that_refusal(shape: tuple[str, dict[str, Any], Any, Any]) -> None:
    provider, request, _, refusal = shape
    agent = Agent(provider, request, refusal)
    run = agent.app.record(agent.main)
    assert [event.payload["outcome"] for event in run.events() if event.type == "call.finished"] == ["refusal"]
    report = antiphon.replay(run, app=agent.app, mode="strict", function=agent.main)
    assert report.passed
    assert report["outputsB"] == [refusal]
    assert agent.asked == 1


def test_verifying_asks_every_model_call_and_keeps_the_recorded_answer() -> None:
    agent = Agent("openai-chat", CHAT, says("yes"))
    run = agent.app.record(agent.main)
    agent.answer = says("certainly")
    report = antiphon.replay(run, app=agent.app, mode="strict", function=agent.main, verify=True)
    assert report.passed
    assert report["verifiedModelCalls"] == 1
    assert report["outputsB"] == [says("yes")]
    assert agent.asked == 2


def test_a_model_that_cannot_be_asked_fails_the_verification() -> None:
    agent = Agent("openai-chat", CHAT, says("yes"))
    run = agent.app.record(agent.main)

    def down(body: Any) -> Any:
        raise ConnectionError("no route")

    report = antiphon.replay(run, app=agent.app, mode="strict", function=agent.main, verify=True, llm=down)
    assert not report.passed
    assert "no route" in report.divergences[0]["note"]


def test_a_refusal_that_comes_in_pieces() -> None:
    app = memory_app()
    pieces = [
        {"choices": [{"index": 0, "delta": {"refusal": "I can"}}]},
        {"choices": [{"index": 0, "delta": {"refusal": "not"}, "finish_reason": "stop"}]},
    ]

    def main() -> Any:
        return list(antiphon.current_run().llm({**CHAT, "stream": True}, lambda body: iter(pieces)))

    run = app.record(main)
    finished = [event for event in run.events() if event.type == "call.finished"]
    assert finished[0].payload["outcome"] == "refusal"
    assert finished[0].meta["refusalReason"] == "I cannot"
    report = antiphon.replay(
        run,
        app=app,
        mode="strict",
        function=main,
        verify=True,
        llm=lambda body: iter([{"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}]}]),
    )
    assert report["error"]["code"] == "replay_diverged_at_refusal"

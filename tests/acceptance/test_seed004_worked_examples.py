"""The worked examples and texts of the document on replay (seed 004), as numbers (D29)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon import scoring
from antiphon.decide.effects import block_message, suggest
from antiphon.ops.side_effects import Known, blocked_text, suggestions
from antiphon.similarity import similar_arguments
from antiphon.stores import MemoryStore

CONFIG = {"model_name": "gpt-4", "provider": "openai", "temperature": 0.0, "seed": 42}


def test_determinism_score_of_the_example_is_0_875_and_means_a() -> None:
    score = scoring.determinism(CONFIG, {**CONFIG, "temperature": 0.5})
    assert score == 0.875
    assert dict(score.parts) == {"temperature": 0.5, "seed": 1.0, "model": 1.0, "provider": 1.0}
    assert scoring.decide_replay_type(float(score), {}).type == "A"


@pytest.mark.parametrize("change", [{"model_name": "gpt-4o"}, {"provider": "anthropic"}])
def test_critical_changes_always_mean_b(change: dict[str, Any]) -> None:
    current = {**CONFIG, **change}
    changes = scoring.changes({"llm_config": CONFIG}, {"llm_config": current})
    assert scoring.decide_replay_type(1.0, changes).type == "B"
    assert scoring.decide_replay_type(1.0, {"tools": {"search": {}}}).type == "B"


def test_tool_accuracy_of_the_example_is_0_60_and_ars_0_845() -> None:
    accuracy = scoring.tool_accuracy(total=5, used=4, new=1, unused=1)
    assert accuracy == pytest.approx(0.60)
    assert dict(accuracy.parts) == pytest.approx({"base": 0.8, "newPenalty": 0.1, "unusedPenalty": 0.1})
    score = scoring.ars(0.95, float(accuracy))
    assert score == pytest.approx(0.845)
    assert score.band.label == "Good fidelity"


def test_penalties_are_capped() -> None:
    assert scoring.tool_accuracy(10, 10, 50, 0) == pytest.approx(0.5)
    assert scoring.tool_accuracy(10, 0, 0, 10) == 0.0


@pytest.mark.parametrize(
    ("score", "label"),
    [(1.0, "Excellent"), (0.9, "Excellent"), (0.7, "Good"), (0.5, "Moderate"), (0.49, "Poor"), (0.0, "Poor")],
)
def test_bands(score: float, label: str) -> None:
    assert scoring.band(score).label == f"{label} fidelity"


def test_san_francisco_is_a_hit() -> None:
    recorded = {"location": "San Francisco, CA", "units": "metric"}
    match = similar_arguments(recorded, {"location": "San Francisco", "units": "metric"})
    assert match.hit
    assert match.score >= 0.85


@pytest.mark.parametrize(
    ("recorded", "current"),
    [
        ({"amount": 1000, "memo": "rent for the flat in May"}, {"amount": 9000, "memo": "rent for the flat in May"}),
        ({"sql": "SELECT * FROM t WHERE country='US'"}, {"sql": "SELECT * FROM t WHERE country='UK'"}),
        ({"sql": "DELETE FROM t WHERE id=1"}, {"sql": "DELETE FROM t WHERE id=2"}),
    ],
)
def test_what_the_original_answered_wrongly_is_a_miss(recorded: Any, current: Any) -> None:
    assert not similar_arguments(recorded, current).hit


def test_the_block_message() -> None:
    assert block_message("send_email") == "[Antiphon] Tool 'send_email' blocked (side effect, no cache available)"


def test_the_keywords_of_the_document() -> None:
    for word in ("update", "send", "write", "delete", "email", "payment", "purchase", "post", "create"):
        assert not suggest(f"{word}_thing").safe
    for word in ("read", "get", "search", "find", "list", "fetch"):
        assert suggest(f"{word}_thing").safe
    assert not suggest("frobnicate").safe


FIRST_REPLAY = """\
============================================================
REPLAY BLOCKED: Side Effect Configuration Required
============================================================
The side effect configuration file has been auto-generated.
Please manually review and configure the side effects before replay:

Config file: my_agent/side_effect/side_effects.yaml

Tool Analysis & Suggestions:
------------------------------------------------------------
  send_email: false  [SIDE EFFECT]
    → Contains side effect keywords in name/description
  tavily_search: true  [SAFE]
    → No side effect keywords found
  write_file: false  [SIDE EFFECT]
    → Contains side effect keywords in name/description
------------------------------------------------------------

Instructions:
1. Review each tool above
2. Manually edit the YAML file to adjust any values if needed
3. Set 'done: true' when you have finished configuring

Once you have set 'done: true', run the replay again.
============================================================"""


def test_the_notice_of_the_first_replay() -> None:
    found = suggestions(Known(name) for name in ("send_email", "tavily_search", "write_file"))
    assert blocked_text(Path("my_agent/side_effect/side_effects.yaml"), found, generated=True) == FIRST_REPLAY


def test_several_interactions_are_one_artifact_and_replay_together(tmp_path: Path) -> None:
    app = antiphon.Antiphon({"telemetry": {"logs": False}}, store=MemoryStore())

    def main() -> None:
        run = antiphon.current_run()
        for question in ("Hello", "What's the weather?", "Thanks!"):
            with run.interaction(question) as turn:
                turn.finish(question.upper())

    run = app.record(main)
    from antiphon.ops.artifacts import export_run

    export_run(app, run.manifest, tmp_path / "session.antiphon")
    document = json.loads((tmp_path / "session.antiphon").read_text())
    assert [entry["input"] for entry in document["inputs"]["interactions"]] == [
        "Hello",
        "What's the weather?",
        "Thanks!",
    ]
    report = antiphon.replay(tmp_path / "session.antiphon", app=app, mode="strict", function=main, verbose=False)
    assert report.passed
    assert len(report["outputsA"]) == 3


def test_replay_takes_a_path_and_tells_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    sample = Path(__file__).parents[2] / "bench" / "payloads" / "sample.kurral"
    app = antiphon.Antiphon({"telemetry": {"logs": False}}, store=MemoryStore())
    report = antiphon.replay(str(sample), app=app, verbose=True)
    assert report.replay_type == "A"
    assert "No code ran: the recording was only checked." in capsys.readouterr().out

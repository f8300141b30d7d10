"""The console output of the document, word for word (D29)."""

from __future__ import annotations

from antiphon.scoring import (
    ReplayReport,
    ars,
    changes,
    findings_text,
    plan_text,
    report_text,
    result_text,
    tool_accuracy,
)

A = """\
Replay Type: A
Determinism Score: 1.00 (threshold: 0.80)

No changes detected.
Executing A Replay (Using cached outputs)...

[Antiphon] Replay Execution:
  - Cache Hits: 3
  - New Tool Calls: 0
  - Unused Tool Calls: 0

ARS (Agent Regression Score): 1.000
  - Output Similarity: 1.000
  - Tool Accuracy: 1.000
"""
B = """\
Replay Type: B
Determinism Score: 0.62 (threshold: 0.80)

Changes Detected:
  - llm_config:
      model_name: {'artifact': 'gpt-4', 'current': 'gpt-4o'}

Executing B Replay (Re-executing agent with cached tool calls)...

[Antiphon] Replay Execution:
  - Cache Hits: 2
  - New Tool Calls: 1
  - Unused Tool Calls: 0

ARS (Agent Regression Score): 0.845
  - Output Similarity: 0.95
  - Tool Accuracy: 0.60
"""
STRICT: ReplayReport = {
    "replayType": "A",
    "determinismScore": 1.0,
    "changes": {},
    "cacheHits": 3,
    "newToolCalls": 0,
    "unusedToolCalls": 0,
    "ars": {"score": 1.0, "outputSimilarity": 1.0, "toolAccuracy": 1.0},
}
EXPLORE: ReplayReport = {
    "replayType": "B",
    "determinismScore": 0.62,
    "threshold": 0.8,
    "changes": changes({"llm_config": {"model_name": "gpt-4"}}, {"llm_config": {"model_name": "gpt-4o"}}),
    "cacheHits": 2,
    "newToolCalls": 1,
    "unusedToolCalls": 0,
    "ars": {"score": ars(0.95, 0.6).score, "outputSimilarity": 0.95, "toolAccuracy": tool_accuracy(5, 4, 1, 1)},
}


def test_the_documents_a_replay() -> None:
    assert report_text(STRICT) == A


def test_the_documents_b_replay() -> None:
    assert report_text(EXPLORE) == B


def test_before_and_after_are_apart() -> None:
    assert plan_text(STRICT) + "\n" + result_text(STRICT) == A
    assert findings_text(STRICT) == ""


def test_what_the_document_has_no_line_for_comes_after_its_block() -> None:
    report: ReplayReport = {
        **EXPLORE,
        "blocked": ["send_email"],
        "notCompared": ["graph"],
        "semanticHits": [{"name": "weather", "score": 0.932, "recorded": {"c": "Rome, Italy"}, "live": {"c": "Rome"}}],
        "divergences": [{"message": "call 3 has other arguments"}],
        "contradictions": [{"kind": "number", "recorded": "100", "replayed": "900"}],
        "verdict": "fail",
        "verdictReasons": ["1 divergence from the recording"],
    }
    assert report_text(report) == B + (
        "\n"
        "Blocked Side Effects: 1\n"
        "Not Compared (unknown on one side): graph\n"
        "Semantic Hit: weather 93%\n"
        "  - recorded: {'c': 'Rome, Italy'}\n"
        "  - replayed: {'c': 'Rome'}\n"
        "Divergence: call 3 has other arguments\n"
        "Contradiction: number, '100' became '900'\n"
        "Verdict: fail (Good fidelity)\n"
        "  - 1 divergence from the recording\n"
    )


def test_a_report_is_made_from_its_fields() -> None:
    report = ReplayReport(replayType="A", verdict="pass")
    assert report == {"replayType": "A", "verdict": "pass"}

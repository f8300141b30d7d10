"""Scores over two runs, each with its parts. Pure functions: no clock, no randomness, no files except for the pages."""

from __future__ import annotations

from antiphon.scoring._changes import Decision, changes, critical, decide_replay_type, not_compared
from antiphon.scoring._report import (
    ReplayReport,
    compared_text,
    findings_text,
    plan_text,
    report_text,
    result_text,
)
from antiphon.scoring._scores import (
    BANDS,
    THRESHOLD,
    Ars,
    Band,
    OutputSimilarity,
    Score,
    Verdict,
    ars,
    band,
    determinism,
    judge,
    output_similarity,
    tool_accuracy,
)
from antiphon.scoring._structure import Call, Structure, Violation, align, effect_gate, structure
from antiphon.scoring.html import render_report
from antiphon.similarity import Contradiction, contradictions

__all__ = [
    "BANDS",
    "THRESHOLD",
    "Ars",
    "Band",
    "Call",
    "Contradiction",
    "Decision",
    "OutputSimilarity",
    "ReplayReport",
    "Score",
    "Structure",
    "Verdict",
    "Violation",
    "align",
    "ars",
    "band",
    "changes",
    "compared_text",
    "contradictions",
    "critical",
    "decide_replay_type",
    "determinism",
    "effect_gate",
    "findings_text",
    "judge",
    "not_compared",
    "output_similarity",
    "plan_text",
    "render_report",
    "report_text",
    "result_text",
    "structure",
    "tool_accuracy",
]

"""Scores over two runs, each with its parts. Pure functions: no clock, no chance, no files but the page's templates."""

from __future__ import annotations

from antiphon.scoring._alignment import Call, align
from antiphon.scoring._ars import BANDS, Ars, Band, ars, band, tool_accuracy
from antiphon.scoring._changes import Decision, changes, critical, decide_replay_type, not_compared
from antiphon.scoring._determinism import THRESHOLD, determinism
from antiphon.scoring._report import ReplayReport
from antiphon.scoring._score import Score
from antiphon.scoring._similarity import OutputSimilarity, output_similarity
from antiphon.scoring._structure import Structure, Violation, effect_gate, structure
from antiphon.scoring._verdict import Verdict, judge
from antiphon.scoring.html import render_report
from antiphon.scoring.report_text import findings_text, plan_text, report_text, result_text
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

"""A replay report with every field filled."""

from __future__ import annotations

from typing import Any

from antiphon.scoring import ReplayReport, ars, changes, contradictions, determinism, structure, tool_accuracy

_OLD = {"model_name": "gpt-4", "provider": "openai", "temperature": 0.0, "seed": 42}
_NEW = {**_OLD, "temperature": 0.5}
_ANSWERS = ("Your refund was approved. You get $100.", "Your refund was denied. You get $900.")
_SEARCHES: list[dict[str, Any]] = [
    {"name": "search", "arguments": {"q": f"policy {n}"}, "value": "…"} for n in range(5)
]
_RECORDED: list[dict[str, Any]] = [
    {
        "kind": "llm",
        "name": "gpt-4",
        "arguments": {"messages": ["refund order 12"]},
        "tokens": 812,
        "cost": 0.012,
        "latencyMs": 940,
    },
    *_SEARCHES,
    {"name": "refund", "arguments": {"order": 12, "amount": 100, "memo": "a broken lamp"}, "sideEffect": True},
    {"name": "send_email", "arguments": {"to": "ann", "body": "Dear Ann"}, "sideEffect": True},
]
_REPLAYED: list[dict[str, Any]] = [
    {"kind": "llm", "name": "gpt-4", "arguments": {"messages": ["refund order 12"]}, "tokens": 640, "source": "live"},
    *_SEARCHES,
    {"name": "lookup", "arguments": {"name": "Ann"}, "value": {"tier": "gold"}, "source": "live"},
    {
        "name": "refund",
        "arguments": {"order": 12, "amount": 900, "memo": "a broken floor lamp"},
        "outcome": "blocked",
        "sideEffect": True,
    },
]
_SCORE = ars(0.95, tool_accuracy(5, 4, 1, 1))

REPORT: ReplayReport = {
    "title": "Replay of refund-agent",
    "sourceRun": "0192c6aa-7b1e",
    "replayRun": "0192c7f0-11aa",
    "createdAt": "2026-11-15 03:40",
    "replayType": "B",
    "reason": "critical change: prompt",
    "determinismScore": determinism(_OLD, _NEW).score,
    "determinismParts": determinism(_OLD, _NEW).parts,
    "threshold": 0.8,
    "changes": changes({"llm_config": _OLD, "prompt": "Be helpful."}, {"llm_config": _NEW, "prompt": "Be careful."}),
    "notCompared": ["graph"],
    "cacheHits": 5,
    "semanticHits": [{"name": "weather", "score": 0.93, "recorded": {"at": "Rome, Italy"}, "live": {"at": "Rome"}}],
    "newToolCalls": 2,
    "unusedToolCalls": 1,
    "blocked": ["refund"],
    "divergences": [
        {
            "index": 6,
            "name": "refund",
            "message": "has other arguments than any recorded call",
            "fields": [
                {"path": "arguments.amount", "recorded": 100, "current": 900},
                {"path": "arguments.cc", "current": "x"},
            ],
        },
        {
            "index": 7,
            "name": "send_email",
            "message": "was not made",
            "fields": [{"path": "arguments.to", "recorded": "ann"}],
        },
    ],
    "contradictions": [{"interaction": 0, **found.to_wire()} for found in contradictions(*_ANSWERS)],
    "ars": {"score": _SCORE.score, "outputSimilarity": 0.95, "toolAccuracy": 0.6, "band": _SCORE.band.label},
    "embedder": "minilm-l6-v2",
    "structure": structure(_RECORDED, _REPLAYED).to_wire(),
    "saved": {"calls": 5, "tokens": 3120, "cost": 0.0468, "seconds": 4.2},
    "verdict": "fail",
    "verdictReasons": ["Side effect 'refund' differs."],
    "outputsA": [_ANSWERS[0], "Goodbye."],
    "outputsB": [_ANSWERS[1]],
    "timelineA": _RECORDED,
    "timelineB": _REPLAYED,
}

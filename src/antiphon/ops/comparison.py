"""Two runs side by side: their calls in one shape, their scores, their report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon import embed, scoring
from antiphon._replay.tape import Tape
from antiphon.ops.app import Antiphon


def calls_of(app: Antiphon, tape: Tape) -> list[scoring.Call]:
    """Every call of a run, in the order it was started."""
    ordered = sorted(tape.calls.values(), key=lambda call: call.started)
    return [_call(app, tape, call) for call in ordered]


def _call(app: Antiphon, tape: Tape, call: Any) -> scoring.Call:
    started = tape.event(call.started)
    done = None if call.finished is None else tape.event(call.finished)
    payload = {} if done is None else done.payload
    meta = {} if done is None else done.meta
    usage = meta.get("usage") or {}
    tokens = (usage.get("inputTokens") or 0) + (usage.get("outputTokens") or 0)
    price = app.config.prices.get(str((started.payload.get("request") or {}).get("model") or ""))
    cost = 0.0
    if price is not None:
        cost = ((usage.get("inputTokens") or 0) * price.input + (usage.get("outputTokens") or 0) * price.output) / 1e6
    refusal = str(meta.get("refusalReason") or "refusal") if payload.get("outcome") == "refusal" else None
    return scoring.Call(
        name=call.name,
        arguments=tape.arguments(call),
        kind=call.kind,
        outcome=str(payload.get("outcome", "unknown")),
        value=payload.get("value") if "value" in payload else payload.get("error"),
        side_effect=call.kind != "llm" and started.meta.get("effect") != "read" and not started.meta.get("idempotent"),
        refusal=refusal,
        tokens=tokens,
        cost=cost,
        latency_ms=float(meta.get("durationMs") or 0.0),
        lane=call.lane,
        source=str((meta.get("metadata") or {}).get("answeredBy") or ""),
        id=str(call.started),
    )


def outputs_of(tape: Tape) -> list[Any]:
    """The outputs of a run's interactions; a run without any has one."""
    if tape.interactions:
        return [payload.get("output") for payload in tape.interactions]
    return [tape.output()]


def embedder_of(app: Antiphon, name: str | None = None) -> Any:
    """The configured way to compare texts."""
    return embed.load(name or app.config.replay.embedder)


def score_runs(
    app: Antiphon,
    recorded: Tape,
    replayed: Tape,
    *,
    new: int | None = None,
    used: int | None = None,
    embedder: Any = None,
    min_ars: float = 0.8,
    divergences: Sequence[Any] = (),
) -> dict[str, Any]:
    """Scores, structure and verdict of two runs."""
    left, right = calls_of(app, recorded), calls_of(app, replayed)
    structure = scoring.structure(left, right)
    tools = [call for call in left if call.kind != "llm"]
    total = len(tools)
    if used is None or new is None:
        kept = [call for call in right if call.kind != "llm"]
        equal = scoring.structure(tools, kept).equal
        used, new = min(total, equal), max(0, len(kept) - equal)
    unused = max(0, total - used)
    outputs = scoring.output_similarity(outputs_of(recorded), outputs_of(replayed), embedder or embedder_of(app))
    accuracy = scoring.tool_accuracy(total, used, new, unused)
    score = scoring.ars(float(outputs), float(accuracy))
    violations = scoring.effect_gate(structure)
    contradictions = outputs.contradictions
    verdict = scoring.judge(
        float(score),
        min_ars=min_ars,
        violations=violations,
        contradictions=contradictions,
        divergences=divergences,
        refusal_flips=len(structure.refusal_flips),
    )
    return {
        "ars": {
            "score": float(score),
            "outputSimilarity": float(outputs),
            "toolAccuracy": float(accuracy),
            "band": scoring.band(float(score)).label,
        },
        "embedder": outputs.embedder,
        "contradictions": [{"interaction": index, **found.to_wire()} for index, found in contradictions],
        "structure": structure.to_wire(),
        "newToolCalls": new,
        "unusedToolCalls": unused,
        "verdict": verdict.verdict,
        "verdictReasons": verdict.reasons,
        "outputsA": outputs_of(recorded),
        "outputsB": outputs_of(replayed),
        "timelineA": [call.to_wire() for call in left],
        "timelineB": [call.to_wire() for call in right],
    }

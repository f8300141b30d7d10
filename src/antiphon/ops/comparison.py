"""Two runs side by side: their calls in one shape, their scores, their report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon import scoring, similarity
from antiphon._replay.recording import RecordedCall, Recording
from antiphon.ops.app import Antiphon
from antiphon.ports import Invocation

SHOWN_CALLS = 2_000
"""Longer timelines are cut in reports; scores see all calls."""


class LazyEmbedder:
    """The configured way to compare texts, loaded when two texts differ."""

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._found: Any = None

    @property
    def name(self) -> str:
        """What the report says; texts that are equal need no embedder."""
        return "none needed" if self._found is None else similarity.name_of(self._found)

    def __call__(self, texts: Sequence[str]) -> Any:
        if self._found is None:
            self._found = similarity.load(self._wanted)
        return self._found(texts)


def embedder_of(app: Antiphon) -> LazyEmbedder:
    """The embedder of the configuration."""
    return LazyEmbedder(app.config.replay.embedder)


def calls_of(app: Antiphon, recording: Recording, reviewed: Mapping[str, bool] | None = None) -> list[scoring.Call]:
    """The calls the code itself made, in the order they were started."""
    return [call_of(app, recording, call, reviewed or {}) for call in recording.top_calls()]


def call_of(app: Antiphon, recording: Recording, call: RecordedCall, reviewed: Mapping[str, bool]) -> scoring.Call:
    """A recorded call as the scores see it."""
    started = recording.event(call.started)
    done = None if call.finished is None else recording.event(call.finished)
    payload = {} if done is None else done.payload
    meta = {} if done is None else done.meta
    tokens, cost = _spent(app, meta.get("usage"), _model(started.payload))
    refusal = str(meta.get("refusalReason") or "refusal") if payload.get("outcome") == "refusal" else None
    return scoring.Call(
        name=call.name,
        arguments=recording.arguments(call),
        kind=call.kind,
        outcome=str(payload.get("outcome", "unknown")),
        value=payload.get("value") if "value" in payload else payload.get("error"),
        side_effect=call.kind != "llm" and is_side_effect(call.name, started.meta.get("effect"), reviewed),
        refusal=refusal,
        tokens=tokens,
        cost=cost,
        latency_ms=float(_number(meta.get("durationMs"))),
        lane=call.lane,
        source=_source(meta),
        id=str(call.started),
    )


def _model(payload: Mapping[str, Any]) -> Any:
    request = payload.get("request")
    return request.get("model") if isinstance(request, Mapping) else None


def is_side_effect(name: str, effect: Any, reviewed: Mapping[str, bool]) -> bool:
    """What is not declared a read is a side effect, unless a person reviewed it as safe (D12, D13)."""
    if effect is not None:
        return bool(effect != "read")
    return reviewed.get(name.partition("/")[2] or name) is not True


def _source(meta: Mapping[str, Any]) -> str:
    told = meta.get("metadata")
    return str(told.get("answeredBy") or "") if isinstance(told, Mapping) else ""


def _number(value: Any) -> float:
    """A number of the recording's account; a damaged one counts as nothing."""
    return value if isinstance(value, (int, float)) else 0


def _spent(app: Antiphon, usage: Any, model: Any) -> tuple[int, float]:
    if not isinstance(usage, Mapping):
        return 0, 0.0
    asked, said = int(_number(usage.get("inputTokens"))), int(_number(usage.get("outputTokens")))
    price = app.config.prices.get(str(model or ""))
    return asked + said, 0.0 if price is None else (asked * price.input + said * price.output) / 1e6


def missed_call(call: Invocation) -> scoring.Call:
    """A call that a strict replay refused, for the timeline."""
    effect = getattr(call.spec, "effect", None)
    return scoring.Call(
        name=call.name,
        arguments=call.arguments,
        kind=call.kind,
        outcome="miss",
        side_effect=call.kind != "llm" and effect != "read",
        lane=call.site.lane,
    )


def saved_by(app: Antiphon, recording: Recording, calls: Sequence[RecordedCall]) -> dict[str, Any]:
    """What did not have to be asked and paid again."""
    tokens, cost, milliseconds = 0, 0.0, 0.0
    for call in calls:
        if call.finished is None:
            continue
        meta = recording.event(call.finished).meta
        milliseconds += _number(meta.get("durationMs"))
        usage = meta.get("usage")
        if usage:
            spent = _spent(app, usage, _model(recording.event(call.started).payload))
            tokens, cost = tokens + spent[0], cost + spent[1]
    return {"calls": len(calls), "tokens": tokens, "cost": round(cost, 6), "seconds": round(milliseconds / 1000, 3)}


def outputs_of(recording: Recording) -> list[Any]:
    """The outputs of a run's interactions; a run without any has one."""
    if recording.interactions:
        return [payload.get("output") for payload in recording.interactions]
    return [recording.output()]


def score_runs(
    app: Antiphon,
    recorded: Recording,
    replayed: Recording,
    *,
    new: int | None = None,
    used: int | None = None,
    embedder: Any = None,
    min_ars: float = 0.8,
    divergences: Sequence[Any] = (),
    reviewed: Mapping[str, bool] | None = None,
) -> dict[str, Any]:
    """Scores, structure and verdict of two runs."""
    left, right = calls_of(app, recorded, reviewed), calls_of(app, replayed, reviewed)
    structure = scoring.structure(left, right)
    tools = [call for call in left if call.kind != "llm"]
    total = len(tools)
    if used is None or new is None:
        kept = [call for call in right if call.kind != "llm"]
        compared = scoring.structure(tools, kept)
        paired = sum(pair.left is not None and pair.right is not None for pair in compared.pairs)
        same = paired - len(compared.changed)
        used, new = min(total, same), max(0, len(kept) - same)
    unused = max(0, total - used)
    outputs = scoring.output_similarity(outputs_of(recorded), outputs_of(replayed), embedder or embedder_of(app))
    accuracy = scoring.tool_accuracy(total, used, new, unused)
    score = scoring.ars(float(outputs), float(accuracy))
    contradictions = outputs.contradictions
    verdict = scoring.judge(
        float(score),
        min_ars=min_ars,
        violations=scoring.effect_gate(structure),
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
        "timelineA": [call.to_wire() for call in left[:SHOWN_CALLS]],
        "timelineB": [call.to_wire() for call in right[:SHOWN_CALLS]],
    }

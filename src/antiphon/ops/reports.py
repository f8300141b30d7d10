"""What a replay found, as one plain document: behind ``--json``, the console and the HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon import scoring
from antiphon._replay.observe import DivergenceFound, Observer
from antiphon._replay.recording import REFUSAL_CODE, REFUSAL_EVENT, Recording
from antiphon._replay.strict import VerifyInvoker
from antiphon.ops import comparison
from antiphon.ops.app import Antiphon
from antiphon.ops.explore import Explored
from antiphon.ops.strict import StrictResult, replay_manifest

_KEPT = ("replayType", "determinismScore", "changes", "ars", "verdict")


class Report:
    """What a replay found. ``to_wire()`` is the document behind ``--json``; ``text()`` is the console's."""

    def __init__(self, data: dict[str, Any], recording: Recording | None = None) -> None:
        self.data = data
        self.recording = recording
        """The recording it was made from."""

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    @property
    def replay_type(self) -> str:
        """``A`` (strict) or ``B`` (explore)."""
        return str(self.data["replayType"])

    @property
    def verdict(self) -> str:
        """``pass`` or ``fail``."""
        return str(self.data["verdict"])

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"

    @property
    def divergences(self) -> list[dict[str, Any]]:
        """Every difference from the recording, the first one first."""
        return list(self.data["divergences"])

    @property
    def ars(self) -> dict[str, Any]:
        """The agent regression score and its parts."""
        return dict(self.data["ars"])

    @property
    def exit_code(self) -> int:
        """0 if it passed, else 1."""
        return 0 if self.passed else 1

    def to_wire(self) -> dict[str, Any]:
        """The report as plain data."""
        return self.data

    def __repr__(self) -> str:
        return f"<{self.replay_type} replay of {self.data.get('sourceRun', '')}: {self.verdict}>"

    def text(self) -> str:
        """The report for a console."""
        return scoring.report_text(self.data)  # type: ignore[arg-type]

    def html(self) -> str:
        """The report as one self-contained page."""
        return scoring.render_report(self.data)  # type: ignore[arg-type]


def strict_report(
    app: Antiphon,
    recording: Recording,
    strict: StrictResult | None,
    head: Mapping[str, Any],
    floor: float,
    embedder: Any,
) -> dict[str, Any]:
    """The report of an A replay; without *strict* the code was not run and the recording stands for itself."""
    run = recording.manifest.id
    found = strict.divergences if strict is not None else _of_the_recording(recording)
    divergences = [divergence.to_wire(run) for divergence in found]
    calls = recording.top_calls()
    tools = [call for call in calls if call.kind != "llm"]
    used = len(tools) if strict is None else sum(1 for call in tools if call.used)
    new = 0 if strict is None else sum(call.kind != "llm" for call in strict.invoker.missed)
    accuracy = scoring.tool_accuracy(len(tools), used, new, len(tools) - used)
    outputs = comparison.outputs_of(recording)
    current = outputs if strict is None or recording.interactions else [strict.observer.presented(strict.output)]
    same = scoring.output_similarity(outputs, current, embedder or comparison.embedder_of(app))
    score = scoring.ars(float(same), float(accuracy))
    verdict = scoring.judge(float(score), min_ars=floor, divergences=divergences, contradictions=same.contradictions)
    answered = calls if strict is None else [call for call in calls if call.used]
    data = {
        **head,
        "executed": strict is not None,
        "cacheHits": used,
        "modelHits": len(answered) - used,
        "semanticHits": [],
        "newToolCalls": new,
        "unusedToolCalls": len(tools) - used,
        "blocked": [] if strict is None else [{"what": what} for what in strict.escapes],
        "divergences": divergences,
        "divergenceCount": len(found) if strict is None else strict.observer.total,
        "notes": [] if strict is None else [note.to_wire() for note in strict.observer.notes],
        "ambiguousLanes": sorted(recording.ambiguous),
        "ars": {
            "score": float(score),
            "outputSimilarity": float(same),
            "toolAccuracy": float(accuracy),
            "band": scoring.band(float(score)).label,
        },
        "embedder": same.embedder,
        "contradictions": [{"interaction": index, **where.to_wire()} for index, where in same.contradictions],
        "saved": comparison.saved_by(app, recording, answered),
        "verdict": verdict.verdict,
        "verdictReasons": verdict.reasons,
        "outputsA": outputs,
        "outputsB": current,
    }
    if strict is not None:
        data |= _execution(strict)
    if len(calls) <= comparison.SHOWN_CALLS:
        data |= _timelines(app, recording, strict)
    return data


def _of_the_recording(recording: Recording) -> list[DivergenceFound]:
    observer = Observer(recording, lambda value: value)
    observer.untouched()
    return observer.divergences


def _execution(strict: StrictResult) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if isinstance(strict.invoker, VerifyInvoker):
        found["verifiedModelCalls"] = strict.invoker.verified
    if strict.invoker.refusals:
        found["refusals"] = [refused.payload for refused in strict.invoker.refusals]
        found["error"] = {"code": REFUSAL_CODE, "message": strict.invoker.refusals[0].error.message}
    elif strict.error is not None:
        found["error"] = error_of(strict.error)
    return found


def error_of(error: BaseException) -> dict[str, Any]:
    """An exception that ended the agent."""
    kind = type(error)
    return {"code": str(getattr(error, "code", kind.__name__)), "class": kind.__name__, "message": str(error)}


def _timelines(app: Antiphon, recording: Recording, strict: StrictResult | None) -> dict[str, Any]:
    left = [(call, comparison.call_of(app, recording, call, {}).to_wire()) for call in recording.top_calls()]
    if strict is None:
        right = [wire for _, wire in left]
    else:
        right = [wire for call, wire in left if call.used]
        right += [comparison.missed_call(call).to_wire() for call in strict.invoker.missed]
    return {"timelineA": [wire for _, wire in left], "timelineB": right}


def keep_strict(app: Antiphon, recording: Recording, data: dict[str, Any], refusals: Sequence[Any] = ()) -> None:
    """A replay is itself a run, linked to its source (K1): what it was given, where it diverged, how it ended."""
    manifest = replay_manifest(app, recording, {name: data[name] for name in _KEPT})
    data["replayRun"] = manifest.id
    recorder = app.recorder(manifest.id, manifest.salt)
    rows = [recorder.encode("run.started", None, {"name": manifest.name, "input": recording.input()}, {})]
    for found in data["divergences"]:
        payload = {"index": found["index"], "message": found["message"], "fields": found["fields"]}
        rows.append(recorder.encode("replay.diverged", None, payload, {"lane": found["lane"]}))
    rows += [recorder.encode(REFUSAL_EVENT, None, refused.payload, {}) for refused in refusals]
    if data["verdict"] == "pass":
        last = {"status": "completed", "output": data["outputsB"][-1] if data["outputsB"] else None}
    else:
        error = data.get("error") or {"code": "replay_diverged", "message": "; ".join(data["verdictReasons"])}
        last = {"status": "failed", "error": error}
    rows.append(recorder.encode("run.finished", None, last, {}))
    status = "completed" if data["verdict"] == "pass" else "failed"
    app.journal.open_run(manifest)
    app.journal.append(manifest.id, rows)
    app.journal.update_run(msgspec.structs.replace(manifest, status=status, events=len(rows)))


def explore_report(
    app: Antiphon,
    recording: Recording,
    explored: Explored,
    head: Mapping[str, Any],
    floor: float,
    embedder: Any,
    reviewed: Mapping[str, bool],
) -> dict[str, Any]:
    """The report of a B replay; also kept with its run."""
    invoker = explored.invoker
    top = recording.top_calls()
    used = sum(1 for call in top if call.kind != "llm" and call.used)
    new = len(invoker.new) + len(invoker.blocked)
    scored = comparison.score_runs(
        app, recording, explored.recording, new=new, used=used, embedder=embedder, min_ars=floor, reviewed=reviewed
    )
    divergences = [_refusal_wire(recording, refused) for refused in invoker.refusals]
    data = {
        **head,
        **scored,
        "executed": True,
        "replayRun": explored.run.id,
        "cacheHits": invoker.tool_hits,
        "modelHits": invoker.model_hits,
        "reusedNewCalls": invoker.reused,
        "semanticHits": [
            {"name": hit.name, "recorded": hit.recorded, "live": hit.current, "score": hit.score, "seq": hit.seq}
            for hit in invoker.semantic
        ],
        "blocked": [{"name": b.name, "arguments": b.arguments, "reason": b.reason} for b in invoker.blocked],
        "divergences": divergences,
        "liveModelCalls": invoker.live_models,
        "saved": comparison.saved_by(app, recording, [call for call in top if call.used]),
    }
    reasons = list(scored["verdictReasons"])
    if invoker.refusals:
        data["refusals"] = [refused.payload for refused in invoker.refusals]
        data["error"] = {"code": REFUSAL_CODE, "message": invoker.refusals[0].error.message}
        reasons.append(invoker.refusals[0].error.message)
    elif explored.run.error is not None:
        data["error"] = error_of(explored.run.error)
        reasons.append(f"the agent failed: {explored.run.error}")
    for rule in invoker.unmet_faults():
        reasons.append(f"the fault {rule.fault} was never met: no call was {rule.match.removeprefix('*:')}")
    if reasons:
        data["verdict"], data["verdictReasons"] = "fail", reasons
    fresh = app.journal.manifest(explored.run.id)
    if fresh is not None:
        details = {name: data[name] for name in _KEPT}
        app.journal.update_run(msgspec.structs.replace(fresh, replay=details))
    return data


def _refusal_wire(recording: Recording, refused: Any) -> dict[str, Any]:
    seq = refused.payload["atSequence"]
    event = recording.event(seq)
    note = refused.error.message
    return DivergenceFound("refusal", event.lane, event.index, seq, "llm", note=note).to_wire(recording.manifest.id)


def spread_of(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean, lowest and highest of each score over several samples."""
    found: dict[str, Any] = {"samples": len(reports)}
    for name in ("score", "outputSimilarity", "toolAccuracy"):
        values = [float(report["ars"][name]) for report in reports]
        found[name] = {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}
    found["failed"] = sum(report["verdict"] != "pass" for report in reports)
    return found

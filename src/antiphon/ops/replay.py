"""``antiphon.replay``: decides A or B, runs it, and reports with scores (K3, K4, K5, K8)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from antiphon import scoring
from antiphon._drive import drive
from antiphon._recording.run import Run
from antiphon._replay.current import Setup, recorded_setup
from antiphon._replay.tape import Tape
from antiphon.decide.effects import MODEL_LIVE, BoundaryTable
from antiphon.errors import InvalidInput
from antiphon.ops import comparison
from antiphon.ops.app import Antiphon, current
from antiphon.ops.entry import load_entry
from antiphon.ops.explore import Explored, execute_exploring, known_tools
from antiphon.ops.runs import find_run, is_artifact, load_tape
from antiphon.ops.side_effects import gate
from antiphon.ops.strict import StrictResult, execute_strictly, replay_manifest

Mode = Literal["strict", "explore"]


class Report:
    """What a replay found. ``to_wire()`` is the document behind ``--json``; the text is the console's."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    @property
    def replay_type(self) -> str:
        return str(self.data["replayType"])

    @property
    def verdict(self) -> str:
        return str(self.data["verdict"])

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"

    @property
    def divergences(self) -> list[dict[str, Any]]:
        return list(self.data["divergences"])

    @property
    def ars(self) -> dict[str, Any]:
        return dict(self.data["ars"])

    @property
    def exit_code(self) -> int:
        return 0 if self.passed else 1

    def to_wire(self) -> dict[str, Any]:
        """The report as plain data."""
        return self.data

    def text(self) -> str:
        """The report for a console."""
        return scoring.report_text(self.data)  # type: ignore[arg-type]

    def html(self) -> str:
        """The report as one self-contained page."""
        return scoring.render_report(self.data)  # type: ignore[arg-type]


def replay(
    run_or_id: Any = None,
    *,
    mode: Mode | None = None,
    execute: bool = True,
    verbose: bool = False,
    app: Antiphon | None = None,
    function: Callable[..., Any] | None = None,
    llm: Callable[[dict[str, Any]], Any] | None = None,
    model: str | None = None,
    provider: str | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    prompt: str | None = None,
    table: BoundaryTable | None = None,
    exact_only: bool | None = None,
    embedder: Any = None,
    min_ars: float | None = None,
    from_event: int | None = None,
    input: Any = None,  # noqa: A002
    fence: bool = True,
) -> Report:
    """Replay a run by object, id, unique prefix, ``latest`` or artifact path.

    Without *mode* the kind is decided by the determinism score and the changes found: strict (A) answers everything
    from the recording; explore (B) asks the model again and blocks side effects.
    """
    app = app or current()
    tape = open_recording(app, run_or_id)
    flags = {"model_name": model, "provider": provider, "temperature": temperature, "seed": seed}
    wanted = {name: value for name, value in flags.items() if value is not None}
    function = _function(tape, function, execute)
    before = recorded_setup(tape)
    limit = app.config.replay.threshold
    strict: StrictResult | None = None
    setup = before
    if mode != "explore" and function is not None:
        strict = execute_strictly(app, tape, function, fence=fence)
        setup = _merged(before, strict.setup)
    if wanted or prompt is not None or llm is not None:
        setup = _with_flags(setup, wanted, prompt)
    changes = scoring.changes(before.to_wire(), setup.to_wire())
    score = scoring.determinism(before.llm_config or {}, setup.llm_config or {})
    decision = scoring.decide_replay_type(float(score), changes, limit)
    kind = {"strict": "A", "explore": "B"}.get(mode or "", decision.type)
    if table is not None and table.has_live and mode is None:
        kind = "B"
    head: dict[str, Any] = {
        "sourceRun": tape.manifest.id,
        "title": tape.manifest.name,
        "replayType": kind,
        "reason": decision.reason if mode is None else f"asked for {mode}",
        "determinismScore": float(score),
        "determinismParts": dict(score.parts),
        "threshold": limit,
        "changes": changes,
        "notCompared": scoring.not_compared(before.to_wire(), setup.to_wire()),
    }
    floor = app.config.replay.min_ars if min_ars is None else min_ars
    if kind == "A":
        data = _strict_report(app, tape, strict, head, floor)
    else:
        if function is None:
            raise InvalidInput(
                "This replay has to run the agent again, and the recording does not name its entry point.",
                hint="Record it with antiphon run file.py:function, or pass function=.",
                code="entry_missing",
            )
        explored = execute_exploring(
            app,
            tape,
            function,
            reviewed=gate(tape.manifest.entry, known_tools(app, tape)),
            table=table or MODEL_LIVE,
            changes={"model": model, "temperature": temperature, "seed": seed, "prompt": prompt},
            llm=llm,
            embedder=embedder if embedder is not None else comparison.embedder_of(app),
            exact_only=app.config.replay.exact_only if exact_only is None else exact_only,
            threshold=app.config.replay.semantic_threshold,
            fork_at=from_event,
            given=input,
        )
        data = _explore_report(app, tape, explored, head, floor, embedder)
    report = Report(data)
    if verbose:
        sys.stdout.write(report.text())
    return report


def open_recording(app: Antiphon, wanted: Any) -> Tape:
    """The recording behind whatever names it; an artifact is imported first."""
    if isinstance(wanted, Run):
        return load_tape(app, find_run(app, wanted.id))
    if isinstance(wanted, (str, Path)) and is_artifact(str(wanted)):
        from antiphon.ops.artifacts import import_artifact

        return load_tape(app, import_artifact(app, Path(wanted)))
    return load_tape(app, find_run(app, None if wanted is None else str(wanted)))


def _function(tape: Tape, given: Callable[..., Any] | None, execute: bool) -> Callable[..., Any] | None:
    if given is not None or not execute:
        return given
    entry = tape.manifest.entry
    return load_entry(entry) if entry else None


def _merged(before: Setup, seen: Setup) -> Setup:
    """What the current code showed; what it did not show is taken as unchanged."""
    merged = Setup()
    merged.llm_config = seen.llm_config if seen.llm_config is not None else before.llm_config
    merged.tools = seen.tools if seen.llm_config is not None else before.tools
    merged.prompts = seen.prompts if seen.prompts is not None else before.prompts
    return merged


def _with_flags(setup: Setup, wanted: Mapping[str, Any], prompt: str | None) -> Setup:
    flagged = Setup()
    flagged.llm_config = {**(setup.llm_config or {}), **wanted}
    flagged.tools = setup.tools
    flagged.prompts = setup.prompts if prompt is None else {**(setup.prompts or {}), "system": prompt}
    return flagged


def _strict_report(
    app: Antiphon, tape: Tape, strict: StrictResult | None, head: dict[str, Any], floor: float
) -> dict[str, Any]:
    run = tape.manifest.id
    tools = [call for call in tape.calls.values() if call.kind != "llm"]
    divergences = [] if strict is None else [found.to_wire(run) for found in strict.divergences]
    used = len(tools) if strict is None else sum(1 for call in tools if call.used)
    new = 0 if strict is None else sum(1 for d in strict.divergences if d.kind == "miss" and d.what.startswith("tool"))
    accuracy = scoring.tool_accuracy(len(tools), used, new, len(tools) - used)
    outputs = comparison.outputs_of(tape)
    current_outputs = outputs
    if strict is not None and not tape.interactions:
        current_outputs = [strict.observer.presented(strict.output)]
    same = scoring.output_similarity(outputs, current_outputs, comparison.embedder_of(app, "lexical"))
    score = scoring.ars(float(same), float(accuracy))
    verdict = scoring.judge(float(score), min_ars=floor, divergences=divergences, contradictions=same.contradictions)
    saved_tokens = sum(call.tokens for call in comparison.calls_of(app, tape)) if len(tape.calls) <= 2000 else 0
    data = {
        **head,
        "executed": strict is not None,
        "cacheHits": len(tape.calls) if strict is None else strict.invoker.hits,
        "semanticHits": [],
        "newToolCalls": new,
        "unusedToolCalls": len(tools) - used,
        "blocked": [] if strict is None else [{"what": what} for what in strict.escapes],
        "divergences": divergences,
        "divergenceCount": 0 if strict is None else strict.observer.total,
        "notes": [] if strict is None else [note.to_wire() for note in strict.observer.notes],
        "ars": {
            "score": float(score),
            "outputSimilarity": float(same),
            "toolAccuracy": float(accuracy),
            "band": scoring.band(float(score)).label,
        },
        "saved": {"calls": len(tape.calls), "tokens": saved_tokens},
        "verdict": verdict.verdict,
        "verdictReasons": verdict.reasons,
        "outputsA": outputs,
        "outputsB": current_outputs,
    }
    if strict is not None and strict.error is not None:
        data["error"] = {"class": type(strict.error).__name__, "message": str(strict.error)}
    _keep(app, tape, data)
    return data


def _keep(app: Antiphon, tape: Tape, data: dict[str, Any]) -> None:
    """A replay is itself a run, linked to its source (K1); a strict one adds only its verdict."""
    details = {name: data[name] for name in ("replayType", "determinismScore", "changes", "ars", "verdict")}
    manifest = replay_manifest(app, tape, details)
    data["replayRun"] = manifest.id
    drive(app.journal.open_run(manifest))


def _explore_report(
    app: Antiphon, tape: Tape, explored: Explored, head: dict[str, Any], floor: float, embedder: Any
) -> dict[str, Any]:
    invoker = explored.invoker
    used = sum(1 for call in tape.calls.values() if call.kind != "llm" and call.used)
    new = len(invoker.new) + len(invoker.blocked)
    scored = comparison.score_runs(app, tape, explored.tape, new=new, used=used, embedder=embedder, min_ars=floor)
    data = {
        **head,
        **scored,
        "executed": True,
        "replayRun": explored.run.id,
        "cacheHits": invoker.hits,
        "semanticHits": [
            {"name": hit.name, "recorded": hit.recorded, "live": hit.current, "score": hit.score, "seq": hit.seq}
            for hit in invoker.semantic
        ],
        "blocked": [{"name": b.name, "arguments": b.arguments, "reason": b.reason} for b in invoker.blocked],
        "divergences": [],
        "liveModelCalls": invoker.live_models,
        "saved": {"calls": invoker.hits},
    }
    if explored.run.error is not None:
        data["error"] = {"class": type(explored.run.error).__name__, "message": str(explored.run.error)}
        data["verdict"] = "fail"
        data["verdictReasons"] = [*scored["verdictReasons"], f"the agent failed: {explored.run.error}"]
    fresh = drive(app.journal.manifest(explored.run.id))
    if fresh is not None:
        details = {name: data[name] for name in ("replayType", "determinismScore", "changes", "ars", "verdict")}
        drive(app.journal.update_run(msgspec.structs.replace(fresh, replay=details)))
    return data

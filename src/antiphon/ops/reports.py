"""Two runs side by side, and the result of a replay: one plain document behind ``--json``, the console and the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from antiphon import scoring, similarity
from antiphon._diff import plural
from antiphon._recording.plain import exact_output
from antiphon._replay.observe import DivergenceFound, Observer, escape_of
from antiphon._replay.recording import REFUSAL_CODE, RecordedCall, Recording
from antiphon._replay.strict import VerifyInvoker
from antiphon.contract.events import REFUSAL_EVENT, RunManifest, as_returned
from antiphon.decide.effects import reviewed_as
from antiphon.ops.app import Antiphon
from antiphon.ops.costs import answered_by, cost_of, model_of, tokens_of
from antiphon.ops.execution import Explored, StrictResult, presenter
from antiphon.ops.runs import replay_manifest
from antiphon.ports import Invocation
from antiphon.scoring._scores import answer_text
from antiphon.similarity.contradiction import as_seen

SHOWN_CALLS = 2_000
"""Longer timelines are cut in reports; scores use all calls."""
_KEPT = ("replayType", "determinismScore", "changes", "ars", "verdict")


class Report:
    """The result of a replay. ``to_wire()`` is the document behind ``--json``; ``text()`` is the console's."""

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
        """Every difference from the recording, in order."""
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
        return scoring.report_text(self.data)

    def html(self) -> str:
        """The report as one self-contained page."""
        return scoring.render_report(self.data)


class LazyEmbedder:
    """The configured way to compare texts, loaded when two texts differ."""

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._found: Any = None

    @property
    def name(self) -> str:
        """Its name in the report; equal texts need no embedder."""
        return "none needed" if self._found is None else similarity.name_of(self._found)

    def _load(self) -> Any:
        if self._found is None:
            self._found = similarity.load(self._wanted)
        return self._found

    def __call__(self, texts: Sequence[str]) -> Any:
        return self._load()(texts)

    def __getattr__(self, name: str) -> Any:
        """Further properties of the embedder, such as ``same_from``."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._load(), name)


# -- calls as the scores see them ------------------------------------------------------------------------------------


def call_of(
    app: Antiphon, recording: Recording, call: RecordedCall, reviewed: Mapping[str, bool] | None = None
) -> scoring.Call:
    """A recorded call. Anything not declared a read is a side effect, unless it was reviewed as safe (D12, D13)."""
    started = recording.event(call.started)
    done = None if call.finished is None else recording.event(call.finished)
    payload = {} if done is None else done.payload
    meta = {} if done is None else done.meta
    effect = started.meta.get("effect")
    safe = effect == "read" if effect is not None else reviewed_as(call.name, reviewed or {})
    refused = payload.get("outcome") == "refusal"
    return scoring.Call(
        name=call.name,
        arguments=recording.arguments(call),
        kind=call.kind,
        outcome=str(payload.get("outcome", "unknown")),
        value=payload.get("value") if "value" in payload else payload.get("error"),
        side_effect=call.kind != "llm" and safe is not True,
        refusal=str(meta.get("refusalReason") or "refusal") if refused else None,
        tokens=sum(tokens_of(meta.get("usage"))),
        cost=cost_of(app.config.prices.get(model_of(started.payload)), meta.get("usage")),
        latency_ms=_milliseconds(meta),
        lane=call.lane,
        source=answered_by(meta),
        id=str(call.started),
    )


def _milliseconds(meta: Mapping[str, Any]) -> float:
    """A recorded duration; a damaged one counts as 0."""
    value = meta.get("durationMs")
    return float(value) if isinstance(value, (int, float)) else 0.0


def _missed(call: Invocation) -> scoring.Call:
    """A call that a strict replay refused, for the timeline."""
    return scoring.Call(
        name=call.name,
        arguments=call.arguments,
        kind=call.kind,
        outcome="miss",
        side_effect=call.kind != "llm" and getattr(call.spec, "effect", None) != "read",
        lane=call.site.lane,
    )


def _saved(app: Antiphon, recording: Recording, calls: Sequence[RecordedCall]) -> dict[str, Any]:
    """Calls that did not have to be sent and paid for again."""
    tokens, cost, milliseconds = 0, 0.0, 0.0
    for call in calls:
        if call.finished is None:
            continue
        meta = recording.event(call.finished).meta
        milliseconds += _milliseconds(meta)
        if meta.get("usage"):
            model = model_of(recording.event(call.started).payload)
            tokens += sum(tokens_of(meta["usage"]))
            cost += cost_of(app.config.prices.get(model), meta["usage"])
    return {"calls": len(calls), "tokens": tokens, "cost": round(cost, 6), "seconds": round(milliseconds / 1000, 3)}


def outputs_of(recording: Recording) -> list[Any]:
    """The outputs of a run's interactions; a run without any has one, which nobody saw if only its calls were."""
    if recording.calls_only:
        return []
    if recording.interactions:
        return [payload.get("output") for payload in recording.interactions]
    return [recording.output()]


# -- scores ----------------------------------------------------------------------------------------------------------


def _scored(
    total: int,
    used: int,
    new: int,
    outputs: list[Any],
    current: list[Any],
    embedder: Any,
    view: Callable[[Any], Any],
    **gates: Any,
) -> dict[str, Any]:
    """Scores and verdict for *total* recorded tool calls, of which *used* were made again, and for the outputs.

    Outputs are compared unmasked. A word is shown only if it is still present in the masked *view*: a fragment of a
    card number or a token would not be recognised as a secret.
    """
    same = scoring.output_similarity(outputs, current, embedder)
    score = scoring.ars(float(same), float(scoring.tool_accuracy(total, used, new, total - used)))
    contradictions = [
        (index, as_seen(found, *(answer_text(view(side[index])) for side in (outputs, current))))
        for index, found in same.contradictions
    ]
    verdict = scoring.judge(float(score), contradictions=contradictions, **gates)
    return {
        "ars": score.to_wire(),
        "embedder": same.embedder,
        "answers": same.counts,
        "contradictions": [{"interaction": index, **found.to_wire()} for index, found in contradictions],
        "newToolCalls": new,
        "unusedToolCalls": total - used,
        "verdict": verdict.verdict,
        "verdictReasons": verdict.reasons,
        "outputsA": outputs,
        "outputsB": current,
    }


def score_runs(
    app: Antiphon,
    recorded: Recording,
    replayed: Recording,
    *,
    new: int | None = None,
    answered: Sequence[RecordedCall] | None = None,
    embedder: Any = None,
    min_ars: float = 0.8,
    reviewed: Mapping[str, bool] | None = None,
) -> dict[str, Any]:
    """Scores, structure and verdict of two runs.

    For a replay, *answered* are the recorded calls whose answers it used, and *new* is the number of tool calls without
    a recorded answer; a live call that equals a recorded one counts as that call.
    """
    left, right = ([call_of(app, run, call, reviewed) for call in run.top_calls()] for run in (recorded, replayed))
    recorded_outputs, outputs = outputs_of(recorded), outputs_of(replayed)
    if recorded.calls_only or replayed.calls_only:
        recorded_outputs, outputs = [], []
    if recorded.is_old and not replayed.is_old:  # compare placeholders with placeholders
        present = presenter(app, recorded)
        outputs = [present(output) for output in outputs]
        right = [replace(call, arguments=present(call.arguments), value=present(call.value)) for call in right]
    structure = scoring.structure(left, right)
    tools = [call for call in left if call.kind != "llm"]
    if answered is None or new is None:
        kept = [call for call in right if call.kind != "llm"]
        compared = scoring.structure(tools, kept)
        paired = sum(pair.left is not None and pair.right is not None for pair in compared.pairs)
        used = min(len(tools), paired - len(compared.changed))
        new = max(0, len(kept) - used)
    else:
        used = sum(call.kind != "llm" for call in answered)
        others = {str(call.started) for call in answered} | {change.recorded.id for change in structure.changed}
        again = [left[pair.left] for pair in structure.pairs if pair.left is not None and pair.right is not None]
        live = min(new, sum(call.kind != "llm" and call.id not in others for call in again))
        used, new = used + live, new - live
    scored = _scored(
        len(tools),
        used,
        new,
        recorded_outputs,
        outputs,
        embedder or LazyEmbedder(app.config.replay.embedder),
        lambda value: replayed.view(recorded.view(value)),
        min_ars=min_ars,
        violations=scoring.effect_gate(structure),
        refusal_flips=len(structure.refusal_flips),
    )
    timelines = {
        f"timeline{side}": [call.to_wire() for call in calls[:SHOWN_CALLS]]
        for side, calls in (("A", left), ("B", right))
    }
    return {**scored, "structure": structure.to_wire(), **timelines}


# -- reports of replays ----------------------------------------------------------------------------------------------


def strict_report(
    app: Antiphon,
    recording: Recording,
    strict: StrictResult | None,
    head: Mapping[str, Any],
    floor: float,
    embedder: Any,
) -> dict[str, Any]:
    """The report of an A replay; without *strict* the code was not run and the recording is compared with itself."""
    observer = strict.observer if strict is not None else Observer(recording, lambda value: value)
    if strict is None:
        observer.untouched()
    divergences = [divergence.to_wire(recording.manifest.id) for divergence in observer.divergences]
    calls = [call for call in recording.top_calls() if call.used or not recording.may_be_left_out(call)]
    answered = calls if strict is None else [call for call in calls if call.used]
    missed = [] if strict is None else strict.invoker.missed
    used = sum(call.kind != "llm" for call in answered)
    outputs = outputs_of(recording)
    if strict is None or recording.calls_only:
        current = outputs
    elif recording.interactions or strict.interactions:
        current = [observer.presented(output) for output in strict.interactions]
    else:
        current = [observer.presented(as_returned(exact_output(strict.output)))]
    data = {
        **head,
        "executed": strict is not None,
        "cacheHits": used,
        "modelHits": len(answered) - used,
        "semanticHits": [],
        "blocked": [] if strict is None else [{"what": what} for what in strict.escapes],
        "divergences": divergences,
        "divergenceCount": observer.total,
        "consequences": observer.consequences,
        "callsOnly": recording.calls_only,
        "insideTools": 0 if strict is None else sum(recording.covered(call.lane) for call in recording.calls.values()),
        "notes": [note.to_wire() for note in observer.notes],
        "masked": _masked(recording, list(observer.not_compared.values())),
        "ambiguousLanes": sorted(recording.ambiguous),
        "saved": _saved(app, recording, answered),
        **_scored(
            sum(call.kind != "llm" for call in calls),
            used,
            sum(call.kind != "llm" for call in missed),
            outputs,
            current,
            embedder,
            recording.view,
            min_ars=floor,
            divergences=divergences,
        ),
    }
    if strict is None:
        data |= _NOT_RUN
    else:
        data["verdictReasons"] += _unanswerable(head["changes"], divergences)
        data |= _ended(strict.invoker.refusals, strict.error)
        if isinstance(strict.invoker, VerifyInvoker):
            data["verifiedModelCalls"] = strict.invoker.verified
    if len(calls) <= SHOWN_CALLS:
        left = {call.started: call_of(app, recording, call).to_wire() for call in calls}
        data["timelineA"] = list(left.values())
        data["timelineB"] = [left[call.started] for call in answered] + [_missed(call).to_wire() for call in missed]
    return data


_NOT_RUN: dict[str, Any] = {
    "determinismScore": None,
    "determinismParts": {},
    "ars": {},
    "answers": {},
    "embedder": "none",
    "saved": {},
    "reason": "no code ran",
}
"""Nothing was measured."""


def _unanswerable(changes: Mapping[str, Any], divergences: Sequence[Any]) -> list[str]:
    """Why a strict replay failed although nothing critical changed: a changed request has no recorded answer."""
    fields = changes.get("llm_config") or {}
    if not fields or not divergences:
        return []
    said = ", ".join(f"{name} from {change['artifact']!r} to {change['current']!r}" for name, change in fields.items())
    return [f"{said}: a strict replay has no answer for a changed request; score the change with --explore"]


def _masked(recording: Recording, left: Sequence[Any]) -> dict[str, Any]:
    """How the masked values of a recording were used, and which of them were not compared."""
    rules = recording.masks
    note = ""
    if recording.is_old:
        note = "the recording was made by release 0.1.0: masked values are compared by kind and pattern only"
    elif rules.lost:
        lost = plural(rules.lost, "event")
        note = f"the originals of {lost} cannot be read: they are damaged, or come from another store"
    elif rules.pseudonyms and not rules.has_key:
        note = "the code got pseudonyms: set ANTIPHON_REPLAY_KEY to replay with the originals"
    found = {
        "values": len(rules.pseudonyms),
        "originals": rules.has_key,
        "notCompared": [one.to_wire() for one in left],
    }
    return {**found, "note": note} if note else found


def _ended(refusals: Sequence[Any], error: BaseException | None) -> dict[str, Any]:
    """What ended the agent, if it was a refusal or an exception."""
    if refusals:
        payloads = [refused.payload for refused in refusals]
        return {"refusals": payloads, "error": {"code": REFUSAL_CODE, "message": refusals[0].error.message}}
    if error is None:
        return {}
    kind = type(error).__name__
    return {"error": {"code": str(getattr(error, "code", kind)), "class": kind, "message": str(error)}}


def with_late(data: dict[str, Any], late: Sequence[str], missing: Sequence[dict[str, Any]]) -> None:
    """Add what was refused after the end of the replay, and what is missing there: both fail the verdict."""
    refused = list(dict.fromkeys(late))
    data["blocked"] = [*data.get("blocked", ()), *({"what": what} for what in refused)]
    for found in [*(escape_of(what, late=True).to_wire(data["sourceRun"]) for what in refused), *missing]:
        data["divergences"].append(found)
        data["verdict"] = "fail"
        data["verdictReasons"] = [*data["verdictReasons"], found["message"]]
        if "divergenceCount" in data:
            data["divergenceCount"] += 1


def keep_strict(app: Antiphon, source: RunManifest, given: Any, data: dict[str, Any]) -> None:
    """A replay is itself a run, linked to its source (K1): what it was given, where it diverged, how it ended."""
    details = {name: data[name] for name in _KEPT}
    status = "completed" if data["verdict"] == "pass" else "failed"
    manifest = replay_manifest(app, source, data["replayType"], replay=details, status=status)
    manifest = msgspec.structs.replace(manifest, finished_at_ms=manifest.started_at_ms)
    data["replayRun"] = manifest.id
    recorder = app.recorder(manifest)
    rows = [recorder.encode("run.started", None, {"name": manifest.name, "input": given}, {})]
    for found in data["divergences"]:
        names = ("index", "message", "fields", "kind", "what", "seq", "nearest")
        payload = {name: found[name] for name in names if name in found}
        rows.append(recorder.encode("replay.diverged", None, payload, {"lane": found["lane"]}))
    rows += [recorder.encode(REFUSAL_EVENT, None, refused, {}) for refused in data.get("refusals", ())]
    if data["verdict"] == "pass":
        last = {"status": "completed", "output": data["outputsB"][-1] if data["outputsB"] else None}
    else:
        error = data.get("error") or {"code": "replay_diverged", "message": "; ".join(data["verdictReasons"])}
        last = {"status": "failed", "error": error}
    rows.append(recorder.encode("run.finished", None, last, {}))
    app.journal.open_run(manifest)
    app.journal.append(manifest.id, rows)
    app.journal.update_run(msgspec.structs.replace(manifest, events=len(rows)))


def keep_explored(app: Antiphon, data: Mapping[str, Any]) -> None:
    """Write the verdict into the run of an exploring replay."""
    fresh = app.journal.manifest(data["replayRun"])
    if fresh is not None:
        details = {name: data[name] for name in _KEPT}
        app.journal.update_run(msgspec.structs.replace(fresh, replay=details))


def explore_report(
    app: Antiphon,
    recording: Recording,
    explored: Explored,
    head: Mapping[str, Any],
    floor: float,
    embedder: Any,
    reviewed: Mapping[str, bool],
) -> dict[str, Any]:
    """The report of a B replay; also stored with its run."""
    invoker, replayed = explored.invoker, explored.recording
    for call in replayed.calls.values():  # from here on the report knows the values that only a name makes secret
        recording.view(replayed.arguments(call))
    answered = [call for call in recording.top_calls() if call.used]
    scored = score_runs(
        app,
        recording,
        explored.recording,
        new=len(invoker.new) + len(invoker.blocked),
        answered=answered,
        embedder=embedder,
        min_ars=floor,
        reviewed=reviewed,
    )
    error = explored.run.error
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
        "divergences": [
            *(_refusal_wire(recording, refused) for refused in invoker.refusals),
            *(escape_of(what).to_wire(recording.manifest.id) for what in explored.escapes),
        ],
        "liveModelCalls": invoker.live_models,
        "liveModelErrors": len(invoker.unanswered),
        "unanswered": list(invoker.unanswered.values()),
        "masked": _masked(recording, []),
        "saved": _saved(app, recording, answered),
        "spent": explored.spent.to_wire(),
        **_ended(invoker.refusals, error),
    }
    reasons = list(scored["verdictReasons"])
    if invoker.refusals:
        reasons.append(invoker.refusals[0].error.message)
    elif error is not None:
        reasons.append(f"the agent failed: {type(error).__name__}: {error}")
    reasons += [escape_of(what).message() for what in explored.escapes]
    for rule in invoker.unmet_faults():
        reasons.append(
            f"the fault {rule.fault} was never injected: there was no call of {rule.match.removeprefix('*:')}"
        )
    if reasons:
        data["verdict"], data["verdictReasons"] = "fail", reasons
    keep_explored(app, data)
    return data


def _refusal_wire(recording: Recording, refused: Any) -> dict[str, Any]:
    seq = refused.payload["atSequence"]
    event = recording.event(seq)
    note = refused.error.message
    return DivergenceFound("refusal", event.lane, event.index, seq, "llm", note=note).to_wire(recording.manifest.id)


def spread_of(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean, minimum and maximum of each score over several samples."""
    found: dict[str, Any] = {"samples": len(reports)}
    for name in ("score", "outputSimilarity", "toolAccuracy"):
        values = [float(report["ars"][name]) for report in reports]
        found[name] = {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}
    found["failed"] = sum(report["verdict"] != "pass" for report in reports)
    return found

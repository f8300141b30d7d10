"""``antiphon.replay``: chooses A or B, runs it, and reports with scores (K3, K4, K5, K8)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from warnings import warn

from antiphon import scoring
from antiphon._recording.foreign import WITHOUT_CODE
from antiphon._recording.manifest import source_digest, source_files
from antiphon._recording.model import OptionRefused, not_settable
from antiphon._replay.recording import Recording
from antiphon._replay.setup import Setup, code_of, recorded_setup
from antiphon.decide.effects import BoundaryTable
from antiphon.errors import InvalidInput, NotFound
from antiphon.ops import Progress, silent
from antiphon.ops.app import Antiphon, current
from antiphon.ops.artifacts import open_recording
from antiphon.ops.entry import is_agent_code, load_entry
from antiphon.ops.execution import Exploration, StrictResult, execute_exploring, execute_strictly, known_tools
from antiphon.ops.reports import (
    LazyEmbedder,
    Report,
    explore_report,
    keep_explored,
    keep_strict,
    spread_of,
    strict_report,
    with_late,
)
from antiphon.ops.sandbox import Sandbox
from antiphon.ops.side_effects import gate
from antiphon.ops.tables import check_names
from antiphon.scoring._changes import WHERE

Mode = Literal["strict", "explore"]


def replay(
    run_or_id: Any = None,
    *,
    mode: Mode | None = None,
    execute: bool = True,
    verify: bool = False,
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
    edits: Mapping[int, Mapping[str, Any]] | None = None,
    input: Any = None,  # noqa: A002
    samples: int = 1,
    baseline: bool = False,
    realtime: bool = False,
    sandbox: Sandbox = True,
    keep: bool = True,
    masked: bool = False,
    into: str | None = None,
    fence: Sandbox | None = None,
    progress: Progress = silent,
) -> Report:
    """Replay a run by object, id, unique prefix, ``latest`` or artifact path.

    Without *mode* the determinism score and the changes decide the kind: strict (A) answers everything from the
    recording; explore (B) asks the model again and blocks side effects. *verify* also asks the model during a strict
    replay, to find new or vanished refusals. *masked* replays with pseudonyms even if the originals can be read, like a
    machine without the key. *into* is the id for the run of an explore replay: if that run was interrupted, it
    continues without repeating answered model requests. *progress* receives the samples as they are produced.
    """
    app = app or current()
    if fence is not None:
        warn("replay(fence=...) is now replay(sandbox=...)", DeprecationWarning, stacklevel=2)
        sandbox = fence
    if samples < 1:
        raise InvalidInput("A replay needs at least one sample.", path="samples")
    if into is not None and (samples > 1 or baseline or mode != "explore"):
        raise InvalidInput("Only an explore replay with one sample can be recorded into a named run.", path="into")
    recording = open_recording(app, run_or_id, masked=masked)
    for seq, changes in (edits or {}).items():
        for path, value in changes.items():
            recording.edit(seq, path, value)
    flags = {"model_name": model, "provider": provider, "temperature": temperature, "seed": seed}
    wanted = Exploration(
        config={name: value for name, value in flags.items() if value is not None},
        prompt=prompt,
        llm=llm,
        table=table,
        from_event=from_event,
        given=input,
        samples=samples,
        baseline=baseline,
        exact_only=app.config.replay.exact_only if exact_only is None else exact_only,
        realtime=realtime,
        into=into,
    )
    if (mode == "strict" or (mode is None and verify)) and wanted.only_exploring:
        raise InvalidInput(
            f"A strict replay answers from the recording and does not support {', '.join(wanted.only_exploring)}.",
            hint="Use an explore replay (--explore), or omit these options.",
            path="mode",
        )
    function = _function(recording, function, execute)
    if table is not None:
        recorded = ((call.kind, call.name) for calls in recording.by_name.values() for call in calls[:1])
        specs = (tool.spec for tool in known_tools(app, recording))
        check_names(table, recorded, (f"{spec.namespace}/{spec.name}" for spec in specs if spec is not None))
    if wanted.llm is None:
        _check_settable(recording, [*wanted.config, *(["prompt"] if prompt is not None else [])])
    explores = mode == "explore" or (mode is None and not verify and (wanted.explores or bool(edits)))
    before = recorded_setup(recording)
    strict: StrictResult | None = None
    setup = before
    if not explores and function is not None:
        strict = execute_strictly(
            app, recording, function, sandbox=sandbox, realtime=realtime, verify=verify, ask=llm if verify else None
        )
        _code(strict.setup, function)
        setup = before.merged_with(strict.setup)
    head = _plan(app, recording, before, setup.with_flags(wanted.config, prompt), mode, explores, verify)
    floor = app.config.replay.min_ars if min_ars is None else min_ars
    texts = LazyEmbedder(app.config.replay.embedder) if embedder is None else embedder
    if head["replayType"] == "A":
        data = strict_report(app, recording, strict, head, floor, texts)
        if keep:
            keep_strict(app, recording.manifest, recording.input(), data)
    else:
        data = _explore(app, recording, function, wanted, before, head, floor, texts, sandbox, progress)
    report = Report(shown(recording, data), recording)
    if verbose:
        sys.stdout.write(report.text())
    return report


def _check_settable(recording: Recording, asked: list[str]) -> None:
    """Refuse, before anything runs, options that the models of the recorded frameworks do not accept."""
    if "provider" in asked:
        raise InvalidInput(
            "--provider alone changes nothing: a replay cannot reach another provider by its name.",
            hint="Give --llm file.py:function, which asks that provider.",
            path="provider",
        )
    names = {"model_name": "model"}
    for call in recording.by_name.get("llm", []):
        meta = recording.event(call.started).meta
        if isinstance(meta.get("settable"), list):
            refused = [names.get(name, name) for name in asked if names.get(name, name) not in meta["settable"]]
            if refused:
                raise not_settable(str(meta.get("transport")), refused)


_OURS = frozenset({"sourceRun", "replayRun", "sampleRuns", "masked", "ars", "saved", "determinismParts", "spread"})

_LONG = frozenset({"timelineA", "timelineB"})
"""As long as the run: masked call by call, to avoid a second copy."""


def shown(recording: Recording, data: dict[str, Any]) -> dict[str, Any]:
    """The report with masks in place of secrets: both sides were compared unmasked."""
    view = recording.view
    return {
        name: value if name in _OURS else [*map(view, value)] if name in _LONG else view(value)
        for name, value in data.items()
    }


def finish_in_parent(
    app: Antiphon, data: dict[str, Any], given: Any, late: Sequence[str], missing: Sequence[dict[str, Any]]
) -> None:
    """Store a replay that ran in another process, with what was tried after its end and what was missing there."""
    with_late(data, late, missing)
    if data["replayType"] == "A":
        source = app.journal.manifest(data["sourceRun"])
        if source is not None:
            keep_strict(app, source, given, data)
    elif late:
        keep_explored(app, data)


def _plan(
    app: Antiphon, recording: Recording, before: Setup, setup: Setup, mode: Mode | None, explores: bool, verify: bool
) -> dict[str, Any]:
    """Score, changes and kind of the replay: what is known before it runs."""
    limit = app.config.replay.threshold
    found = _compared(before, setup)
    decision = scoring.decide_replay_type(found["determinismScore"], found["changes"], limit)
    kind, reason = decision.type, decision.reason
    if mode is not None:
        kind, reason = ("A" if mode == "strict" else "B"), f"asked for {mode}"
    elif verify:
        kind, reason = "A", "verification requested"
    elif explores:
        kind, reason = "B", "requested by options"
    return {
        "sourceRun": recording.manifest.id,
        "title": recording.manifest.name,
        "replayType": kind,
        "reason": reason,
        "threshold": limit,
        **found,
    }


def _compared(before: Setup, setup: Setup) -> dict[str, Any]:
    """The differences between the recorded setup and another one."""
    score = scoring.determinism(before.llm_config or {}, setup.llm_config or {})
    unknown = scoring.not_compared(before.to_wire(), setup.to_wire())
    if before.llm_config and setup.llm_config:  # the model was asked in a way that does not tell where it is
        neither = [name for name in WHERE if name not in before.llm_config and name not in setup.llm_config]
        unknown += [f"llm_config.{name}" for name in neither]
    return {
        "determinismScore": float(score),
        "determinismParts": dict(score.parts),
        "changes": scoring.changes(before.to_wire(), setup.to_wire()),
        "notCompared": unknown,
    }


def _explore(
    app: Antiphon,
    recording: Recording,
    function: Callable[..., Any] | None,
    wanted: Exploration,
    before: Setup,
    head: dict[str, Any],
    floor: float,
    texts: Any,
    sandbox: Sandbox,
    progress: Progress,
) -> dict[str, Any]:
    if function is None:
        raise InvalidInput(
            "This replay must run the agent, but the recording does not name its entry point.",
            hint="Record it with antiphon run file.py:function, or pass --entry (in Python: function=).",
            code="entry_missing",
        )
    reviewed = gate(recording.manifest.entry, known_tools(app, recording))

    def sample(wanted: Exploration, kind: str) -> dict[str, Any]:
        explored = execute_exploring(
            app, recording, function, wanted, reviewed=reviewed, embedder=texts, kind=kind, sandbox=sandbox
        )
        if isinstance(explored.run.error, OptionRefused):
            raise explored.run.error
        seen = recorded_setup(explored.recording)  # what was actually requested, not what the options say
        _code(seen, function)
        if wanted.llm is not None and seen.llm_config and "provider" in wanted.config:
            seen.llm_config["provider"] = wanted.config["provider"]  # only the author of the function knows
        called = {**head, **_compared(before, before.merged_with(seen))}
        return explore_report(app, recording, explored, called, floor, texts, reviewed)

    def samples(wanted: Exploration, kind: str, label: str) -> list[dict[str, Any]]:
        made = (sample(wanted, kind) for _ in range(wanted.samples))
        return list(progress(made, wanted.samples, label)) if wanted.samples > 1 else list(made)

    reports = samples(wanted, "B", "replaying, samples")
    data = min(reports, key=lambda report: (report["verdict"] == "pass", report["ars"]["score"]))
    if len(reports) > 1:
        data["spread"] = spread_of(reports)
        data["sampleRuns"] = [report["replayRun"] for report in reports]
    if wanted.baseline:
        lane = samples(wanted._replace(config={}, prompt=None), "baseline", "replaying the baseline, samples")
        data["baseline"] = {**spread_of(lane), "runs": [report["replayRun"] for report in lane]}
    return data


def _function(recording: Recording, given: Callable[..., Any] | None, execute: bool) -> Callable[..., Any] | None:
    if given is not None or not execute:
        return given
    entry, imported = recording.manifest.entry, recording.manifest.tags.get("imported")
    if not entry and imported in WITHOUT_CODE:
        raise NotFound(
            f"Run {recording.manifest.id} was imported ({imported}) and has no code to replay. Nothing ran.",
            hint="Compare its steps: antiphon next-step. Only check the recording: --no-execute.",
            code="entry_missing",
        )
    if not entry:
        return None
    found = load_entry(entry)
    if imported and not is_agent_code(found):
        raise NotFound(
            f"The imported recording names {entry} as its entry point: that is neither an @antiphon.agent nor code of "
            "this folder, so it is not run.",
            hint="Name the function yourself (--entry file.py:function), or look at the recording with --no-execute.",
            code="entry_missing",
        )
    return found


def _code(setup: Setup, function: Callable[..., Any]) -> None:
    """The version of the code: the entry point and the project's files behind it; a new commit alone is no change."""
    setup.code = code_of(source_digest(function), source_files(function))

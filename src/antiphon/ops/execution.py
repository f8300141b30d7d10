"""Runs the current code on a recording: strictly on its answers, or with some boundaries live (K4, L5, D20)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import orjson

from antiphon import _lineage
from antiphon._diff import diff_values
from antiphon._recording.plain import dump, exact_output
from antiphon._recording.run import Run, exit_code, run_error, status_of
from antiphon._replay.by_content import ByContent, ContentObserver
from antiphon._replay.explore import ExploreInvoker
from antiphon._replay.observe import Composed, DivergenceFound, Observer, Seen
from antiphon._replay.recording import Recording, full_name
from antiphon._replay.setup import Setup, recorded_setup
from antiphon._replay.strict import StrictInvoker, VerifyInvoker
from antiphon._scope import EARLIER, Site
from antiphon.canonical import canonical_json
from antiphon.decide.effects import MODEL_LIVE, BoundaryTable
from antiphon.errors import Divergence, InvalidInput, ReplayMiss
from antiphon.ops.app import Antiphon, using
from antiphon.ops.costs import UsageTotals
from antiphon.ops.entry import GRACE_S, call_entry
from antiphon.ops.gateways import declared
from antiphon.ops.inputs import ArgumentEncoding, arguments_again
from antiphon.ops.runs import load_recording, replay_manifest
from antiphon.ops.sandbox import Sandbox, outside, sandboxed
from antiphon.ops.side_effects import Known
from antiphon.ports import Row

if TYPE_CHECKING:
    from antiphon._recording.recorder import Recorder
    from antiphon.contract.events import RunManifest
    from antiphon.redact import Redactor

STALL_S = 10


class StrictResult(msgspec.Struct, eq=False):
    """The result of a strict re-execution."""

    observer: Observer
    invoker: StrictInvoker
    setup: Setup
    output: Any = None
    error: BaseException | None = None
    escapes: list[str] = []
    interactions: list[Any] = []
    """The outputs of the interactions, in order."""

    @property
    def divergences(self) -> list[DivergenceFound]:
        return self.observer.divergences


def execute_strictly(
    app: Antiphon,
    recording: Recording,
    function: Callable[..., Any],
    *,
    sandbox: Sandbox = True,
    realtime: bool = False,
    verify: bool = False,
    ask: Callable[[dict[str, Any]], Any] | None = None,
) -> StrictResult:
    """Call *function* with the recorded input; models, tools, clock and randomness come from the recording."""
    recording.rewind()
    result, run = watched(app, recording, realtime=realtime, verify=verify, ask=ask)
    args, kwargs, lost = arguments_again(recording.input(), ArgumentEncoding.of(recording.given()))
    try:
        with run.attached(), using(app), sandboxed(sandbox, recording.manifest.id) as escapes:
            result.escapes = escapes
            result.output = call_entry(run.scope, function, args, kwargs, stuck=_StallDetector(result))
    except SystemExit as leaving:
        result.error = leaving if exit_code(leaving) else None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # including cancellation
        result.error = error
    for missed in result.invoker.missed:  # refused requests also show what the code asks for now
        if missed.kind == "llm":
            result.setup.saw_request({"request": missed.arguments})
    result.setup.graph = run.facts.get("graph_digest")
    complete(result, run, lambda: _compare_result(result, lost))
    return result


def complete(result: StrictResult, run: Run, compare: Callable[[], None] = lambda: None) -> None:
    """Reach the verdict of a strict replay whose code has ended; *compare* reports how its result differs."""
    observer, origin = result.observer, run.scope.origin
    observer.escaped(result.escapes)
    observer.loose_tasks(origin.loose())
    compare()
    observer.finish()
    if _lineage.on_left is None and not origin.has_handlers:
        for ms, found in observer.late_left():
            if _soon(ms):
                observer.add(found)
    _close(observer, origin)


def _compare_result(result: StrictResult, lost: Sequence[str]) -> None:
    """Compare what the code returned or raised; *lost* are arguments that it received in a different form."""
    observer = result.observer
    recording = observer.recording
    if result.error is None:
        _compare_end(recording, observer, {"status": "completed", "output": exact_output(result.output)})
    elif not isinstance(result.error, Divergence):
        ended = run_error(result.error)
        if "recorded" in getattr(result.error, "data", {}):  # stands for an exception whose class is not available
            ended = {"class": ended["class"]}
        _compare_end(recording, observer, {"status": status_of(result.error), "error": ended})
    elif not observer.divergences:  # a divergence that nothing else reports, such as reading past the end of a stream
        place = len(recording.lanes.get("0", ()))
        seq = None if recording.last is None else recording.last.seq
        observer.add(DivergenceFound("error", "0", place, seq, "run.finished", note=result.error.message))
    if lost and observer.divergences:
        note = f"{' and '.join(lost)} cannot be restored exactly, so the code got plain JSON"
        observer.add(DivergenceFound("uncompared", "0", 0, 0, "the input", note=note))


def _soon(ms: int) -> bool:
    """Whether a replay waits for calls that came this long after the end of the recording."""
    return ms <= 1000 * GRACE_S


def _close(observer: Observer, origin: _lineage.Origin) -> None:
    """The verdict is final: unrecorded calls that the code still makes are reported as late.

    Calls that the recording has after its end, and that may still come, are reported to whoever waits for the process
    to end.
    """
    recording, replay, listen = observer.recording, origin.replay, _lineage.on_left
    if replay is None:
        return
    observer.late, replay.view = replay.note, recording.view
    if listen is None:
        return

    def left_of(lane: str) -> tuple[dict[str, Any] | None, bool]:
        for ms, found in observer.late_left():
            certain = _soon(ms) and not origin.has_handlers
            if found.lane == lane and (certain or not origin.cut_off):
                return recording.view(found.to_wire(recording.manifest.id)), certain
        return None, True

    def tell(lane: str) -> None:
        reported = None
        while (left := left_of(lane)) != reported:  # another thread may have reported a newer state meanwhile
            listen(replay, lane, *left)
            reported = left

    observer.moved = tell
    for _, found in observer.late_left():
        tell(found.lane)


class _StallDetector:
    """Gives up on code that would wait forever for a task that failed because a call had no answer."""

    def __init__(self, result: StrictResult) -> None:
        self._result = result
        self._seen = -1
        self._quiet = 0

    def __call__(self) -> ReplayMiss | None:
        """Called every second."""
        invoker = self._result.invoker
        if not invoker.missed:
            return None
        seen = self._result.observer.recording.answered + len(invoker.missed)
        self._quiet = self._quiet + 1 if seen == self._seen else 0
        self._seen = seen
        if self._quiet < STALL_S:
            return None
        return ReplayMiss(
            f"The code has made no calls since a call had no recorded answer {STALL_S} s ago, and has not ended.",
            hint="It is probably waiting for a failed task.",
        )


def watched(
    app: Antiphon,
    recording: Recording,
    *,
    realtime: bool = False,
    verify: bool = False,
    ask: Callable[[dict[str, Any]], Any] | None = None,
    calls: ByContent | None = None,
    answering: type[StrictInvoker] = StrictInvoker,
) -> tuple[StrictResult, Run]:
    """A run that is answered from the recording and compared with it; the caller runs it (see ``Run.attached``).

    With *calls*, calls may come in any order; without, only if the recording has none.
    """
    if calls is None and recording.calls_only:
        calls = ByContent(recording)
    present_live = presenter(app, recording)
    observer = Observer(recording, present_live) if calls is None else ContentObserver(recording, present_live, calls)
    observer.untouched()
    options: dict[str, Any] = {"realtime": realtime, "calls": calls}
    if verify:
        invoker: StrictInvoker = VerifyInvoker(recording, observer, ask=ask, outside=outside, **options)
    else:
        invoker = answering(recording, observer, **options)
    setup = Setup()
    result = StrictResult(observer, invoker, setup)

    def encode(kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> Any:
        if kind == "call.started" and payload.get("kind") == "llm":
            setup.saw_request(payload, meta)
        elif kind == "prompt":
            setup.saw_prompt(payload)
        elif kind == "interaction.finished":
            result.interactions.append(payload.get("output"))
        return Seen(kind, site, payload, meta)

    def compose(kind: str, site: Site, payload: bytes, meta: bytes, masking: Any = None) -> Any:
        return Composed(kind, site, payload, meta)

    def see(rows: Sequence[Any]) -> None:
        observer.see(rows)

    async def see_async(rows: Sequence[Any]) -> None:
        observer.see(rows)

    recorder = app.recorder(recording.manifest, invoker=invoker, write=see, write_async=see_async)
    old = app._redactor.for_old_run(recording.manifest.salt) if recording.is_old else None

    def present(arguments: Any, digest: str) -> tuple[Any, str, Any]:
        """Live values are compared unmasked; a call is found by the digest that was recorded for its arguments."""
        if old is not None and digest not in recording.plain:
            return _as_before(old, arguments, digest)
        if type(arguments) is str:  # the name of a branch
            return (
                (recorder.redact_arguments(arguments, digest)[0] if recording.masks.has_key else arguments),
                digest,
                None,
            )
        return arguments, recording.digests.get(digest, digest), None

    def shown(arguments: Any, digest: str, canonical: bytes | None = None) -> tuple[bytes, str, Any]:
        value, digest, _ = present(arguments, digest)
        return dump(value), digest, None

    recorder.scope.encode, recorder.scope.compose = encode, compose
    recorder.scope.present, recorder.scope.shown = present, shown
    origin = recorder.scope.origin
    origin.owed = lambda: not origin.has_handlers and any(_soon(ms) for ms, _ in observer.late_left())
    entry = {"entry": recording.manifest.entry} if recording.manifest.entry is not None else {}
    recorded = recording.input()
    given = {} if recorded is None else {"input": recorded}
    observer.see((Seen("run.started", None, {"name": _name_of(recording), **entry, **given}, {}),))
    return result, Run(recorder, recording.manifest)


def _name_of(recording: Recording) -> str:
    """The name of the run; if it is masked, as its first event has it, because the manifest masks it differently."""
    first = recording.first
    if first is None or not recording.masks_of(first, "name"):
        return recording.manifest.name
    return str(recording.event(first.seq).payload.get("name"))


def presenter(app: Antiphon, recording: Recording) -> Callable[[Any], Any]:
    """How live values are prepared for comparison: as plain JSON; with placeholders for a recording of 0.1.0."""
    if not recording.is_old:
        return lambda value: orjson.loads(dump(value))
    redactor = app._redactor.for_old_run(recording.manifest.salt)
    return lambda value: orjson.loads(redactor.redact_bytes(dump(value))[0])


def _as_before(redactor: Redactor, arguments: Any, digest: str) -> tuple[Any, str, Any]:
    """Arguments as release 0.1.0 wrote them: with placeholders, and a digest computed from those."""
    clean, changed = redactor.redact_bytes(dump(arguments))
    if not changed:
        return arguments, digest, None
    value = orjson.loads(clean)
    return value, hashlib.sha256(canonical_json(value)).hexdigest(), None


def _compare_end(recording: Recording, observer: Observer, payload: dict[str, Any]) -> None:
    if recording.last is None:
        return
    event = recording.event(recording.last.seq)
    recorded = event.payload
    if recording.calls_only:  # nobody saw what the code returned
        recorded, payload = ({**one, "output": None} for one in (recorded, payload))
    live = observer.agreed(event, observer.presented(payload), "run.finished")
    if len(payload.get("error", ())) == 1:
        known = {"class": (recorded.get("error") or {}).get("class", "")}
        recorded = {**recorded, "error": known}
    differences = diff_values(recorded, live, limit=50)
    place = len(recording.lanes.get("0", ()))
    if differences:
        kind = "error" if payload["status"] != recorded.get("status") else "output"
        observer.add(DivergenceFound(kind, "0", place, recording.last.seq, "run.finished", tuple(differences)))
    else:
        observer.output_is_known(live, "0", place, recording.last.seq, "run.finished")


class Explored(NamedTuple):
    """The result of an exploring replay: its own run, and how its calls were answered."""

    run: Run
    recording: Recording
    invoker: ExploreInvoker
    escapes: list[str]
    """What the code tried to do outside Antiphon, and was refused."""
    spent: UsageTotals


def known_tools(app: Antiphon, recording: Recording) -> list[Known]:
    """The tools of the recording and of the gateway, for review."""
    specs = {spec.name: spec for spec in app.gateway.tools.values()}
    if "async_gateway" in app.__dict__:
        specs |= {spec.name: spec for spec in app.async_gateway.tools.values()}
    names = {name.partition("/")[2] or name for name, calls in recording.by_name.items() if calls[0].kind != "llm"}
    meant = {spec.name: spec for spec in declared().values()} | specs  # the agent may have created its own gateway
    found = [Known(name, meant[name].description if name in meant else "", meant.get(name)) for name in sorted(names)]
    return found + [Known(name, spec.description, spec) for name, spec in sorted(specs.items()) if name not in names]


class Exploration(NamedTuple):
    """What an exploring replay changes."""

    config: dict[str, Any]
    prompt: str | None
    llm: Callable[[dict[str, Any]], Any] | None
    table: BoundaryTable | None
    from_event: int | None
    given: Any
    samples: int
    baseline: bool
    exact_only: bool
    realtime: bool
    into: str | None = None
    """The id of the replay's own run; an interrupted one continues from the answers its models had given."""

    @property
    def explores(self) -> bool:
        """Whether it only makes sense for an exploring replay."""
        return bool(self.only_exploring) or self.llm is not None

    @property
    def only_exploring(self) -> list[str]:
        """Requested options that a strict replay does not support."""
        asked = {
            "another input": self.given is not None,
            "a fork": self.from_event is not None,
            "boundary rules": self.table is not None,
            "samples": self.samples > 1,
            "a baseline": self.baseline,
        }
        return [name for name, wanted in asked.items() if wanted]


def _rewriter(wanted: Exploration) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """Changes the model, temperature, seed or system prompt of every request that the code makes."""
    names = {"model_name": "model", "temperature": "temperature", "seed": "seed"}
    settings = {names[name]: value for name, value in wanted.config.items() if name in names}
    if not settings and wanted.prompt is None:
        return None

    def rewrite(request: dict[str, Any]) -> dict[str, Any]:
        changed = {**request, **settings}
        if wanted.prompt is not None:
            _set_system(changed, wanted.prompt)
        return changed

    return rewrite


def _set_system(request: dict[str, Any], prompt: str) -> None:
    if "system" in request:
        request["system"] = prompt
    elif "instructions" in request or ("input" in request and "messages" not in request):
        request["instructions"] = prompt
    elif isinstance(request.get("messages"), list):
        rest = [
            m for m in request["messages"] if not (isinstance(m, dict) and m.get("role") in ("system", "developer"))
        ]
        request["messages"] = [{"role": "system", "content": prompt}, *rest]


def execute_exploring(
    app: Antiphon,
    recording: Recording,
    function: Callable[..., Any],
    wanted: Exploration,
    *,
    reviewed: Mapping[str, bool],
    embedder: Any,
    kind: str,
    sandbox: Sandbox = True,
) -> Explored:
    """Call *function* with the recorded (or the given) input under the boundary table."""
    recording.rewind()
    invoker = ExploreInvoker(
        recording,
        wanted.table or MODEL_LIVE,
        reviewed=reviewed,
        schemas=_schemas(recording),
        embedder=embedder,
        threshold=app.config.replay.semantic_threshold,
        exact_only=wanted.exact_only,
        rewrite=_rewriter(wanted),
        llm=wanted.llm,
        fork_at=wanted.from_event,
        realtime=wanted.realtime,
    )
    manifest = replay_manifest(app, recording.manifest, kind, status="running", finished_at_ms=None, events=0)
    if wanted.into is not None:
        manifest = msgspec.structs.replace(manifest, id=wanted.into)
    recorder = app.recorder(manifest, invoker=invoker)
    if wanted.into is not None:
        _go_on(app, recorder, invoker, manifest)
    asked: dict[str, tuple[str, str]] = {}

    def remember(kind: str, call: str, payload: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """Results of live calls are reused for later equal calls of this replay."""
        if kind == "call.started":
            if payload.get("kind") != "llm":
                asked[call] = (full_name(payload), str(payload.get("digest")))
        elif call in asked and "answeredBy" not in (meta.get("metadata") or {}):
            invoker.keep(*asked[call], payload)

    def encode(kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> Row:
        if site is not None and kind in ("call.started", "call.finished"):
            remember(kind, site.call, payload, meta)
        return recorder.encode(kind, site, payload, meta)

    def compose(kind: str, site: Site, payload: bytes, meta: bytes, masking: Any = None) -> Row:
        if kind in ("call.started", "call.finished"):
            remember(kind, site.call, orjson.loads(payload), orjson.loads(meta))
        return recorder.compose(kind, site, payload, meta, masking)

    known = {call.digest for call in recording.calls.values()}

    def found_by(raw: str, masked: str) -> str:
        """The digest under which the recording has a call; a call it does not have is written with its own masks."""
        return recording.digests.get(raw) or (raw if raw in known else masked)

    def present(arguments: Any, digest: str) -> tuple[Any, str, Any]:
        value, masked, masking = recorder.redact_arguments(arguments, digest)
        return value, found_by(digest, masked), masking

    def shown(arguments: Any, digest: str) -> tuple[bytes, str, Any]:
        data, masked, masking = recorder.redact_arguments_json(arguments, digest)
        return data, found_by(digest, masked), masking

    recorder.scope.encode, recorder.scope.compose = encode, compose
    recorder.scope.present, recorder.scope.shown = present, shown
    run = Run(recorder, manifest)
    run.input, run.given = (wanted.given, None) if wanted.given is not None else (recording.input(), recording.given())
    args, kwargs, _ = arguments_again(run.input, ArgumentEncoding.of(run.given))
    escapes: list[str] = []
    try:
        with run, using(app), sandboxed(sandbox, recording.manifest.id) as escapes:
            run.output = call_entry(run.scope, function, args, kwargs, returned=run.end)
    except (Exception, SystemExit) as error:
        run.error = error
    invoker.close()
    fresh = app.journal.manifest(run.id)
    spent = UsageTotals(app.config.prices)
    replayed = load_recording(app, fresh if fresh is not None else run.manifest, seen=spent.add)
    return Explored(run, replayed, invoker, escapes, spent)


def _go_on(app: Antiphon, recorder: Recorder, invoker: ExploreInvoker, manifest: RunManifest) -> None:
    """If this replay was started before and interrupted, restore the values it had drawn and its models' answers."""
    begun = app.journal.manifest(manifest.id)
    if begun is None:
        return
    if (begun.tenant, begun.source_run) != (app.tenant, manifest.source_run):
        raise InvalidInput(f"Run {manifest.id} is not a replay of run {manifest.source_run}.", path="into")
    app.restore_progress(recorder)
    invoker.earlier = recorder.scope.gateway_state[EARLIER]


def _schemas(recording: Recording) -> dict[str, Mapping[str, Any]]:
    """The JSON Schema of each tool's parameters, as the recorded requests or the run's manifest describe it."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, tool in (recorded_setup(recording).tools or {}).items():
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        for spelling in ("parameters", "inputSchema", "input_schema"):
            if isinstance(inner, Mapping) and isinstance(inner.get(spelling), Mapping):
                found[name] = inner[spelling]
    return found

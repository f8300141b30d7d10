"""Runs the current code with some boundaries live, as a run of its own beside the recording (K4, D20)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import orjson

from antiphon._gateway.ids import uuid7
from antiphon._gateway.owner import owner_token
from antiphon._recording.run import Run
from antiphon._replay.explore import ExploreInvoker
from antiphon._replay.recording import Recording, full_name
from antiphon._replay.setup import recorded_setup
from antiphon._scope import Site
from antiphon.contract.events import RunManifest
from antiphon.decide.effects import MODEL_LIVE, BoundaryTable
from antiphon.ops.app import Antiphon, using
from antiphon.ops.gateways import declared
from antiphon.ops.runs import load_recording
from antiphon.ops.side_effects import Known
from antiphon.ops.start import arguments_of, call_entry
from antiphon.ports import Row


class Explored:
    """What an exploring replay brought: its own run, and how its calls were answered."""

    def __init__(self, run: Run, recording: Recording, invoker: ExploreInvoker) -> None:
        self.run = run
        self.recording = recording
        self.invoker = invoker


def known_tools(app: Antiphon, recording: Recording) -> list[Known]:
    """The tools of the recording and of the gateway, for review."""
    specs = {spec.name: spec for spec in app.gateway.tools.values()}
    if "async_gateway" in app.__dict__:
        specs |= {spec.name: spec for spec in app.async_gateway.tools.values()}
    names = {name.partition("/")[2] or name for name, calls in recording.by_name.items() if calls[0].kind != "llm"}
    meant = {spec.name: spec for spec in declared().values()} | specs  # the agent may have made a gateway of its own
    found = [Known(name, meant[name].description if name in meant else "", meant.get(name)) for name in sorted(names)]
    return found + [Known(name, spec.description, spec) for name, spec in sorted(specs.items()) if name not in names]


def rewriter(changes: Mapping[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """Another model, temperature, seed or system prompt in every request the code makes."""
    wanted = {name: value for name, value in changes.items() if value is not None}
    if not wanted:
        return None

    def rewrite(request: dict[str, Any]) -> dict[str, Any]:
        changed = dict(request)
        for name in ("model", "temperature", "seed"):
            if name in wanted:
                changed[name] = wanted[name]
        prompt = wanted.get("prompt")
        if prompt is not None:
            _set_system(changed, str(prompt))
        return changed

    return rewrite


def _set_system(request: dict[str, Any], prompt: str) -> None:
    if "system" in request:
        request["system"] = prompt
    elif "instructions" in request:
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
    *,
    reviewed: Mapping[str, bool],
    table: BoundaryTable = MODEL_LIVE,
    changes: Mapping[str, Any] | None = None,
    llm: Callable[[dict[str, Any]], Any] | None = None,
    embedder: Any = None,
    exact_only: bool = False,
    threshold: float = 0.85,
    fork_at: int | None = None,
    given: Any = None,
    realtime: bool = False,
    kind: str = "B",
) -> Explored:
    """Call *function* with the recorded (or the *given*) input under the boundary table."""
    recording.rewind()
    invoker = ExploreInvoker(
        recording,
        table,
        reviewed=reviewed,
        schemas=_schemas(recording),
        embedder=embedder,
        threshold=threshold,
        exact_only=exact_only,
        rewrite=rewriter(changes or {}),
        llm=llm,
        fork_at=fork_at,
        realtime=realtime,
    )
    manifest = _manifest(app, recording.manifest, kind)
    recorder = app.recorder(manifest.id, manifest.salt, invoker=invoker)
    asked: dict[str, tuple[str, str]] = {}

    def encode(kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> Row:
        if site is not None and kind in ("call.started", "call.finished"):
            _remember(kind, site.call, payload, meta, asked, invoker)
        return recorder.encode(kind, site, payload, meta)

    def compose(kind: str, site: Site, payload: bytes, meta: bytes) -> Row:
        if kind in ("call.started", "call.finished"):
            _remember(kind, site.call, orjson.loads(payload), orjson.loads(meta), asked, invoker)
        return recorder.compose(kind, site, payload, meta)

    recorder.scope.encode, recorder.scope.compose = encode, compose
    run = Run(recorder, manifest)
    recorded_input = given if given is not None else recording.input()
    run.input = recorded_input
    args, kwargs = arguments_of(recorded_input)
    try:
        with run, using(app):
            run.output = call_entry(run.scope, function, args, kwargs)
    except (Exception, SystemExit) as error:
        run.error = error
    fresh = app.journal.manifest(run.id)
    return Explored(run, load_recording(app, fresh if fresh is not None else run.manifest), invoker)


def _remember(
    kind: str,
    call: str,
    payload: Mapping[str, Any],
    meta: Mapping[str, Any],
    asked: dict[str, tuple[str, str]],
    invoker: ExploreInvoker,
) -> None:
    """Results of live calls are kept for the next equal call of this replay."""
    if kind == "call.started":
        if payload.get("kind") != "llm":
            asked[call] = (full_name(payload), str(payload.get("digest")))
    elif call in asked and "answeredBy" not in (meta.get("metadata") or {}):
        invoker.keep(*asked[call], payload)


def _schemas(recording: Recording) -> dict[str, Mapping[str, Any]]:
    """The JSON Schema of each tool's parameters, as the recorded requests or the run's manifest describe it."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, tool in (recorded_setup(recording).tools or {}).items():
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        for spelling in ("parameters", "inputSchema", "input_schema"):
            if isinstance(inner, Mapping) and isinstance(inner.get(spelling), Mapping):
                found[name] = inner[spelling]
    return found


def _manifest(app: Antiphon, source: RunManifest, kind: str) -> RunManifest:
    return msgspec.structs.replace(
        source,
        id=uuid7(),
        status="running",
        started_at_ms=app.clock.now_ms(),
        finished_at_ms=None,
        source_run=source.id,
        events=0,
        tags={"owner": owner_token(), "replay": kind},
    )

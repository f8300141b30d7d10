"""Runs the current code with some boundaries live, as a run of its own beside the recording (K4, D20)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson

from antiphon._recording.run import Run
from antiphon._replay.explore import ExploreInvoker
from antiphon._replay.recording import Recording, full_name
from antiphon._replay.setup import recorded_setup
from antiphon._scope import Site
from antiphon.decide.effects import MODEL_LIVE, BoundaryTable
from antiphon.ops.app import Antiphon, using
from antiphon.ops.entry import arguments_of, call_entry
from antiphon.ops.gateways import declared
from antiphon.ops.runs import load_recording, replay_manifest
from antiphon.ops.side_effects import Known
from antiphon.ports import Row


class Explored(NamedTuple):
    """What an exploring replay brought: its own run, and how its calls were answered."""

    run: Run
    recording: Recording
    invoker: ExploreInvoker


def known_tools(app: Antiphon, recording: Recording) -> list[Known]:
    """The tools of the recording and of the gateway, for review."""
    specs = {spec.name: spec for spec in app.gateway.tools.values()}
    if "async_gateway" in app.__dict__:
        specs |= {spec.name: spec for spec in app.async_gateway.tools.values()}
    names = {name.partition("/")[2] or name for name, calls in recording.by_name.items() if calls[0].kind != "llm"}
    meant = {spec.name: spec for spec in declared().values()} | specs  # the agent may have made a gateway of its own
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

    @property
    def explores(self) -> bool:
        """Whether it can only be meant for an exploring replay."""
        return bool(self.only_exploring) or self.llm is not None

    @property
    def only_exploring(self) -> list[str]:
        """What was asked for that a strict replay cannot do."""
        asked = {
            "another input": self.given is not None,
            "a fork": self.from_event is not None,
            "boundary rules": self.table is not None,
            "samples": self.samples > 1,
            "a baseline": self.baseline,
        }
        return [name for name, wanted in asked.items() if wanted]


def _rewriter(wanted: Exploration) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """Another model, temperature, seed or system prompt in every request the code makes."""
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
    wanted: Exploration,
    *,
    reviewed: Mapping[str, bool],
    embedder: Any,
    kind: str,
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
    recorder = app.recorder(manifest.id, manifest.salt, invoker=invoker)
    asked: dict[str, tuple[str, str]] = {}

    def remember(kind: str, call: str, payload: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """Results of live calls are kept for the next equal call of this replay."""
        if kind == "call.started":
            if payload.get("kind") != "llm":
                asked[call] = (full_name(payload), str(payload.get("digest")))
        elif call in asked and "answeredBy" not in (meta.get("metadata") or {}):
            invoker.keep(*asked[call], payload)

    def encode(kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> Row:
        if site is not None and kind in ("call.started", "call.finished"):
            remember(kind, site.call, payload, meta)
        return recorder.encode(kind, site, payload, meta)

    def compose(kind: str, site: Site, payload: bytes, meta: bytes) -> Row:
        if kind in ("call.started", "call.finished"):
            remember(kind, site.call, orjson.loads(payload), orjson.loads(meta))
        return recorder.compose(kind, site, payload, meta)

    recorder.scope.encode, recorder.scope.compose = encode, compose
    run = Run(recorder, manifest)
    run.input = wanted.given if wanted.given is not None else recording.input()
    args, kwargs = arguments_of(run.input)
    try:
        with run, using(app):
            run.output = call_entry(run.scope, function, args, kwargs)
    except (Exception, SystemExit) as error:
        run.error = error
    fresh = app.journal.manifest(run.id)
    return Explored(run, load_recording(app, fresh if fresh is not None else run.manifest), invoker)


def _schemas(recording: Recording) -> dict[str, Mapping[str, Any]]:
    """The JSON Schema of each tool's parameters, as the recorded requests or the run's manifest describe it."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, tool in (recorded_setup(recording).tools or {}).items():
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        for spelling in ("parameters", "inputSchema", "input_schema"):
            if isinstance(inner, Mapping) and isinstance(inner.get(spelling), Mapping):
                found[name] = inner[spelling]
    return found

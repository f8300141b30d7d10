"""Runs the current code on the answers of a recording, and says where it went another way (K4, L5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from antiphon._differ import diff_values
from antiphon._recording.recorder import dump
from antiphon._recording.run import Run, exit_code, run_error
from antiphon._replay.observe import DivergenceFound, Observer, Seen
from antiphon._replay.recording import Recording
from antiphon._replay.setup import Setup
from antiphon._replay.strict import StrictInvoker, VerifyInvoker
from antiphon._scope import Site
from antiphon.errors import Divergence, ReplayMiss
from antiphon.ops.app import Antiphon, using
from antiphon.ops.entry import arguments_of, call_entry
from antiphon.ops.sandbox import Sandbox, outside, sandboxed

QUIET_S = 10


class StrictResult:
    """What a strict re-execution found."""

    def __init__(self, observer: Observer, invoker: StrictInvoker, setup: Setup) -> None:
        self.observer = observer
        self.invoker = invoker
        self.setup = setup
        self.output: Any = None
        self.error: BaseException | None = None
        self.escapes: list[str] = []

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
    """Call *function* with the recorded input; every model, tool, clock and random answer comes from the recording."""
    recording.rewind()
    result, run = watched(app, recording, realtime=realtime, verify=verify, ask=ask)
    args, kwargs = arguments_of(recording.input())
    try:
        with run.attached(), using(app), sandboxed(sandbox) as escapes:
            result.escapes = escapes
            result.output = call_entry(run.scope, function, args, kwargs, stuck=_Patience(result))
    except SystemExit as leaving:
        result.error = leaving if exit_code(leaving) else None
    except Exception as error:
        result.error = error
    observer = result.observer
    observer.escaped(result.escapes)
    for missed in result.invoker.missed:  # what was refused tells, too, what the code asks for now
        if missed.kind == "llm":
            result.setup.saw_request({"request": missed.arguments})
    result.setup.graph = run.facts.get("graph_digest")
    if result.error is None:
        _compare_end(recording, observer, {"status": "completed", "output": result.output})
    elif not isinstance(result.error, Divergence):
        ended = run_error(result.error)
        if "recorded" in getattr(result.error, "data", {}):  # stands for an exception whose class is not at hand
            ended = {"class": ended["class"]}
        _compare_end(recording, observer, {"status": "failed", "error": ended})
    elif not observer.divergences:  # found on the way, such as a stream that is read on: nobody else has noted it
        place = len(recording.lanes.get("0", ()))
        seq = None if recording.last is None else recording.last.seq
        observer.add(DivergenceFound("error", "0", place, seq, "run.finished", note=result.error.message))
    observer.finish()
    return result


class _Patience:
    """Code that lost a task to a call without an answer may wait for that task for ever."""

    def __init__(self, result: StrictResult) -> None:
        self._result = result
        self._seen = -1
        self._quiet = 0

    def __call__(self) -> ReplayMiss | None:
        """Asked every second."""
        invoker = self._result.invoker
        if not invoker.missed:
            return None
        seen = invoker.hits + len(invoker.missed)
        self._quiet = self._quiet + 1 if seen == self._seen else 0
        self._seen = seen
        if self._quiet < QUIET_S:
            return None
        return ReplayMiss(
            f"The code makes no more calls since one had no answer, {QUIET_S} s ago, and does not end.",
            hint="It probably waits for a task that failed.",
        )


def watched(
    app: Antiphon,
    recording: Recording,
    *,
    realtime: bool = False,
    verify: bool = False,
    ask: Callable[[dict[str, Any]], Any] | None = None,
) -> tuple[StrictResult, Run]:
    """A run that the recording answers and is compared with, for whoever calls the code (see ``Run.attached``)."""
    redactor = app._redactor.with_salt(recording.manifest.salt)
    observer = Observer(recording, lambda value: orjson.loads(redactor.redact_bytes(dump(value))[0]))
    observer.untouched()
    if verify:
        invoker: StrictInvoker = VerifyInvoker(recording, observer, ask=ask, outside=outside, realtime=realtime)
    else:
        invoker = StrictInvoker(recording, observer, realtime=realtime)
    setup = Setup()

    def encode(kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> Any:
        if kind == "call.started" and payload.get("kind") == "llm":
            setup.saw_request(payload)
        elif kind == "prompt":
            setup.saw_prompt(payload)
        return Seen(kind, site, payload, meta)

    def compose(kind: str, site: Site, payload: bytes, meta: bytes) -> Any:
        return encode(kind, site, orjson.loads(payload), orjson.loads(meta))

    def see(rows: Sequence[Any]) -> None:
        observer.see(rows)

    async def see_async(rows: Sequence[Any]) -> None:
        observer.see(rows)

    recorder = app.recorder(
        recording.manifest.id, recording.manifest.salt, invoker=invoker, write=see, write_async=see_async
    )

    def present(arguments: Any, digest: str) -> tuple[Any, str, bool]:
        return (arguments, digest, False) if digest in recording.plain else recorder.present(arguments, digest)

    def shown(arguments: Any, digest: str, canonical: bytes | None = None) -> tuple[bytes, str, bool]:
        if digest in recording.plain:
            return dump(arguments), digest, False
        return recorder.shown(arguments, digest, canonical)

    recorder.scope.encode, recorder.scope.compose = encode, compose
    recorder.scope.present, recorder.scope.shown = present, shown
    entry = {"entry": recording.manifest.entry} if recording.manifest.entry is not None else {}
    recorded = recording.input()
    given = {} if recorded is None else {"input": recorded}
    observer.see((Seen("run.started", None, {"name": recording.manifest.name, **entry, **given}, {}),))
    return StrictResult(observer, invoker, setup), Run(recorder, recording.manifest)


def _compare_end(recording: Recording, observer: Observer, payload: dict[str, Any]) -> None:
    if recording.last is None:
        return
    recorded = recording.event(recording.last.seq).payload
    if len(payload.get("error", ())) == 1:
        known = {"class": (recorded.get("error") or {}).get("class", "")}
        recorded = {**recorded, "error": known}
    differences = diff_values(recorded, observer.presented(payload), limit=50)
    if differences:
        place = len(recording.lanes.get("0", ()))
        kind = "error" if payload["status"] != recorded.get("status") else "output"
        observer.add(DivergenceFound(kind, "0", place, recording.last.seq, "run.finished", tuple(differences)))

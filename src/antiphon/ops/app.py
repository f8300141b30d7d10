"""One object that holds store, gateways and recorder; the public functions use the current one."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack, overload

import msgspec
import orjson

from antiphon._gateway.ids import uuid7
from antiphon._gateway.owner import owner_token
from antiphon.config.load import load
from antiphon.config.model import Config
from antiphon.config.wiring import ConfigLike, resolve, take_up_payloads
from antiphon.contract.events import GIVEN, UNSERIALISABLE, Event, RunManifest, is_masked
from antiphon.errors import ConfigError, InvalidInput, NotFound
from antiphon.ops.costs import CostMeter
from antiphon.ops.entry import AGENT_MARK, GRACE_S, call_entry, check_arguments, load_entry, name_of
from antiphon.ops.inputs import ArgumentEncoding, arguments_again, arguments_of, by_name, is_arguments, written_input
from antiphon.ops.resources import Resources

if TYPE_CHECKING:  # reading runs needs no recorder
    from antiphon._recording.recorder import Recorder
    from antiphon._recording.run import Run
    from antiphon.ops.approvals import Desk

    class RecordedRun(Run, Awaitable[Run]):
        """What ``record`` returns for an ``async def``: the run, or an awaitable for it in a running event loop."""


_RUN_IS_SESSION = "session"
P = ParamSpec("P")
R = TypeVar("R")


class Antiphon(Resources):
    """Store, gateway and recorder of one configuration.

    >>> from antiphon.stores import MemoryStore
    >>> app = Antiphon(store=MemoryStore())
    >>> with app.run("greeting") as run:
    ...     run.finish("hello")
    >>> run.status
    'completed'
    """

    def approvals(self, actor: str, *, where: str = "Python") -> Desk:
        """Calls that await approval, as *actor* sees and decides them; *where* goes to the audit log."""
        from antiphon.ops.approvals import Desk

        return Desk(self, actor, where)

    # -- runs ----------------------------------------------------------------------------------------------------

    def run(
        self,
        name: str,
        *,
        input: Any = None,  # noqa: A002
        session: str | None = None,
        resume: str | None = None,
        entry: str | None = None,
        function: Callable[..., Any] | None = None,
        tags: Mapping[str, str] | None = None,
        llm_cache: bool | None = None,
        like: RunManifest | None = None,
    ) -> Run:
        """Open a run. With *resume* an interrupted run continues: its finished calls are answered from their records.

        With *llm_cache* model answers are cached, and equal requests are answered from the cache (default:
        configuration). A run that is recorded again *like* an earlier one keeps its key, so that equal values get equal
        pseudonyms.
        """
        from antiphon._recording.manifest import code_version, package_versions
        from antiphon._recording.run import Run

        take_up_payloads(self.config, lambda: self.blobs)
        if resume is not None:
            manifest = self._resumed(resume)
        else:
            manifest = RunManifest(
                id=uuid7(),
                name=name,
                status="running",
                started_at_ms=self.clock.now_ms(),
                tenant=self.tenant,
                workspace=self.workspace,
                session=session,
                entry=entry,
                code=code_version(function),
                packages=package_versions(),
                config_digest=hashlib.sha256(msgspec.json.encode(self.config)).hexdigest(),
                tags={"owner": owner_token(), _RUN_IS_SESSION: "run", **(tags or {})},
            )
        if like is not None:
            manifest = msgspec.structs.replace(manifest, seal=like.seal)
        recorder = self.recorder(manifest)
        if manifest.tags.get(_RUN_IS_SESSION) != "run":  # started by 0.1.0, whose records it must keep finding
            recorder.scope.place = ("default", "default", None)
        if self.config.record.llm_cache if llm_cache is None else llm_cache:
            recorder.scope.llm_cache = self._llm_cache(recorder)
        if resume is not None:
            self.restore_progress(recorder)
        if self.config.prices and self.config.loop.max_cost is not None:
            from antiphon._gateway.turns import Guard
            from antiphon.config.wiring import settings_of

            guard = Guard(settings_of(self.config).loop, self.clock.monotonic())
            CostMeter(recorder.scope, self.config.prices, recorder.scope.gateway_state.setdefault("loop", guard))
        if function is not None:  # learn passwords that only their parameter name reveals before anything is written
            sensitive = {
                name: value for name, value in by_name(function, input).items() if recorder.redactor.classifies(name)
            }
            recorder.redact_arguments_json(sensitive, "")
        run = Run(recorder, manifest, self._caller(manifest))
        run.input, kept = written_input(input)
        run.given = None if kept is None else kept.to_wire()
        return run

    def restore_progress(self, recorder: Recorder) -> None:
        """Give the code of an interrupted run the values it had drawn and the answers of its models."""
        from antiphon._recording.resumed import EarlierAttempt
        from antiphon._scope import EARLIER
        from antiphon.ops.runs import opener

        scope = recorder.scope
        opened = opener(self, recorder.key, recorder.redactor.pseudonyms)
        for event in self.events(scope.run_id):
            _check_known_again(opened(event), scope.run_id)  # what was found before is known from the start
        earlier = EarlierAttempt(self.events(scope.run_id), lambda event: opened(self.whole(event)), scope.llm_cache)
        scope.llm_cache = scope.gateway_state[EARLIER] = earlier

    def _llm_cache(self, recorder: Recorder) -> Any:
        from antiphon._recording.llm_cache import LlmCache

        return LlmCache(
            recorder.journal_for,
            recorder.redactor,
            tenant=self.tenant,
            workspace=self.workspace,
            ttl_ms=int(self.config.record.llm_cache_seconds * 1000),
            owner=owner_token(),
        )

    def _resumed(self, run_id: str) -> RunManifest:
        found = self.journal.manifest(run_id)
        if found is None or found.tenant != self.tenant:
            raise NotFound(f"There is no run {run_id} to resume.", hint="List the runs with: antiphon runs")
        return msgspec.structs.replace(
            found, status="running", finished_at_ms=None, tags={**found.tags, "owner": owner_token()}
        )

    def _caller(self, manifest: RunManifest) -> Callable[[str, Mapping[str, Any], str | None], Any]:
        from antiphon._gateway.turns import SessionState, TurnState

        session = SessionState(manifest.session or "default", "default")

        def call(tool: str, arguments: Mapping[str, Any], call_id: str | None) -> Any:
            gateway = self.gateway if self.gateway.has(tool) else self.async_gateway
            return gateway.turn_call(TurnState(session), tool, arguments, call_id)

        return call

    @overload
    def record(
        self, function: Callable[P, Coroutine[Any, Any, Any]], *args: P.args, **kwargs: P.kwargs
    ) -> RecordedRun: ...

    @overload
    def record(self, function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Run: ...

    def record(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run *function* as a recorded run. A coroutine function returns an awaitable inside an event loop.

        Elsewhere it gets its own event loop, and tasks that it leaves behind get a second to finish, as in a replay.
        """
        from antiphon._recording.manifest import entry_of

        given = {"args": list(args), **({"kwargs": kwargs} if kwargs else {})}
        run = self.run(name_of(function), input=given, entry=entry_of(function), function=function)
        if not inspect.iscoroutinefunction(inspect.unwrap(function)):
            with _noted(run), run, using(self):
                run.output = function(*args, **kwargs)
            return run

        async def recorded() -> Run:
            with _noted(run):
                async with run:
                    with using(self):
                        run.output = await function(*args, **kwargs)
            return run

        import asyncio

        async def settled() -> Run:
            try:
                return await recorded()
            finally:
                if run.status != "interrupted":
                    await run.scope.origin.settle(GRACE_S)
                await run._recorder.close()

        if asyncio._get_running_loop() is not None:
            return recorded()
        return asyncio.run(settled())


@contextmanager
def _noted(run: Run) -> Iterator[None]:
    """An exception that leaves a run carries the run's id."""
    try:
        yield
    except Exception as error:
        error.add_note(f"antiphon: recorded as run {run.id}")
        raise


# -- the current object ------------------------------------------------------------------------------------------

_current: ContextVar[Antiphon | None] = ContextVar("antiphon_app", default=None)
_default: dict[int, Antiphon] = {}
_ARTIFACTS = {
    "storage_backend": "backend",
    "r2_bucket_name": "bucket",
    "r2_endpoint_url": "endpoint_url",
    "r2_region": "region",
    "storage_path": "folder",
}
_CREDENTIALS = {
    "r2_access_key_id": "R2_ACCESS_KEY_ID",
    "r2_secret_access_key": "R2_SECRET_ACCESS_KEY",
    "r2_account_id": "R2_ACCOUNT_ID",
}


def current() -> Antiphon:
    """The object that the public functions use: the one of this context, else the process default."""
    app = _current.get()
    if app is None:
        pid = os.getpid()
        app = _default.get(pid)
        if app is None:
            app = _default[pid] = Antiphon()
    return app


@contextmanager
def using(app: Antiphon) -> Iterator[Antiphon]:
    """Make *app* current in this context."""
    token = _current.set(app)
    try:
        yield app
    finally:
        _current.reset(token)


def configure(config: ConfigLike = None, **document: Any) -> Antiphon:
    """Replace the process default. Takes a configuration, or ``.kurral`` keywords (``storage_backend=…``)."""
    app = _default[os.getpid()] = Antiphon(_with_keywords(config, document) if document else config)
    return app


def _with_keywords(base: ConfigLike, given: Mapping[str, Any]) -> Config:
    """The configuration with the keywords that users of ``.kurral`` files know (K7); credentials only go to this
    process's environment.
    """
    unknown = sorted(set(given) - set(_ARTIFACTS) - set(_CREDENTIALS))
    if unknown:
        known = ", ".join(sorted([*_ARTIFACTS, *_CREDENTIALS]))
        raise ConfigError(f"configure() does not know {', '.join(unknown)}.", hint=f"It knows: {known}.")
    said = {name: value for name, value in given.items() if value is not None}
    os.environ.update({_CREDENTIALS[name]: str(value) for name, value in said.items() if name in _CREDENTIALS})
    config = resolve(base).config
    section = {name: value for name, value in msgspec.to_builtins(config.artifacts).items() if value is not None}
    section |= {_ARTIFACTS[name]: value for name, value in said.items() if name in _ARTIFACTS}
    return msgspec.structs.replace(config, artifacts=load({"artifacts": section}, {}).config.artifacts)


@overload
def agent(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def agent(*, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def agent(function: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Mark an entry point that can be rerun: by ``antiphon run``, a replay, or over HTTP.

    >>> @agent
    ... def greet(who: str) -> str:
    ...     return f"hello {who}"
    >>> greet("ada")
    'hello ada'
    """

    def mark(found: Callable[..., Any]) -> Callable[..., Any]:
        setattr(found, AGENT_MARK, {"name": name or getattr(found, "__name__", "agent")})
        return found

    return mark if function is None else mark(function)


class RunOptions(TypedDict, total=False):
    """The keywords of :func:`run`: those of :meth:`Antiphon.run`."""

    input: Any
    session: str | None
    resume: str | None
    entry: str | None
    function: Callable[..., Any] | None
    tags: Mapping[str, str] | None
    llm_cache: bool | None


def run(name: str, **options: Unpack[RunOptions]) -> Run:
    """Open a run with the current object: ``with antiphon.run("triage") as run: …``.

    Keywords are *input*, *session*, *resume* (the id of an interrupted run, which continues), *entry*, *function*,
    *tags* and *llm_cache*.
    """
    return current().run(name, **options)


def current_run() -> Run:
    """The run this code is part of; raises outside a run."""
    from antiphon._recording.run import active_run

    found = active_run.get()
    if found is None:
        raise NotFound(
            "No run is open here.", hint="Open one: with antiphon.run(...), or start the agent with antiphon run."
        )
    return found


@overload
def record(function: Callable[P, Coroutine[Any, Any, Any]], *args: P.args, **kwargs: P.kwargs) -> RecordedRun: ...


@overload
def record(function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Run: ...


def record(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run *function* as a recorded run with the current object."""
    return current().record(function, *args, **kwargs)


def _check_known_again(event: Event, run: str) -> None:
    """Refuse to resume a run that would repeat a write: without its originals, its claim is not found."""
    if event.type != "call.started" or event.v < 2 or not is_masked(event):
        return
    if event.payload.get("kind") == "tool" and not event.meta.get("idempotent") and "callId" not in event.meta:
        raise InvalidInput(
            f"Run {run} cannot be resumed: it has called {event.payload.get('name')} with arguments that were masked "
            "and not kept, so the call would be made again. Nothing was called.",
            hint="Start a new run. Runs can be resumed with [redact] keep_sealed = true and a seal key.",
        )


def start(app: Antiphon, target: str, given: Any, *, resume: str | None = None) -> Run:
    """Run ``file.py:function`` with the input *given*. If the agent fails or is interrupted, the run has an ``error``.

    With *resume* an interrupted run continues with its recorded input; any other input is refused.
    """
    from antiphon._recording.manifest import entry_of
    from antiphon._recording.run import exit_code

    with using(app):
        function = load_entry(target)
        inner = inspect.unwrap(function)
        if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
            raise InvalidInput(
                f"{target} is a generator, which does nothing until somebody reads it.",
                hint="Name a function that reads it and returns a result.",
            )
        if resume is not None:
            given = _input_again(app, app._resumed(resume), given)
        args, kwargs = arguments_of(given)
        check_arguments(target, function, args, kwargs)
        run = app.run(
            name_of(function),
            input=given if given is None or is_arguments(given) else {"args": [given]},
            entry=entry_of(function) if inspect.isfunction(inner) else target,
            function=function,
            resume=resume,
        )
        try:
            with run:
                run.output = call_entry(run.scope, function, args, kwargs, returned=run.end)
        except SystemExit as leaving:
            run.error = leaving if exit_code(leaving) else None
        except BaseException as error:  # including cancellation and interrupts
            run.error = error
    return run


def _input_again(app: Antiphon, manifest: RunManifest, given: Any) -> Any:
    """The recorded input of a run that is resumed; with any other its code would request different effects."""
    from antiphon._recording.plain import dump
    from antiphon._recording.seals import Originals

    def plain(value: Any) -> bytes:
        return orjson.dumps(orjson.loads(dump(arguments_of(value))), option=orjson.OPT_SORT_KEYS)

    events = app.journal.events(manifest.id, limit=1)
    if not events:  # killed before its first event
        return given
    first, key = app.whole(events[0]), app.keys.key_of(manifest)
    if key is not None:
        first = Originals(key).unseal(first)
    recorded = first.payload.get("input")
    args, kwargs, lost = arguments_again(recorded, ArgumentEncoding.of(first.meta.get(GIVEN)))
    if lost and not is_masked(first):
        raise InvalidInput(
            f"Run {manifest.id} cannot be resumed: {' and '.join(lost)} cannot be restored exactly. "
            "Nothing was called.",
            hint="Start a new run. Only JSON, dataclasses, models, enums, times and paths can be restored.",
        )
    if GIVEN in first.meta:
        recorded = {"args": args, "kwargs": kwargs}
    if is_masked(first) or UNSERIALISABLE.encode() in plain(recorded):
        if given is None:
            raise InvalidInput(
                f"The recorded input of run {manifest.id} cannot be read back: it holds a secret whose original is not "
                "kept, or a value that has no JSON form. Nothing was called.",
                hint="Give the same input again with --input.",
            )
        return given
    if given is None:
        return recorded
    if recorded is None and manifest.entry is None:  # it was a code block, which has no arguments
        return given
    if plain(given) != plain(recorded):
        raise InvalidInput(
            f"Run {manifest.id} was recorded with another input. Nothing was called.",
            hint="Leave out --input to resume the run, or --resume to start a new one.",
        )
    return recorded


def note_exit(app: Antiphon, run: str, code: int) -> None:
    """Record that the program of *run* exited with a nonzero *code*: only its parent process learns that."""
    from antiphon._recording.run import EXIT_TAG, exit_error

    manifest = app.journal.manifest(run)
    if manifest is None or manifest.status == "interrupted":  # its store ended with the process, or a signal ended it
        return
    kept = msgspec.structs.replace(manifest, status="failed", tags={**manifest.tags, EXIT_TAG: str(code)})
    if manifest.status != "failed":  # an exception is recorded already
        recorder = app.recorder(manifest)
        row = recorder.encode("run.finished", None, {"status": "failed", "error": exit_error(code)}, {})
        last = app.journal.append(run, (row,))
        kept = msgspec.structs.replace(kept, events=last + 1, finished_at_ms=app.clock.now_ms())
    app.journal.update_run(kept)

"""An open run: what agent code uses while everything observable is recorded (K2, D19)."""

from __future__ import annotations

import hashlib
import inspect
import random as chance
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import orjson

from antiphon._recording import model, stdin
from antiphon._recording.boundary import error_payload
from antiphon._recording.plain import dump, exact_output
from antiphon._recording.recorder import Recorder
from antiphon._saga import Core, Saga
from antiphon._scope import Entered, RunScope
from antiphon.contract.events import CALLS_ONLY, GIVEN, TASKS, Event, RunManifest
from antiphon.errors import AntiphonError, InvalidInput
from antiphon.llm.request import config_of

active_run: ContextVar[Run | None] = ContextVar("antiphon_run", default=None)
"""The current run of this context."""

EXIT_CODE = "exit_code"
"""The error code of a run that ended with an exit code."""
EXIT_TAG = "exitCode"
"""The manifest tag for that exit code."""

AFTER_END_TAG = "afterEnd"
"""The tag for the number of calls after its end, from work that it had started."""
OPEN_TAG = "openWork"
"""The tag for the number of threads and tasks still running when it ended."""

Caller = Callable[[str, Mapping[str, Any], str | None], Any]


def _digest(scope: RunScope, payload: dict[str, Any]) -> str:
    """Distinguishes parallel lanes that begin with a prompt or an interaction; computed from redacted data."""
    data = dump(payload)
    shown, digest, masking = scope.present(payload, hashlib.sha256(data).hexdigest())
    return digest if masking is None else hashlib.sha256(dump(shown)).hexdigest()


def exit_code(error: BaseException | None) -> int | None:
    """The exit code that ``sys.exit`` requests; ``None`` for anything else that ends a run."""
    if not isinstance(error, SystemExit):
        return None
    return error.code if isinstance(error.code, int) else 0 if error.code is None else 1


def exit_error(code: int, words: str = "") -> dict[str, Any]:
    """The recorded error of a run that ended with an exit code."""
    message = f"The program ended with exit code {code}" + (f": {words}" if words else ".")
    return {"class": "builtins.SystemExit", "code": EXIT_CODE, "message": message}


def status_of(error: BaseException | None) -> Literal["completed", "failed", "interrupted"]:
    """The status of a run that ended with *error*: exit code 0 is no failure."""
    if error is None or exit_code(error) == 0:
        return "completed"
    return "failed" if isinstance(error, (Exception, SystemExit)) else "interrupted"


def run_error(error: BaseException) -> dict[str, Any]:
    """The error that ended a run, as it is recorded."""
    left = exit_code(error)
    if left is not None:
        code = error.code if isinstance(error, SystemExit) else None
        return exit_error(left, code if isinstance(code, str) else "")
    recorded = error_payload(error)
    code = getattr(error, "code", None)
    return {
        "class": recorded.get("class", ""),
        "code": code if isinstance(code, str) else recorded.get("code", ""),
        "message": str(error),
    }


class Interaction:
    """One exchange of the session: an input and its output."""

    def __init__(self, value: Any) -> None:
        self.input = value
        self.output: Any = None

    def finish(self, output: Any) -> None:
        """Set the output of this interaction."""
        self.output = output


class Run:
    """A recorded session. Use it as a context manager, in synchronous or asynchronous code.

    >>> with antiphon.run("triage") as run:          # doctest: +SKIP
    ...     at = run.now()
    ...     answer = run.llm(request, send)
    """

    def __init__(self, recorder: Recorder, manifest: RunManifest, caller: Caller | None = None) -> None:
        self._recorder = recorder
        self._manifest = manifest
        self._caller = caller
        self._token: Entered | None = None
        self._outer: Run | None = None
        """The run that was current before."""
        self.opened: list[str] = []
        """Runs that were opened inside this one: their calls are in their own logs."""
        self._ended = False
        self.output: Any = None
        self.input: Any = None
        self.given: dict[str, Any] | None = None
        """How the input's arguments are recorded if they are not JSON."""
        self.error: BaseException | None = None
        self.calls_only = False
        """Whether it holds only calls seen from outside the code that makes them."""
        self._facts: dict[str, Any] = {}

    # -- identity ------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self._manifest.id

    @property
    def name(self) -> str:
        return self._manifest.name

    @property
    def status(self) -> str:
        return self._manifest.status

    @property
    def manifest(self) -> RunManifest:
        return self._manifest

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the code declared about itself with :meth:`describe`."""
        return self._facts

    @property
    def scope(self) -> RunScope:
        return self._recorder.scope

    # -- life ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Record that the run has begun, without making it current: :meth:`end` ends it."""
        known = {"entry": self._manifest.entry, "input": self.input, CALLS_ONLY: self.calls_only or None}
        payload = {"name": self.name, **{name: value for name, value in known.items() if value is not None}}
        recorder = self._recorder
        self._manifest = recorder.clean_manifest(self._manifest)
        recorder.journal.open_run(self._manifest)
        meta = {} if self.given is None else {GIVEN: self.given}
        recorder.journal.append(self.id, (recorder.encode("run.started", None, payload, meta),))

    def __enter__(self) -> Run:
        self.begin()
        self._token, self._outer = self.scope.activate(), active_run.get()
        active_run.set(self)
        if self._outer is not None:
            self._outer.opened.append(self.id)
        stdin.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._token is not None:
            self.scope.deactivate(self._token)
            self._token = None
            if active_run.get() is self:  # no token: the context may be another one
                active_run.set(self._outer)
            stdin.end()
            if self._outer is not None:  # a result or exception that leaves this run may quote its secrets
                self._outer._recorder.learn_from(self._recorder)
        if not self._ended:
            self.end(self.output, error)

    def end(self, output: Any, error: BaseException | None) -> None:
        """Record how the run ended; calls of work that it left running are appended (D38)."""
        self._ended = True
        self.output, self.error = output, error
        origin = self.scope.origin
        origin.returned = True
        status = status_of(error)
        payload: dict[str, Any] = {"status": status}
        if error is None or status == "completed":
            payload["output"] = exact_output(self.output)
        else:
            payload["error"] = self._unquoted(run_error(error))
        recorder = self._recorder
        of_code = not self.calls_only  # else lanes and tasks are those of the observer
        lanes = ambiguous(self.scope.twins, self.events) if of_code else []
        rows = [recorder.encode("decision", None, found, {}) for found in lanes]
        rows.append(recorder.encode("run.finished", None, payload, {TASKS: origin.loose()} if of_code else {}))
        first = recorder.journal.append(self.id, rows)
        tags = {**self._manifest.tags, **self._facts.get("tags", {})}
        for name in (EXIT_TAG, AFTER_END_TAG, OPEN_TAG):  # of an earlier attempt
            tags.pop(name, None)
        if status == "failed" and isinstance(error, SystemExit):
            tags[EXIT_TAG] = str(exit_code(error))
        if going_on := len(origin.alive()):
            tags[OPEN_TAG] = str(going_on)
        facts = {**self._facts, "tags": tags}
        self._manifest = recorder.clean_manifest(
            msgspec.structs.replace(
                self._manifest,
                status=status,
                finished_at_ms=recorder.clock.now_ms(),
                events=first + len(rows),
                **facts,
            )
        )
        recorder.journal.update_run(self._manifest)
        recorder.after_end(self._late)

    def _late(self, calls: int) -> None:
        """Record in the manifest that calls came after the end, and how much work is still running."""
        tags = dict(self._manifest.tags)
        tags.pop(OPEN_TAG, None)
        if going_on := len(self.scope.origin.alive()):
            tags[OPEN_TAG] = str(going_on)
        if calls:
            tags[AFTER_END_TAG] = str(calls)
        self._manifest = msgspec.structs.replace(self._manifest, tags=tags)
        self._recorder.journal.update_run(self._manifest)

    @property
    def late_calls(self) -> int:
        """How many calls came after the end of the run, from work that it had started."""
        return int(self._manifest.tags.get(AFTER_END_TAG, 0))

    @contextmanager
    def attached(self) -> Iterator[Run]:
        """Make the run current without recording its beginning and end: for a replay that only observes."""
        token, outer = self.scope.activate(), active_run.set(self)
        stdin.begin()
        try:
            yield self
        finally:
            stdin.end()
            active_run.reset(outer)
            self.scope.deactivate(token)

    async def __aenter__(self) -> Run:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self.__exit__(kind, error, trace)
        finally:
            await self._recorder.close()

    def finish(self, output: Any) -> None:
        """Set the output of the run."""
        self.output = output

    # -- values that agent code draws ----------------------------------------------------------------------------

    def now(self) -> datetime:
        """The current time; a replay returns the recorded one."""
        return datetime.fromisoformat(stdin.draw(self.scope, "now", lambda: datetime.now(UTC).isoformat()))

    def random(self) -> float:
        """A number in [0, 1); a replay returns the recorded one."""
        return float(stdin.draw(self.scope, "random", chance.random))

    def uuid4(self) -> uuid.UUID:
        """A random id; a replay returns the recorded one."""
        return uuid.UUID(stdin.draw(self.scope, "uuid4", lambda: str(uuid.uuid4())))

    # -- what agent code declares --------------------------------------------------------------------------------

    def prompt(self, name: str, template: str, variables: Mapping[str, Any] | None = None) -> str:
        """Fill a template and record template, variables and text."""
        text = template.format(**variables) if variables else template
        payload = {"name": name, "template": template, "variables": dict(variables or {}), "text": text}
        self.note("prompt", payload)
        return text

    def _unquoted(self, error: dict[str, Any]) -> dict[str, Any]:
        return {**error, "message": self.scope.unquoted(str(error["message"]))}

    def note(self, kind: str, payload: dict[str, Any], meta: dict[str, Any] | None = None) -> None:
        """Record an event of *kind* at the current place."""
        scope = self.scope
        if scope.write is not None:
            site = scope.enter(kind, _digest(scope, payload))
            scope.write((scope.encode(kind, site, payload, meta or {}),))

    @contextmanager
    def interaction(self, value: Any) -> Iterator[Interaction]:
        """One of several exchanges in this session."""
        current = Interaction(value)
        self.note("interaction.started", {"input": value})
        try:
            yield current
        except BaseException as error:
            failure = {"class": type(error).__qualname__, "message": str(error)}
            self.note("interaction.finished", {"error": self._unquoted(failure)})
            raise
        self.note("interaction.finished", {"output": exact_output(current.output)})

    def describe(self, **facts: Any) -> None:
        """Facts for the manifest: ``llm_config``, ``tool_schemas``, ``graph_digest``, ``tags``."""
        allowed = {"llm_config", "tool_schemas", "graph_digest", "tags", "session"}
        unknown = set(facts) - allowed
        if unknown:
            raise AntiphonError(f"A run has no attribute {', '.join(sorted(unknown))}.")
        self._facts.update(facts)

    # -- sagas ---------------------------------------------------------------------------------------------------

    def saga(self, name: str, *, wait_s: float = 60.0) -> Saga:
        """Writes that are undone together if an exception leaves the block: ``with run.saga("trip"): …``.

        Each write is undone by the ``@tool.undo`` function of its tool, the last one first. Writes in flight are
        awaited for at most *wait_s* seconds.
        """
        if not str(name).strip():
            raise InvalidInput("A saga needs a name.", hint='Write: with run.saga("trip"): ...')
        return Saga(Core(self.scope, name, uuid.uuid4().hex, wait_s=wait_s))

    # -- calls ---------------------------------------------------------------------------------------------------

    def llm(self, request: Mapping[str, Any], send: Callable[[Any], Any], *, provider: str = "openai-chat") -> Any:
        """Ask a model: *send* is called with the request body, unless a replay answers.

        With a coroutine function the result is awaitable; a response that arrives in chunks stays a stream.
        """
        if "llm_config" not in self._facts:
            self._facts["llm_config"] = config_of(request, provider.partition("-")[0])
        if inspect.iscoroutinefunction(send) or inspect.isasyncgenfunction(send):
            return model.ask_async(self.scope, request, send, provider)
        return model.ask(self.scope, request, send, provider)

    def call(self, tool: str, arguments: Mapping[str, Any], call_id: str | None = None) -> Any:
        """Call a registered tool by name through the gateway."""
        if self._caller is None:
            raise AntiphonError("This run has no gateway.", hint="Open it with antiphon.run(...) or pass gateway=.")
        return self._caller(tool, arguments, call_id)

    # -- reading -------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """Everything recorded so far."""
        journal, found, start = self._recorder.journal, [], 0
        while batch := journal.events(self.id, start=start):
            found += batch
            start = batch[-1].seq + 1
        return found


_COMPARED = frozenset({"call.started", "call.finished", "call.chunk", "draw", "prompt", "interaction.finished"})


def ambiguous(twins: Mapping[str, int], events: Callable[[], Iterable[Event]]) -> list[dict[str, Any]]:
    """The payload of a ``decision`` event for each group of lanes whose outcomes differ."""
    if not twins:
        return []
    groups: dict[str, dict[str, dict[str, Any]]] = {path: {} for path in twins}
    for event in events():
        if event.type not in _COMPARED:
            continue
        for path, lanes in groups.items():
            if event.lane.startswith(path):
                number, tail = _split(event.lane[len(path) :])
                parts = lanes.setdefault(number, {})
                digest = parts.setdefault(tail, hashlib.sha256())
                digest.update(orjson.dumps([event.type, event.payload], option=orjson.OPT_SORT_KEYS))
    return [_decision(path, lanes) for path, lanes in groups.items() if _differ(lanes)]


def _split(path: str) -> tuple[str, str]:
    """The number of the lane, and the event's path below it."""
    digits = len(path) - len(path.lstrip("0123456789"))
    return path[:digits], path[digits:]


def _differ(lanes: Mapping[str, Mapping[str, Any]]) -> bool:
    seen = {tuple(sorted((tail, digest.digest()) for tail, digest in parts.items())) for parts in lanes.values()}
    return len(seen) > 1


def _decision(path: str, lanes: Iterable[str]) -> dict[str, Any]:
    names = [f"{path}{number}" for number in sorted(lanes, key=int)]
    return {"what": "ambiguous", "detail": {"lanes": names, "hint": "name them with antiphon.branch(...)"}}

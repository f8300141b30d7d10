"""The proxy's runs: named by clients, and recorded or answered from a recording."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakValueDictionary

from antiphon._recording.run import Run
from antiphon._replay.by_content import ByContent
from antiphon._replay.recording import RecordedCall, Recording
from antiphon._replay.strict import StrictInvoker
from antiphon._scope import RunScope
from antiphon.adapters._mcp import is_notification, timed
from antiphon.contract.events import RunManifest
from antiphon.decide.effects import block_message, reviewed_as
from antiphon.errors import AntiphonError, InvalidInput, NotFound, ReplayBlocked
from antiphon.ops import side_effects
from antiphon.ops.app import Antiphon
from antiphon.ops.execution import watched
from antiphon.ops.runs import all_runs, find_run, learn_values, load_recording
from antiphon.ports import Answer, Invocation
from antiphon.proxy.clients import Refused
from antiphon.proxy.costs import Estimates
from antiphon.proxy.upstreams import NAME

log: logging.Logger = logging.getLogger("antiphon.proxy")

Mode = Literal["record", "replay", "record-new", "live"]
UNNAMED = "proxy"
"""The run of requests that name none."""
_MAX_RUNS = 1000
_MAX_LISTED = 100


def run_name(text: str) -> str:
    """*text* if it is a valid run name."""
    if not NAME.fullmatch(text):
        raise InvalidInput("The name of a run must be 1 to 128 ASCII letters, digits and . _ ~ -", path="Antiphon-Run")
    return text


class AnswerOrigin:
    """Where an answer came from, ``live`` or ``recording``, and the notices recorded with it."""

    def __init__(self) -> None:
        self.source: str = "live"
        self.notifications: list[tuple[Any, float]] = []
        """Messages that preceded the answer, each with the pause before it in ms."""
        self.response: Any = None
        """The response of an MCP server, if it was no answer or had another status than 200."""

    def set_recorded(self, answer: Answer) -> None:
        """Note that *answer* came from the recording."""
        self.source = "recording"
        self.notifications = timed(answer)
        if self.notifications and not is_notification(self.notifications[-1][0]):
            self.response = self.notifications[-1][0]


answer_origin: ContextVar[AnswerOrigin | None] = ContextVar("antiphon_proxy_answer_origin", default=None)
"""Of the request handled in this context."""


def _note_origin(answer: Answer) -> Answer:
    origin = answer_origin.get()
    if origin is not None:
        origin.set_recorded(answer)
    return answer


def _is_given() -> bool:
    """Whether a recording answers the current request."""
    origin = answer_origin.get()
    return origin is not None and origin.source == "recording"


class OriginNotingInvoker(StrictInvoker):
    """Answers from the recording only, and notes that it did."""

    def _answer(self, call: Invocation, found: RecordedCall) -> Answer:
        return _note_origin(super()._answer(call, found))


class RecordedFirst:
    """Answers from the recording if it can; other calls go upstream, except for tools that *reviewed* blocks (K6).

    A recorded call without an outcome cannot answer.
    """

    def __init__(self, recording: Recording, *, realtime: bool, reviewed: Mapping[str, bool]) -> None:
        self._recording = recording
        self._realtime = realtime
        self._reviewed = reviewed
        self._calls = ByContent(recording, finished=True)
        self.new: list[str] = []
        self.blocked: list[str] = []

    def known_request(self, provider: str, body: Any) -> Mapping[str, Any] | None:
        return self._recording.known_request(provider, body)

    def answer_tool(self, call: Invocation) -> Answer | None:
        found = self._calls.take(call)
        if found is not None:
            return _note_origin(self._recording.answer(found, realtime=self._realtime))
        blocked = call.kind != "llm" and reviewed_as(call.name, self._reviewed) is False
        listed = self.blocked if blocked else self.new
        if len(listed) < _MAX_LISTED:
            listed.append(f"{call.kind} {call.name}")
        if not blocked:
            return None
        text = f"{block_message(call.name)}: side_effects.yaml says false. It was not called."
        if call.kind != "tool":  # a plain message: we cannot make up its result
            raise ReplayBlocked(text)
        return Answer("error", error={"code": ReplayBlocked.code, "message": text}, source="blocked")

    async def answer(self, call: Invocation) -> Answer | None:
        return self.answer_tool(call)

    def draw(self, what: str, site: Any, fresh: Callable[[], Any]) -> Any:
        return fresh()


class CallCounter:
    """Counts the calls recorded in a run."""

    def __init__(self, scope: RunScope) -> None:
        self.calls: int = 0
        scope.encode, scope.compose = self._counting(scope.encode), self._counting(scope.compose)

    def _counting(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def counted(kind: str, *rest: Any) -> Any:
            self.calls += kind == "call.started"
            return write(kind, *rest)

        return counted


@dataclass(eq=False, repr=False)
class OpenRun:
    """An open run that records or answers requests."""

    name: str
    mode: Mode
    run: Run
    recording: Recording | None = None
    calls: ByContent | None = None
    invoker: RecordedFirst | None = None
    estimates: Estimates | None = None
    """Set if the cost of runs is limited."""
    requests: int = 0
    missed: int = 0
    misses: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._written = CallCounter(self.run.scope)

    @property
    def cost(self) -> float:
        """The cost of its calls so far, or 0 if cost is not tracked."""
        guard = self.scope.gateway_state.get("loop")
        return 0.0 if guard is None else float(guard.loop.cost)

    @property
    def scope(self) -> RunScope:
        return self.run.scope

    def note_miss(self, error: AntiphonError) -> None:
        """Note a request that the recording cannot answer."""
        self.missed += 1
        log.warning("run %s: %s", self.name, error.message)
        if len(self.misses) < _MAX_LISTED:
            divergence = error.data.get("divergence")
            self.misses.append(divergence if isinstance(divergence, dict) else {"message": error.message})

    def report(self) -> dict[str, Any]:
        """A report on the requests so far."""
        found: dict[str, Any] = {
            "name": self.name,
            "run": self.run.id,
            "mode": self.mode,
            "requests": self.requests,
            "answered": 0 if self.recording is None else self.recording.answered,
        }
        if self.mode == "replay":
            left = 0 if self.calls is None else len(self.calls.unasked())
            found |= {"missed": self.missed, "misses": self.misses, "notAsked": left}
            found["equal"] = not self.missed and not left
        else:
            found["recorded"] = self._written.calls - found["answered"]
            if self.cost:
                found["cost"] = self.cost
            if self.estimates is not None and self.estimates.answers:
                found["estimated"] = self.estimates.answers
        if self.invoker is not None:
            assert self.recording is not None
            found |= {"source": self.recording.manifest.id, "new": self.invoker.new, "blocked": self.invoker.blocked}
        return found

    def end_streams(self) -> None:
        """Record the end of abandoned streams."""
        for end in tuple(self.scope.streams.values()):
            with contextlib.suppress(AntiphonError):
                end()

    def end(self) -> None:
        """Record the end of the run; requests still in flight are recorded after it."""
        if self.mode != "replay":
            self.run.end(None, None)


class Runs:
    """The open runs of a proxy, by client and name."""

    def __init__(self, app: Antiphon, mode: Mode, *, realtime: bool = False) -> None:
        self._app = app
        self.mode = mode
        self._realtime = realtime
        self._open: dict[tuple[str, str], OpenRun] = {}
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """Held while a run is opened."""

    def get(self, client: str, name: str) -> OpenRun | None:
        """The run, if it is open."""
        return self._open.get((client, name))

    async def open(self, client: str, name: str | None) -> OpenRun:
        """The run of that name, opened on its first request."""
        if name is None and self.mode == "replay":
            raise InvalidInput(
                "A replay needs the name of a run.",
                hint="Name it in the base URL (/run/NAME/openai/v1) or in the header Antiphon-Run.",
                path="Antiphon-Run",
            )
        place = (client, name or UNNAMED)
        found = self._open.get(place)
        if found is not None:
            return found
        if len(self._open) >= _MAX_RUNS:
            raise InvalidInput(f"{_MAX_RUNS} runs are open.", hint="End some: DELETE /run/NAME")
        lock = self._locks.setdefault(place, asyncio.Lock())
        async with lock:
            found = self._open.get(place)
            if found is None:
                found = self._open[place] = await _in_thread(self._begin, place[1])
        return found

    def check_cost(self, run: OpenRun, model: str) -> None:
        """Refuse a model call once the run has reached ``[loop] max_cost``, computed from ``[prices]``."""
        most = self._app.config.loop.max_cost
        if most is None or run.mode == "replay":
            return
        if model not in self._app.config.prices:
            raise InvalidInput(
                f"The cost of runs is limited, and the model {model!r} has no price.",
                hint='Add [prices."MODEL"] input = …, output = … to antiphon.toml.',
            )
        if run.cost >= most:
            text = f"The run {run.name} has cost {run.cost:g}; it may cost {most:g} ([loop] max_cost)."
            raise Refused(429, "cost_limit", text)

    async def end(self, client: str, name: str) -> dict[str, Any]:
        """End the run; the next request with that name opens a new one."""
        found = self._open.pop((client, name), None)
        if found is None:
            raise NotFound(f"No run {name!r} is open here.")
        await _in_thread(found.end)
        await found.run._recorder.close()
        return found.report()

    async def end_all(self) -> list[dict[str, Any]]:
        """End every run on shutdown, when no clients are left."""
        for found in tuple(self._open.values()):
            await _in_thread(found.end_streams)
        return [await self.end(*place) for place in tuple(self._open)]

    def _begin(self, name: str) -> OpenRun:
        app, mode = self._app, self.mode
        if mode == "replay":
            replayed = load_recording(app, self._recorded(name))
            calls = ByContent(replayed)
            _, run = watched(app, replayed, realtime=self._realtime, calls=calls, answering=OriginNotingInvoker)
            return OpenRun(name, mode, run, replayed, calls)
        earlier: RunManifest | None = None
        if mode == "record-new":
            with contextlib.suppress(NotFound):
                earlier = self._recorded(name)
            name = name if earlier is None else earlier.name
        run = app.run(name, like=earlier, tags={"via": "proxy"})
        run.calls_only = True
        invoker: RecordedFirst | None = None
        recording = None if earlier is None else load_recording(app, earlier)
        if recording is not None:
            learn_values(app, recording.manifest, run._recorder.redactor.pseudonyms)
            reviewed = _reviewed(recording.manifest.entry)
            run.scope.invoker = invoker = RecordedFirst(recording, realtime=self._realtime, reviewed=reviewed)
        opened = OpenRun(name, mode, run, recording, invoker=invoker)
        if app.config.prices and app.config.loop.max_cost is not None:
            opened.estimates = Estimates(run, _is_given)
        run.begin()
        return opened

    def _recorded(self, name: str) -> RunManifest:
        """The newest recorded run with that name, or the run with that id."""
        for found in all_runs(self._app, name=name):
            if found.source_run is None:
                return found
        return find_run(self._app, name)


def _reviewed(entry: str | None) -> Mapping[str, bool]:
    """The reviewed side effects; a file that has not been reviewed blocks nothing and logs a warning."""
    known = side_effects.read(side_effects.file_of(entry))
    if known is not None and not known.done:
        log.warning("%s is not reviewed (done: false): record-new blocks no tool", known.path)
    return known.tools if known is not None and known.done else {}


async def _in_thread(work: Callable[..., Any], *args: Any) -> Any:
    """Run blocking store work in a thread, outside of any run."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: Context().run(work, *args))

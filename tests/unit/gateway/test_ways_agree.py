"""However a call is made, it leaves the same behind: decorated function, ``turn.call``, ``execute``, calls for a key
(``once``, ``turn.call(key=)``), the guard of adapters; in both faces. HTTP is compared in
``tests/integration/server/test_calls_agree.py``.

The faces are compared exactly: results, claim records, run events, breakers, retry budget, metrics, log lines, what
listeners and hooks are told; only generated ids are numbered instead. The ways are compared where their semantics are
equal. They differ by design in this:

- A decorated function returns the result or raises; ``turn.call`` and ``execute`` return an envelope. A denied call is
  a ``ToolDenied``, except for ``execute``, whose envelope says ``denied``. Where a record answers whose result could
  not be kept, a function raises ``ResultNotKept``, and an envelope says so in its metadata.
- ``execute`` names its own identity (call id, else request id) and its retry budget; in a run, calls without an id are
  their place in it. So identities are not compared between ways, and the budget asked for is the tool's own.
- Where the tool declares no ``reuse``, an envelope reuses within the session unless the tool writes; the others within
  the turn. So tools declare one here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import Context
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from antiphon._drive import drive
from antiphon._gateway.gateway import AsyncGateway, Gateway
from antiphon._gateway.hooks import HookCall
from antiphon._gateway.outcome import Outcome
from antiphon._gateway.plan import Dependencies
from antiphon._gateway.report import Reporter
from antiphon._gateway.settings import Settings
from antiphon._recording.recorder import Recorder
from antiphon._recording.seals import RunKey
from antiphon.adapters._calls import CallIdentity, GuardedTools, ToolAnswer
from antiphon.contract.result import ToolDenied, ToolResultEnvelope
from antiphon.contract.spec import BreakerPolicy, RetryPolicy, ToolSpec
from antiphon.decide.classify import classify
from antiphon.decide.loop import LoopPolicy
from antiphon.errors import AntiphonError, ResultNotKept, ToolDeniedError
from antiphon.redact import Redactor, Rules
from antiphon.stores import MemoryStore, SQLiteStore
from antiphon.telemetry.logs import JsonLogListener
from tests.unit.gateway.kit import Ears, HttpError, ManualClock, Script, Tally, envelope

Way = Literal[
    "function", "turn", "execute", "once", "turn with key", "adapter", "execute for adapter", "execute apart", "http"
]
WAYS: tuple[Way, ...] = ("function", "turn", "execute")
KEYED: tuple[Way, ...] = ("once", "turn with key")
GUARDED: tuple[Way, ...] = ("adapter", "execute for adapter")
"""An adapter puts the model's message before the call id, and names no actor."""
APART: tuple[Way, ...] = ("execute apart", "http")
REDACTOR = Redactor(Rules(), salt="00" * 16)
LOGGER = logging.getLogger("antiphon.test.ways")
LOGGER.propagate = False
NOT_KEPT = "a result that was not kept"


Host = Callable[[AsyncGateway], AbstractAsyncContextManager[Any]]


class Opaque:
    """A result that cannot be kept."""

    def __eq__(self, other: object) -> bool:
        return type(other) is Opaque

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "Opaque()"


class HookError(Exception):
    """A before-hook went wrong."""


# -- what is drawn -------------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """One call of the sequence."""

    to: str
    call_id: str | None
    wait_s: float
    """Before it."""
    new_turn: bool


@dataclass(frozen=True)
class Setup:
    """A tool, a configuration, and calls."""

    spec: dict[str, Any]
    settings: dict[str, Any]
    results: tuple[Any, ...]
    calls: tuple[Asked, ...]
    hook: Literal["", "silent", "denies", "fails", "fails after"] = ""
    listens: bool = False
    logs: int = logging.CRITICAL
    run: Literal["", "same store", "another store"] = ""


RESULTS = st.one_of(
    st.sampled_from(["sent", 7, None, True, {"a": [1, 2]}, b"bytes", "sk-proj-" + "a1B2c3D4" * 6]),
    st.just(Opaque()),
    st.sampled_from([503, 500, 429, 400, 404]).map(HttpError),
    st.sampled_from([ConnectionRefusedError(111, "refused"), TimeoutError("no answer"), KeyError("a mistake")]),
)
CALLS = st.builds(
    Asked,
    st.sampled_from(["ada", "ada", "bob"]),
    st.none() | st.sampled_from(["c1", "c2"]),
    st.sampled_from([0.0, 0.0, 0.1, 1.5, 70.0]),
    st.sampled_from([False, False, True]),
)
LOOP = st.sampled_from([Asked("ada", None, 0.0, new_turn=True), Asked("ada", "c1", 0.0, new_turn=False)])
BREAKERS = st.none() | st.builds(
    BreakerPolicy,
    consecutive=st.sampled_from([1, 2]),
    cooldown_ms=st.sampled_from([1_000, 60_000]),
    close_after=st.sampled_from([1, 2]),
    forced_open=st.sampled_from([False, False, False, True]),
)
SPECS = st.fixed_dictionaries(
    {
        "idempotent": st.booleans(),
        "effect": st.sampled_from([None, "read", "write"]),
        "reuse": st.sampled_from(["never", "turn", "session", 60.0]),
        "retry": st.builds(RetryPolicy, max_attempts=st.sampled_from([1, 2, 3])),
        "breaker": BREAKERS,
        "poll": st.sampled_from([False, False, True]),
        "cost": st.sampled_from([0.0, 0.0, 1.0]),
        "dependency": st.none() | st.just("mail"),
    }
).filter(lambda spec: spec["idempotent"] or spec["reuse"] in ("never", "turn"))
LOOPS = st.just(LoopPolicy()) | st.builds(
    LoopPolicy,
    enabled=st.booleans(),
    note_after=st.just(2),
    block_after=st.just(3),
    note_rounds=st.just(2),
    block_rounds=st.just(3),
    end_after_blocks=st.just(2),
    max_calls=st.sampled_from([None, 5]),
    max_cost=st.sampled_from([None, 3.0]),
)
SETTINGS = st.fixed_dictionaries(
    {
        "shadow": st.sampled_from([False, False, False, True]),
        "enabled": st.sampled_from([True, True, True, False]),
        "open_mode": st.sampled_from([True, True, False]),
        "derive_keys": st.sampled_from([True, True, True, False]),
        "loop": LOOPS,
    }
)
SETUPS = st.builds(
    Setup,
    spec=SPECS,
    settings=SETTINGS,
    results=st.lists(RESULTS, min_size=1, max_size=5).map(tuple),
    calls=(st.lists(CALLS, min_size=1, max_size=8) | st.lists(LOOP, min_size=4, max_size=9)).map(tuple),
    hook=st.sampled_from(["", "", "", "silent", "denies", "fails", "fails after"]),
    listens=st.booleans(),
    logs=st.sampled_from([logging.CRITICAL, logging.INFO, logging.DEBUG]),
    run=st.sampled_from(["", "", "same store", "another store"]),
)


# -- what is seen --------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """Everything that calls leave behind."""

    results: list[Any] = field(default_factory=list)
    dispatched: list[Any] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    breakers: list[Any] = field(default_factory=list)
    saved_breakers: list[Any] = field(default_factory=list)
    budget: float = 0.0
    metrics: dict[Any, int] = field(default_factory=dict)
    heard: list[Any] = field(default_factory=list)
    hooks: list[Any] = field(default_factory=list)
    lines: list[Any] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)


class Lines(logging.Handler):
    """Remembers what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(record.getMessage()))


@contextmanager
def logging_at(level: int) -> Iterator[Lines]:
    lines = Lines()
    LOGGER.addHandler(lines)
    LOGGER.setLevel(level)
    try:
        yield lines
    finally:
        LOGGER.removeHandler(lines)


class Scene:
    """One gateway in one setup."""

    def __init__(self, setup: Setup, store: Any, clock: ManualClock, *, loop: bool) -> None:
        self.setup = setup
        self.clock = clock
        self.store = store
        self.seen = Seen()
        self.ears, self.tally = Ears(), Tally()
        log = JsonLogListener(REDACTOR, logger=LOGGER.name, now_ms=clock.now_ms)
        listeners: tuple[Any, ...] = (log, self.ears) if setup.listens else (log,)
        dependencies = Dependencies(
            store=store,
            clock=clock,
            settings=Settings(**setup.settings),
            reporter=Reporter(self.tally, listeners),
            renews=False,
        )
        self.gateway: Any = (AsyncGateway if loop else Gateway)(dependencies)
        self.script = Script(*map(_raised_anew, setup.results))
        self.spec = ToolSpec(name="send", **setup.spec)

        def send(to: str) -> Any:
            return self.script(to=to)

        async def send_async(to: str) -> Any:
            return self.script(to=to)

        self.function: Any = self.gateway.register(send_async if loop else send, self.spec)
        self.guarded = GuardedTools({"send": self.spec}, self.gateway)
        self.loop = loop
        self.client: Any = None
        """Of a host that has this gateway, for calls over HTTP."""
        if setup.hook:
            self.gateway.before(self._before)
            self.gateway.after(self._after)

    def _before(self, call: HookCall) -> None:
        self.seen.hooks.append(call)
        if self.setup.hook == "denies" and call.params["to"] == "bob":
            raise ToolDeniedError("not for bob")
        if self.setup.hook == "fails" and call.params["to"] == "bob":
            raise HookError("the hook is broken")

    def _after(self, call: HookCall, outcome: Outcome) -> None:
        self.seen.hooks.append((call, outcome.status, outcome.code, outcome.from_cache, outcome.attempts))
        if self.setup.hook == "fails after":
            raise HookError("the hook is broken")

    async def play(self, way: Way) -> None:
        session = self.gateway.session("s1", actor="a1")
        with session, self._run():
            turn = session.turn()
            for asked in self.setup.calls:
                self.clock.advance(asked.wait_s)
                if asked.new_turn:
                    turn = session.turn()
                with turn:
                    self.seen.results.append(await self._call(way, turn, asked))

    async def _call(self, way: Way, turn: Any, asked: Asked) -> Any:
        try:
            if way in APART:  # as of another process: no turn, no session, no run
                apart = Context()
                if self.loop:
                    return await asyncio.create_task(self._ask(way, asked), context=apart)
                return apart.run(self.gateway.execute, self._envelope(asked))
            if way == "function":
                found = self.function(asked.to)
            elif way == "once":
                found = self.function.once(asked.to)(asked.to)
            elif way == "adapter":
                found = self._adapted(asked)
            elif way == "turn":
                found = turn.call("send", {"to": asked.to}, asked.call_id)
            elif way == "turn with key":
                found = turn.call("send", {"to": asked.to}, key=asked.to)
            elif way == "execute for adapter":
                found = self.gateway.execute(self._envelope(asked, call_id=f"m1:{asked.call_id}", actor="default"))
            else:
                found = self.gateway.execute(self._envelope(asked))
            return await found if isawaitable(found) else found
        except Exception as error:
            return error

    async def _ask(self, way: Way, asked: Asked) -> Any:
        if way == "execute apart":
            return await self.gateway.execute(self._envelope(asked))
        answer = await self.client.post("/v1/calls", json=self._envelope(asked))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def _adapted(self, asked: Asked) -> Any:
        place = CallIdentity("s1", asked.call_id, message="m1")
        if self.loop:
            return self.guarded.call_async(self.spec, {"to": asked.to}, place, _never)
        return self.guarded.call(self.spec, {"to": asked.to}, place, _never)

    def _envelope(self, asked: Asked, **named: str) -> dict[str, Any]:
        retry = self.setup.spec["retry"]
        given: dict[str, Any] = {"call_id": asked.call_id, **named}
        limits = {"attempts": retry.max_attempts, "elapsed_ms": retry.max_elapsed_ms}
        return envelope(params={"to": asked.to}, **given, **limits)

    @contextmanager
    def _run(self) -> Iterator[None]:
        if not self.setup.run:
            yield
            return
        store = self.store if self.setup.run == "same store" else MemoryStore(clock=self.clock)
        journal = store.open_sync()
        recorder = Recorder(
            "run-1",
            store=store,
            journal=journal,
            clock=self.clock,
            redactor=REDACTOR,
            key=RunKey("run-1", b"k" * 32, keeps=False),
            blobs=lambda: None,
            tenant="default",
        )
        token = recorder.scope.activate()
        try:
            yield
        finally:
            recorder.scope.deactivate(token)
            self.seen.events = [_without_sum(msgspec.to_builtins(event)) for event in journal.events("run-1")]

    def look(self) -> Seen:
        """What is left when all calls are over."""
        seen, plans, now = self.seen, self.gateway._plans, self.clock.monotonic()
        journal = self.store.open_sync()
        seen.dispatched = self.script.calls
        seen.records = [record.to_wire() for record in journal.list(tenant="default", limit=1000)]
        seen.saved_breakers = sorted(
            row._replace(key=row.key.partition("#")[0]) for row in journal.load_breakers("default")
        )
        seen.breakers = [
            (name, breaker.export(now), len(breaker._closed.ring), len(breaker._closed.fails))
            for registry in (plans.breakers, plans.shadow_breakers)
            for name, breaker in sorted(registry.items())
        ]
        seen.budget = plans.budget(plans.tools["send"]).tokens(now)
        seen.metrics = self.tally.counts
        seen.heard = self.ears.heard
        seen.slept = self.clock.slept
        assert not plans.leases._held
        return seen


def _never(params: dict[str, Any]) -> Any:
    raise AssertionError("the tool is registered already")


def _without_sum(event: dict[str, Any]) -> dict[str, Any]:
    """The check sum is one of the request id, too."""
    event["meta"].pop("sum", None)
    return event


@contextmanager
def store_on(clock: ManualClock, *, sqlite: bool) -> Iterator[Any]:
    if not sqlite:
        yield MemoryStore(clock=clock)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield SQLiteStore(Path(folder) / "a.db", "NORMAL", clock=clock)


def observe(setup: Setup, way: Way, *, loop: bool, sqlite: bool, host: Host | None = None) -> Seen:
    """Play *setup* on a new store; over HTTP with the gateway in a *host*."""
    clock = ManualClock()
    with store_on(clock, sqlite=sqlite) as store, logging_at(setup.logs) as lines:
        scene = Scene(setup, store, clock, loop=loop)
        if loop:

            async def play() -> None:
                async with contextlib.AsyncExitStack() as stack:
                    if host is not None:
                        scene.client = await stack.enter_async_context(host(scene.gateway))
                    await scene.play(way)
                    await scene.gateway.close()

            asyncio.run(play())
        else:
            drive(scene.play(way))
            scene.gateway.close()
        scene.seen.lines = lines.lines
        return scene.look()


# -- what is compared ----------------------------------------------------------------------------------------------

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|request-\d+")


def plain(value: Any) -> Any:
    """As data that can be compared; ids by the order in which they appear."""
    if isinstance(value, Exception):
        return (type(value).__name__, str(value), getattr(value, "__notes__", []))
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


def numbered(seen: Seen) -> str:
    """All of it, as text in which generated ids are numbers."""
    known: dict[str, str] = {}
    text = "\n".join(f"{name}: {plain(getattr(seen, name))!r}" for name in seen.__dataclass_fields__)
    return UUID.sub(lambda found: known.setdefault(found[0], f"<{len(known)}>"), text)


DIFFER = {"requestId", "request_id", "identity", "owner", "toolCallId", "callId", "call_id", "tool_call_id"}
"""What another way names differently."""


def without_ids(value: Any) -> Any:
    if isinstance(value, HookCall):
        return without_ids(value._asdict())
    if isinstance(value, dict):
        return {name: without_ids(inner) for name, inner in value.items() if name not in DIFFER}
    if isinstance(value, (list, tuple)):
        return [without_ids(inner) for inner in value]
    return UUID.sub("<id>", value) if isinstance(value, str) else value


def _raised_anew(step: Any) -> Any:
    """An exception as one of its own for each call: notes are added to it."""
    if not isinstance(step, Exception):
        return step

    def fail(**params: Any) -> Any:
        anew = type(step).__new__(type(step), *step.args)  # distributed makes copy.copy() share what is in __dict__
        anew.__dict__.update(step.__dict__)
        raise anew

    return fail


def said(result: Any, spec: ToolSpec) -> tuple[str, Any]:
    """A result, or the code of a failure, whichever way it came."""
    match result:
        case ToolAnswer():
            return ("ok", result.value) if result.ok else ("failed", result.code)
        case ToolDenied():
            return "failed", "denied"
        case ToolResultEnvelope() if not result.ok:
            return "failed", result.code
        case ToolResultEnvelope():
            metadata = {} if result.output is None else result.output.metadata or {}
            kept = not (result.from_cache and "payload" in metadata)
            return "ok", result.content if kept else NOT_KEPT
        case ResultNotKept():
            return "ok", NOT_KEPT
        case AntiphonError():
            return "failed", result.code
        case HookError():
            return "failed", "hook_failed"
        case Exception():
            notes = getattr(result, "__notes__", ())  # an adapter notes the code alone
            unknown = any("not known whether" in note or note.endswith(": outcome_unknown") for note in notes)
            return "failed", "outcome_unknown" if unknown else classify(result, spec).code
    return "ok", result


def left_behind(seen: Seen) -> dict[str, Any]:
    """What is the same for all ways."""
    return {name: without_ids(getattr(seen, name)) for name in seen.__dataclass_fields__ if name != "results"}


def check_ways(setup: Setup, ways: Sequence[Way], *, loop: bool, sqlite: bool) -> None:
    spec = ToolSpec(name="send", **setup.spec)
    first, *others = (observe(setup, way, loop=loop, sqlite=sqlite) for way in ways)
    for way, other in zip(ways[1:], others, strict=True):
        results = [[said(result, spec) for result in seen.results] for seen in (first, other)]
        assert results[0] == results[1], (ways[0], way)
        mine, theirs = left_behind(first), left_behind(other)
        for what in mine:
            assert mine[what] == theirs[what], (what, ways[0], way)


def nameless(setup: Setup) -> Setup:
    """The same calls without call ids, which a function does not have."""
    return replace(setup, calls=tuple(asked._replace(call_id=None) for asked in setup.calls))


def check_faces(setup: Setup, way: Way, *, sqlite: bool) -> None:
    threads, loop = (observe(setup, way, loop=loop, sqlite=sqlite) for loop in (False, True))
    assert numbered(threads) == numbered(loop)


@settings(max_examples=120, deadline=None)
@given(SETUPS, st.sampled_from(WAYS))
def test_the_faces_agree(setup: Setup, way: Way) -> None:
    check_faces(setup, way, sqlite=False)


@settings(max_examples=20, deadline=None)
@given(SETUPS, st.sampled_from(WAYS))
def test_the_faces_agree_on_sqlite(setup: Setup, way: Way) -> None:
    check_faces(setup, way, sqlite=True)


@settings(max_examples=120, deadline=None)
@given(SETUPS, st.booleans())
def test_the_ways_agree(setup: Setup, loop: bool) -> None:
    check_ways(nameless(setup), WAYS, loop=loop, sqlite=False)


@settings(max_examples=120, deadline=None)
@given(SETUPS, st.booleans())
def test_calls_of_a_model_agree(setup: Setup, loop: bool) -> None:
    """The calls that have ids, some of them delivered twice."""
    assume(any(asked.call_id for asked in setup.calls))
    check_ways(setup, ("turn", "execute"), loop=loop, sqlite=False)


@settings(max_examples=20, deadline=None)
@given(SETUPS, st.booleans())
def test_the_ways_agree_on_sqlite(setup: Setup, loop: bool) -> None:
    check_ways(nameless(setup), WAYS, loop=loop, sqlite=True)


def keyed(setup: Setup, key: str | None) -> Setup:
    return replace(nameless(setup), spec={**setup.spec, "key": key})


@settings(max_examples=40, deadline=None)
@given(SETUPS, st.booleans())
def test_calls_for_a_key_agree(setup: Setup, loop: bool) -> None:
    check_ways(keyed(setup, None), KEYED, loop=loop, sqlite=False)


@settings(max_examples=40, deadline=None)
@given(SETUPS, st.booleans())
def test_calls_of_a_tool_with_a_key_agree(setup: Setup, loop: bool) -> None:
    """The tool says what a call is about: then it does not matter who says so."""
    check_ways(keyed(setup, "to"), (*WAYS, *KEYED), loop=loop, sqlite=False)


def adapted(setup: Setup) -> Setup:
    """The same calls as a framework makes them: each has an id, and its results can be written."""
    calls = tuple(asked._replace(call_id=asked.call_id or "c3") for asked in setup.calls)
    results = tuple(result for result in setup.results if not isinstance(result, Opaque)) or ("sent",)
    return replace(setup, calls=calls, results=results)


@settings(max_examples=40, deadline=None)
@given(SETUPS, st.booleans())
def test_calls_of_adapters_agree(setup: Setup, loop: bool) -> None:
    """What a framework calls leaves behind what the same envelope does."""
    check_ways(adapted(setup), GUARDED, loop=loop, sqlite=False)


@settings(max_examples=8, deadline=None)
@given(SETUPS, st.booleans())
def test_keys_and_adapters_agree_on_sqlite(setup: Setup, loop: bool) -> None:
    check_ways(keyed(setup, None), KEYED, loop=loop, sqlite=True)
    check_ways(adapted(setup), GUARDED, loop=loop, sqlite=True)

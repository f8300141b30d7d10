"""The position of a call: run, lane, index (D17).

A *lane* is one sequence of calls inside a run. The context variable holds an immutable cursor, so a task or thread that
was started from a copy of the context still sees the position its parent had at that moment. Its first call opens a
lane of its own, named by that position and by the call itself: the order in which parallel work finishes never shows.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token, copy_context
from typing import Any, NamedTuple, ParamSpec, TypeVar

from msgspec import Struct, field

from antiphon import _lineage
from antiphon._lineage import Origin, Replay, origin_var
from antiphon.contract._base import Opaque
from antiphon.errors import ReplayMiss
from antiphon.ports import Answer, Invocation, Invoker, Row

P = ParamSpec("P")
T = TypeVar("T")

Write = Callable[[Sequence[Row]], object]
"""Appends rows to the log of a run and blocks until they are there."""
WriteAsync = Callable[[Sequence[Row]], Awaitable[object]]

_new = tuple.__new__  # half the cost of a named tuple's own constructor
ORPHAN_LANE = "~orphan"
_UNATTACHED = "~homeless"
log = logging.getLogger("antiphon.run")


EARLIER = "earlier"
"""Where the scope of a resumed run keeps its :class:`antiphon._recording.resumed.EarlierAttempt`."""


class Site(NamedTuple):
    """The position of one call: logical, not temporal."""

    lane: str
    index: int  # type: ignore[assignment]
    nth: int
    """Occurrence of this name and digest in the lane, from 0."""
    call: str
    """Id of the call in the run."""
    parent: str | None


_NONE: dict[Any, int] = {}


class Lane:
    """One sequence of calls; touched by its owner only, except for the count of its children."""

    __slots__ = ("children", "counter", "owner", "parent", "path", "seen")

    seen: dict[tuple[str, str], int]
    children: dict[tuple[int, str], int]

    def __init__(self, path: str, owner: object, parent: str | None) -> None:
        self.path: str = path
        self.owner: object = owner
        self.parent: str | None = parent
        self.counter: int = 0
        self.seen = self.children = _NONE
        """Created on demand: each call has a lane for the calls inside it, and most make none."""


class Cursor(NamedTuple):
    """A position in a lane, as it was when the context was copied."""

    scope: RunScope
    lane: Lane
    index: int  # type: ignore[assignment]


Entered = tuple[Token["Cursor | None"], Token[Origin | None]]
"""What :meth:`RunScope.deactivate` needs."""

_cursor: ContextVar[Cursor | None] = ContextVar("antiphon_cursor", default=None)
undoing: ContextVar[bool] = ContextVar("antiphon_undoing", default=False)
"""Whether this context undoes the writes of a saga: that continues in a run that was cancelled."""
_active: dict[int, RunScope] = {}
"""Open runs of this process, to tell an orphan call from a call without a run."""


class _ThreadMark(threading.local):
    """One object per thread; a thread's id is reused after the thread has ended."""

    def __init__(self) -> None:
        self.mark = object()


_thread = _ThreadMark()


def _me() -> object:
    """The current owner: a reference to the current task, or the mark of the thread."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
        if task is not None:
            return weakref.ref(task)
    return _thread.mark


class _Refusing(Struct, eq=False):
    """Answers the calls of a run that replayed code opens: no recording has them."""

    replay: Replay

    def answer_tool(self, call: Invocation) -> Answer | None:
        what = f"{call.kind} {call.name} in a run that the replayed code opened"
        self.replay.note(what)
        raise ReplayMiss(f"The recording has no answer for {what}.", hint="Record and replay that run itself.")

    async def answer(self, call: Invocation) -> Answer | None:
        return self.answer_tool(call)

    def draw(self, what: str, site: Any, fresh: Callable[[], Any]) -> Any:
        return fresh()


class RunScope(Opaque, kw_only=True, eq=False):
    """An open run as the engines see it: its id, what answers its calls, and how its events are written."""

    run_id: str
    clock_ms: Callable[[], int]
    encode: Callable[[str, Site | None, dict[str, Any], dict[str, Any]], Row]
    """(type, site, payload, meta) -> redacted, spilled row."""
    write: Write | None
    """Writes rows before it returns; ``None`` switches recording off."""
    write_async: WriteAsync | None
    """The same for code in an event loop."""
    chunks: Callable[[Site], Any]
    """(site) -> what takes the chunks of a stream: ``add(data, gap_ms)``, and rows to write from ``due()`` and
    ``remaining()``."""
    compose: Callable[..., Row]
    """As *encode* for a payload and a ``meta`` that are JSON already and hold no secret; what redaction did to the
    arguments in them may be given, too."""
    shown: Callable[[Any, str], tuple[bytes, str, Any]]
    """As *present*, with the arguments as JSON."""
    present: Callable[[Any, str], tuple[Any, str, Any]] = lambda arguments, digest: (arguments, digest, None)
    """(arguments, digest) -> what of them may be written, its digest, and what redaction did, if anything (D36)."""
    known: Callable[[], Any] = lambda: None
    """The redactor that masks the secrets found in this run so far; ``None`` if there are none."""
    in_memory: bool = False
    """Whether *write* only touches memory, so that code in an event loop may call it, too."""
    store: object = None
    """The store description whose journal *write* writes to: claims on the same store share its transaction."""
    invoker: Invoker | None = None
    tenant: str = "default"
    place: tuple[str, str, str | None] = ("", "default", None)
    """Session, actor and workspace of calls that name no session: the run, so that none blocks another."""
    llm_cache: Any = None
    """Model answers kept for equal requests, if requested (D14)."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    cancelled: bool = False
    """Whether nobody waits for the code of this run any more: its threads may continue, but make no calls."""
    origin: Origin = field(default_factory=Origin)
    """The mark of the work that this run starts."""
    root: Lane = field(default_factory=lambda: Lane("0", None, None))
    gateway_state: dict[Any, Any] = field(default_factory=dict)
    """Loop guard and caps of this run, kept by the gateways."""
    quoted: dict[str, str] = field(default_factory=dict)
    """Secrets among the arguments of failed calls, which the exception may quote, and their replacements."""
    twins: dict[str, int] = field(default_factory=dict)
    """Lanes that only their order of arrival distinguishes: common part of their paths -> how many."""
    sagas: list[Any] = field(default_factory=list)
    """Sagas of this run that are open, or that failed (:class:`~antiphon._saga.Core`)."""
    streams: dict[int, Callable[[], None]] = field(default_factory=dict)
    """Model streams that have not been read to their end or closed yet: how each is ended with the run."""

    def __post_init__(self) -> None:
        if (self.write is None) != (self.write_async is None):
            raise ValueError("a run is recorded with both write and write_async, or with neither")
        self.place = (self.run_id, "default", None)
        self.origin.scope = self

    @property
    def records(self) -> bool:
        """Whether events of this run are written."""
        return self.write is not None

    def unquoted(self, text: str) -> str:
        """The text of an exception for an event: as it is if redaction hides the secrets it quotes, else without."""
        if not self.quoted:
            return text
        from antiphon.redact import without_values

        shown = str(self.present(text, "")[0])
        return text if without_values(shown, self.quoted) == shown else without_values(text, self.quoted)

    def activate(self) -> Entered:
        """Make this run current in this context; :meth:`deactivate` ends it."""
        _lineage.install()
        _lineage.watch_tasks()
        self.root.owner = _me()
        _active[id(self)] = self
        outer, origin = origin_var.get(), self.origin
        if outer is not None and outer.replay is not None and origin.replay is None:
            origin.replay = outer.replay  # a run that replayed code opens
            if self.invoker is None:
                self.invoker = _Refusing(outer.replay)
        return _cursor.set(Cursor(self, self.root, self.root.counter)), origin_var.set(origin)

    def adopt(self) -> None:
        """Let the running task continue in the root lane: for an entry point that turns out to be a coroutine."""
        _lineage.watch_tasks()
        self.root.owner = _me()
        _cursor.set(Cursor(self, self.root, self.root.counter))

    def deactivate(self, entered: Entered) -> None:
        for leave in tuple(self.streams.values()):
            leave()
        _active.pop(id(self), None)
        cursor, origin = entered
        try:
            _cursor.reset(cursor)
            origin_var.reset(origin)
        except ValueError:  # closed in a context other than the one it was opened in
            _cursor.set(None)
            origin_var.set(None)

    def enter(self, name: str, digest: str) -> Site:
        """The site of the next call in the current lane; moves the cursor."""
        cursor = _cursor.get()
        if cursor is None or cursor.scope is not self:
            with self.lock:
                found = self._next(_orphan_lane(self), name, digest)
            # threads without a defined order: a call is named by what it is, not by when it came
            return found._replace(call=f"{ORPHAN_LANE}@{name}:{digest[:16]}#{found.nth}")
        lane = cursor.lane
        me = _me()
        if lane.owner != me:
            lane = self._open_child(cursor, f"{name}:{digest[:16]}", me)
        site = self._next(lane, name, digest)
        _cursor.set(_new(Cursor, (self, lane, lane.counter)))
        return site

    def _next(self, lane: Lane, name: str, digest: str) -> Site:
        index = lane.counter
        lane.counter = index + 1
        if lane.seen is _NONE:
            lane.seen = {}
        which = (name, digest)
        nth = lane.seen.get(which, 0)
        lane.seen[which] = nth + 1
        site: Site = _new(Site, (lane.path, index, nth, f"{lane.path}@{index}", lane.parent))
        return site

    def _open_child(self, cursor: Cursor, label: str, me: object) -> Lane:
        parent = cursor.lane
        path = f"{parent.path}/{cursor.index}:{label}#"
        with self.lock:
            if parent.children is _NONE:
                parent.children = {}
            slot = (cursor.index, label)
            nth = parent.children.get(slot, 0)
            parent.children[slot] = nth + 1
            if nth:
                self.twins[path] = nth + 1
        return Lane(f"{path}{nth}", me, parent.parent)

    def go_inside(self, call: str) -> Token[Cursor | None]:
        """Nested calls made by the body of *call* get a lane of their own, for the rest of this context."""
        return _cursor.set(_new(Cursor, (self, Lane(f"{call}>", _me(), call), 0)))

    @contextmanager
    def branch(self, name: str) -> Iterator[None]:
        """A lane with a name of the caller's choice, for parallel work that looks alike."""
        cursor = _cursor.get()
        base = cursor if cursor is not None and cursor.scope is self else Cursor(self, self.root, self.root.counter)
        lane = self._open_child(base, f"~{self.present(name, '')[0]}", _me())
        token = _cursor.set(Cursor(self, lane, 0))
        try:
            yield
        finally:
            _cursor.reset(token)


def _orphan_lane(scope: RunScope) -> Lane:
    lane = scope.gateway_state.get(ORPHAN_LANE)
    if lane is None:
        lane = scope.gateway_state[ORPHAN_LANE] = Lane(ORPHAN_LANE, None, None)
    assert isinstance(lane, Lane)
    return lane


def current_scope() -> RunScope | None:
    """The run of this context. A thread without one belongs, as an orphan, to the run that started it, else to the only
    run that is open.
    """
    cursor = _cursor.get()
    if cursor is not None:
        return cursor.scope
    origin = origin_var.get()
    if origin is not None and (origin.scope is not None or origin.replay is None):
        return origin.scope  # type: ignore[no-any-return]
    if len(_active) == 1:
        try:
            return next(iter(_active.values()))
        except (StopIteration, RuntimeError):  # closed by another thread just now
            return None
    if _active:
        _report_unattached()
    return None


@contextmanager
def without_run() -> Iterator[None]:
    """Calls inside belong to no run, whichever is open: a request to a server that executes runs beside it."""
    cursor, origin = _cursor.set(None), origin_var.set(Origin())
    try:
        yield
    finally:
        origin_var.reset(origin)
        _cursor.reset(cursor)


def _report_unattached() -> None:
    """Report, once per run, that a call could have belonged to any of several runs and is in none of them."""
    reported = [scope.gateway_state.setdefault(_UNATTACHED, None) for scope in list(_active.values())]
    if None in reported:
        for scope in list(_active.values()):
            scope.gateway_state[_UNATTACHED] = True
        log.warning(
            "a call was made outside of the %d open runs and is recorded in none of them; carry the run into threads "
            "with antiphon.submit or antiphon.wrap_context",
            len(_active),
        )


@contextmanager
def branch(name: str) -> Iterator[None]:
    """Name a lane of parallel work, so that a replay can tell it from others that look alike."""
    scope = current_scope()
    if scope is None:
        yield
        return
    with scope.branch(name):
        yield


def wrap_context(function: Callable[P, T]) -> Callable[P, T]:
    """Carry the current run into another thread: ``executor.submit(wrap_context(work), 1)``."""
    context = copy_context()

    def carried(*args: P.args, **kwargs: P.kwargs) -> T:
        return context.copy().run(function, *args, **kwargs)

    return carried


def submit(executor: Any, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Any:
    """``executor.submit`` that carries the current run into the worker thread."""
    return executor.submit(copy_context().run, function, *args, **kwargs)


def running_site() -> Site | None:
    """The site of the call whose body runs here; none for a call on a thread without a defined order."""
    cursor = _cursor.get()
    call = None if cursor is None else cursor.lane.parent
    if call is None or call.startswith(ORPHAN_LANE):
        return None
    lane, _, index = call.rpartition("@")
    return Site(lane, int(index), 0, call, lane.rpartition(">")[0] or None)


def _inside_call() -> bool:
    """Whether this is the body of a call: only live calls run theirs."""
    cursor = _cursor.get()
    return cursor is not None and cursor.lane.parent is not None


_lineage.inside_call = _inside_call

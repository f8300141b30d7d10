"""Marks the work that a run starts: threads, executors, timers, tasks and handlers carry their origin (D37, D38).

Tasks and callbacks of event loops copy their context, so they carry the mark by themselves. Threads, work submitted to
executors, exit and signal handlers and finalizers do not: the functions that accept them are replaced once per process,
when the first run begins, and pass on the mark of their caller. Nothing else about them changes.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType, ModuleType
from typing import Any

TOOLS = frozenset(
    {"_pydev_bundle", "_pydevd_bundle", "coverage", "debugpy", "execnet", "pydevd", "pytest_cov", "xdist"}
)
"""Packages of tools that work alongside the replayed code: measuring, debugging, distributing tests."""
_CLIENTS = frozenset({"boto3", "botocore", "obstore", "psycopg", "psycopg_pool", "redis", "s3transfer", "urllib3"})
"""What our own stores use; such a frame belongs to its caller."""
_US = __name__.partition(".")[0]
_SANDBOX = frozenset({__name__, f"{_US}.ops.sandbox"})


class Replay:
    """The mark of one replay. Whatever carries it may never do anything that the replay does not answer."""

    __slots__ = ("ended", "escapes", "late", "on", "places", "scratch", "title", "view")

    def __init__(self, title: str = "", on: bool = True) -> None:
        self.title: str = title
        self.on: bool = on
        """Whether sockets, processes and writes are refused; calls without a recorded answer always are."""
        self.escapes: list[str] = []
        """What was attempted while it ran."""
        self.late: list[str] = []
        """What was attempted after its end, by work that it had started."""
        self.ended: bool = False
        self.places: tuple[str, ...] = ()
        """Folders that may be written, besides the scratch folder."""
        self.scratch: str | None = None
        self.view: Callable[[str], str] = str
        """Masks what is reported about it after its end."""

    def note(self, what: str) -> None:
        """Note an attempt that was refused."""
        if not self.ended:
            self.escapes.append(what)
            return
        what = self.view(what)
        self.late.append(what)
        for listen in tuple(on_late):
            listen(self, what)


_POLL_S = 0.01

engine_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads of an engine that distributes replays, such as the event loop of a Dask worker: no replay started them."""

on_late: list[Callable[[Replay, str], None]] = []
"""Called to report what a replay attempts after its end."""

on_left: Callable[[Replay, str, dict[str, Any] | None, bool], None] | None = None
"""Set in a process whose end is part of the verdict. Reports there what has not come by then and came after the end of
the recording: the replay, a lane, what is left of it (``None``: nothing any more), and whether that is certain even if
the end of the process cuts work off."""


class Origin:
    """What started the current work: a run, and the replay it belongs to, if any."""

    __slots__ = ("__weakref__", "_work", "cut_off", "has_handlers", "owed", "replay", "returned", "scope", "tasks")

    def __init__(self, scope: Any = None, replay: Replay | None = None) -> None:
        self.scope: Any = scope
        self.replay: Replay | None = replay
        self.returned: bool = False
        """Whether the code of the run has returned; work that it started may continue."""
        self.owed: Callable[[], bool] = lambda: False
        """Whether calls are still to come that the recording of a replay has after its end."""
        self.has_handlers: bool = False
        """Whether it has left something that runs when nobody waits any more, such as an exit handler."""
        self.cut_off: bool = False
        """Whether tasks continued when their event loop was closed."""
        self._work: weakref.WeakSet[Any] = weakref.WeakSet()
        self.tasks: dict[str, dict[str, int]] = {}
        """Coroutines by name: how many tasks were created and awaited, cancelled, or never awaited."""

    def count(self, name: str, what: str) -> None:
        """Count what happened to a task or coroutine of the code, while the code runs."""
        if not self.returned:
            counts = self.tasks.setdefault(name, {})
            counts[what] = counts.get(what, 0) + 1

    def loose(self) -> dict[str, dict[str, int]]:
        """What was not awaited, or was cancelled: by name of the coroutine."""
        found: dict[str, dict[str, int]] = {}
        for name, counts in sorted(self.tasks.items()):
            left = {
                "notAwaited": counts.get("made", 0) - counts.get("awaited", 0),
                "cancelled": counts.get("cancelled", 0),
                "neverRun": counts.get("neverRun", 0),
            }
            if kept := {what: number for what, number in left.items() if number > 0}:
                found[name] = kept
        return found

    def started(self, work: Any) -> None:
        """Remember a thread, a future or a task of this run."""
        self._work.add(work)

    def alive(self) -> list[Any]:
        """The work of this run that is still going on, except for the caller's own."""
        me = threading.current_thread()
        return [work for work in tuple(self._work) if work is not me and _goes_on(work)]

    async def settle(self, seconds: float) -> None:
        """Wait in the event loop for the tasks of this run, and as long again for calls still expected."""
        import asyncio

        me, loop = asyncio.current_task(), asyncio.get_running_loop()
        until = time.monotonic() + 2 * seconds
        left = {work for work in self.alive() if _is_task(work) and work is not me and work.get_loop() is loop}
        if left:
            _, left = await asyncio.wait(left, timeout=seconds)
        while left and self.owed() and time.monotonic() < until:
            _, left = await asyncio.wait(left, timeout=_POLL_S)
        self.cut_off = bool(left)

    def wait(self, seconds: float) -> None:
        """Wait for threads and futures that the run has started, and as long again for calls still expected."""
        until = time.monotonic() + seconds
        while left := [work for work in self.alive() if not _is_task(work)]:
            rest = until - time.monotonic()
            if rest <= 0:
                break
            if isinstance(left[0], threading.Thread):
                left[0].join(rest)
            else:
                from concurrent.futures import wait

                wait((left[0],), timeout=rest)
        self.wait_for_owed(seconds)

    def wait_for_owed(self, seconds: float) -> None:
        """Wait for calls that the recording of a replay has after its end."""
        until = time.monotonic() + seconds
        while self.owed() and time.monotonic() < until:
            time.sleep(_POLL_S)


def _goes_on(work: Any) -> bool:
    return work.is_alive() if isinstance(work, threading.Thread) else not work.done()


def _is_task(work: Any) -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(work, asyncio.Future)


origin_var: ContextVar[Origin | None] = ContextVar("antiphon_origin", default=None)
active_saga: ContextVar[Any] = ContextVar("antiphon_saga", default=None)
"""The saga of this context (:class:`~antiphon._saga.Core`)."""
live_var: ContextVar[str | None] = ContextVar("antiphon_live", default=None)
"""What a replay lets this context really do: ``network`` while a model is asked, ``all`` while a tool runs."""


class permitted:  # noqa: N801 (used like a function)
    """Let this context reach the network while a model is asked: only around sending and reading."""

    __slots__ = ("_on", "_token")

    def __init__(self, on: bool) -> None:
        self._on = on

    def __enter__(self) -> None:
        if self._on:
            self._token = live_var.set("network")

    def __exit__(self, *_: object) -> None:
        if self._on:
            live_var.reset(self._token)


OUTSIDE = Origin()
"""Marks code that no sandbox confines."""


@contextmanager
def outside() -> Iterator[None]:
    """Let this context out of the sandbox: for the store that holds the recording, and for models that are verified."""
    token = origin_var.set(OUTSIDE)
    try:
        yield
    finally:
        origin_var.reset(token)


# -- whose code is this ----------------------------------------------------------------------------------------------


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def is_tool(frame: FrameType | None) -> bool:
    """Whether a tool, or one of our own stores, does what happens at *frame*: the first frame decides that is neither
    the standard library's nor a database client's.
    """
    while frame is not None:
        package = _package(frame)
        if frame.f_globals.get("__name__") not in _SANDBOX:
            if package == _US or package in TOOLS:
                return True
            if package not in _CLIENTS and (package not in sys.stdlib_module_names or package == "__main__"):
                return False
        frame = frame.f_back
    return False


# -- handing on the mark ---------------------------------------------------------------------------------------------


class Carried:
    """A function that runs with the mark of the caller that passed it on; equal to the function itself."""

    __slots__ = ("_function", "_live", "_origin", "_saga")

    def __init__(self, function: Callable[..., Any], origin: Origin | None, live: str | None = None) -> None:
        self._function = function
        self._origin = origin
        self._live = live
        self._saga = None if origin is None else active_saga.get()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token, permit = origin_var.set(self._origin), live_var.set(self._live)
        saga = active_saga.set(self._saga or active_saga.get())
        try:
            return self._function(*args, **kwargs)
        finally:
            active_saga.reset(saga)
            live_var.reset(permit)
            origin_var.reset(token)

    def __eq__(self, other: object) -> bool:
        return self._function == (other._function if isinstance(other, Carried) else other)

    def __hash__(self) -> int:
        return hash(self._function)

    def __getattr__(self, name: str) -> Any:
        if name in Carried.__slots__:  # not initialised yet: it is being copied
            raise AttributeError(name)
        return getattr(self._function, name)


inside_call: Callable[[], bool] = lambda: False  # noqa: E731  # _scope says whether the body of a call runs here


def permit() -> str | None:
    """What this context may really do although it belongs to a replay."""
    return "all" if inside_call() else live_var.get()


def _marked() -> Origin | None:
    """The mark to pass on: none for tools and for our own threads."""
    origin = origin_var.get()
    if origin is None or origin is OUTSIDE or is_tool(sys._getframe(2)):
        return None
    return origin


_patched: set[str] = set()
_lock = threading.Lock()


def install() -> None:
    """Replace the functions that accept work; those not imported yet are replaced when the next run begins."""
    for name, patch in _PATCHES.items():
        if name not in _patched and name in sys.modules:
            with _lock:
                if name not in _patched:
                    patch(sys.modules[name])
                    _patched.add(name)


def replaced(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Replace an attribute by what *make* makes of it."""
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, functools.wraps(original)(make(original)))


def checked(check: Callable[[Any, FrameType | None], None]) -> Callable[[Any], Callable[..., Any]]:
    """Has *check* look at the first argument of a replaced function, and at its caller, before each call."""

    def make(original: Any) -> Callable[..., Any]:
        try:
            first = next(iter(inspect.signature(original).parameters), "")
        except ValueError:  # a built-in function takes it by position
            first = ""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            if args or first in kwargs:
                check(args[0] if args else kwargs[first], sys._getframe().f_back)
            return original(*args, **kwargs)

        return guarded

    return make


def _marking(place: int, name: str, mark: Callable[[], Origin | None]) -> Callable[[Any], Callable[..., Any]]:
    """Replaces a function that accepts another one, at *place* or by *name*, which gets the *mark* of the caller."""

    def make(original: Any) -> Callable[..., Any]:
        def marked(*args: Any, **kwargs: Any) -> Any:
            origin = mark()
            if origin is not None and len(args) > place:
                args = (*args[:place], Carried(args[place], origin, permit()), *args[place + 1 :])
            elif origin is not None and name in kwargs:
                kwargs[name] = Carried(kwargs[name], origin, permit())
            return original(*args, **kwargs)

        return marked

    return make


def _patch_threading(module: ModuleType) -> None:
    def make(start: Any) -> Callable[..., Any]:
        def marked(self: threading.Thread) -> None:
            origin = _marked()
            if origin is not None and sys._getframe(1).f_globals.get("__name__") != "concurrent.futures.thread":
                run = Carried(self.run, origin, permit())

                def once() -> None:
                    del self.__dict__["run"]
                    run()

                self.run = once  # type: ignore[method-assign]
                origin.started(self)
            start(self)

        return marked

    replaced(module.Thread, "start", make)


def _patch_raw_threads(module: ModuleType) -> None:
    for name in ("start_new_thread", "start_new"):
        replaced(module, name, _marking(0, "function", _marked))


def _patch_executor(module: ModuleType) -> None:
    def make(submit: Any) -> Callable[..., Any]:
        def marked(self: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            origin = _marked()
            future = submit(self, Carried(function, origin, permit()), *args, **kwargs)
            if origin is not None:
                origin.started(future)
            return future

        return marked

    replaced(module.ThreadPoolExecutor, "submit", make)
    replaced(module._base.Future, "add_done_callback", _marking(1, "fn", _marked))


def _patch_pools(module: ModuleType) -> None:
    def make(submit: Any) -> Callable[..., Any]:
        def marked(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(self, module.ThreadPool):
                return submit(self, Carried(func, _marked(), permit()), *args, **kwargs)
            refuse("handing work to another process", sys._getframe(1))
            return submit(self, func, *args, **kwargs)

        return marked

    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
        replaced(module.Pool, name, make)


def _patch_process_executor(module: ModuleType) -> None:
    def check(executor: Any, frame: FrameType | None) -> None:
        refuse("handing work to another process", frame)

    replaced(module.ProcessPoolExecutor, "submit", checked(check))


def refuse(what: str, frame: FrameType | None) -> None:
    """Replaced by the sandbox, which knows what is refused."""


# -- tasks -----------------------------------------------------------------------------------------------------------


def watch_tasks() -> None:
    """Note what becomes of the tasks that runs make in the running event loop, unless it has a task factory already."""
    asyncio = sys.modules.get("asyncio")
    loop = None if asyncio is None else asyncio._get_running_loop()
    if loop is not None and loop.get_task_factory() is None:
        loop.set_task_factory(_task_factory())


@functools.cache
def _task_factory() -> Callable[..., Any]:
    import asyncio

    class Watched(asyncio.Task[Any]):
        """A task of a run; notes whether anybody awaits it, or sees that it is done."""

        origin: Origin
        awaited = False

        def _await(self) -> None:
            if not self.awaited:
                self.awaited = True
                self.origin.count(_name_of(self), "awaited")

        def __await__(self) -> Any:
            self._await()
            return super().__await__()

        __iter__ = __await__

        def result(self) -> Any:
            self.done()
            return super().result()

        def exception(self) -> Any:
            self.done()
            return super().exception()

        def done(self) -> bool:
            is_done = super().done()
            if is_done:  # no need to await it: a replay, which answers at once, gets here more often
                self._await()
            return is_done

        def add_done_callback(self, callback: Any, /, **options: Any) -> None:
            if str(getattr(callback, "__module__", "")).partition(".")[0] in ("asyncio", "anyio"):
                self._await()  # gather, wait, a task group
            super().add_done_callback(callback, **options)

        def cancel(self, *args: Any, **kwargs: Any) -> bool:
            asked = super().cancel(*args, **kwargs)
            if asked:
                self.origin.count(_name_of(self), "cancelled")
            return asked

    def make(loop: Any, coroutine: Any, **options: Any) -> Any:
        context = options.get("context")
        origin = origin_var.get() if context is None else context.get(origin_var)
        if origin is None or origin is OUTSIDE or is_tool(sys._getframe(1)) or _only_waits(coroutine):
            return asyncio.Task(coroutine, loop=loop, **options)
        if _finalizes(sys._getframe(1)):
            left: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
            origin.started(left)
            return left
        task = Watched(coroutine, loop=loop, **options)
        task.origin = origin
        origin.count(_name_of(task), "made")
        origin.started(task)
        return task

    return make


_NEAR = 8


def _finalizes(frame: FrameType | None) -> bool:
    """Whether a ``__del__`` creates the task: the collector decides when, so runs need not agree."""
    for _ in range(_NEAR):
        if frame is None:
            return False
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _only_waits(coroutine: Any) -> bool:
    """Whether it only waits for an event, a lock or a queue: frameworks cancel such tasks at arbitrary moments."""
    if getattr(coroutine, "__qualname__", "").partition(".")[0] not in _WAITED_FOR:
        return False
    frame = getattr(coroutine, "cr_frame", None)
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in ("asyncio", "anyio")


_WAITED_FOR = frozenset("Event Condition Lock Semaphore BoundedSemaphore Barrier Queue CapacityLimiter".split())


def _name_of(task: Any) -> str:
    return str(getattr(task.get_coro(), "__qualname__", "task"))


def _patch_warnings(module: ModuleType) -> None:
    def make(warn: Any) -> Callable[..., Any]:
        def noted(coroutine: Any) -> None:
            origin = origin_var.get()
            if origin is not None:
                origin.count(coroutine.__qualname__, "neverRun")
            warn(coroutine)

        return noted

    replaced(module, "_warn_unawaited_coroutine", make)


# -- servers ---------------------------------------------------------------------------------------------------------

accepted: weakref.WeakSet[Any] = weakref.WeakSet()
"""Connections that others made to a server of this process."""


def _patch_accepting(module: ModuleType) -> None:
    def make(accept: Any) -> Callable[..., Any]:
        def noted(self: Any) -> Any:
            link, address = accept(self)
            accepted.add(link)
            return link, address

        return noted

    replaced(module.socket, "accept", make)


# -- handlers --------------------------------------------------------------------------------------------------------


def _own() -> Origin | None:
    """The mark for a handler that is being registered; the standard library and tools register their own."""
    origin = origin_var.get()
    package = _package(sys._getframe(2))
    foreign = package in TOOLS or package == _US or (package in sys.stdlib_module_names and package != "__main__")
    if origin is None or origin is OUTSIDE or foreign:
        return None
    origin.has_handlers = True
    return origin


def _patch_exits(module: ModuleType) -> None:
    def make(register: Any) -> Callable[..., Any]:
        def marked(function: Any, *args: Any, **kwargs: Any) -> Any:
            origin = _own()
            register(function if origin is None else Carried(function, origin, permit()), *args, **kwargs)
            return function

        return marked

    replaced(module, "register", make)


def _patch_signals(module: ModuleType) -> None:
    before: list[Any] = []  # handlers that were there when a marked one came: restoring them does not mark them

    def make(setter: Any) -> Callable[..., Any]:
        def marked(number: Any, handler: Any) -> Any:
            origin = _own()
            if origin is None or not callable(handler) or any(handler is known for known in before):
                return setter(number, handler)
            old = setter(number, Carried(handler, origin, permit()))
            if callable(old) and not isinstance(old, Carried):
                before.append(old)
            return old

        return marked

    replaced(module, "signal", make)


def _patch_forks(module: ModuleType) -> None:
    def make(register: Any) -> Callable[..., Any]:
        def marked(**handlers: Any) -> None:
            origin = _own()
            if origin is not None:
                handlers = {name: Carried(handler, origin, permit()) for name, handler in handlers.items()}
            register(**handlers)

        return marked

    replaced(module, "register_at_fork", make)


_PATCHES: dict[str, Callable[[Any], None]] = {
    "threading": _patch_threading,
    "_thread": _patch_raw_threads,
    "concurrent.futures.thread": _patch_executor,
    "concurrent.futures.process": _patch_process_executor,
    "multiprocessing.pool": _patch_pools,
    "atexit": _patch_exits,
    "signal": _patch_signals,
    "weakref": lambda module: replaced(module.finalize, "__init__", _marking(2, "func", _own)),
    "os": _patch_forks,
    "socket": _patch_accepting,
    "warnings": _patch_warnings,
}
assert {atexit, os, signal, warnings}  # imported so that they are replaced

"""Finalizers of a replay: generators that it left open, objects with ``__del__``, and garbage-collector callbacks.

They run later, in the context of whatever code triggers them, without a mark. So when a replay ends, it checks what it
has created: garbage is collected inside the sandbox, and what survives is remembered. Objects older than the replay are
set aside meanwhile (``gc.freeze``), so the cost depends only on what the replay has created.

A full collection while they are set aside would make the collector believe that there are hardly any old objects, and
rescan all of them again and again afterwards. So the replay's objects are kept out of the oldest generation.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import chain, compress, repeat
from operator import call, is_
from types import AsyncGeneratorType, CoroutineType, FrameType, FunctionType, GeneratorType
from typing import Any

from antiphon._gateway.threads import without_gc
from antiphon._lineage import TOOLS, Carried, Origin, Replay, engine_threads

# Objects that the garbage collector tracks are selected without touching the others. ``gc.get_objects()`` returns
# objects that other threads are still creating, and Python refuses to finish a tuple that something else references
# (``tuple(generator)`` raises ``SystemError``). So no Python code runs while they are held, and no other thread gets to
# run: the iterators below are C code, nothing is collected meanwhile (finalizers are Python code), and nothing is
# audited (as ``id`` would be).
_call: Callable[[Any], Any] = call


def _objects() -> Iterator[Any]:
    return chain.from_iterable(map(gc.get_objects, (None,)))


def living(kinds: Collection[type]) -> list[Any]:
    """The objects of exactly these kinds."""
    objects: list[Any] = []
    types: list[type] = []
    found: list[Any] = []
    fill = partial(objects.extend, _objects()), partial(types.extend, map(type, objects))
    pick = [partial(found.extend, compress(objects, map(is_, types, repeat(kind)))) for kind in kinds]
    with without_gc():
        deque(map(_call, (*fill, *pick, objects.clear)), maxlen=0)
    return found


def living_kinds() -> Counter[Any]:
    """The types of all objects, with counts."""
    with without_gc():
        found = list(map(type, _objects()))
    return Counter(found)


def has_old() -> bool:
    """Whether the oldest generation has objects that are not frozen."""
    with without_gc():
        return any(map(bool, map(gc.get_objects, (2,))))


_FOREIGN = TOOLS | frozenset("antiphon _pytest anyio pluggy pytest pytest_asyncio".split())
_ENGINE = frozenset(("distributed", "tornado"))
"""Of a Dask worker, whose event loop creates coroutines during a replay."""
_frames: list[tuple[weakref.ref[Any], FrameType, Replay]] = []
"""Generators and coroutines that replays left open."""
_things: dict[int, tuple[weakref.ref[Any], Replay]] = {}
"""Objects with a ``__del__`` that replays left behind."""


_LATE = 10_000
"""Collections of the youngest generation before the next generation is collected: seven million objects."""
_WAITING = (GeneratorType, CoroutineType, AsyncGeneratorType)
_INCREMENTAL = sys.version_info >= (3, 14)


class ObjectTracker:
    """Objects created between :meth:`begin` and :meth:`end`."""

    def __init__(self, alone: bool) -> None:
        """*alone*: whether no other run or replay is open whose objects would be indistinguishable from ours."""
        self._watches = alone and gc.get_freeze_count() == 0
        self._callbacks = list(gc.callbacks)
        self._thresholds = gc.get_threshold()

    def begin(self) -> None:
        _frames[:] = [found for found in _frames if found[0]() is not None]
        if self._watches:
            gc.freeze()
            gc.set_threshold(self._thresholds[0], _LATE, self._thresholds[2])

    def end(self, replay: Replay, alone: bool) -> None:
        """Collect the garbage and remember the rest."""
        for place, callback in enumerate(gc.callbacks):
            if not any(callback is known for known in self._callbacks):
                gc.callbacks[place] = Carried(callback, Origin(None, replay))
        if not self._watches:
            return
        try:
            gc.collect(2 if _INCREMENTAL or has_old() else 1)
            if alone:
                for found in living((*_WAITING, *filter(_has_finalizer, living_kinds()))):
                    _remember(found, replay)
        finally:
            gc.unfreeze()
            if gc.get_threshold()[1] == _LATE:
                gc.set_threshold(*self._thresholds)


def _remember(found: Any, replay: Replay) -> None:
    kind = type(found)
    if kind is GeneratorType:
        frame, running = found.gi_frame, found.gi_running
    elif kind is CoroutineType:
        frame, running = found.cr_frame, found.cr_running
    elif kind is AsyncGeneratorType:
        frame, running = found.ag_frame, found.ag_running
    else:
        try:
            number = id(found)
            _things[number] = (weakref.ref(found, lambda _: _things.pop(number, None) and None), replay)
        except TypeError:  # it does not support weak references
            return
        return
    if frame is not None and not running and not _is_foreign(frame.f_globals):
        _frames.append((weakref.ref(found), frame, replay))


def _has_finalizer(kind: type) -> bool:
    delete = getattr(kind, "__del__", None)
    return type(delete) is FunctionType and not _is_foreign(delete.__globals__)


def _is_foreign(names: dict[str, Any]) -> bool:
    package = str(names.get("__name__", "")).partition(".")[0]
    if package in _FOREIGN or (package in _ENGINE and engine_threads):
        return True
    return package in sys.stdlib_module_names and package != "__main__"


def finalizing(frame: FrameType | None) -> Replay | None:
    """The replay whose finalizer is running at *frame*, if any."""
    if not _frames and not _things:
        return None
    while frame is not None:
        for _, known, replay in _frames:
            if known is frame:
                return replay
        code = frame.f_code
        if code.co_name == "__del__" and code.co_argcount:
            found = frame.f_locals.get(code.co_varnames[0])
            kept = _things.get(id(found))
            if kept is not None and kept[0]() is found:
                return kept[1]
        frame = frame.f_back
    return None

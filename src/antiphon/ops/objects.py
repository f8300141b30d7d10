"""Objects that the garbage collector knows, picked without touching the others.

``gc.get_objects()`` hands out objects that other threads are still making. Python refuses to finish a tuple that
somebody else holds (``tuple(generator)`` and ``f(*generator)`` raise ``SystemError``). So no line of Python runs while
they are held, and no other thread gets its turn: the iterators below are C code, nothing is collected meanwhile
(finalizers are Python), and nothing is audited (as ``id`` would be).
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, compress, repeat
from operator import call, is_
from typing import Any

_call: Callable[[Any], Any] = call


def _objects() -> Iterator[Any]:
    return chain.from_iterable(map(gc.get_objects, (None,)))


@contextmanager
def _undisturbed() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def living(kinds: Collection[type]) -> list[Any]:
    """The objects of exactly these kinds."""
    objects: list[Any] = []
    found: list[Any] = []
    fill = partial(objects.extend, _objects())
    pick = [partial(found.extend, compress(objects, map(is_, map(type, objects), repeat(kind)))) for kind in kinds]
    with _undisturbed():
        deque(map(_call, (fill, *pick, objects.clear)), maxlen=0)
    return found


def living_kinds() -> Counter[Any]:
    """The types of all objects, and how many there are of each."""
    with _undisturbed():
        found = list(map(type, _objects()))
    return Counter(found)


def has_old() -> bool:
    """Whether the oldest generation has objects that are not frozen."""
    with _undisturbed():
        return any(map(bool, map(gc.get_objects, (2,))))

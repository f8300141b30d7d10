"""Keep NumPy's matrix products on one thread while the model runs.

Short products get slower, not faster, when OpenBLAS spreads them over cores that are busy with something else. The
setting is changed only around a call and put back, so that the host program's own NumPy keeps its threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

_NAMES = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
)
_lock = Lock()
_users = 0
_before = 0


@cache
def _controls() -> tuple[Any, Any] | None:
    """The getter and setter of the OpenBLAS that NumPy has loaded, if it can be found."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[5] for line in lines if "openblas" in line and line.count("/")}
    for path in sorted(paths):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for getter, setter in _NAMES:
            if hasattr(library, getter) and hasattr(library, setter):
                return getattr(library, getter), getattr(library, setter)
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit OpenBLAS to one thread; the last of several users restores what was there."""
    global _users, _before
    controls = _controls()
    if controls is None:
        yield
        return
    get, put = controls
    with _lock:
        if _users == 0:
            _before = int(get())
            put(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                put(_before)

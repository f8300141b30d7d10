"""Keep NumPy's matrix products on one thread while the model runs.

Short products get slower, not faster, when a BLAS spreads them over cores that are busy with something else. The
setting is changed only around a call and put back, so that the host program's own NumPy keeps its threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

_lock = Lock()
_users = 0
_limiter: Any = None


@cache
def _controller() -> Any:
    """Finding the loaded BLAS libraries is slow: it is done once, after NumPy was imported."""
    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread; the last of several users restores what was there.

    Limits of threadpoolctl that overlap in several threads would restore each other's, so the users are counted.
    """
    global _users, _limiter
    with _lock:
        if _users == 0:
            _limiter = _controller().limit(limits=1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _limiter.restore_original_limits()

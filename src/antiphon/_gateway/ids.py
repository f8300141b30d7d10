"""UUIDv7 without a dependency: ordered by time, unique across processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count

_next_series = count().__next__
_time = time.time
_LOW = tuple(f"{number:03x}" for number in range(4096))
_random = ""
_latest = 0
_series: tuple[float, str, Callable[[], str], str]
"""The ids of one millisecond, at most 4096: when it is over, what they begin with, the next number, how they end."""


def _renew() -> None:
    """A new random part for this process; a forked child draws its own."""
    global _random
    noise = os.urandom(8)
    _random = f"-{0x8000 | int.from_bytes(noise[:2], 'big') & 0x3FFF:04x}-{noise[2:6].hex()}"
    _begin_series()


def _begin_series() -> None:
    global _latest, _series
    n = _next_series()
    ms = _latest = max(_latest, int(_time() * 1000))  # a clock may be set back
    head, tail = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7", f"{_random}{n & 0xFFFF:04x}"
    _series = ((ms + 1) / 1000, head, iter(_LOW).__next__, tail)


_renew()
os.register_at_fork(after_in_child=_renew)


def uuid7() -> str:
    """A new id: 48 bits of time, 28 bits of a counter, and a random part drawn once per process."""
    until, head, low, tail = _series
    if _time() < until:
        try:
            return f"{head}{low()}{tail}"
        except StopIteration:  # all of this millisecond are given out
            pass
    _begin_series()
    return uuid7()

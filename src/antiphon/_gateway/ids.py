"""UUIDv7 without a dependency: ordered by time, unique across processes."""

from __future__ import annotations

import os
import time
from itertools import count

_next = count().__next__
_time_ns = time.time_ns
_LOW = tuple(f"{number:03x}" for number in range(4096))
_tail = ""
_ends = (-1, -1, "", "")
"""What the ids of one millisecond and one stretch of the counter share: which these are, head and tail."""


def _renew() -> None:
    """A new random part for this process; a forked child draws its own."""
    global _tail, _ends
    noise = os.urandom(8)
    _tail = f"-{0x8000 | int.from_bytes(noise[:2], 'big') & 0x3FFF:04x}-{noise[2:6].hex()}"
    _ends = (-1, -1, "", "")


_renew()
os.register_at_fork(after_in_child=_renew)


def uuid7() -> str:
    """A new id: 48 bits of time, 28 bits of a counter, and a random part drawn once per process."""
    global _ends
    ms = _time_ns() // 1_000_000
    n = _next()
    then, stretch, head, tail = _ends
    if then != ms or stretch != n >> 12:
        head, tail = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7", f"{_tail}{n >> 12 & 0xFFFF:04x}"
        _ends = (ms, n >> 12, head, tail)
    return f"{head}{_LOW[n & 0xFFF]}{tail}"

"""UUIDv7 without a dependency: ordered by time, unique across processes."""

from __future__ import annotations

import os
import time
from itertools import count

_counter = count()
_tail = ""
_pid = 0


def uuid7() -> str:
    """A new id; the random part is drawn once per process and counted on."""
    global _tail, _pid
    pid = os.getpid()
    if pid != _pid:
        noise = os.urandom(8)
        _tail = f"{0x8000 | int.from_bytes(noise[:2], 'big') & 0x3FFF:04x}-{noise[2:8].hex()}"
        _pid = pid
    ms = time.time_ns() // 1_000_000
    n = next(_counter)
    # 48 bits of time, version, 12 bits of counter; the counter's upper bits vary the last group.
    head = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{n & 0xFFF:03x}"
    tail = _tail if n < 4096 else f"{_tail[:5]}{(int(_tail[5:], 16) ^ (n >> 12)):012x}"
    return f"{head}-{tail}"

"""The pieces of a stream on their way into the log (D18, D21).

A piece goes to its reader first. It is recorded when no secret can reach across its end any more, and pieces are
written in groups: a reader never waits for a commit of each.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import orjson

from antiphon._recording.plain import dump
from antiphon.ports import Row
from antiphon.redact import Redactor

GROUP = 64
"""So many pieces are written at once."""
LONGEST_S = 0.1
"""A piece that could be written waits no longer than this for others, as long as the reader reads."""

_FIXED = (str, int, float, bool, type(None), bytes)
Encode = Callable[[int, Any, float], Row]


class Pieces:
    """Takes the pieces of one stream and gives the rows that are to be written."""

    __slots__ = ("_count", "_encode", "_fresh", "_gaps", "_ready", "_redactor", "_since", "_stream")

    def __init__(self, redactor: Redactor, encode: Encode) -> None:
        self._redactor = redactor
        self._encode = encode
        """(number, data, pause before it in ms) -> row."""
        self._fresh: list[tuple[Any, bool, float]] = []
        """(data, whether it is JSON of what the reader may change, pause)."""
        self._gaps: deque[float] = deque()
        self._ready: list[Row] = []
        self._stream: Any = None
        self._count = 0
        self._since = 0.0

    def add(self, data: Any, gap_ms: float) -> None:
        """Note a piece on its way to the reader; quick, because the reader is waiting."""
        if not self._fresh and not self._ready:
            self._since = time.monotonic()
        changes = data.__class__ not in _FIXED  # what can be changed by its reader is kept as it is now
        self._fresh.append((dump(data) if changes else data, changes, gap_ms))

    def due(self) -> list[Row]:
        """The rows to be written now, if it is time for that; called when the reader asks for more."""
        waiting = len(self._fresh) + len(self._ready)
        if not waiting or (waiting < GROUP and time.monotonic() - self._since < LONGEST_S):
            return []
        self._take()
        self._since = time.monotonic()
        rows, self._ready = self._ready, []
        return rows

    def rest(self) -> list[Row]:
        """All that is left, at the end of the stream."""
        self._take()
        if self._stream is not None:
            self._add_ready(self._stream.finish())
        rows, self._ready = self._ready, []
        return rows

    def _take(self) -> None:
        fresh, self._fresh = self._fresh, []
        if fresh and self._stream is None:
            from antiphon.redact._stream import redacting

            self._stream = redacting(self._redactor, fresh[0][0])
        for data, changes, gap_ms in fresh:
            self._gaps.append(gap_ms)
            self._add_ready(self._stream.feed(orjson.loads(data) if changes else data))

    def _add_ready(self, pieces: list[Any]) -> None:
        for data in pieces:
            self._ready.append(self._encode(self._count, data, self._gaps.popleft()))
            self._count += 1

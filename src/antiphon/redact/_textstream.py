"""Redact a text that arrives in pieces: a secret may begin in one piece and end in another.

Pieces come back in order and in number: the placeholder stands in the piece where the secret begins, the pieces it ran
through are shorter. A piece is held back only while its end could still become part of a secret.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from antiphon.redact._deferred import deferred
from antiphon.redact._redactor import Redactor

_TRY_AFTER = 1024
_LOOK_AHEAD = 256
_GIVE_UP = 65_536
_ARMOUR = "-----BEGIN"
_ARMOUR_END = deferred(r"-----END [A-Z0-9 ]+-----")
_QUIET_BLANK = deferred(r"[a-z,.;] (?=[A-Za-z][a-z])")
_NOT_QUIET = deferred(r"(?i)(?:bearer|basic|key|token|secret|code|--[a-z-]+)[,.;]? $")


class _Settled(NamedTuple):
    start: int
    end: int
    placeholder: str


class TextStream:
    """Feed pieces, get pieces."""

    __slots__ = ("_base", "_next_try", "_pieces", "_redactor", "_settled", "_tail")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._tail = ""
        self._base = 0
        """Where the tail begins in the whole text; everything before it is settled."""
        self._next_try = _TRY_AFTER
        self._settled: deque[_Settled] = deque()
        self._pieces: deque[tuple[int, str]] = deque()

    def feed(self, piece: str) -> list[str]:
        """Take the next piece; returns those that can be written now."""
        self._pieces.append((self._base + len(self._tail), piece))
        self._tail += piece
        if "\n" in piece or len(self._tail) >= self._next_try:
            self._settle(self._cut())
            self._next_try = len(self._tail) + _TRY_AFTER
        return self._release()

    def finish(self) -> list[str]:
        """The rest, after the last piece."""
        self._settle(len(self._tail))
        return self._release()

    def _cut(self) -> int:
        """How much of the tail no later piece can change."""
        tail = self._tail
        line = tail.rfind("\n") + 1
        armour = tail.rfind(_ARMOUR)
        if armour >= 0:
            end = _ARMOUR_END().search(tail, armour)
            if end is None:
                return armour if len(tail) - armour < _GIVE_UP else len(tail)
            if armour < line < end.end():
                return armour
        if len(tail) - line < _TRY_AFTER:
            return line
        if len(tail) - line >= _GIVE_UP:
            return len(tail)
        spans = self._redactor.spans(tail)
        for match in reversed(list(_QUIET_BLANK().finditer(tail, line, len(tail) - _LOOK_AHEAD))):
            blank = match.end()
            if _NOT_QUIET().search(tail[max(0, blank - 40) : blank]) is None and not any(
                span.start < blank < span.end for span in spans
            ):
                return blank
        return line

    def _settle(self, cut: int) -> None:
        for span in self._redactor.spans(self._tail[:cut]):
            secret = self._tail[span.start : span.end]
            stand_in = self._redactor.placeholder(span.kind, secret)
            self._settled.append(_Settled(self._base + span.start, self._base + span.end, stand_in))
        self._base += cut
        self._tail = self._tail[cut:]

    def _release(self) -> list[str]:
        ready: list[str] = []
        while self._pieces and self._pieces[0][0] + len(self._pieces[0][1]) <= self._base:
            start, piece = self._pieces.popleft()
            ready.append(self._redacted(start, piece))
        return ready

    def _redacted(self, start: int, piece: str) -> str:
        end = start + len(piece)
        parts: list[str] = []
        position = start
        while self._settled and self._settled[0].start < end:
            span = self._settled[0]
            if span.start >= start:
                parts += piece[position - start : span.start - start], span.placeholder
            position = min(span.end, end)
            if span.end > end:
                break
            self._settled.popleft()
        parts.append(piece[position - start :])
        return "".join(parts)

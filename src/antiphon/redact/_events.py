"""Redact a stream of server-sent events or of JSON lines, whose secrets may run through many of them (D18, D21).

A model writes a key token by token: each event holds a few letters of it, wrapped in JSON of its own. So the events
are read, not only their text. Pieces come back in number and order; an event that is changed stands in the piece
where it begins.
"""

from __future__ import annotations

import base64
import re
from collections import deque
from typing import Any

import orjson

from antiphon.redact._redactor import Redactor
from antiphon.redact._stream import StreamRedactor

_LOOKS = re.compile(rb"\s*(?:data|event|id|retry)?:|\s*\{[^\n]*\}\r?\n")
_TEXT = "text"


def as_bytes(data: Any) -> bytes | None:
    """A piece of a byte stream as bytes; ``None`` for a piece of any other kind."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode("utf-8", "replace")
    if isinstance(data, dict) and set(data) == {"$base64"} and isinstance(data["$base64"], str):
        return base64.b64decode(data["$base64"])
    return None


def _as_piece(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:  # cut inside a character
        return {"$base64": base64.b64encode(data).decode()}


def _loaded(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def looks_like_events(data: Any) -> bool:
    """Whether a stream that begins with this piece is one of server-sent events or of JSON lines."""
    return isinstance(data, (str, bytes)) and _LOOKS.match(as_bytes(data) or b"") is not None


class _Part:
    """A stretch of the stream that is replaced as a whole, once it is known by what."""

    __slots__ = ("end", "new", "plain", "start", "value")

    def __init__(
        self, start: int, end: int, value: Any = None, *, new: bytes | None = None, plain: bool = False
    ) -> None:
        self.start = start
        self.end = end
        self.value = value
        self.plain = plain
        self.new = new


class EventPieces:
    """``feed`` pieces, get the recorded ones that are final; the face of :class:`~antiphon.redact.StreamRedactor`."""

    __slots__ = ("_parts", "_pieces", "_read", "_redactor", "_stream", "_unread", "_waiting")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._stream = StreamRedactor(redactor)
        self._unread = b""
        self._read = 0
        """How much of the stream has been read, line by line."""
        self._waiting: deque[_Part] = deque()
        self._parts: deque[_Part] = deque()
        self._pieces: deque[tuple[int, bytes, bool]] = deque()
        """(where it begins, the piece, whether it came as bytes)."""

    def feed(self, data: Any) -> list[Any]:
        """Take the next piece; returns those that can be written now."""
        piece = as_bytes(data)
        if piece is None:
            piece = orjson.dumps(data)
        self._pieces.append((self._read + len(self._unread), piece, isinstance(data, bytes)))
        self._unread += piece
        if b"\n" in piece:
            *lines, self._unread = self._unread.split(b"\n")
            for line in lines:
                self._line(line)
                self._read += 1
        return self._release()

    def finish(self) -> list[Any]:
        """The rest, after the last piece."""
        last, self._unread = self._unread, b""
        self._line(last)
        self._settle(self._stream.finish())
        return self._release()

    def _line(self, line: bytes) -> None:
        start = self._read
        self._read += len(line)
        body = line.rstrip(b"\r")
        event = body.startswith(b"data:")
        text = body[5:].removeprefix(b" ") if event else body
        value = _loaded(text)
        plain = value is None
        if plain and event:  # a text of its own, and perhaps the next piece of one
            try:
                value = text.decode()
            except UnicodeDecodeError:
                event = False
        if isinstance(value, (dict, list)) or (event and isinstance(value, str)):
            part = _Part(start + len(body) - len(text), start + len(body), value, plain=plain)
            self._waiting.append(part)
            self._parts.append(part)
            self._settle(self._stream.feed({_TEXT: value} if isinstance(value, str) else value))
            return
        text_line = body.decode("utf-8", "replace")
        clean = self._redactor.redact_text(text_line)
        if clean != text_line:
            self._parts.append(_Part(start, start + len(body), new=clean.encode()))

    def _settle(self, released: list[Any]) -> None:
        for clean in released:
            part = self._waiting.popleft()
            if isinstance(part.value, str):
                clean = clean[_TEXT]
            if clean != part.value:
                part.new = clean.encode() if part.plain else orjson.dumps(clean)
            part.value = None

    def _release(self) -> list[Any]:
        end = self._waiting[0].start if self._waiting else self._read
        ready: list[Any] = []
        while self._pieces and self._pieces[0][0] + len(self._pieces[0][1]) <= end:
            start, piece, raw = self._pieces.popleft()
            clean = self._redacted(start, piece)
            ready.append(clean if raw else _as_piece(clean))
        return ready

    def _redacted(self, start: int, piece: bytes) -> bytes:
        end = start + len(piece)
        out: list[bytes] = []
        at = start
        while self._parts and self._parts[0].start < end:
            part = self._parts[0]
            if part.new is not None:
                if part.start >= start:
                    out += piece[at - start : part.start - start], part.new
                at = min(part.end, end)
            if part.end > end:
                break
            self._parts.popleft()
        out.append(piece[at - start :])
        return b"".join(out)


def redacting(redactor: Redactor, first: Any) -> EventPieces | StreamRedactor:
    """What redacts a stream that begins with the piece *first*."""
    return EventPieces(redactor) if looks_like_events(first) else StreamRedactor(redactor)

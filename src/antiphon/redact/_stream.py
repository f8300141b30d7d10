"""Redact streams for the recording while the live chunks pass unchanged (D18, D21).

A secret may begin in one chunk and end in another. Chunks come back in the same number and order: a pseudonym is split
where its secret was split, a mask goes into the chunk where its secret begins, and a chunk is held back only while its
end could still become part of a secret.
"""

from __future__ import annotations

import base64
import re
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, AnyStr, NamedTuple

import orjson

from antiphon.canonical import writable_json
from antiphon.redact._redactor import Redactor, written
from antiphon.redact._splice import Masked, Piece
from antiphon.redact._tokens import lazy_pattern

_TRY_AFTER = 1024
_LOOK_AHEAD = 256
_GIVE_UP = 65_536
_ARMOUR = "-----BEGIN"
_ARMOUR_END = lazy_pattern(r"-----END [A-Z0-9 ]+-----")
_QUIET_BLANK = lazy_pattern(r"[a-z,.;] (?=[A-Za-z][a-z])")
_NOT_QUIET = lazy_pattern(r"(?i)(?:bearer|basic|key|token|secret|code|--[a-z-]+)[,.;]? $")
_CONTINUED = frozenset(
    "content text arguments partial_json delta output_text thinking refusal reasoning reasoning_content transcript"
    " input input_text".split()
)
"""Fields that providers send in pieces; all others are complete in each chunk."""
_LIKELY = frozenset(
    "answer body chunk completion data generated_text generation message output outputText part piece response result"
    " string value word".split()
)
"""Fields that may hold the next part of a text, or repeat in each chunk: then they are complete."""
_WHOLE = frozenset({"media_type", "mediaType", "mime_type", "mimeType", "format", "audio", "image", "inline_data"})
"""Next to and below these, ``data`` is not text."""

_SHORT = 8
_Path = tuple[str, ...]
_LOOKS = re.compile(rb"\s*(?:data|event|id|retry)?:|\s*\{[^\n]*\}\r?\n")
_TEXT = "text"


@dataclass(slots=True)
class _Stretch:
    """A range of a stream that is replaced by *new*, once that is known; *pieces* locate the stand-ins in it."""

    start: int
    end: int
    value: Any = None
    new: Any = None
    pieces: list[Piece] = field(default_factory=list)
    plain: bool = False
    text: bytes = b""


def _cut(stretches: deque[_Stretch], start: int, chunk: AnyStr) -> tuple[AnyStr, list[Piece]]:
    """The *chunk* that begins at *start*, with the ranges in it replaced; those that end in it are removed.

    The pieces locate each stand-in in it; there are none if the place of one of them is not known.
    """
    end = start + len(chunk)
    out: list[AnyStr] = []
    pieces: list[Piece] = []
    at, size, exact = start, 0, True
    while stretches and stretches[0].start < end:
        stretch = stretches[0]
        if stretch.new is not None:
            first, last = max(stretch.start, start), min(stretch.end, end)
            even = len(stretch.new) == stretch.end - stretch.start
            exact = exact and even
            new = stretch.new if stretch.start >= start else chunk[:0]
            if even:
                new = stretch.new[first - stretch.start : last - stretch.start]
            before = chunk[at - start : first - start]
            out += before, new
            size += len(before)
            pieces += _within(stretch, first - stretch.start, len(new), size) if even else []
            size += len(new)
            at = last
        if stretch.end > end:
            break
        stretches.popleft()
    out.append(chunk[at - start :])
    return chunk[:0].join(out), pieces if exact else []


def _within(stretch: _Stretch, first: int, length: int, at: int) -> Iterator[Piece]:
    """The parts of stand-ins that fall into a section of the range, which is placed at *at*."""
    for piece in stretch.pieces:
        start, end = max(piece.at, first), min(piece.at + len(piece.new), first + length)
        if start < end:
            new = piece.new[start - piece.at : end - piece.at]
            yield Piece(at + start - first, at + end - first, new, piece.kind, "", at + start - first)


class TextStream:
    """Redact a text that arrives in chunks: feed chunks, get chunks."""

    def __init__(self, redactor: Redactor, found: dict[str, str] | None = None) -> None:
        self._redactor = redactor
        self._found = {} if found is None else found
        self._tail = ""
        self._base = 0
        """Where the tail begins in the whole text; everything before it is settled."""
        self._next_try = _TRY_AFTER
        self._settled: deque[_Stretch] = deque()
        self._chunks: deque[tuple[int, str]] = deque()

    def feed(self, chunk: str) -> list[str]:
        """Add the next chunk; returns those that can be written now."""
        self._chunks.append((self._base + len(self._tail), chunk))
        self._tail += chunk
        if "\n" in chunk or len(self._tail) >= self._next_try:
            self._settle(self._cut())
            self._next_try = len(self._tail) + _TRY_AFTER
        return self._release()

    def finish(self) -> list[str]:
        """The rest, after the last chunk."""
        self._settle(len(self._tail))
        return self._release()

    def _cut(self) -> int:
        """How much of the tail later chunks cannot change."""
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
        for piece in self._redactor.pieces(self._tail[:cut]):
            whole = [piece._replace(at=0)]
            self._found[piece.new] = piece.kind
            place = (self._base + piece.start, self._base + piece.end)
            self._settled.append(_Stretch(*place, new=piece.new, pieces=whole))
        self._base += cut
        self._tail = self._tail[cut:]

    def _release(self) -> list[str]:
        ready: list[str] = []
        while self._chunks and self._chunks[0][0] + len(self._chunks[0][1]) <= self._base:
            start, chunk = self._chunks.popleft()
            ready.append(Masked.made(*_cut(self._settled, start, chunk)))
        return ready


@dataclass(slots=True, eq=False)
class _Slot:
    """A text still in progress in a held chunk."""

    value: str | None = None


class _Held(NamedTuple):
    chunk: Any
    slots: list[_Slot]
    came: Any
    """The original chunk if it was bytes, either raw or in base64."""


class StreamRedactor:
    """Pass each live chunk (text, bytes or JSON-like data) to ``feed``; it returns the recorded chunks that are final.

    As many chunks come out as went in, in order. The caller forwards the live chunk before feeding it, so the consumer
    never waits.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._streams: dict[_Path, tuple[TextStream, deque[_Slot]]] = {}
        """The texts, and where their next chunks belong."""
        self._held: deque[_Held] = deque()
        self._last: dict[_Path, str] = {}
        """The contents of the likely fields in the previous chunk."""
        self.found: dict[str, str] = {}
        """The stand-ins in the stream -> their kind."""

    def feed(self, chunk: Any) -> list[Any]:
        """Add the next live chunk; returns the recorded ones that can be written now."""
        data = bytes(chunk) if isinstance(chunk, (bytes, bytearray)) else _packed(chunk)
        slots: list[_Slot] = []
        # Every byte is one Latin-1 character, so a cut inside a UTF-8 character does no harm.
        value = chunk if data is None else data.decode("latin-1")
        template = self._text((), value, slots) if isinstance(value, str) else self._template(value, (), slots)
        if not isinstance(template, _Slot):
            template = self._redactor.marked(template)
        self._held.append(_Held(template, slots, None if data is None else chunk))
        return self._release()

    def finish(self) -> list[Any]:
        """The chunks that were still held, after the last one (or after the stream was interrupted)."""
        for stream, waiting in self._streams.values():
            _fill(waiting, stream.finish())
        return self._release()

    def _template(self, value: Any, path: _Path, slots: list[_Slot]) -> Any:
        """*value* with its continued texts removed."""
        if isinstance(value, dict):
            inner = (*path, str(value["index"])) if isinstance(value.get("index"), int) else path
            return {
                key: self._text((*inner, str(key)), item, slots)
                if isinstance(item, str)
                and (key in _CONTINUED or (key in _LIKELY and self._goes_on((*inner, str(key)), item, value)))
                else self._template(item, (*inner, str(key)), slots)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [
                self._text((str(n),), item, slots)
                if isinstance(item, str) and not path and self._goes_on((str(n),), item, {})
                else self._template(item, (*path, str(n)), slots)
                for n, item in enumerate(value)
            ]
        return value

    def _goes_on(self, path: _Path, part: str, beside: dict[Any, Any]) -> bool:
        """Whether a likely field holds part of a text: it is short, or differs from the last time."""
        if path[-1] == "data" and not (_WHOLE.isdisjoint(beside) and _WHOLE.isdisjoint(path)):
            return False
        before = self._last.get(path)
        self._last[path] = part
        return part != before or len(part) < _SHORT

    def _text(self, path: _Path, part: str, slots: list[_Slot]) -> _Slot:
        slot = _Slot()
        slots.append(slot)
        if path not in self._streams:
            self._streams[path] = TextStream(self._redactor, self.found), deque()
        stream, waiting = self._streams[path]
        waiting.append(slot)
        _fill(waiting, stream.feed(part))
        return slot

    def _release(self) -> list[Any]:
        ready: list[Any] = []
        while self._held and all(slot.value is not None for slot in self._held[0].slots):
            held = self._held.popleft()
            chunk = _filled(held.chunk)
            if held.came is not None:
                chunk = chunk.encode("latin-1")
            if isinstance(held.came, dict):
                chunk = held.came if chunk == _packed(held.came) else _in_base64(chunk)
            ready.append(chunk)
        return ready


def _fill(waiting: deque[_Slot], texts: list[str]) -> None:
    for part in texts:
        waiting.popleft().value = part


def _filled(value: Any) -> Any:
    if isinstance(value, _Slot):
        return value.value
    if isinstance(value, dict):
        return {key: _filled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item) for item in value]
    return value


def as_bytes(data: Any) -> bytes | None:
    """A chunk of a byte stream as bytes; ``None`` for a chunk of any other kind."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode("utf-8", "replace")
    return _packed(data)


def _packed(data: Any) -> bytes | None:
    """The bytes of a chunk in the form that is recorded if it was cut inside a character; ``None`` for other chunks."""
    if not isinstance(data, dict) or set(data) != {"$base64"} or not isinstance(data["$base64"], str):
        return None
    try:
        return base64.b64decode(data["$base64"], validate=True)
    except ValueError:
        return None


def _in_base64(data: bytes) -> dict[str, str]:
    return {"$base64": base64.b64encode(data).decode()}


def _as_chunk(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:  # cut inside a character
        return _in_base64(data)


def _loaded(text: bytes) -> Any:
    try:
        return writable_json(text)
    except ValueError:
        return None


def looks_like_events(data: Any) -> bool:
    """Whether a stream with this first chunk is one of server-sent events or JSON lines."""
    return _LOOKS.match((as_bytes(data) or b"").removeprefix(BOM_UTF8)) is not None


class EventChunks:
    """Redact server-sent events or JSON lines, with the methods of :class:`StreamRedactor`.

    A model writes a key token by token: each event holds a few letters of it in separate JSON. So the events are
    parsed, not just their text. A changed event is written in the chunk where it begins.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._stream = StreamRedactor(redactor)
        self.found = self._stream.found
        self._unread = bytearray()
        self._read = 0
        """How much of the stream has been parsed, line by line."""
        self._waiting: deque[_Stretch] = deque()
        self._stretches: deque[_Stretch] = deque()
        self._chunks: deque[tuple[int, bytes, bool]] = deque()
        """(where it begins, the chunk, whether it came as bytes)."""

    def feed(self, data: Any) -> list[Any]:
        """Add the next chunk; returns those that can be written now."""
        chunk = as_bytes(data)
        if chunk is None:
            chunk = orjson.dumps(data)
        self._chunks.append((self._read + len(self._unread), chunk, isinstance(data, bytes)))
        self._unread += chunk
        if b"\n" in chunk:
            *lines, self._unread = self._unread.split(b"\n")
            for line in lines:
                self._line(bytes(line))
                self._read += 1
        return self._release()

    def finish(self) -> list[Any]:
        """The rest, after the last chunk."""
        last, self._unread = bytes(self._unread), bytearray()
        self._line(last)
        self._settle(self._stream.finish())
        return self._release()

    def _line(self, line: bytes) -> None:
        if not self._read and line.startswith(BOM_UTF8):
            self._read, line = len(BOM_UTF8), line[len(BOM_UTF8) :]
        start = self._read
        self._read += len(line)
        body = line.rstrip(b"\r")
        event = body.startswith(b"data:")
        text = body[5:].removeprefix(b" ") if event else body
        value = _loaded(text)
        plain = value is None
        if plain and event:  # a separate text, and perhaps the next part of one
            try:
                value = text.decode()
            except UnicodeDecodeError:
                event = False
        if isinstance(value, (dict, list)) or (event and isinstance(value, str)):
            stretch = _Stretch(start + len(body) - len(text), start + len(body), value, plain=plain, text=text)
            self._waiting.append(stretch)
            self._stretches.append(stretch)
            self._settle(self._stream.feed({_TEXT: value} if isinstance(value, str) else value))
            return
        text_line = body.decode("utf-8", "replace")
        clean = self._redactor.redact_text(text_line)
        if clean != text_line:
            self._stretches.append(_Stretch(start, start + len(body), new=clean.encode()))

    def _settle(self, released: list[Any]) -> None:
        for clean in released:
            stretch = self._waiting.popleft()
            if isinstance(stretch.value, str):
                clean = clean[_TEXT]
            if clean != stretch.value:
                stretch.new = clean.encode() if stretch.plain else written(stretch.text, stretch.value, clean)
            stretch.value = None

    def _release(self) -> list[Any]:
        end = self._waiting[0].start if self._waiting else self._read
        ready: list[Any] = []
        while self._chunks and self._chunks[0][0] + len(self._chunks[0][1]) <= end:
            start, chunk, raw = self._chunks.popleft()
            clean, _ = _cut(self._stretches, start, chunk)
            ready.append(clean if raw else _as_chunk(clean))
        return ready


def redacting(redactor: Redactor, first: Any) -> EventChunks | StreamRedactor:
    """The redactor for a stream that begins with the chunk *first*."""
    return EventChunks(redactor) if looks_like_events(first) else StreamRedactor(redactor)

"""Redact a stream of chunks for the recording while the live chunks pass untouched (D18, D21)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from antiphon.redact._redactor import Redactor
from antiphon.redact._textstream import TextStream

_CONTINUED = frozenset(
    "content text arguments partial_json delta output_text thinking refusal reasoning reasoning_content transcript"
    " input input_text".split()
)
"""Fields that providers send piece by piece; all others are whole in each chunk."""
_LIKELY = frozenset(
    "answer body chunk completion data generated_text generation message output outputText part piece response result"
    " string value word".split()
)
"""Fields that may hold the next piece, or say the same in each chunk: then they are whole."""
_WHOLE = frozenset({"media_type", "mediaType", "mime_type", "mimeType", "format", "audio", "image", "inline_data"})
"""Beside and below these ``data`` is no text."""

_SHORT = 8
_Path = tuple[str, ...]


class _Slot:
    """A piece of text that is still under way in a held chunk."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: str | None = None


class _Held:
    __slots__ = ("chunk", "raw", "slots")

    def __init__(self, chunk: Any, slots: list[_Slot], raw: bool) -> None:
        self.chunk = chunk
        self.slots = slots
        self.raw = raw


class StreamRedactor:
    """``feed`` each live chunk (text, bytes or JSON-like data); it returns the recorded chunks that are final.

    As many chunks come out as went in, in order. The caller passes the live chunk on before it feeds it, so nothing
    is delayed for the consumer.
    """

    __slots__ = ("_held", "_last", "_redactor", "_streams", "_waiting")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._streams: dict[_Path, TextStream] = {}
        self._waiting: dict[_Path, deque[_Slot]] = {}
        self._held: deque[_Held] = deque()
        self._last: dict[_Path, str] = {}
        """What stood in the likely fields of the chunk before."""

    def feed(self, chunk: Any) -> list[Any]:
        """Take the next live chunk; returns the recorded ones that can be written now."""
        raw = isinstance(chunk, (bytes, bytearray))
        slots: list[_Slot] = []
        # Every byte is one character of Latin-1, so a cut inside a UTF-8 character does no harm.
        value = bytes(chunk).decode("latin-1") if raw else chunk
        template = self._text((), value, slots) if isinstance(value, str) else self._template(value, (), slots)
        if not isinstance(template, _Slot):
            template = self._redactor.redact(template)
        self._held.append(_Held(template, slots, raw))
        return self._release()

    def finish(self) -> list[Any]:
        """The chunks that were still held, after the last one (or after the stream broke off)."""
        for path, stream in self._streams.items():
            self._fill(path, stream.finish())
        return self._release()

    def _template(self, value: Any, path: _Path, slots: list[_Slot]) -> Any:
        """*value* with its continued texts taken out."""
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

    def _goes_on(self, path: _Path, piece: str, beside: dict[Any, Any]) -> bool:
        """Whether a likely field holds a piece of a text: it is short, or says something else than the last time."""
        if path[-1] == "data" and not (_WHOLE.isdisjoint(beside) and _WHOLE.isdisjoint(path)):
            return False
        before = self._last.get(path)
        self._last[path] = piece
        return piece != before or len(piece) < _SHORT

    def _text(self, path: _Path, piece: str, slots: list[_Slot]) -> _Slot:
        slot = _Slot()
        slots.append(slot)
        stream = self._streams.get(path)
        if stream is None:
            stream = self._streams[path] = TextStream(self._redactor)
            self._waiting[path] = deque()
        self._waiting[path].append(slot)
        self._fill(path, stream.feed(piece))
        return slot

    def _fill(self, path: _Path, pieces: list[str]) -> None:
        waiting = self._waiting[path]
        for piece in pieces:
            waiting.popleft().value = piece

    def _release(self) -> list[Any]:
        return list(self._final())

    def _final(self) -> Iterator[Any]:
        while self._held and all(slot.value is not None for slot in self._held[0].slots):
            held = self._held.popleft()
            chunk = _filled(held.chunk)
            yield chunk.encode("latin-1") if held.raw else chunk


def _filled(value: Any) -> Any:
    if isinstance(value, _Slot):
        return value.value
    if isinstance(value, dict):
        return {key: _filled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item) for item in value]
    return value

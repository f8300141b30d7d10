"""Put stand-ins into a text in place: everything around them is kept as written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null|NaN|-?Infinity')
_UNIT = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\]", re.DOTALL)


class Piece(NamedTuple):
    """``text[start:end]`` is a secret; *new* replaces it, at position *at* of the new text."""

    start: int
    end: int
    new: str
    kind: str
    secret: str
    at: int = 0


class Masked(str):
    """A text with stand-ins, and where they are."""

    __slots__ = ("is_whole", "pieces")
    pieces: list[Piece]
    is_whole: bool

    @classmethod
    def of(cls, text: str, pieces: list[Piece]) -> Masked:
        """*text* with its *pieces* replaced."""
        parts: list[str] = []
        placed: list[Piece] = []
        position = size = 0
        for piece in pieces:
            size += piece.start - position
            start, end, new, kind, secret, _ = piece
            placed.append(Piece(start, end, new, kind, secret, size))
            parts += text[position : piece.start], piece.new
            size += len(piece.new)
            position = piece.end
        made = cls("".join((*parts, text[position:])))
        made.pieces = placed
        made.is_whole = len(pieces) == 1 and pieces[0].start == 0 and pieces[0].end == len(text)
        return made

    @classmethod
    def made(cls, text: str, pieces: list[Piece]) -> str:
        """A *text* that already contains the *pieces*; the text itself if there are none."""
        if not pieces:
            return text
        made = cls(text)
        made.pieces = pieces
        made.is_whole = False
        return made

    @property
    def plain(self) -> str:
        return str.__str__(self)


class MaskedInt(int):
    """A number that stands for another number."""

    pieces: list[Piece]

    @classmethod
    def of(cls, text: str, pieces: list[Piece]) -> MaskedInt:
        made = cls(pieces[0].new if text.isdigit() else text[0] + pieces[0].new.lstrip("-"))
        made.pieces = pieces
        return made

    @property
    def plain(self) -> int:
        return int(self)


def splice(text: str, before: Any, after: Any) -> Masked | None:
    """The JSON *text* of *before* with the leaves of *after*; ``None`` if the two do not match."""
    leaves = pairs(before, after)
    pieces: list[Piece] = []
    for token in _TOKEN.finditer(text):
        _, _, old, new = next(leaves, ("", False, None, None))
        if not isinstance(new, (Masked, MaskedInt)):
            continue
        found = _in_token(text, token.start(), token.end(), old, new)
        if found is None:
            return None
        pieces += found
    if next(leaves, None) is not None or not pieces:
        return None
    return Masked.of(text, pieces)


def _in_token(text: str, start: int, end: int, old: Any, new: Any) -> list[Piece] | None:
    if isinstance(new, (MaskedInt, Masked)) and not isinstance(old, str):  # a number
        (piece,) = new.pieces
        said = piece.new if isinstance(new, MaskedInt) else orjson.dumps(str(new)).decode()
        return [Piece(start, end, said, piece.kind, text[start:end])] if text[start:end] == str(old) else None
    if not isinstance(new, Masked) or text[start] != '"':
        return None
    units = [(match.start(), match.end()) for match in _UNIT.finditer(text, start + 1, end - 1)]
    if len(units) != len(old):
        return None
    found: list[Piece] = []
    for piece in new.pieces:
        if piece.start == piece.end:
            continue
        first, last = units[piece.start][0], units[piece.end - 1][1]
        raw = text[first:last]
        said = _escaped(raw, piece.secret, piece.new)
        found.append(Piece(first, last, said, piece.kind, raw))
    return found


def _escaped(raw: str, secret: str, new: str) -> str:
    """*new* escaped as *raw* escapes *secret*."""
    if raw == secret and len(new) == len(secret):
        return new
    if len(new) != len(secret):
        return orjson.dumps(new)[1:-1].decode()
    units = [match[0] for match in _UNIT.finditer(raw)]
    if len(units) != len(secret):
        return orjson.dumps(new)[1:-1].decode()
    return "".join(
        unit if old == char else _unicode(char) if unit.startswith("\\u") else char
        for unit, old, char in zip(units, secret, new, strict=True)
    )


def _unicode(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex(" ", 2)
    return "".join(f"\\u{unit}" for unit in units.split())


def pairs(before: Any, after: Any, pointer: str = "", *, changed: bool = False) -> Iterator[tuple[str, bool, Any, Any]]:
    """Names and leaves of two documents in written order: JSON pointer, whether it is a name, old, new.

    With *changed*, identical parts are skipped.
    """
    if isinstance(before, dict) and isinstance(after, dict) and len(before) == len(after):
        for (old_name, old), (name, new) in zip(before.items(), after.items(), strict=True):
            if changed and new is old and name is old_name:
                continue
            where = below(pointer, name)
            yield where, True, old_name, name
            yield from pairs(old, new, where, changed=changed)
    elif isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            if not (changed and new is old):
                yield from pairs(old, new, f"{pointer}/{index}", changed=changed)
    elif not (changed and after is before):
        yield pointer, False, before, after


def below(pointer: str, name: Any) -> str:
    """The JSON pointer to the member *name*."""
    return f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}"

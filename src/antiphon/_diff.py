"""Shows where two values differ, field by field and word by word, and which recorded call is nearest (D15)."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from enum import Enum
from itertools import zip_longest
from typing import Any, Final, Literal, NamedTuple

__all__ = [
    "ABSENT",
    "Absent",
    "Edit",
    "FieldDiff",
    "Nearest",
    "diff_values",
    "flatten",
    "likeness",
    "mark_words",
    "nearest",
    "same",
    "shorten",
    "word_diff",
]


class Absent(Enum):
    """The type of :data:`ABSENT`."""

    token = 0

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = Absent.token
"""Marks a side that has no value at all; ``None`` is a value."""

Op = Literal["=", "-", "+"]
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
_NAMES = re.compile(r"""(?<=[.$\]])\.?([^\W\d]\w*)|\[['"](.*?)['"]\]""", re.DOTALL)
"""Names in a path."""
_PIECES = re.compile(r"\w+|\s+|[^\w\s]")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_MAX_WORK = 4_000_000
"""Texts are compared word by word up to this product of their lengths."""


class FieldDiff(NamedTuple):
    """One place where two values differ."""

    path: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"{self.path}: {shorten(self.left)} -> {shorten(self.right)}"

    @classmethod
    def of(cls, wire: Mapping[str, Any]) -> FieldDiff:
        """Read one from its JSON form."""
        return cls(str(wire.get("path", "?")), wire.get("recorded", ABSENT), wire.get("current", ABSENT))

    def shown(self, view: Callable[[Any, str], Any]) -> FieldDiff:
        """The same for display: *view* masks a value according to its name."""
        names = [plain or quoted for plain, quoted in _NAMES.findall(self.path)]
        sides = [self.left, self.right]
        for name in names or [""]:
            sides = [side if side is ABSENT else view(side, name) for side in sides]
        return FieldDiff(self.path, *sides)

    def to_wire(self) -> dict[str, Any]:
        """The JSON form; an absent side has no entry."""
        wire = {"path": self.path, "recorded": self.left, "current": self.right}
        return {name: value for name, value in wire.items() if value is not ABSENT}


class Edit(NamedTuple):
    """A part of a text that is on both sides (``=``), only on the left (``-``) or only on the right (``+``)."""

    op: Op
    text: str


class Nearest(NamedTuple):
    """The candidate that differs least."""

    place: int
    likeness: float
    """Share of equal leaves, 0 to 1."""
    diffs: list[FieldDiff]


def shorten(value: Any, limit: int = 80) -> str:
    """*value* on one line of at most *limit* characters."""
    shown = repr(value)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def same(left: Any, right: Any) -> bool:
    """Equality of two leaves: 1 is 1.0, but True is not 1; NaN is NaN."""
    if left is right:
        return True
    if isinstance(left, bool) or isinstance(right, bool):
        return False
    if isinstance(left, float) and isinstance(right, float) and left != left and right != right:
        return True
    try:
        return bool(left == right)
    except Exception:  # a foreign type may refuse the comparison; then it is not equal
        return False


def diff_values(left: Any, right: Any, *, limit: int | None = None, root: str = "$") -> list[FieldDiff]:
    """Return the places where *left* and *right* differ, in the order of *left*; at most *limit* of them.

    Lists are compared without their common start and end, so one inserted element is one difference.

    >>> [str(d) for d in diff_values({"to": "ann", "n": 1}, {"to": "bob", "n": 1.0, "cc": None})]
    ["$.to: 'ann' -> 'bob'", '$.cc: absent -> None']
    """
    found: list[FieldDiff] = []
    stack: list[tuple[str, Any, Any]] = [(root, left, right)]
    while stack and (limit is None or len(found) < limit):
        path, a, b = stack.pop()
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            names = [*a, *(name for name in b if name not in a)]
            stack.extend((_field(path, name), a.get(name, ABSENT), b.get(name, ABSENT)) for name in reversed(names))
        elif _is_list(a) and _is_list(b):
            stack.extend(reversed(_items(path, a, b)))
        elif not same(a, b):
            found.append(FieldDiff(path, a, b))
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _field(path: str, name: Any) -> str:
    text = str(name)
    return f"{path}.{text}" if _PLAIN_NAME.fullmatch(text) else f"{path}[{text!r}]"


def _items(path: str, a: Sequence[Any], b: Sequence[Any]) -> list[tuple[str, Any, Any]]:
    """Pairs of elements to compare; indexes are those of the longer list."""
    if len(a) == len(b):
        return [(f"{path}[{n}]", x, y) for n, (x, y) in enumerate(zip(a, b, strict=True))]
    start, end = _shared_ends(a, b, _equal)
    middle = zip_longest(a[start : len(a) - end], b[start : len(b) - end], fillvalue=ABSENT)
    return [(f"{path}[{n}]", x, y) for n, (x, y) in enumerate(middle, start)]


def _shared_ends(a: Sequence[Any], b: Sequence[Any], equal: Callable[[Any, Any], bool]) -> tuple[int, int]:
    """How many elements two lists have in common at their start, and behind that at their end."""
    shorter = min(len(a), len(b))
    start = end = 0
    while start < shorter and equal(a[start], b[start]):
        start += 1
    while end < shorter - start and equal(a[-1 - end], b[-1 - end]):
        end += 1
    return start, end


def _equal(a: Any, b: Any) -> bool:
    return not diff_values(a, b, limit=1)


def word_diff(left: str, right: str) -> list[Edit]:
    """The edits that turn *left* into *right*, word by word (line by line where the texts are very long).

    >>> word_diff("the cat sat", "the dog sat")
    [Edit(op='=', text='the '), Edit(op='-', text='cat'), Edit(op='+', text='dog'), Edit(op='=', text=' sat')]
    """
    a, b = _PIECES.findall(left), _PIECES.findall(right)
    start, end = _shared_ends(a, b, operator.eq)
    old, new = a[start : len(a) - end], b[start : len(b) - end]
    if len(old) * len(new) > _MAX_WORK:
        old, new = _LINES.findall("".join(old)), _LINES.findall("".join(new))
    edits = [Edit("=", "".join(a[:start]))]
    if len(old) * len(new) > _MAX_WORK:
        edits += [Edit("-", "".join(old)), Edit("+", "".join(new))]
    else:
        for op, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if op == "equal":
                edits.append(Edit("=", "".join(old[i:j])))
            else:
                edits += [Edit("-", "".join(old[i:j])), Edit("+", "".join(new[k:m]))]
    edits.append(Edit("=", "".join(a[len(a) - end :])))
    return _joined(edits)


def _joined(edits: Iterable[Edit]) -> list[Edit]:
    """Drop empty edits and join neighbours of one kind."""
    result: list[Edit] = []
    for edit in edits:
        if not edit.text:
            continue
        if result and result[-1].op == edit.op:
            result[-1] = Edit(edit.op, result[-1].text + edit.text)
        else:
            result.append(edit)
    return result


def mark_words(left: str, right: str) -> str:
    """The word difference as one line of plain text.

    >>> mark_words("Total: $100", "Total: $900")
    'Total: $[-100-]{+900+}'
    """
    marks = {"=": "{}", "-": "[-{}-]", "+": "{{+{}+}}"}
    return "".join(marks[edit.op].format(edit.text) for edit in word_diff(left, right))


def nearest(name: str, arguments: Any, candidates: Sequence[tuple[str, Any]]) -> Nearest | None:
    """The recorded call that is closest to (*name*, *arguments*): same name first, then most equal leaves.

    Cheap enough for ten thousand candidates; no embeddings. The earliest of equally close ones wins.

    >>> nearest("send", {"to": "bob", "n": 1}, [("read", {"to": "bob"}), ("send", {"to": "ann", "n": 1})]).place
    1
    """
    if not candidates:
        return None
    places = [place for place, (other, _) in enumerate(candidates) if other == name]
    if not places:
        ratios = {other: SequenceMatcher(None, name, other).ratio() for other in {other for other, _ in candidates}}
        closest = max(ratios.values())
        places = [place for place, (other, _) in enumerate(candidates) if ratios[other] == closest]
    wanted = flatten(arguments)
    scores = {place: likeness(wanted, flatten(candidates[place][1])) for place in places}
    best = max(places, key=scores.__getitem__)
    other, recorded = candidates[best]
    diffs = [FieldDiff("name", other, name)] if other != name else []
    diffs += diff_values(recorded, arguments, limit=20)
    return Nearest(best, scores[best], diffs)


def flatten(value: Any) -> dict[str, Any]:
    """Every leaf by its path."""
    leaves: dict[str, Any] = {}
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, part = stack.pop()
        if isinstance(part, Mapping) and part:
            stack.extend((f"{path}.{name}", inner) for name, inner in part.items())
        elif _is_list(part) and part:
            stack.extend((f"{path}[{n}]", inner) for n, inner in enumerate(part))
        else:
            leaves[path] = part
    return leaves


def likeness(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Equal leaves over all leaves; texts that share words count partially."""
    total = len(a.keys() | b.keys())
    points = 0.0
    for path in a.keys() & b.keys():
        x, y = a[path], b[path]
        if same(x, y):
            points += 1.0
        elif isinstance(x, str) and isinstance(y, str):
            left, right = set(x.split()), set(y.split())
            points += 0.5 * len(left & right) / (len(left | right) or 1) + 0.1
        else:
            points += 0.1
    return points / total if total else 1.0


def plural(number: int, word: str) -> str:
    """*1 call*, *2 calls*.

    >>> plural(1, "retry"), plural(2, "retry"), plural(0, "call")
    ('1 retry', '2 retries', '0 calls')
    """
    if number == 1:
        return f"1 {word}"
    return f"{number} {word[:-1]}ies" if word.endswith("ry") else f"{number} {word}s"


def with_article(words: str) -> str:
    """*an* before a vowel, *a* before everything else.

    >>> with_article("openai-agents agent"), with_article("langchain agent")
    ('an openai-agents agent', 'a langchain agent')
    """
    return f"{'an' if words[:1].lower() in 'aeiou' else 'a'} {words}"

"""Small safe pieces of the HTML report: every text that goes into the page is escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import orjson

from antiphon._differ import ABSENT, word_diff

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
_SPACE = re.compile(r"\s")
_LONGEST = 6_000
_GOOD, _FAIR = 0.9, 0.7


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


def text(value: object) -> Markup:
    """*value* as escaped text; control and direction characters cannot hide anything."""
    if isinstance(value, Markup):
        return value
    clean = _CONTROL.sub("\ufffd", str(value)).encode("utf-8", "replace").decode()
    return Markup(escape(clean, quote=True))


def tag(name: str, *inner: object, **attributes: object) -> Markup:
    """An element; ``class_`` is the class, an attribute that is ``None`` is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{''.join(text(part) for part in inner)}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    """The parts one after the other."""
    return Markup("".join(text(part) for part in parts))


def value_text(value: Any) -> str:
    """A value as a person reads it: text as it is, everything else as indented JSON."""
    if value is ABSENT:
        return "absent"
    if isinstance(value, str):
        shown = value
    else:
        try:
            shown = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
        except (TypeError, orjson.JSONEncodeError):
            shown = repr(value)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}… ({len(shown)} characters)"


def word_changes(old: Any, new: Any) -> Markup:
    """Two values as one text with what went and what came."""
    if old is ABSENT:
        return tag("ins", value_text(new))
    if new is ABSENT:
        return tag("del", value_text(old))
    before, after = value_text(old), value_text(new)
    if not (_SPACE.search(before) and _SPACE.search(after)):
        return join((tag("del", before), " → ", tag("ins", after)))
    names = {"-": "del", "+": "ins"}
    edits = word_diff(before, after)
    return join(text(edit.text) if edit.op == "=" else tag(names[edit.op], edit.text) for edit in edits)


def field_table(fields: Iterable[Mapping[str, Any]]) -> Markup:
    """Field differences: path and word difference."""
    rows = [
        tag(
            "tr",
            tag("th", tag("code", entry.get("path", "?")), scope="row"),
            tag("td", tag("pre", word_changes(entry.get("recorded", ABSENT), entry.get("current", ABSENT)))),
        )
        for entry in fields
    ]
    return tag("table", tag("tbody", *rows), class_="fields") if rows else Markup()


def grade(value: float) -> str:
    """The class of a score's colour."""
    return "good" if value >= _GOOD else "fair" if value >= _FAIR else "poor"


def bar(label: str, value: float) -> Markup:
    """A labelled bar from 0 to 1."""
    share = min(1.0, max(0.0, value))
    drawing = Markup(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(label)} {value:.3f}"><rect class="track" width="100" height="8"/>'
        f'<rect class="{grade(share)}" width="{share * 100:.2f}" height="8"/></svg>'
    )
    return tag(
        "div", tag("span", label, class_="name"), drawing, tag("span", f"{value:.3f}", class_="number"), class_="part"
    )


def ring(label: str, value: float) -> Markup:
    """A score from 0 to 1 as a ring with its number inside."""
    share = min(1.0, max(0.0, value))
    around = 2 * 3.141592653589793 * 42
    return Markup(
        f'<svg class="ring" viewBox="0 0 100 100" role="img" aria-label="{text(label)} {value:.3f}">'
        '<circle class="track" cx="50" cy="50" r="42"/>'
        f'<circle class="{grade(share)}" cx="50" cy="50" r="42" stroke-dasharray="{share * around:.2f} {around:.2f}" '
        'transform="rotate(-90 50 50)"/>'
        f'<text x="50" y="57">{value:.3f}</text></svg>'
    )


def tile(label: str, value: object, note: str = "", kind: str = "") -> Markup:
    """A number with its name."""
    return tag(
        "div",
        tag("span", value, class_="figure"),
        tag("span", label, class_="name"),
        tag("span", note, class_="note") if note else "",
        class_=f"tile {kind}".strip(),
    )

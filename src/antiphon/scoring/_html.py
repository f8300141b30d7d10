"""Small safe pieces of the HTML report: its templates are filled here, and every text is escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from string import Template
from typing import Any

import orjson

from antiphon._differ import ABSENT, word_diff

_PART = re.compile(r'<template id="([a-z-]+)">(.*?)</template>', re.DOTALL)
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


@cache
def file(name: str) -> Markup:
    """A file of ``templates/``, which is installed with the package."""
    from importlib.resources import files

    return Markup((files("antiphon.scoring") / "templates" / name).read_text(encoding="utf-8"))


@cache
def _templates() -> dict[str, Template]:
    parts = _PART.findall(file("parts.html"))
    made = {name: Template("".join(line.strip() for line in inner.splitlines())) for name, inner in parts}
    return {**made, "page": Template(file("page.html"))}


def fill(template: str, /, **values: object) -> Markup:
    """The template with *values* in its places, escaped unless they are :class:`Markup`."""
    return Markup(_templates()[template].substitute({name: text(value) for name, value in values.items()}))


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
        return fill("new", text=value_text(new))
    if new is ABSENT:
        return fill("gone", text=value_text(old))
    before, after = value_text(old), value_text(new)
    if not (_SPACE.search(before) and _SPACE.search(after)):
        return join((fill("gone", text=before), " → ", fill("new", text=after)))
    names = {"-": "gone", "+": "new"}
    edits = word_diff(before, after)
    return join(edit.text if edit.op == "=" else fill(names[edit.op], text=edit.text) for edit in edits)


def field_table(fields: Iterable[Mapping[str, Any]]) -> Markup:
    """Field differences: path and word difference."""
    rows = join(
        fill(
            "field",
            path=entry.get("path", "?"),
            change=word_changes(entry.get("recorded", ABSENT), entry.get("current", ABSENT)),
        )
        for entry in fields
    )
    return fill("fields", rows=rows) if rows else rows


def muted(words: str) -> Markup:
    """A remark, if there is one."""
    return fill("muted", text=words) if words else Markup()


def _grade(value: float) -> str:
    """The class of a score's colour."""
    return "good" if value >= _GOOD else "fair" if value >= _FAIR else "poor"


def bar(label: str, value: float) -> Markup:
    """A labelled bar from 0 to 1."""
    share = min(1.0, max(0.0, value))
    return fill("bar", label=label, value=f"{value:.3f}", grade=_grade(share), width=f"{share * 100:.2f}")


def ring(label: str, value: float) -> Markup:
    """A score from 0 to 1 as a ring with its number inside."""
    share = min(1.0, max(0.0, value))
    around = 2 * 3.141592653589793 * 42
    drawn = f"{share * around:.2f}"
    return fill("ring", label=label, value=f"{value:.3f}", grade=_grade(share), drawn=drawn, around=f"{around:.2f}")


def tile(label: str, value: object, note: str = "", kind: str = "") -> Markup:
    """A number with its name."""
    said = fill("note", text=note) if note else ""
    return fill("tile", classes=f"tile {kind}".strip(), value=value, label=label, note=said)

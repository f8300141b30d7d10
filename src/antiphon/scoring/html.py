"""The HTML report: one file without scripts, fonts or links, readable on a phone, light and dark.

Its input is a :class:`antiphon.scoring.ReplayReport`: a plain mapping whose fields may all be absent.
Nothing in it is trusted. Texts are escaped, and the page's own policy forbids scripts and any request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from string import Template
from typing import Any

import orjson

from antiphon._diff import ABSENT, word_diff
from antiphon.scoring._report import NOT_RUN, ReplayReport, compared_text, count
from antiphon.scoring._scores import THRESHOLD, answer_text, band
from antiphon.scoring._structure import Call, Pair, align

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


_MAX_DIFFERENT = 500
_MAX_EQUAL = 100
_KINDS = {
    "A": "strict (A): every answer comes from the recording",
    "B": "explore (B): the model is called again, tools answer from the recording",
}
_ARS = "1 is the same answers and calls: 0.7 × output similarity + 0.3 × tool accuracy."
_FOLD = 3
"""More equal calls in a row than this are folded away."""
_SAVED = (
    ("calls", "calls not repeated", "{:,}"),
    ("tokens", "tokens not paid", "{:,}"),
    ("cost", "money not spent", "${:.4f}"),
    ("seconds", "seconds not waited", "{:.2f}"),
)
_TOTALS = (("tokens", "tokens", ",.0f"), ("cost", "cost", ".4f"), ("latencyMs", "latency, ms", ",.0f"))
_SAID = {
    "added": "was not in the recording",
    "dropped": "was not made again",
    "changed": "differs",
    "moved": "was made in a different position",
}


def render_report(report: ReplayReport) -> str:
    """The page for *report*."""
    title = report.get("title") or "Replay report"
    pairs, old, new = _timeline_pairs(report)
    body = join(
        (
            _header(report, title),
            _first(report, pairs, old, new),
            _scores(report),
            _numbers(report),
            _changes(report),
            _contradictions(report),
            _semantic_hits(report),
            _answers(report),
            _timeline(pairs, old, new),
        )
    )
    return page(title, body)


def page(title: str, body: Markup) -> str:
    """A whole page around *body*."""
    return fill("page", title=title, style=file("report.css"), body=body)


def _timeline_pairs(report: ReplayReport) -> tuple[list[Pair], list[Call], list[Call]]:
    old = [Call.of(call) for call in report.get("timelineA") or ()]
    new = [Call.of(call) for call in report.get("timelineB") or ()]
    return align(old, new), old, new


def _header(report: ReplayReport, title: str) -> Markup:
    runs = [report.get("sourceRun"), report.get("replayRun")]
    line = " → ".join(str(run) for run in runs if run)
    kind = _KINDS.get(report.get("replayType", ""), "")
    if report.get("executed") is False:
        kind = NOT_RUN
    verdict = report.get("verdict")
    reasons = join(fill("item", item=reason) for reason in report.get("verdictReasons") or ())
    return fill(
        "header",
        title=title,
        line=" · ".join(part for part in (kind, line, report.get("createdAt") or "") if part),
        reason=muted(report.get("reason") or ""),
        reasons=fill("list", items=reasons) if reasons else "",
        badge=fill("badge", kind="pass" if verdict == "pass" else "fail", verdict=verdict) if verdict else "",
    )


def _first(report: ReplayReport, pairs: Sequence[Pair], old: Sequence[Call], new: Sequence[Call]) -> Markup:
    """The first divergence; where none was reported, the first difference of the timelines."""
    divergences = report.get("divergences") or ()
    if divergences:
        first = divergences[0]
        place = f"#{first['index']} " if first.get("index") is not None else ""
        return fill(
            "first-divergence",
            call=f"{place}{first.get('name', '')}",
            message=first.get("message", ""),
            fields=field_table(first.get("fields") or first.get("diffs") or ()),
            more=muted(f"{len(divergences) - 1} more further down." if len(divergences) > 1 else ""),
            others=_others(divergences[1:]),
        )
    different = next((pair for pair in pairs if _kind(pair) != "equal"), None)
    if different is not None:
        call = old[different.left] if different.left is not None else new[different.right or 0]
        fields = field_table(diff.to_wire() for diff in different.diffs)
        return fill("first-difference", call=call.name, said=_SAID[_kind(different)], fields=fields)
    if not pairs and "divergences" not in report:
        return Markup()
    return fill("no-divergence")


def _others(divergences: Sequence[Mapping[str, Any]]) -> Markup:
    items = join(
        fill(
            "other-divergence",
            call=entry.get("name", ""),
            message=entry.get("message", ""),
            fields=field_table(entry.get("fields") or ()),
        )
        for entry in divergences[:_MAX_DIFFERENT]
    )
    return fill("other-divergences", items=items) if items else items


def _scores(report: ReplayReport) -> Markup:
    cards: list[Markup] = []
    ars = report.get("ars") or {}
    if "score" in ars:
        label = ars.get("band") or band(ars["score"]).label
        names = (("outputSimilarity", "Output similarity"), ("toolAccuracy", "Tool accuracy"))
        parts = [bar(name, float(ars[key])) for key, name in names if key in ars]  # type: ignore[literal-required]
        by = compared_text(report)
        by = f"{label}. Answers: {by}." if by else f"{label}."
        cards.append(_score("Agent regression score (ARS)", ars["score"], parts, f"{by} {_ARS}"))
    if report.get("determinismScore") is not None:
        parts = [bar(name.capitalize(), value) for name, value in (report.get("determinismParts") or {}).items()]
        limit = report.get("threshold", THRESHOLD)
        cards.append(_score("Determinism score", report["determinismScore"], parts, f"Threshold {limit:.2f}."))
    return fill("scores", cards=join(cards)) if cards else Markup()


def _score(name: str, value: float, parts: Iterable[Markup], note: str) -> Markup:
    return fill("score", label=name, ring=ring(name, value), parts=join(parts), note=note)


def _numbers(report: ReplayReport) -> Markup:
    saved: Mapping[str, Any] = report.get("saved") or {}
    saved_tiles = [
        tile(name, form.format(saved[key]))
        for key, name, form in _SAVED
        if key in saved and (saved[key] or key != "cost")
    ]
    counts = join(_counts(report))
    parts = []
    if saved_tiles:
        parts.append(fill("saved", tiles=join(saved_tiles)))
    if counts:
        parts.append(fill("calls-below" if saved_tiles else "calls", tiles=counts))
    return fill("numbers", parts=join(parts)) if parts else Markup()


def _counts(report: ReplayReport) -> Iterator[Markup]:
    for key, name in (("cacheHits", "cache hits"), ("newToolCalls", "new"), ("unusedToolCalls", "unused")):
        if key in report:
            yield tile(name, count(report[key]))  # type: ignore[literal-required]
    if "blocked" in report:
        yield tile("blocked side effects", count(report["blocked"]), kind="alarm" if count(report["blocked"]) else "")
    structure = report.get("structure") or {}
    for key, name in (("added", "added"), ("dropped", "dropped"), ("changed", "changed"), ("reordered", "reordered")):
        if key in structure:
            yield tile(name, count(structure[key]))
    for key, name in (("sideEffectsChanged", "side effects changed"), ("refusalFlips", "refusal flips")):
        if key in structure:
            number = count(structure[key])
            yield tile(name, number, kind="alarm" if number else "")
    for key, name, form in _TOTALS:
        total = structure.get(key)
        if isinstance(total, Mapping):
            note = f"recorded {total.get('recorded', 0):{form}}"
            yield tile(name, f"{total.get('replayed', 0):{form}}", note)


def _change(path: str, entry: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    return {"path": path, "recorded": entry.get(old), "current": entry.get(new)}


def _changes(report: ReplayReport) -> Markup:
    changes = report.get("changes")
    if changes is None or report.get("executed") is False:
        return Markup()
    parts: list[Markup] = []
    for section, fields in changes.items():
        entries = (_change(name, change, "artifact", "current") for name, change in fields.items())
        parts.append(fill("change", title=section, fields=field_table(entries)))
    unknown = report.get("notCompared") or ()
    if unknown:
        parts.append(muted(f"Not compared, unknown on one side: {', '.join(unknown)}."))
    return fill("changes", title="Changes" if changes else "No changes detected", parts=join(parts))


def _contradictions(report: ReplayReport) -> Markup:
    fields = field_table(
        _change(f"answer {found.get('interaction', 0)}: {found.get('kind', '')}", found, "recorded", "replayed")
        for found in report.get("contradictions") or ()
    )
    return fill("contradictions", fields=fields) if fields else fields


def _semantic_hits(report: ReplayReport) -> Markup:
    fields = field_table(
        _change(f"{hit.get('name', '?')} {float(hit.get('score', 0)):.0%}", hit, "recorded", "live")
        for hit in report.get("semanticHits") or ()
    )
    return fill("semantic-hits", fields=fields) if fields else fields


def _answers(report: ReplayReport) -> Markup:
    old, new = report.get("outputsA") or (), report.get("outputsB") or ()
    rows: list[Markup] = []
    for index in range(min(max(len(old), len(new)), _MAX_DIFFERENT)):
        before = answer_text(old[index]) if index < len(old) else None
        after = answer_text(new[index]) if index < len(new) else None
        shown: str
        if before == after:
            shown = value_text(before)
        elif before is None:
            shown = fill("new", text=value_text(after))
        elif after is None:
            shown = fill("gone", text=value_text(before))
        else:
            shown = word_changes(before, after)
        rows.append(fill("answer", number=index, shown=shown))
    return fill("answers", rows=join(rows)) if rows else Markup()


def _kind(pair: Pair) -> str:
    if pair.left is None:
        return "added"
    if pair.right is None:
        return "dropped"
    return "changed" if pair.diffs else "moved" if pair.moved else "equal"


def _timeline(pairs: Sequence[Pair], old: Sequence[Call], new: Sequence[Call]) -> Markup:
    if not pairs:
        return Markup()
    rows: list[Markup] = []
    equal: list[Pair] = []
    different = 0
    for pair in (*pairs, None):
        if pair is not None and _kind(pair) == "equal":
            equal.append(pair)
            continue
        rows += _folded(equal, old, new)
        equal = []
        if pair is not None:
            different += 1
            if different <= _MAX_DIFFERENT:
                rows.append(_row(pair, old, new))
    if different > _MAX_DIFFERENT:
        rows.append(muted(f"{different - _MAX_DIFFERENT} more differing calls are not shown."))
    return fill("timeline", rows=join(rows))


def _folded(pairs: Sequence[Pair], old: Sequence[Call], new: Sequence[Call]) -> list[Markup]:
    rows = [_row(pair, old, new) for pair in pairs[:_MAX_EQUAL]]
    if len(pairs) <= _FOLD:
        return rows
    if len(pairs) > _MAX_EQUAL:
        rows.append(muted(f"{len(pairs) - _MAX_EQUAL} more equal calls."))
    return [fill("equal-calls", count=len(pairs), rows=join(rows))]


def _row(pair: Pair, old: Sequence[Call], new: Sequence[Call]) -> Markup:
    fields = field_table(diff.to_wire() for diff in pair.diffs)
    return fill(
        "row",
        kind=_kind(pair),
        left=call_part(old[pair.left], pair.left, "Recorded")
        if pair.left is not None
        else _gap("not in the recording"),
        right=call_part(new[pair.right], pair.right, "Replayed") if pair.right is not None else _gap("not made again"),
        fields=fill("row-fields", fields=fields) if fields else "",
        moved=fill("row-moved") if pair.moved else "",
    )


def _gap(why: str) -> Markup:
    return fill("gap", why=why)


def call_part(call: Call, place: int, side: str) -> Markup:
    """One call with its marks, facts, arguments and result."""
    marks = (
        fill("mark", classes=f"mark {kind}".strip(), text=mark)
        for mark, kind, shown in (
            ("side effect", "alarm", call.side_effect),
            (call.outcome, "alarm", call.outcome != "ok"),
            (call.source, "", call.source not in ("", call.outcome)),
        )
        if shown
    )
    facts = [
        f"{call.tokens:,} tokens" if call.tokens else "",
        f"${call.cost:.4f}" if call.cost else "",
        f"{call.latency_ms:,.0f} ms" if call.latency_ms else "",
    ]
    parts = join(
        fill("detail", title=title, value=value_text(value))
        for title, value in (("arguments", call.arguments), ("result", call.value))
        if value is not None
    )
    return fill(
        "call",
        side=side,
        place=place,
        call=call.name,
        marks=join(marks),
        facts=" · ".join(fact for fact in facts if fact),
        details=fill("details", parts=parts) if parts else "",
    )

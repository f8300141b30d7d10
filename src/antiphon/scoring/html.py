"""Pages as one file: the components of the console with their data embedded, opened without a server.

A *view* is plain data that describes a page: the report of a replay, golden runs, a matrix. The console renders it,
whether it came in a file or from the HTTP API. The input of the report is a :class:`antiphon.scoring.ReplayReport`: a
plain mapping whose fields may all be absent. Nothing in it is trusted: all of it is data that the script sets as text,
and the file's content security policy forbids any other script and any request.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from itertools import groupby, islice
from typing import Any

import orjson

from antiphon._diff import ABSENT, FieldDiff, word_diff
from antiphon.scoring._report import NOT_RUN, ReplayReport, compared_text, count
from antiphon.scoring._scores import THRESHOLD, answer_pairs, band
from antiphon.scoring._structure import Call, Pair, align

_SPACE = re.compile(r"\s")
_LONGEST = 6_000
_GOOD, _FAIR = 0.9, 0.7
View = dict[str, Any]

# -- the file --------------------------------------------------------------------------------------------------------


@cache
def _asset(name: str) -> tuple[str, str]:
    """A file of the console, and its digest as the policy names it."""
    from importlib.resources import files

    text = (files("antiphon.console") / "static" / name).read_text(encoding="utf-8")
    return text, "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: Any) -> str:
    """JSON that can be embedded in a page: it contains no ``<`` that could end the element."""
    try:
        text = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, orjson.JSONEncodeError):  # half a surrogate pair, or a very large number
        text = json.dumps(value, default=str)
    return text.replace("<", "\\u003c")


def file(title: str, data: Mapping[str, Any], events: Mapping[int, Any] | None = None) -> str:
    """A whole file that shows *data*; *events* are parsed on demand."""
    (script, script_digest), (style, style_digest) = _asset("console.js"), _asset("console.css")
    more = "" if events is None else f'<script type="application/json" id="events">{_json(events)}</script>\n'
    return _asset("file.html")[0].format(
        script_digest=script_digest,
        style_digest=style_digest,
        title=escape(title.encode("utf-8", "replace").decode()),
        style=style,
        data=_json(data),
        more=more,
        script=script,
    )


def render_report(report: ReplayReport) -> str:
    """The file for *report*."""
    view = report_view(report)
    return file(view["title"], {"view": view})


def render_tests(results: Iterable[Mapping[str, Any]]) -> str:
    """The file of golden runs."""
    view = tests_view(results)
    return file(view["title"], {"view": view})


def render_matrix(view: View) -> str:
    """The file of a matrix."""
    return file("Matrix", {"view": view})


# -- parts of a view -------------------------------------------------------------------------------------------------


def value_text(value: Any) -> str:
    """A value for people: text unchanged, everything else as indented JSON."""
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


def word_changes(old: Any, new: Any) -> list[tuple[str, str]]:
    """The diff of two values, as pieces of text: kept (``=``), removed (``-``) and added (``+``)."""
    if old is ABSENT:
        return [("+", value_text(new))]
    if new is ABSENT:
        return [("-", value_text(old))]
    before, after = value_text(old), value_text(new)
    if not (_SPACE.search(before) and _SPACE.search(after)):
        return [("-", before), ("=", " → "), ("+", after)]
    return [(edit.op, edit.text) for edit in word_diff(before, after)]


def _fields(entries: Iterable[Mapping[str, Any]]) -> list[View]:
    """Field differences: path and word-level diff."""
    return [
        {
            "path": str(entry.get("path", "?")),
            "change": word_changes(entry.get("recorded", ABSENT), entry.get("current", ABSENT)),
        }
        for entry in entries
    ]


def _section(title: str, *parts: View | None, look: str = "") -> View:
    return {"kind": "section", "title": title, "look": look, "parts": [part for part in parts if part]}


def _of_fields(entries: Iterable[Mapping[str, Any]]) -> View | None:
    rows = _fields(entries)
    return {"kind": "fields", "rows": rows} if rows else None


def _remark(words: str) -> View | None:
    return {"kind": "text", "text": words} if words else None


def _lead(name: object, words: object) -> View:
    return {"kind": "lead", "name": str(name), "text": str(words)}


def _grade(share: float) -> str:
    """The CSS class of a score's colour."""
    return "good" if share >= _GOOD else "fair" if share >= _FAIR else "poor"


def _share(label: str, value: float) -> View:
    """A value from 0 to 1, drawn as a bar."""
    share = min(1.0, max(0.0, value))
    return {"label": label, "value": f"{value:.3f}", "share": round(share, 4), "grade": _grade(share)}


def _tile(label: str, value: object, note: str = "", alarm: bool = False) -> View:
    return {"label": label, "value": str(value), "note": note, "alarm": alarm}


def _tiles(title: str, tiles: Iterable[View]) -> View | None:
    found = list(tiles)
    return {"kind": "tiles", "title": title, "tiles": found} if found else None


# -- the report of a replay or a comparison --------------------------------------------------------------------------

_MAX_DIFFERENT = 500
_MAX_EQUAL = 100
_KINDS = {
    "A": "strict (A): every answer comes from the recording",
    "B": "explore (B): the model is called again, tools answer from the recording",
}
_ARS = "1 is the same answers and calls: 0.7 × output similarity + 0.3 × tool accuracy."
_FOLD = 3
"""Longer sequences of equal calls are folded."""
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


def report_view(report: ReplayReport) -> View:
    """What the page of *report* shows: the first divergence at the top, then scores, numbers, changes, every call."""
    old = [Call.of(call) for call in report.get("timelineA") or ()]
    new = [Call.of(call) for call in report.get("timelineB") or ()]
    pairs = _known(report["pairs"]) if "pairs" in report else align(old, new)
    runs = [report.get("sourceRun"), report.get("replayRun")]
    kind = NOT_RUN if report.get("executed") is False else _KINDS.get(report.get("replayType", ""), "")
    line = (kind, " → ".join(str(run) for run in runs if run), report.get("createdAt") or "")
    verdict = report.get("verdict")
    parts = (
        _first(report, pairs, old, new),
        *_scores(report),
        *_numbers(report),
        _changes(report),
        _contradictions(report),
        _semantic_hits(report),
        _answers(report),
        _timeline(pairs, old, new),
    )
    return {
        "title": str(report.get("title") or "Replay report"),
        "line": " · ".join(str(part) for part in line if part),
        "badge": verdict or "",
        "good": verdict == "pass",
        "note": str(report.get("reason") or ""),
        "reasons": [str(reason) for reason in report.get("verdictReasons") or ()],
        "parts": [part for part in parts if part],
    }


def _known(pairs: Sequence[Mapping[str, Any]]) -> list[Pair]:
    return [Pair(pair["left"], pair["right"], [FieldDiff.of(entry) for entry in pair["fields"]]) for pair in pairs]


def _first(report: ReplayReport, pairs: Sequence[Pair], old: Sequence[Call], new: Sequence[Call]) -> View | None:
    """The first divergence; if none was reported, the first difference between the timelines."""
    divergences = report.get("divergences") or ()
    if divergences:
        first = divergences[0]
        place = f"#{first['index']} " if first.get("index") is not None else ""
        more: View | None = None
        if len(divergences) > 1:
            others = [_other(entry) for entry in divergences[1:_MAX_DIFFERENT]]
            more = {"kind": "more", "title": f"The other divergences ({len(divergences) - 1})", "parts": others}
        return _section(
            "First divergence",
            _lead(f"{place}{first.get('name', '')}", first.get("message", "")),
            _of_fields(first.get("fields") or first.get("diffs") or ()),
            more,
            look="bad",
        )
    different = next((pair for pair in pairs if _kind(pair) != "equal"), None)
    if different is not None:
        call = old[different.left] if different.left is not None else new[different.right or 0]
        fields = _of_fields(diff.to_wire() for diff in different.diffs)
        return _section("First difference", _lead(call.name, _SAID[_kind(different)] + "."), fields, look="bad")
    if not pairs and "divergences" not in report:
        return None
    return _section("No divergence", _lead("", "All calls match the recording."), look="good")


def _other(entry: Mapping[str, Any]) -> View:
    parts = (_lead(entry.get("name", ""), entry.get("message", "")), _of_fields(entry.get("fields") or ()))
    return {"kind": "group", "parts": [part for part in parts if part]}


def _scores(report: ReplayReport) -> Iterator[View]:
    ars = report.get("ars") or {}
    if "score" in ars:
        label = ars.get("band") or band(ars["score"]).label
        names = (("outputSimilarity", "Output similarity"), ("toolAccuracy", "Tool accuracy"))
        parts = [_share(name, float(ars[key])) for key, name in names if key in ars]
        by = compared_text(report)
        by = f"{label}. Answers: {by}." if by else f"{label}."
        yield _score("Agent regression score (ARS)", ars["score"], parts, f"{by} {_ARS}")
    if report.get("determinismScore") is not None:
        parts = [_share(name.capitalize(), value) for name, value in (report.get("determinismParts") or {}).items()]
        limit = report.get("threshold", THRESHOLD)
        yield _score("Determinism score", report["determinismScore"], parts, f"Threshold {limit:.2f}.")


def _score(label: str, value: float, bars: list[View], note: str) -> View:
    return {"kind": "score", **_share(label, value), "bars": bars, "note": note}


def _numbers(report: ReplayReport) -> Iterator[View | None]:
    saved: Mapping[str, Any] = report.get("saved") or {}
    yield _tiles(
        "Saved",
        (
            _tile(name, form.format(saved[key]))
            for key, name, form in _SAVED
            if key in saved and (saved[key] or key != "cost")
        ),
    )
    yield _tiles("Calls", _counts(report))


def _counts(report: ReplayReport) -> Iterator[View]:
    for key, name in (("cacheHits", "cache hits"), ("newToolCalls", "new"), ("unusedToolCalls", "unused")):
        if key in report:
            yield _tile(name, count(report[key]))
    if "blocked" in report:
        yield _tile("blocked side effects", count(report["blocked"]), alarm=count(report["blocked"]) > 0)
    structure = report.get("structure") or {}
    for key, name in (("added", "added"), ("dropped", "dropped"), ("changed", "changed"), ("reordered", "reordered")):
        if key in structure:
            yield _tile(name, count(structure[key]))
    for key, name in (("sideEffectsChanged", "side effects changed"), ("refusalFlips", "refusal flips")):
        if key in structure:
            number = count(structure[key])
            yield _tile(name, number, alarm=number > 0)
    for key, name, form in _TOTALS:
        total = structure.get(key)
        if isinstance(total, Mapping):
            note = f"recorded {total.get('recorded', 0):{form}}"
            yield _tile(name, f"{total.get('replayed', 0):{form}}", note)


def _change(path: str, entry: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    return {"path": path, "recorded": entry.get(old), "current": entry.get(new)}


def _changes(report: ReplayReport) -> View | None:
    changes = report.get("changes")
    if changes is None or report.get("executed") is False:
        return None
    parts: list[View | None] = []
    for section, fields in changes.items():
        entries = (_change(name, change, "artifact", "current") for name, change in fields.items())
        parts += [_lead(section, ""), _of_fields(entries)]
    unknown = report.get("notCompared") or ()
    if unknown:
        parts.append(_remark(f"Not compared, unknown on one side: {', '.join(unknown)}."))
    return _section("Changes" if changes else "No changes detected", *parts)


def _contradictions(report: ReplayReport) -> View | None:
    fields = _of_fields(
        _change(f"answer {found.get('interaction', 0)}: {found.get('kind', '')}", found, "recorded", "replayed")
        for found in report.get("contradictions") or ()
    )
    return _section("Contradictions", fields, look="bad") if fields else None


def _semantic_hits(report: ReplayReport) -> View | None:
    fields = _of_fields(
        _change(f"{hit.get('name', '?')} {float(hit.get('score', 0)):.0%}", hit, "recorded", "live")
        for hit in report.get("semanticHits") or ()
    )
    note = _remark("Calls answered by a recorded call with different wording.")
    return _section("Semantic hits", note, fields) if fields else None


def _answers(report: ReplayReport) -> View | None:
    old, new = report.get("outputsA") or (), report.get("outputsB") or ()
    rows: list[View] = []
    for index, (before, after) in enumerate(islice(answer_pairs(old, new), _MAX_DIFFERENT)):
        same = before == after
        change = [("=", value_text(before))] if same else word_changes(before, after)
        rows.append({"path": f"Answer {index}", "change": change})
    return _section("Answers", {"kind": "fields", "rows": rows}) if rows else None


def _kind(pair: Pair) -> str:
    if pair.left is None:
        return "added"
    if pair.right is None:
        return "dropped"
    return "changed" if pair.diffs else "moved" if pair.moved else "equal"


def _timeline(pairs: Sequence[Pair], old: Sequence[Call], new: Sequence[Call]) -> View | None:
    if not pairs:
        return None
    rows: list[View] = []
    different = 0
    for equal, found in groupby(pairs, key=lambda pair: _kind(pair) == "equal"):
        if equal:
            rows += _folded(list(found), old, new)
            continue
        for pair in found:
            different += 1
            if different <= _MAX_DIFFERENT:
                rows.append(_row(pair, old, new))
    if different > _MAX_DIFFERENT:
        rows.append({"kind": "text", "text": f"{different - _MAX_DIFFERENT} more differing calls are not shown."})
    return _section("Timeline", {"kind": "sides", "names": ["Recorded", "Replayed"]}, *rows)


def _folded(pairs: Sequence[Pair], old: Sequence[Call], new: Sequence[Call]) -> list[View]:
    rows = [_row(pair, old, new) for pair in pairs[:_MAX_EQUAL]]
    if len(pairs) <= _FOLD:
        return rows
    if len(pairs) > _MAX_EQUAL:
        rows.append({"kind": "text", "text": f"{len(pairs) - _MAX_EQUAL} more equal calls."})
    return [{"kind": "more", "title": f"{len(pairs)} equal calls", "parts": rows}]


def _row(pair: Pair, old: Sequence[Call], new: Sequence[Call]) -> View:
    """Two calls side by side; equal ones have their arguments and results once."""
    kind = _kind(pair)
    row: View = {
        "kind": "row",
        "state": kind,
        "left": None if pair.left is None else _call(old[pair.left], pair.left),
        "right": None if pair.right is None else _call(new[pair.right], pair.right),
        "fields": _fields(diff.to_wire() for diff in pair.diffs),
        "note": "In a different position than in the recording." if pair.moved else "",
    }
    if kind in ("equal", "moved"):
        row["right"]["parts"] = []
    return row


def _call(call: Call, place: int) -> View:
    """One call with its marks, facts, arguments and result."""
    marks = (
        ("side effect", True, call.side_effect),
        (call.outcome, True, call.outcome != "ok"),
        (call.source, False, call.source not in ("", call.outcome)),
    )
    facts = (
        f"{call.tokens:,} tokens" if call.tokens else "",
        f"${call.cost:.4f}" if call.cost else "",
        f"{call.latency_ms:,.0f} ms" if call.latency_ms else "",
    )
    return {
        "place": place,
        "name": call.name,
        "marks": [{"text": str(mark), "alarm": alarm} for mark, alarm, shown in marks if shown],
        "facts": " · ".join(fact for fact in facts if fact),
        "parts": [
            [title, value_text(value)]
            for title, value in (("arguments", call.arguments), ("result", call.value))
            if value is not None
        ],
    }


# -- golden runs -----------------------------------------------------------------------------------------------------


def tests_view(results: Iterable[Mapping[str, Any]]) -> View:
    """What the page of golden runs shows: each with its verdict, score, reasons and first divergence."""
    shown = list(results)
    passed = sum(result.get("status") == "pass" for result in shown)
    note = "ARS, the agent regression score, says how much of the recording was reproduced: 1.000 is all of it."
    return {
        "title": f"{passed} of {len(shown)} golden runs pass",
        "line": "",
        "badge": "pass" if passed == len(shown) else "fail",
        "good": passed == len(shown),
        "note": note,
        "reasons": [],
        "parts": [result_part(result) for result in shown],
    }


def result_part(result: Mapping[str, Any]) -> View:
    """One golden run."""
    ars = result.get("ars") or {}
    score = f"ARS {ars['score']:.3f} · " if "score" in ars else ""
    divergences = result.get("divergences") or ()
    found = [_other(entry) for entry in divergences[:_MAX_DIFFERENT] if entry.get("fields")]
    return {
        "kind": "result",
        "good": result.get("status") == "pass",
        "status": str(result.get("status", "")),
        "path": str(result.get("path", "")),
        "facts": f"{score}{result.get('seconds', 0):.2f} s",
        "reasons": [str(reason) for reason in result.get("reasons") or ()],
        "parts": [{"kind": "more", "title": "What differs", "parts": found}] if found else [],
    }


# -- a matrix --------------------------------------------------------------------------------------------------------

_MOST_RUNS = 500


def matrix_view(result: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> View:
    """What the page of a matrix shows: verdicts, the numbers of each variant, and runs that did not pass everywhere."""
    verdicts: Sequence[Mapping[str, Any]] = result.get("verdicts") or ()
    lanes = [str(lane["variant"]) for lane in result.get("variants") or ()]
    cells: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        cells.setdefault(str(row["run"]), {}).setdefault(str(row["variant"]), []).append(row)
    parted = sorted(
        (run for run, of in cells.items() if any(one["status"] != "pass" for lane in of.values() for one in lane)),
        key=lambda run: min(float(one.get("score", 0.0)) for lane in cells[run].values() for one in lane),
    )
    worse, undecided = (any(one["verdict"] == word for one in verdicts) for word in ("worse", "undecided"))
    unclear = [str(name) for name in result.get("unclear") or ()]
    said = [
        f"{one['variant']} vs. {one['comparedWith']}: {one['verdict']} ({one['difference'] * 100:+.1f} points in "
        f"{one['pairs']} pairs, {one['leftOut']} left out; margin {float(result['margin']) * 100:g} points, "
        f"alpha {result['alpha']:g})"
        for one in verdicts
    ]
    tiles = [
        _tile(
            str(lane["variant"]),
            "-" if lane["passRate"] is None else f"{lane['passRate']:.1%}",
            f"pass · {lane['cells']:,} cells · {lane['refused']:,} refused · {lane['errors']:,} failed cells · "
            f"{lane['calls']:,} model calls · cost {lane['cost']:.4f}",
            alarm=bool(lane["errors"]),
        )
        for lane in result.get("variants") or ()
    ]
    table: View = {
        "kind": "table",
        "head": ["run", *lanes],
        "rows": [[{"text": run}, *(_cell(cells[run].get(lane, ())) for lane in lanes)] for run in parted[:_MOST_RUNS]],
    }
    parts = (
        _section("Verdict", {"kind": "list", "items": said}) if said else None,
        _tiles("Variants", tiles),
        _remark(f"Embedder: {result['embedder']}." if result.get("embedder") else ""),
        _section(
            "Runs that did not pass everywhere, lowest first",
            _remark("For inspection: the verdicts compare variants, not single runs."),
            table,
        )
        if parted
        else _remark("Every cell passed."),
        _remark(f"{len(parted) - _MOST_RUNS:,} more runs are not shown." if len(parted) > _MOST_RUNS else ""),
    )
    return {
        "title": f"{result['runs']:,} runs × {len(lanes)} variants",
        "line": str(result["id"]),
        "badge": "worse" if worse else ", ".join(dict.fromkeys(str(one["verdict"]) for one in verdicts)),
        "good": False if worse or unclear else None if undecided else True,
        "note": "",
        "reasons": [f"Undecided, and cells failed: {', '.join(unclear)}."] if unclear else [],
        "parts": [part for part in parts if part],
    }


def _cell(samples: Sequence[Mapping[str, Any]]) -> View:
    """How the samples of a run and a variant ended, and the reason of the first one that did not pass."""
    marks = []
    for one in sorted(samples, key=lambda row: int(row["sample"])):
        status = "refused" if one.get("refused") else str(one["status"])
        marks.append({"text": status, "alarm": status != "pass"})
    why = next((str(one["reasons"][0]) for one in samples if one["status"] != "pass" and one.get("reasons")), "")
    return {"marks": marks, "text": why}

"""``antiphon diff``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antiphon._differ import mark_words, shorten
from antiphon.cli._base import add_config, add_json, application, bold, dim, green, print_json, red, share, yellow

DESCRIPTION = "Compare two runs: calls added, dropped, changed, reordered; outputs; scores."
EXAMPLE = (
    "examples:\n  antiphon diff 01a1dd44 01a1dd4b\n  antiphon diff golden/refund.antiphon latest --html diff.html\n\n"
    "exit codes: 0 equal, 1 different, 4 not found, 6 unreadable"
)


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("a", help="run id, the beginning of one, latest, or an artifact")
    parser.add_argument("b", help="the run to compare it with")
    parser.add_argument("--html", metavar="FILE", help="write the comparison as one page")
    parser.add_argument("--min-ars", type=share, default=0.0, metavar="X", help="the score the verdict asks for")
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare and print; 1 if the runs differ."""
    from antiphon import scoring
    from antiphon.ops.comparison import score_runs
    from antiphon.ops.replay import open_recording

    with application(arguments) as app:
        left, right = open_recording(app, arguments.a), open_recording(app, arguments.b)
        data = score_runs(app, left, right, min_ars=arguments.min_ars)
    data = {"sourceRun": left.manifest.id, "replayRun": right.manifest.id, "title": left.manifest.name, **data}
    data["equal"] = _equal(data)
    if arguments.html:
        Path(arguments.html).write_text(scoring.render_report(data), encoding="utf-8")  # type: ignore[arg-type]
    if arguments.json:
        print_json(data)
    else:
        print(bold(f"{left.manifest.name} {left.manifest.id}  →  {right.manifest.name} {right.manifest.id}"))
        for line in _lines(data):
            print(line)
        if arguments.html:
            print(dim(f"report: {arguments.html}"))
    return 0 if data["equal"] else 1


def _equal(data: dict[str, Any]) -> bool:
    structure = data["structure"]
    changed = any(structure[name] for name in ("added", "dropped", "changed", "resultsChanged", "reordered"))
    return not changed and bool(data["outputsA"] == data["outputsB"])


def _lines(data: dict[str, Any]) -> Iterator[str]:
    structure = data["structure"]
    if data["equal"]:
        yield green(f"equal: {structure['equal']} calls, same outputs")
        return
    yield f"{structure['equal']} calls equal"
    for call in structure["added"]:
        yield green(f"  + added    {call['name']} {shorten(call.get('arguments'), 160)}")
    for call in structure["dropped"]:
        yield red(f"  - dropped  {call['name']} {shorten(call.get('arguments'), 160)}")
    for name, word in (("changed", "changed "), ("resultsChanged", "result  ")):
        for change in structure[name]:
            yield yellow(f"  ~ {word} {change['name']}")
            for field in change["fields"]:
                yield f"      {_field(field)}"
    for call in structure["reordered"]:
        yield yellow(f"  ⇅ moved    {call}")
    for number, (old, new) in enumerate(zip(data["outputsA"], data["outputsB"], strict=False)):
        if old != new:
            both = isinstance(old, str) and isinstance(new, str)
            yield f"  output {number}: {mark_words(old, new) if both else f'{shorten(old, 160)} → {shorten(new, 160)}'}"
    more = len(data["outputsB"]) - len(data["outputsA"])
    if more:
        yield f"  {abs(more)} output{'s' if abs(more) > 1 else ''} {'more' if more > 0 else 'fewer'}"
    for found in data["contradictions"]:
        yield red(f"  contradiction: {found.get('kind')}, {found.get('recorded')!r} became {found.get('replayed')!r}")
    if structure.get("sideEffectsChanged"):
        yield red(f"  {structure['sideEffectsChanged']} side effects changed")
    yield dim(f"ARS {data['ars']['score']:.3f} ({data['ars']['band']})")


def _field(field: dict[str, Any]) -> str:
    """One difference; a side that has nothing there says so."""
    sides = [shorten(field[name], 80) if name in field else "absent" for name in ("recorded", "current")]
    return f"{field['path']}: {sides[0]} → {sides[1]}"

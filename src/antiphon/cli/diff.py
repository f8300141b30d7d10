"""``antiphon diff``."""

from __future__ import annotations

import argparse
from pathlib import Path

from antiphon.cli._base import add_config, add_json, application, bold, dim, green, print_json, red, yellow

DESCRIPTION = "Compare two runs: calls added, dropped, changed, reordered; outputs; scores."
EXAMPLE = "example:\n  antiphon diff 01a1dd44 01a1dd4b --html diff.html"


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("a", help="run id, the beginning of one, or an artifact")
    parser.add_argument("b", help="the run to compare it with")
    parser.add_argument("--html", metavar="FILE", help="write the comparison as one page")
    parser.add_argument("--min-ars", type=float, default=0.0, metavar="X", help="exit 1 below this score")
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
    if arguments.html:
        Path(arguments.html).write_text(scoring.render_report(data), encoding="utf-8")  # type: ignore[arg-type]
    structure = data["structure"]
    same = not any(structure[k] for k in ("added", "dropped", "changed", "resultsChanged", "reordered"))
    same = same and data["outputsA"] == data["outputsB"]
    if arguments.json:
        print_json({**data, "equal": same})
        return 0 if same else 1
    print(bold(f"{left.manifest.name} {left.manifest.id}  →  {right.manifest.id}"))
    print(f"{structure['equal']} calls equal")
    for name, colour in (("added", green), ("dropped", red)):
        for call in structure[name]:
            print(colour(f"  {name:<8} {call['name']} {call.get('arguments')}"))
    for name in ("changed", "resultsChanged"):
        for change in structure[name]:
            print(yellow(f"  changed  {change['name']}"))
            for field in change["fields"]:
                print(f"           {field['path']}: {field.get('recorded')!r} → {field.get('current')!r}")
    for call in structure["reordered"]:
        print(yellow(f"  moved    {call}"))
    if data["outputsA"] != data["outputsB"]:
        print(f"output   {red(str(data['outputsA'])[:200])}\n      →  {green(str(data['outputsB'])[:200])}")
    print(dim(f"ARS {data['ars']['score']:.3f} ({data['ars']['band']})"))
    return 0 if same else 1

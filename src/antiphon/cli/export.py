"""``antiphon export``."""

from __future__ import annotations

import argparse
from pathlib import Path

from antiphon.cli._base import add_config, add_json, application, print_json

DESCRIPTION = "Write a run as one readable JSON document (.antiphon, or .kurral by its ending)."
EXAMPLE = "example:\n  antiphon export --latest -o golden/triage.antiphon && jq .tool_calls golden/triage.antiphon"


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", nargs="?", help="run id or the beginning of one (default: the latest run)")
    parser.add_argument("--latest", action="store_true", help="the latest run")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to (default: artifacts/<id>.antiphon)")
    parser.add_argument("--format", choices=["antiphon", "kurral"], help="default: by the file's ending")
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Export and say where it went."""
    from antiphon.ops.artifacts import export_run
    from antiphon.ops.runs import find_run

    with application(arguments) as app:
        manifest = find_run(app, arguments.run)
        ending = arguments.format or "antiphon"
        folder = "replay_runs" if manifest.source_run else app.config.artifacts.folder
        path = Path(arguments.output or f"{folder}/{manifest.id}.{ending}")
        if arguments.output is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        size = export_run(app, manifest, path, arguments.format)
        result = {"run": manifest.id, "file": str(path), "bytes": size}
    if arguments.json:
        print_json(result)
    else:
        print(f"{path}  {size} bytes")
    return 0

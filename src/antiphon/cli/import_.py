"""``antiphon import``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from antiphon.cli._base import add_config, add_json, application, print_json, progress, yellow

DESCRIPTION = "Read artifacts (.antiphon or .kurral) into the store. A file that cannot be read changes nothing."
EXAMPLE = "example:\n  antiphon import golden/*.antiphon"


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("files", nargs="+", metavar="FILE")
    add_config(parser)
    add_json(parser)


def _progress(events: Iterable[Any]) -> Iterable[Any]:
    return progress(events, None, "importing, events")


def run(arguments: argparse.Namespace) -> int:
    """Import each file in turn."""
    from antiphon.ops.artifacts import import_artifact

    done = []
    with application(arguments) as app:
        for name in arguments.files:
            manifest = import_artifact(app, Path(name), progress=_progress)
            done.append({"file": name, "run": manifest.id, "altered": manifest.tags.get("altered") == "true"})
            if not arguments.json:
                note = yellow("  edited after it was written") if done[-1]["altered"] else ""
                print(f"{name}  {manifest.id}{note}")
    if arguments.json:
        print_json({"imported": done})
    return 0

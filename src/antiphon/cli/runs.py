"""``antiphon runs``."""

from __future__ import annotations

import argparse

from antiphon.cli._base import (
    add_config,
    add_json,
    application,
    dim,
    duration,
    green,
    print_json,
    red,
    safe,
    table,
    when,
    whole,
    yellow,
)

DESCRIPTION = "List recorded runs, newest first."
EXAMPLE = "example:\n  antiphon runs --status failed --limit 5"

_COLOUR = {"completed": green, "failed": red, "interrupted": yellow, "running": yellow}


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("prefix", nargs="?", default="", help="beginning of the run ids to list")
    parser.add_argument("--name", default="", help="only runs of this name")
    parser.add_argument("--status", default="", choices=["running", "completed", "failed", "interrupted"])
    parser.add_argument("--replays", action="store_true", help="list replays too")
    parser.add_argument("--limit", type=whole(1), default=20, metavar="N", help="at most N runs (default 20)")
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the table, or JSON."""
    from antiphon.ops.views import list_runs

    with application(arguments) as app:
        rows = list_runs(
            app,
            prefix=arguments.prefix,
            name=arguments.name,
            status=arguments.status,
            limit=arguments.limit,
            replays=arguments.replays,
        )
    if arguments.json:
        print_json({"runs": rows})
        return 0
    if not rows:
        chosen = arguments.prefix or arguments.name or arguments.status
        print("No run fits that." if chosen else "No runs yet. Record one: antiphon run agent.py:main")
        return 0
    head = ("RUN", "NAME", "STATUS", "STARTED", "TOOK", "EVENTS", "REPLAY OF")
    lines = [
        (
            row["id"],
            safe(row["name"]),
            f"{row['status']}, exit {row['exitCode']}" if "exitCode" in row else row["status"],
            when(row["startedAtMs"]),
            duration(row["durationMs"]),
            "" if row["finishedAtMs"] is None else row["events"],  # counted when a run ends
            safe(row["sourceRun"] or "")[:13],
        )
        for row in rows
    ]
    text = table(head, lines, right=(5,)).splitlines()
    print(text[0])
    for line, row in zip(text[1:], rows, strict=True):
        print(line.replace(row["status"], _COLOUR.get(row["status"], dim)(row["status"]), 1))
    return 0

"""``antiphon gc``."""

from __future__ import annotations

import argparse

from antiphon.cli._base import add_config, add_json, application, dim, number, print_json, safe, when, whole

DESCRIPTION = "Delete old runs by age, count or size, and expired claims. Runs inside the retention window are kept."
EXAMPLE = "example:\n  antiphon gc --older-than 30 --dry-run"


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--older-than", type=number, metavar="DAYS", help="delete runs that ended longer ago")
    parser.add_argument("--keep", type=whole(), metavar="N", help="keep at most the newest N runs")
    parser.add_argument(
        "--max-bytes", type=whole(), metavar="B", help="delete the oldest runs until the log is smaller"
    )
    parser.add_argument("--force", action="store_true", help="also inside the retention window")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Collect, and report."""
    from antiphon.ops.retention import collect

    with application(arguments) as app:
        result = collect(
            app,
            older_than_days=arguments.older_than,
            keep=arguments.keep,
            max_bytes=arguments.max_bytes,
            force=arguments.force,
            dry_run=arguments.dry_run,
        )
    if arguments.json:
        print_json(result)
        return 0
    verb = "would delete" if arguments.dry_run else "deleted"
    for row in result["runs"]:
        print(dim(f"{row['id']}  {safe(row['name'])}  {when(row['startedAtMs'])}"))
    print(f"{verb} {len(result['runs'])} runs, {result['blobs']} blobs and {result['claims']} expired claims")
    if result["protected"]:
        window = f"the retention window of {result['retentionDays']:g} days"
        print(f"{result['protected']} runs are inside {window} and are kept")
    return 0

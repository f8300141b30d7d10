"""``antiphon doctor``."""

from __future__ import annotations

import argparse

from antiphon.cli._base import add_config, add_json, application, dim, green, print_json, red, yellow

DESCRIPTION = (
    "Check what can be checked: stores, records that need a person, waiting uploads, tools, retry owners, limits."
)
EXAMPLE = "example:\n  antiphon doctor --entry agent.py:main"

_MARK = {"ok": green("✓"), "warning": yellow("!"), "error": red("✗"), "note": dim("·")}


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--entry", metavar="TARGET", help="also look at the tools this entry point registers")
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check, and list; 1 if anything is broken."""
    from antiphon.ops.doctor import examine

    with application(arguments) as app:
        findings = examine(app, arguments.entry)
    broken = any(finding["level"] == "error" for finding in findings)
    if arguments.json:
        print_json({"ok": not broken, "findings": findings})
        return 1 if broken else 0
    for finding in findings:
        print(f"{_MARK[finding['level']]} {finding['check']}: {finding['message']}")
        if finding.get("hint"):
            print(dim(f"    {finding['hint']}"))
    return 1 if broken else 0

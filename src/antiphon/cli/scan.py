"""``antiphon scan``."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from antiphon.cli._base import add_config, add_json, application, green, print_json, red
from antiphon.errors import NotFound

DESCRIPTION = (
    "Look for secrets in files or folders. The secrets themselves are never printed. Exit code 1 if any is found."
)
EXAMPLE = "example:\n  antiphon scan golden/    # as a pre-commit or CI step"


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("paths", nargs="+", metavar="PATH")
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Scan and list what was found, by place and kind."""
    from antiphon.config.wiring import rules_of
    from antiphon.redact import scan_path

    found = []
    with application(arguments) as app:
        rules = msgspec.structs.replace(rules_of(app.config), personal=False)
        for name in arguments.paths:
            if not Path(name).exists():
                raise NotFound(f"There is no {name}.")
            found += list(scan_path(Path(name), rules))
    if arguments.json:
        print_json({"findings": [finding._asdict() for finding in found]})
    elif not found:
        print(green("no secrets found"))
    else:
        for finding in found:
            print(f"{finding.file}: {finding.where}: {finding.kind} ({finding.fingerprint})")
        print(red(f"{len(found)} secret{'s' if len(found) > 1 else ''} found"))
    return 1 if found else 0

"""``antiphon breakers``."""

from __future__ import annotations

import argparse

from antiphon.cli._base import add_config, add_json, application, number, print_json, table, when

DESCRIPTION = "Circuit breakers: list them, fence a dependency off by hand, or close a breaker at once."
EXAMPLE = (
    "examples:\n  antiphon breakers list\n"
    "  antiphon breakers force-open tools/send_email --reason 'provider incident'\n"
    "  antiphon breakers reset tools/send_email"
)


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("what", nargs="?", default="list", choices=["list", "force-open", "reset"])
    parser.add_argument("tool", nargs="?", default="", help="namespace/name, dependency/NAME or global")
    parser.add_argument("--context", default="", help="dependency name, or global")
    parser.add_argument("--for", dest="seconds", type=number, metavar="SECONDS", help="force-open: not for ever")
    parser.add_argument("--reason", default="", help="shown to callers, and kept in the audit log")
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do the act."""
    from antiphon._drive import drive
    from antiphon.ops.admin import Admin, as_breaker_key

    with application(arguments) as app:
        acts = Admin(app)
        if arguments.what != "list":
            key = as_breaker_key(arguments.tool, arguments.context or None)
            if arguments.what == "reset":
                row = drive(acts.reset(key, arguments.reason))
            else:
                milliseconds = None if arguments.seconds is None else int(arguments.seconds * 1000)
                row = drive(acts.force_open(key, arguments.reason, milliseconds))
            rows = [row]
        else:
            rows = drive(acts.breakers())
    if arguments.json:
        print_json({"breakers": rows})
        return 0
    if not rows:
        print("All breakers are closed; none has ever changed its state.")
        return 0
    head = ("BREAKER", "STATE", "BY", "UNTIL", "CHANGED", "REASON")
    lines = [(r["key"], r["state"], r["by"], when(r["untilMs"]), when(r["updatedAtMs"]), r["reason"]) for r in rows]
    print(table(head, lines))
    return 0

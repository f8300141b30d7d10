"""``antiphon claims``."""

from __future__ import annotations

import argparse
from typing import Any

from antiphon.cli._base import add_config, add_json, application, print_json, table, when, whole, yellow
from antiphon.errors import InvalidInput

DESCRIPTION = "Claim records: list them, show one, settle an unknown outcome, forget one or many, see what they cost."
EXAMPLE = (
    "examples:\n  antiphon claims list --state unknown\n"
    "  antiphon claims resolve 55bf97edc27d2399 --happened --value '\"sent\"'\n"
    "  antiphon claims flush --session order-1042"
)


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    acts = ["list", "show", "clear", "resolve", "flush", "usage"]
    parser.add_argument("what", nargs="?", default="list", choices=acts)
    parser.add_argument("key", nargs="?", default="", help="key or fingerprint of one claim")
    parser.add_argument("--tool", default="", help="namespace/name")
    parser.add_argument("--session", default="")
    parser.add_argument("--prefix", default="", help="beginning of the keys")
    parser.add_argument("--state", default="", choices=["inflight", "done", "failed", "cancelled", "unknown"])
    verdict = parser.add_mutually_exclusive_group()
    verdict.add_argument("--happened", action="store_true", help="resolve: the call took effect")
    verdict.add_argument("--did-not-happen", action="store_true", help="resolve: it did not; the next call runs")
    parser.add_argument("--value", metavar="JSON", help="resolve --happened: the result duplicates are given")
    parser.add_argument("--reason", default="", help="goes to the audit log")
    parser.add_argument("--limit", type=whole(1), default=50)
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do the act."""
    from antiphon._drive import drive
    from antiphon.ops.admin import Admin, usage

    with application(arguments) as app:
        acts = Admin(app)
        if arguments.what == "list":
            found = drive(
                acts.claims(
                    tool=arguments.tool,
                    session=arguments.session,
                    state=arguments.state,
                    prefix=arguments.prefix,
                    limit=arguments.limit,
                )
            )
            _list(found, arguments.json)
            return 0
        result = usage(app) if arguments.what == "usage" else drive(_act(acts, arguments))
    if arguments.json or arguments.what == "show":
        print_json(result)
    else:
        print(", ".join(f"{name}: {value}" for name, value in result.items()))
    return 0


async def _act(acts: Any, arguments: argparse.Namespace) -> Any:
    if arguments.what == "show":
        return await acts.claim(arguments.key)
    if arguments.what == "clear":
        return await acts.clear(arguments.key, arguments.reason)
    if arguments.what == "flush":
        return await acts.flush(
            tool=arguments.tool, session=arguments.session, prefix=arguments.prefix, reason=arguments.reason
        )
    if not (arguments.happened or arguments.did_not_happen):
        raise InvalidInput("Say how it ended: --happened or --did-not-happen.")
    verdict = "happened" if arguments.happened else "did-not-happen"
    return await acts.resolve(arguments.key, verdict, value=_value(arguments.value), reason=arguments.reason)


def _value(text: str | None) -> Any:
    if text is None:
        return None
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"--value is not JSON: {error}.") from None


def _list(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json({"claims": found})
        return
    if not found:
        print("No claims.")
        return
    head = ("CLAIM", "TOOL", "STATE", "SESSION", "UPDATED", "ATTEMPTS", "ERROR")
    rows = [
        (
            claim["fingerprint"],
            claim["tool"],
            claim["state"],
            claim["session"],
            when(claim["updatedAtMs"]),
            claim["attempts"],
            (claim["error"] or {}).get("code", ""),
        )
        for claim in found
    ]
    print(table(head, rows, right=(5,)))
    unknown = sum(claim["state"] == "unknown" for claim in found)
    if unknown:
        print(yellow(f"{unknown} with an unknown outcome: find out what happened, then antiphon claims resolve CLAIM"))

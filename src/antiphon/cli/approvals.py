"""The command of people who approve calls."""

from __future__ import annotations

import argparse
import getpass
import socket
from collections.abc import Iterator
from typing import Any

from antiphon.cli import _ui as ui
from antiphon.cli._base import CONFIG, JSON, TENANT, application, argument, command, flag, none_found, positive_int
from antiphon.errors import InvalidInput


@command(
    argument("what", nargs="?", default="list", choices=["list", "show", "approve", "deny", "withdraw", "link"]),
    argument("id", nargs="*", help="id of the approval; several are decided alike"),
    argument("--tool", default="", help="list: namespace/name"),
    argument("--state", default="waiting", choices=["waiting", "approved", "denied", "withdrawn", "expired", "all"]),
    argument("--as", dest="who", default="", metavar="NAME", help="who decides (default: the user of this machine)"),
    argument("--reason", default="", help="sent to the model on denial, and recorded in the audit log"),
    flag("--dry-run", "check the decision and change nothing"),
    argument("--limit", type=positive_int, default=50),
    argument("--to", default="", metavar="NAME", help="link: who decides with it"),
    argument("--may", default="both", choices=["both", "approve", "deny"], help="link: what it allows"),
    argument(
        "--expires", type=positive_int, default=None, metavar="SECONDS", help="link: expires after this, at the latest"
    ),
    argument("--url", default="", help="link: where its page is (default: [approvals] url)"),
    TENANT,
    CONFIG,
    JSON,
)
def approvals(arguments: argparse.Namespace) -> int:
    """Calls that wait for a person: list or show them, approve, deny or withdraw, or make a link that decides.

    examples:
      antiphon approvals list
      antiphon approvals approve 67207fc22f654738 --reason 'checked the invoice'
      antiphon approvals deny 67207fc22f654738 --reason 'the order was paid already'
      antiphon approvals link 67207fc22f654738 --to grace@example.com --url https://desk.example.com/approve
    """
    if arguments.what in ("show", "link") and len(arguments.id) > 1:
        raise InvalidInput(f"Name one approval: {arguments.what} takes one id.")
    if arguments.what != "list" and not arguments.id:
        raise InvalidInput("Name an approval by its id.", hint="List them: antiphon approvals list")

    who = arguments.who or user_name()
    with application(arguments) as base:
        app = base.for_tenant(arguments.tenant)
        desk, place = app.approvals(who, where=f"command line on {socket.gethostname()}"), app.store.url
        if arguments.what == "list":
            found = desk.list(state=arguments.state, tool=arguments.tool, limit=arguments.limit)
            ui.output(
                arguments, {"approvals": found, "store": place}, _table(found) if found else _nothing(app, arguments)
            )
            return 0
        if arguments.what == "show":
            made = desk.show(arguments.id[0])
        elif arguments.what == "link":
            may = ("approve", "deny") if arguments.may == "both" else (arguments.may,)
            wanted = {"may": may, "expires_in_s": arguments.expires, "url": arguments.url}
            made = desk.link(arguments.id[0], to=arguments.to, **wanted)
        else:
            how = {"reason": arguments.reason, "dry_run": arguments.dry_run}
            if len(arguments.id) > 1:
                made = desk.decide_all(arguments.id, arguments.what, **how)
                ui.output(arguments, made, _decided(made))
                return 1 if "refused" in made else 0
            made = desk.decide(arguments.id[0], arguments.what, **how)
    ui.output(arguments, made, ui.fields(made))
    return 0


def _decided(made: dict[str, Any]) -> Iterator[str]:
    for one in made["approvals"]:
        yield f"{one['id']}: {one['state']}"
    for one in made.get("refused", ()):
        yield f"{one['id']}: {one['message']}"


def user_name() -> str:
    """The user of this machine."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without a user database
        return "cli"


def _nothing(app: Any, arguments: argparse.Namespace) -> str:
    """That there are no such approvals, and which tenants have some."""
    chosen = {"state": arguments.state, "tool": arguments.tool, "limit": 1}
    state = "" if arguments.state == "all" else f" {arguments.state}"
    return none_found(app, arguments.tenant, "approvals", state, lambda other: other.approvals("").list(**chosen))


def _table(found: list[dict[str, Any]]) -> Iterator[str]:
    head = ("APPROVAL", "TOOL", "ARGUMENTS", "STATE", "ASKED BY", "AGE", "EXPIRES", "POLICY")
    yield ui.table(head, [_row(one) for one in found], shorten={2: 20, 1: 9}, keep=(3,))
    if any(one["state"] == "waiting" for one in found):
        yield "Decide: antiphon approvals approve ID, or deny ID --reason TEXT"


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    left = one["askedAtMs"] + one["ageMs"]
    expires = "over" if one["state"] == "expired" else f"in {ui.duration(max(0, one['expiresAtMs'] - left))}"
    version = f"@{one['policyVersion']}" if one["policyVersion"] else ""
    shown = (one["id"], one["tool"], one["arguments"], one["state"], one["asker"])
    return (*shown, ui.duration(one["ageMs"]), expires, f"{one['policy']}{version}")

"""``antiphon apikeys``."""

from __future__ import annotations

import argparse

from antiphon.cli._base import add_config, add_json, application, print_json, table, when
from antiphon.errors import InvalidInput

DESCRIPTION = "Create, list or revoke API keys of the host. A key is shown once; only its digest is kept."
EXAMPLE = "example:\n  antiphon apikeys create --role run --tenant acme --name ci"


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("act", choices=("create", "list", "revoke"))
    parser.add_argument("id", nargs="?", help="which key to revoke")
    parser.add_argument("--role", choices=("read", "run", "admin"), default="run", help="what it allows (default: run)")
    parser.add_argument("--tenant", help="whose data it opens (default: the configured tenant)")
    parser.add_argument("--name", default="", help="a note for people")
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Create, list or revoke."""
    from antiphon._drive import drive
    from antiphon.host.api_keys import KeyRing
    from antiphon.stores._adapters import AsyncFromSync

    with application(arguments) as app:
        ring = KeyRing(AsyncFromSync(app.journal), app.clock, default_tenant=app.tenant)
        if arguments.act == "create":
            tenant = arguments.tenant or app.tenant
            token, key = drive(ring.create(role=arguments.role, tenant=tenant, name=arguments.name))
            if arguments.json:
                print_json({"token": token, **key.to_wire()})
            else:
                print(token)
                print(f"key {key.id}: role {key.role}, tenant {key.tenant}. It is not shown again.")
            return 0
        if arguments.act == "revoke":
            if not arguments.id:
                raise InvalidInput("Say which key to revoke.", hint="List them: antiphon apikeys list")
            revoked = drive(ring.revoke(arguments.id))
            print_json(revoked.to_wire()) if arguments.json else print(f"key {revoked.id} is revoked")
            return 0
        keys = drive(ring.keys())
    if arguments.json:
        print_json([key.to_wire() for key in keys])
    else:
        rows = [
            (key.id, key.role, key.tenant, when(key.created_at_ms), "revoked" if key.revoked else "", key.name)
            for key in keys
        ]
        print(table(("ID", "ROLE", "TENANT", "CREATED", "STATE", "NAME"), rows))
    return 0

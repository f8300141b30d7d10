"""``antiphon config``."""

from __future__ import annotations

import argparse
import os
import re

import msgspec

from antiphon.cli._base import add_config, add_json, dim, print_json, table

DESCRIPTION = "Show every setting, its value and where it came from."
EXAMPLE = "example:\n  antiphon config show --changed"

_SECRET = re.compile(r"(?<=password=)[^&]+", re.IGNORECASE)


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("what", nargs="?", default="show", choices=["show"], help="show the settings")
    parser.add_argument("--changed", action="store_true", help="only what differs from the defaults")
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings."""
    from antiphon._gateway.switches import VARIABLES, start_value
    from antiphon.config.load import load

    loaded = load(arguments.config)
    values = _leaves(msgspec.to_builtins(loaded.config), "")
    rows = [(name, _masked(value), loaded.sources.get(name, "default")) for name, value in values]
    given = {f"gateway.{flag}": (start_value(os.environ, flag), name) for flag, name in VARIABLES.items()}
    for number, (name, _, _) in enumerate(rows):
        value, variable = given.get(name, (None, ""))
        if value is not None:
            rows[number] = (name, value, f"environment {variable}")
    if arguments.changed:
        rows = [row for row in rows if row[2] != "default"]
    if arguments.json:
        print_json({"settings": [{"name": n, "value": v, "source": s} for n, v, s in rows]})
        return 0
    print(table(("SETTING", "VALUE", "FROM"), [(n, _shown(v), s) for n, v, s in rows]))
    print(dim(f"file: {loaded.file or 'none'}"))
    return 0


def _leaves(value: object, prefix: str) -> list[tuple[str, object]]:
    if isinstance(value, dict) and value:
        return [
            leaf for name, item in value.items() for leaf in _leaves(item, f"{prefix}.{name}" if prefix else str(name))
        ]
    return [(prefix, value)]


def _masked(value: object) -> object:
    """Addresses are shown without their credentials, to machines too."""
    if isinstance(value, (list, tuple)):
        return [_masked(item) for item in value]
    if not isinstance(value, str) or "://" not in value:
        return value
    scheme, _, rest = value.partition("://")
    if "@" in rest:
        rest = f"…@{rest.rpartition('@')[2]}"
    return f"{scheme}://{_SECRET.sub('…', rest)}"


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return str(value) if value not in ("", {}) else "none"

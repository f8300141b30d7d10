"""``antiphon config``."""

from __future__ import annotations

import argparse

import msgspec

from antiphon.cli._base import add_config, add_json, dim, print_json, table

DESCRIPTION = "Show every setting, its value and where it came from."
EXAMPLE = "example:\n  antiphon config show --changed"


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("what", nargs="?", default="show", choices=["show"], help="show the settings")
    parser.add_argument("--changed", action="store_true", help="only what differs from the defaults")
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings."""
    from antiphon.config.load import load

    loaded = load(arguments.config)
    values = _leaves(msgspec.to_builtins(loaded.config), "")
    rows = [(name, value, loaded.sources.get(name, "default")) for name, value in values]
    if arguments.changed:
        rows = [row for row in rows if row[2] != "default"]
    if arguments.json:
        print_json({"settings": [{"name": n, "value": v, "source": s} for n, v, s in rows]})
        return 0
    print(table(("SETTING", "VALUE", "FROM"), [(n, _shown(n, v), s) for n, v, s in rows]))
    print(dim(f"file: {loaded.file or 'none'}"))
    return 0


def _leaves(value: object, prefix: str) -> list[tuple[str, object]]:
    if isinstance(value, dict) and value:
        return [
            leaf for name, item in value.items() for leaf in _leaves(item, f"{prefix}.{name}" if prefix else str(name))
        ]
    return [(prefix, value)]


def _shown(name: str, value: object) -> str:
    """Addresses are shown without their credentials."""
    text = "" if value is None else str(value)
    if "://" in text and "@" in text:
        scheme, _, rest = text.partition("://")
        return f"{scheme}://…@{rest.rpartition('@')[2]}"
    return text

"""Writes the pages that are made from the code: docs/reference/cli.md and settings.md.

python scripts/make_reference.py          write them
python scripts/make_reference.py --check  exit 1 if they are not current
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import sys
import typing
from pathlib import Path

import msgspec

from antiphon._gateway import settings as of_gateways
from antiphon.cli import COMMANDS
from antiphon.cli._base import find
from antiphon.config import model
from antiphon.config.load import settable
from antiphon.config.model import Config, ProviderSection, RuleSection
from antiphon.contract._base import Section
from antiphon.decide import loop

ROOT = Path(__file__).resolve().parent.parent / "docs" / "reference"
NOTE = "Made from the code by `scripts/make_reference.py`; do not edit."


def commands() -> str:
    """Every command with its help, as printed."""
    os.environ["COLUMNS"] = "100"
    parts = [
        "# Commands\n",
        f"{NOTE}\n",
        "Where a command lists `--json`, it prints one JSON document for machines (`matrix`: one per line). A run is",
        "named by its id, the beginning of one if it is unique, or `--latest`; an artifact by its path.\n",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | equal, passed, done |",
        "| 1 | regression, divergence, or the command's work failed |",
        "| 2 | usage |",
        "| 3 | blocked for review |",
        "| 4 | not found |",
        "| 5 | entry point, model or extra missing |",
        "| 6 | unreadable or other-version recording |\n",
    ]
    for name, (place, _) in COMMANDS.items():
        parser = find(place).parser(name)
        parts += [f"## antiphon {name}\n", "```text", parser.format_help().rstrip(), "```\n"]
    return "\n".join(parts).rstrip() + "\n"


def settings() -> str:
    """Every setting of ``antiphon.toml`` with its default and its environment variable."""
    parts = [
        "# Settings\n",
        f"{NOTE}\n",
        "[Configuration](configuration.md) says where settings come from and which one wins. `antiphon config show`",
        "prints the effective value of each with its source.\n",
    ]
    meanings = _meanings()
    for name, kind in typing.get_type_hints(Config).items():
        section = _section(kind)
        if section is None:
            raise TypeError(f"Config.{name} is no section")
        table = _is_table(kind)
        parts += _table(f'[{name}."…"]' if table else f"[{name}]", section, meanings, "" if table else name)
    parts += _table("[[redact.rules]]", RuleSection, meanings, "")
    parts += _table("[host.providers.NAME]", ProviderSection, meanings, "")
    parts += [
        "## Other variables\n",
        "| variable | meaning |",
        "|---|---|",
        "| `ANTIPHON_HOME` | the state folder (default `.antiphon`) |",
        "| `ANTIPHON_MODELS` | folder of embedding models (default `ANTIPHON_HOME/models`, else the user's cache) |",
        "| `ANTIPHON_CONFIG` | the configuration file (default `antiphon.toml`) |",
        "| `ANTIPHON_STORE` | alias of `ANTIPHON_STORE_URL` |",
        "| `ANTIPHON_TENANT` | alias of `ANTIPHON_GATEWAY_TENANT` |",
        "| `ANTIPHON_WORKFLOWS` | alias of `ANTIPHON_HOST_WORKFLOWS` |",
        "| `ANTIPHON_TEST_SEAMS` | alias of `ANTIPHON_HOST_TEST_SEAMS` |",
        "| `ANTIPHON_API_KEY` | an API key for the host, with the admin role |",
        "| `TOOL_RELIABILITY_ENABLED` | `false` bypasses the gateway |",
        "| `TOOL_RELIABILITY_OPEN_MODE` | `off`: circuit breakers count failures but never block calls |",
        "| `TOOL_RELIABLE_DERIVE_IDEMPOTENCY` | `off`: calls without an explicit key are not deduplicated |",
        "| `ANTIPHON_SHADOW` | `on`: log what would have been done, change nothing |",
        "| `KURRAL_STORAGE_BACKEND`, `R2_*`, `AWS_*` | where artifacts are stored |",
        "| `NO_COLOR`, `TERM=dumb` | commands print without colours |",
    ]
    return "\n".join(parts) + "\n"


def _table(title: str, section: type[Section], meanings: dict[str, dict[str, str]], variable: str) -> list[str]:
    head = "| setting | default | meaning |" + (" environment |" if variable else "")
    lines = [f"## {title}\n", _markdown(inspect.cleandoc(section.__doc__ or "")), "", head]
    lines.append("|---" * (4 if variable else 3) + "|")
    known = {name: text for kind in section.__mro__[::-1] for name, text in meanings.get(kind.__name__, {}).items()}
    for field in msgspec.structs.fields(section):
        meaning = _markdown(known[field.name])
        line = f"| `{field.name}` | {_default(field)} | {meaning} |"
        plain = variable and settable(field.type)
        lines.append(line + (f" `ANTIPHON_{variable}_{field.name}` |".upper() if plain else " |" if variable else ""))
    return [*lines, ""]


def _meanings() -> dict[str, dict[str, str]]:
    """The sentence below each field of each section."""
    found: dict[str, dict[str, str]] = {}
    for node in (node for module in (model, of_gateways, loop) for node in ast.parse(inspect.getsource(module)).body):
        if not isinstance(node, ast.ClassDef):
            continue
        texts = found.setdefault(node.name, {})
        for field, below in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                texts[field.target.id] = str(below.value.value)
    return found


def _markdown(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def _section(kind: typing.Any) -> type[Section] | None:
    for candidate in (kind, *typing.get_args(kind)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def _is_table(kind: typing.Any) -> bool:
    return typing.get_origin(kind) is dict


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "empty" if value in ((), "", msgspec.NODEFAULT) else f"`{value}`"


PAGES = {"cli.md": commands, "settings.md": settings}


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is not current")
    check = parser.parse_args(arguments).check
    stale = []
    for name, make in PAGES.items():
        path, text = ROOT / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        sys.stdout.write(f"{'not current' if check else 'written'}: docs/reference/{name}\n")
    if check and stale:
        sys.stdout.write("run: make reference\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""``side_effect/side_effects.yaml``: suggested on the first explore replay, reviewed by a person, then obeyed (K6)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from string import Template
from textwrap import indent
from typing import TYPE_CHECKING, NamedTuple

from antiphon.contract.spec import ToolSpec
from antiphon.decide.effects import Suggestion, suggest
from antiphon.errors import ConfigError, ReplayBlocked

if TYPE_CHECKING:
    import yaml

_TAG = "tag:yaml.org,2002:"


class Known(NamedTuple):
    """A tool the replay may meet."""

    name: str
    description: str = ""
    spec: ToolSpec | None = None


class SideEffects(NamedTuple):
    """The file: which tools are safe, and whether a person has looked at it."""

    tools: dict[str, bool]
    done: bool
    path: Path


def file_of(entry: str | None) -> Path:
    """Next to the entry point's file, else in the working folder; never inside an installed package."""
    folder = Path.cwd()
    place = (entry or "").rpartition(":")[0]
    if place.endswith(".py"):
        folder = Path(place).resolve().parent
    else:
        file = getattr(sys.modules.get(place), "__file__", None)
        if file is not None and Path(file).resolve().is_relative_to(folder):
            folder = Path(file).resolve().parent
    return folder / "side_effect" / "side_effects.yaml"


def read(path: Path) -> SideEffects | None:
    """The file, or ``None`` if there is none; anything but names and booleans is an error, never guessed at."""
    import yaml

    try:
        root = yaml.compose(path.read_bytes(), Loader=yaml.SafeLoader)
    except FileNotFoundError:
        return None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise _refused(path, mark, f"this is not YAML ({getattr(error, 'problem', None) or error})") from error
    tools: dict[str, bool] = {}
    done = False
    for name, value in _pairs(path, root):
        if name == "tools":
            tools = {tool: _flag(path, node) for tool, node in _pairs(path, value)}
        elif name == "done":
            done = _flag(path, value)
        else:
            raise _refused(path, value.start_mark, f"{name!r} is neither 'tools' nor 'done'")
    return SideEffects(tools, done, path)


def _pairs(path: Path, node: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
    """Names and values of a mapping. Names are taken literally: a tool may be called ``on`` or ``12``."""
    if node is None or node.tag == f"{_TAG}null":
        return
    if node.tag != f"{_TAG}map":
        raise _refused(path, node.start_mark, "this is not a list of 'name: true|false'")
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key.value, str):
            raise _refused(path, key.start_mark, "this is not a name")
        if key.value in seen:
            raise _refused(path, key.start_mark, f"{key.value!r} is listed twice")
        seen.add(key.value)
        yield key.value, value


def _flag(path: Path, node: yaml.Node) -> bool:
    if node.tag != f"{_TAG}bool" or node.value not in ("true", "false"):
        raise _refused(path, node.start_mark, "this is neither 'name: true|false' nor 'done: true|false'")
    return bool(node.value == "true")


def _refused(path: Path, mark: yaml.Mark | None, why: str) -> ConfigError:
    place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
    return ConfigError(f"{place}: {why}.", path=place)


def suggestions(tools: Iterable[Known]) -> dict[str, Suggestion]:
    """The suggestion for each tool, and why."""
    return {tool.name: suggest(tool.name, tool.description, spec=tool.spec) for tool in tools}


def write(path: Path, found: dict[str, Suggestion]) -> None:
    """Write the file for review; an existing one is never overwritten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["tools:"] if found else ["tools: {}"]
    lines += [f"{_entry(name, hint.safe)}    # {hint.reason}" for name, hint in found.items()]
    lines.append("done: false            # Must be set to true manually after review")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _entry(name: str, safe: bool) -> str:
    """The entry of a tool; invisible characters and line breaks are escaped, so no name looks like another line."""
    import yaml

    plain = name.isprintable()
    key = yaml.ScalarNode(f"{_TAG}str", name, style=None if plain else '"')
    value = yaml.ScalarNode(f"{_TAG}bool", "true" if safe else "false")
    entry = yaml.MappingNode(f"{_TAG}map", [(key, value)], flow_style=False)
    text = yaml.serialize(entry, Dumper=yaml.SafeDumper, allow_unicode=plain, width=sys.maxsize)
    return indent(text.rstrip("\n"), "  ")


def blocked_text(path: Path, found: dict[str, Suggestion], *, generated: bool) -> str:
    """The document's notice."""
    tools = "".join(
        f"{_entry(name, hint.safe)}  [{'SAFE' if hint.safe else 'SIDE EFFECT'}]\n    → {hint.reason}\n"
        for name, hint in found.items()
    )
    state = "been auto-generated" if generated else "not been reviewed yet"
    text = (files("antiphon.ops") / "side_effects.txt").read_text(encoding="utf-8")
    return Template(text).substitute(state=state, path=path, tools=tools).rstrip("\n")


def notice(entry: str | None, tools: Iterable[Known]) -> str:
    """What a strict replay reports about unreviewed tools; the file is written for a later review (K6)."""
    found = suggestions(tools)
    path = file_of(entry)
    known = read(path)
    if not found or (known is not None and known.done):
        return ""
    if known is None:
        try:
            write(path, found)
        except OSError:  # a strict replay needs no file
            return ""
    return f"[Antiphon] Side effects are not reviewed yet: {path} (an explore replay requires 'done: true')"


def gate(entry: str | None, tools: Iterable[Known]) -> dict[str, bool]:
    """The reviewed decisions; raises :class:`ReplayBlocked` with the notice until somebody has reviewed them."""
    path = file_of(entry)
    known = read(path)
    found = suggestions(tools)
    if known is not None and known.done:
        return known.tools
    generated = known is None
    if generated:
        write(path, found)
    raise ReplayBlocked(blocked_text(path, found, generated=generated), path=str(path))

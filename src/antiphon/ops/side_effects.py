"""``side_effect/side_effects.yaml``: suggested on the first explore replay, reviewed by a person, then obeyed (K6)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from antiphon.contract.spec import ToolSpec
from antiphon.decide.effects import Suggestion, suggest
from antiphon.errors import ConfigError, ReplayBlocked

_ENTRY = re.compile(r"^\s+(?:\"([^\"]+)\"|'([^']+)'|([^\s:#'\"][^:#]*?))\s*:\s*(true|false)\s*(?:#.*)?$")
_LINE = "=" * 60
_RULE = "-" * 60


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
    """Beside the entry point's file, else in the working folder; never inside an installed package."""
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
    """The file, or ``None`` if there is none; anything but names and true or false is an error, never a guess."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    tools: dict[str, bool] = {}
    done = False
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.split("#", 1)[0].rstrip()
        if not bare.strip() or bare == "tools:" or bare == "tools: {}":
            continue
        top = re.fullmatch(r"done\s*:\s*(true|false)", bare)
        entry = _ENTRY.match(line)
        if top:
            done = top[1] == "true"
        elif entry:
            tools[next(group for group in entry.groups()[:3] if group)] = entry[4] == "true"
        else:
            raise ConfigError(
                f"{path}, line {number}: {line.strip()!r} is neither 'name: true|false' nor 'done: true|false'.",
                path=f"{path}:{number}",
            )
    return SideEffects(tools, done, path)


def suggestions(tools: Iterable[Known]) -> dict[str, Suggestion]:
    """What to write for each tool, and why."""
    return {tool.name: suggest(tool.name, tool.description, spec=tool.spec) for tool in tools}


def write(path: Path, found: dict[str, Suggestion]) -> None:
    """The file for review; one that is there is never overwritten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["tools:"] if found else ["tools: {}"]
    lines += [f"  {name}: {str(hint.safe).lower()}    # {hint.reason}" for name, hint in found.items()]
    lines.append("done: false            # Must be set to true manually after review")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def blocked_text(path: Path, found: dict[str, Suggestion], *, generated: bool) -> str:
    """The document's notice."""
    lines = [_LINE, "REPLAY BLOCKED: Side Effect Configuration Required", _LINE]
    if generated:
        lines.append("The side effect configuration file has been auto-generated.")
    else:
        lines.append("The side effect configuration file has not been reviewed yet.")
    lines += ["Please manually review and configure the side effects before replay:", "", f"Config file: {path}", ""]
    lines += ["Tool Analysis & Suggestions:", _RULE]
    for name, hint in found.items():
        lines.append(f"  {name}: {str(hint.safe).lower()}  [{'SAFE' if hint.safe else 'SIDE EFFECT'}]")
        lines.append(f"    → {hint.reason}")
    lines += [
        _RULE,
        "",
        "Instructions:",
        "1. Review each tool above",
        "2. Manually edit the YAML file to adjust any values if needed",
        "3. Set 'done: true' when you have finished configuring",
        "",
        "Once you have set 'done: true', run the replay again.",
        _LINE,
    ]
    return "\n".join(lines)


def reviewed(entry: str | None) -> dict[str, bool]:
    """The decisions of a file that a person has reviewed; none where there is no such file."""
    known = read(file_of(entry))
    return known.tools if known is not None and known.done else {}


def notice(entry: str | None, tools: Iterable[Known]) -> str:
    """What a strict replay says of tools that nobody has reviewed; the file is written for the review to come (K6)."""
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
    return f"[Antiphon] Side effects are not reviewed yet: {path} (an explore replay waits for 'done: true')"


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

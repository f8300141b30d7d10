"""The boundary table of a replay from a file and from flags: per boundary, what is frozen (D20)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import orjson

from antiphon.decide.effects import MODEL_LIVE, BoundaryRule, BoundaryTable, Fault
from antiphon.errors import ConfigError, ContractError, InvalidInput

FAULTS: tuple[str, ...] = get_args(Fault)
KINDS = ("llm", "tool", "mcp")


def read_table(path: Path) -> BoundaryTable:
    """A table of ``rules`` in TOML (``[[rules]]``) or JSON."""
    try:
        data = path.read_bytes()
        document = tomllib.loads(data.decode()) if path.suffix == ".toml" else orjson.loads(data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", path=str(path)) from None
    except ValueError as error:
        raise ConfigError(f"{path} is neither TOML nor JSON: {error}.", path=str(path)) from None
    try:
        return BoundaryTable.from_wire(document)
    except ContractError as error:
        raise ConfigError(f"{path}: {error.message}", path=f"{path}:{error.path}") from None


def table_of(
    file: Path | None = None,
    *,
    live: Iterable[str] = (),
    frozen: Iterable[str] = (),
    faults: Iterable[str] = (),
    statics: Iterable[str] = (),
) -> BoundaryTable | None:
    """Flags first, then the file, then a live model; ``None`` if nothing was requested.

    >>> [rule.match for rule in table_of(live=["search"], faults=["llm=timeout"]).rules]
    ['llm', '*:search', 'llm']
    """
    rules = [_fault(text) for text in faults]
    rules += [_static(text) for text in statics]
    rules += [BoundaryRule(match=_match(name), mode="live") for name in live]
    rules += [BoundaryRule(match=_match(name), mode="frozen") for name in frozen]
    if file is None and not rules:
        return None
    rest = MODEL_LIVE.rules if file is None else read_table(file).rules
    return BoundaryTable(rules=(*rules, *rest))


def check_names(table: BoundaryTable, recorded: Iterable[tuple[str, str]], declared: Iterable[str] = ()) -> None:
    """A rule that names one tool must name one of the recording (kind and name of each), or one *declared* by the code.

    A misspelt name would match nothing, and the replay would pass for the wrong reason.
    """
    calls = sorted(set(recorded))
    known = [*calls, *(("tool", name) for name in declared)]
    for rule in table.rules:
        names_many = any(sign in rule.match.removeprefix("*:") for sign in "*?[")
        of_a_kind = rule.match in KINDS and rule.mode not in ("fault", "static")
        if names_many or of_a_kind or any(rule.fits(kind, name) for kind, name in known):
            continue
        tools = ", ".join(name for kind, name in calls if kind != "llm") or "none"
        models = any(kind == "llm" for kind, _ in calls)
        raise InvalidInput(
            f"The recording has no call of {rule.match.removeprefix('*:')!r} ({rule.mode}).",
            hint=f"Its tools: {tools}{'; its model calls: llm' if models else ''}.",
            path="table",
        )


def _match(name: str) -> str:
    """A tool's name matches the tool, a kind all of its kind."""
    return name if name in KINDS or ":" in name else f"*:{name}"


def _fault(text: str) -> BoundaryRule:
    name, equals, fault = text.rpartition("=")
    if not equals or not name or fault not in FAULTS:
        raise InvalidInput(f"{text!r} is not NAME=FAULT.", hint=f"Faults: {', '.join(FAULTS)}.")
    return BoundaryRule(match=_match(name), mode="fault", fault=fault)  # type: ignore[arg-type]


def _static(text: str) -> BoundaryRule:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidInput(f"{text!r} is not NAME=JSON.")
    return BoundaryRule(match=_match(name), mode="static", value=json_value(value, text))


def json_value(text: str | None, where: str) -> Any:
    """JSON from a command line; ``None`` if nothing was given."""
    try:
        return None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError as error:
        hint = "A plain text needs its quotes: '\"hello\"'"
        raise InvalidInput(f"{where} is not JSON: {error}.", hint=hint) from None

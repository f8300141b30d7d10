"""The statements of the PostgreSQL store, read from their files and fitted to one schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from antiphon.stores._common import named_queries

FOLDER = Path(__file__).parent
_FILES = ("claims.sql", "log.sql", "breakers.sql", "admin.sql")
_INCLUDE = re.compile(r"\{(_\w+)\}")
_PARAMETER = re.compile(r"%\((\w+)\)s")
_SCHEMA = re.compile(r"\bantiphon\b(?=\.|;|\s*$)", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)


class Statement(NamedTuple):
    """SQL with numbered parameters, and the names that fill them in order."""

    name: str
    text: str
    names: tuple[str, ...]

    def values(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """The parameters in the order of their numbers."""
        return tuple([given[name] for name in self.names])


def in_schema(sql: str, schema: str) -> str:
    """The text with *schema* for the placeholder ``antiphon``."""
    quoted = quote(schema)
    return _SCHEMA.sub(lambda _: quoted, sql)


def quote(name: str) -> str:
    """*name* as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


@lru_cache(maxsize=16)
def statements(schema: str) -> Mapping[str, Statement]:
    """Every statement of the store by name; ``NAME_bare`` is the one of a step without events."""
    texts: dict[str, str] = {}
    for file in _FILES:
        for name, text in named_queries(FOLDER / file).items():
            texts[name] = _COMMENT.sub("", text)
    found = {name: _compile(name, texts, schema) for name in texts if not name.startswith("_")}
    without_log = {**texts, "_log_if_won": "", "_log_anyway": ""}
    for name in [name for name, text in texts.items() if "{_log_" in text]:
        found[name + "_bare"] = _compile(name, without_log, schema)
    return found


def _compile(name: str, texts: Mapping[str, str], schema: str) -> Statement:
    text = texts[name]
    while _INCLUDE.search(text):
        text = _INCLUDE.sub(lambda found: texts[found[1]], text)
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    text = _PARAMETER.sub(number, in_schema(text, schema))
    return Statement(name, " ".join(text.split()), tuple(names))

"""What an exception's class, errno, SQLSTATE or JSON-RPC code means: the tables of ``failures.toml``.

They are read with this module: when the first failure comes, there may be no file descriptor left to read them.
"""

from __future__ import annotations

import errno
import tomllib
from collections.abc import Mapping
from pkgutil import get_data
from typing import Any, Final, Literal, NamedTuple

from antiphon.decide.failure import Kind, Phase


class Rule(NamedTuple):
    """The meaning of one class of exceptions."""

    code: str
    kind: Kind
    retriable: bool
    phase: Phase
    look: Literal["", "code", "all"] = ""
    """``code``: what lies inside names the cause, the phase stays; ``all``: the class is only a wrapper."""


_GIVEN: Final[dict[str, Any]] = tomllib.loads((get_data("antiphon.decide", "failures.toml") or b"").decode())
RULES: Final = {name: Rule(*fields) for name, fields in _GIVEN["rules"].items()}


def _table(entries: Mapping[str, str]) -> dict[str, Rule]:
    return {name: RULES[rule] for name, rule in entries.items()}


BY_CLASS: Final = {
    (package, name): rule
    for packages, entries in _GIVEN["classes"].items()
    for package in packages.split()
    for name, rule in _table(entries).items()
}
BY_ERRNO: Final = {getattr(errno, name): rule for name, rule in _table(_GIVEN["errno"]).items()}
BY_JSONRPC: Final = _table(_GIVEN["jsonrpc"])
BY_GRPC: Final = _table(_GIVEN["grpc"])
BY_SQLSTATE: Final = _table(_GIVEN["sqlstate"])
CODES: Final = {name: frozenset(codes.split()) for name, codes in _GIVEN["codes"].items()}
CONTROL_FLOW: Final = {(package, name) for package, names in _GIVEN["control_flow"].items() for name in names.split()}

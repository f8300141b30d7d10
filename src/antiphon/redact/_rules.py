"""What counts as a secret: the switches and rules that a user may set, and our own lists."""

from __future__ import annotations

import hmac
import math
import re
import tomllib
from collections.abc import Mapping
from pkgutil import get_data
from typing import Any, Final

import msgspec

from antiphon.errors import ConfigError

LISTS: Final[Mapping[str, Any]] = tomllib.loads((get_data("antiphon.redact", "secrets.toml") or b"").decode())
"""The lists of ``secrets.toml``."""
MASK = re.compile(r"\[(?:secret:([a-z0-9_]{1,40})(?::([0-9a-f]{16}))?|([a-z0-9_]{1,40}):([0-9a-f]{4}))\]")
"""A stand-in in readable output: a mask (groups 3 and 4: kind and digest), or a placeholder of release 0.1.0 (groups 1
and 2). It is never searched for secrets.
"""

CONSTANT_KINDS = frozenset({"pin", "cvv", "otp", "ssn", "phone", "card", "iban"})
"""Kinds with so few possible values that a digest under a known salt would reveal them (D21)."""

_GUESSABLE_BITS = 64.0
_NAME = re.compile(r"[a-z0-9_]{1,40}")


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of the user: a pattern in text, or the name of a field, and the kind its placeholder shows.

    If the pattern has a group called ``secret``, only that group is replaced.
    """

    name: str
    pattern: str = ""
    field: str = ""
    personal: bool = False
    """Personal data: controlled by ``Rules.personal``."""
    constant: bool = False
    """No effect since masks are keyed; kept for rules written for release 0.1.0."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"The redaction rule name {self.name!r} is not usable.",
                hint="Use 1 to 40 of: a-z, 0-9, underscore.",
                path="redact.rules",
            )
        if bool(self.pattern) == bool(self.field):
            raise ConfigError(
                f"The redaction rule '{self.name}' needs a pattern or a field, and not both.", path="redact.rules"
            )

    def compile(self) -> re.Pattern[str]:
        """The compiled, validated pattern."""
        try:
            compiled = re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(
                f"The redaction rule '{self.name}' has a bad pattern: {error}.", path="redact.rules"
            ) from None
        if compiled.match(""):
            raise ConfigError(
                f"The redaction rule '{self.name}' matches the empty text.",
                hint="Make the pattern match at least one character.",
                path="redact.rules",
            )
        return compiled


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Which kinds are redacted. Everything is on by default.

    ``keep_fields`` are names whose values count as ids: neither name nor format makes them secret.
    """

    secrets: bool = True
    entropy: bool = True
    personal: bool = True
    user: tuple[Rule, ...] = ()
    keep_fields: tuple[str, ...] = ()


def guessable(secret: str) -> bool:
    """Whether an attacker who has the salt could try all texts of this length and alphabet."""
    alphabets = ((26, str.islower), (26, str.isupper), (10, str.isdigit))
    size = sum(letters for letters, has in alphabets if any(char.isascii() and has(char) for char in secret))
    if not secret.isalnum():
        size += 32
    return len(secret) * math.log2(size or 32) < _GUESSABLE_BITS


def placeholder(kind: str, secret: str, salt: bytes) -> str:
    """The placeholder for *secret*; equal secrets give equal digests, whatever their kind."""
    if guessable(secret):
        return f"[secret:{kind}]"
    digest = hmac.digest(salt, secret.encode("utf-8", "surrogatepass"), "sha256")[:8].hex()
    return f"[secret:{kind}:{digest}]"

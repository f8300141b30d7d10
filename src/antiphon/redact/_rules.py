"""What counts as a secret: the switches and rules a user may set."""

from __future__ import annotations

import re

import msgspec

from antiphon.errors import ConfigError

_NAME = re.compile(r"[a-z0-9_]{1,40}")


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of the user: a pattern in text, or the name of a field, and the kind its placeholder shows.

    If the pattern has a group called ``secret``, only that group is replaced.
    """

    name: str
    pattern: str = ""
    field: str = ""
    personal: bool = False
    """Belongs to personal data: switched with ``Rules.personal``."""
    constant: bool = False
    """Few values are possible (a customer number, a postcode): the placeholder shows no digest."""

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
        """The pattern, checked."""
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

    ``keep_fields`` are names whose values are taken for ids: neither their name nor their looks make them secret.
    """

    secrets: bool = True
    entropy: bool = True
    personal: bool = True
    user: tuple[Rule, ...] = ()
    keep_fields: tuple[str, ...] = ()

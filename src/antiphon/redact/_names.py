"""Whether a field's name says that its value is a secret, personal data, or an id that must be kept.

A name is split into words (``clientSecret``, ``client-secret`` and ``CLIENT_SECRET`` give the same two), and the words
decide. The last word may turn a secret into a property of one (``token_count``, ``passwordPolicy``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from antiphon.redact._rules import LISTS, MASK, Rules
from antiphon.redact._tokens import PASSWORDS

_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_BLANKS = re.compile(r"[_.$ -]+")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_.$ -]+")
_LONGEST_NAME = 100
_NO_NAME = re.compile(r"___|[_.$ -]{4}")
"""Characters that no field name contains."""
_REMEMBERED = 4096


class Field(NamedTuple):
    """What a name says about its value."""

    kind: str
    mode: str
    """``secret`` (any text), ``digits`` (numbers and short codes), ``personal`` or ``keep``."""
    numbers: bool = False
    """Whether integers are secrets too: for fields that a user named."""


KEEP = Field("", "keep")


def _kinds(list_name: str) -> dict[str, str]:
    """Word -> kind."""
    lists: Mapping[str, str] = LISTS[list_name]
    return {word: kind for kind, words_of_kind in lists.items() for word in words_of_kind.split()}


def _set(name: str) -> frozenset[str]:
    return frozenset(LISTS["words"][name].split())


_ANYWHERE: Final = _kinds("anywhere")
_LAST: Final = _kinds("last")
_DIGITS: Final = _kinds("digits")
_COMPACT: Final = _kinds("compact")
KEY_OF: Final = _set("key_of")
TOKENS_OF: Final = _set("tokens_of")
_NOT_TOKEN: Final = _set("not_token")
_STATEMENT: Final = _set("statement")
_ID: Final = _set("id")
_PASSWORDS = frozenset(PASSWORDS)
_KEPT_PAIRS = frozenset({("encrypted", "content"), ("thought", "signature"), ("b64", "json")})


def words(name: str) -> tuple[str, ...]:
    """The words of a name, in lower case.

    >>> words("X-Api-Key"), words("dbPassword2")
    (('x', 'api', 'key'), ('db', 'password', '2'))
    """
    return tuple(word.lower() for word in _WORDS.findall(name))


def classify(name: str) -> Field | None:
    """What *name* says about its value, or ``None``."""
    if "[" in name and MASK.search(name):  # what is under it was checked when the name was
        return KEEP
    if not name.isascii() and name.casefold() in _PASSWORDS:
        return Field("password", "secret")
    name = next((part for part in reversed(_NOT_A_NAME.split(name[-_LONGEST_NAME:])) if part), "")
    parts = words(name)
    while len(parts) > 1 and parts[-1].isdigit():
        parts = parts[:-1]
    if not parts or _NO_NAME.search(name):
        return None
    last = parts[-1]
    if len(parts) > 1 and last in _STATEMENT:
        return None
    secret = _secret(parts, last, name)
    if secret is not None and not (last in _ID and secret.kind != "password"):
        return secret
    if last in _ID or parts[-2:] in _KEPT_PAIRS:
        return KEEP
    if last in ("phone", "phones") or parts[-2:] in (("phone", "number"), ("phone", "no")):
        return Field("phone", "personal")
    if parts[-2:] == ("card", "number"):
        return Field("card", "personal")
    return None


def _secret(parts: tuple[str, ...], last: str, name: str) -> Field | None:
    for part in parts:
        if part in _ANYWHERE:
            return Field(_ANYWHERE[part], "secret")
    before = parts[-2] if len(parts) > 1 else ""
    if last in ("key", "keys") and before in KEY_OF:
        return Field("private_key" if before == "private" else "api_key", "secret")
    if last == "tokens":
        return Field("token", "secret") if before in TOKENS_OF else None
    if last in ("value", "string", "raw", "plain") and before == "token":
        return Field("token", "secret")
    if last in _LAST:
        return None if last == "token" and before in _NOT_TOKEN else Field(_LAST[last], "secret")
    code = before if last in ("code", "number") else last
    if code in _DIGITS:
        return Field(_DIGITS[code], "digits")
    compact = _BLANKS.split(name)[-1].lower()
    for ending, kind in _COMPACT.items():
        if compact.endswith(ending):
            return Field(kind, "secret")
    return None


class Names(dict[str, Field | None]):
    """``names[name]`` is what a field's name says about its value."""

    __slots__ = ("_rules", "_user")

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self._rules = rules
        self._user = {_called(name): KEEP for name in rules.keep_fields}
        for rule in rules.user:
            if rule.field and (rules.personal or not rule.personal):
                self._user[_called(rule.field)] = Field(rule.name, "secret", numbers=True)

    def __missing__(self, name: str) -> Field | None:
        if len(self) >= _REMEMBERED:
            self.clear()
        field = self._user.get(_called(name)) if self._user else None
        if field is None:
            field = classify(name)
            if field is not None and not self._on(field):
                field = None
        self[name] = field
        return field

    def _on(self, field: Field) -> bool:
        if field.mode == "keep":
            return True
        return self._rules.personal if field.mode == "personal" else self._rules.secrets


def _called(name: str) -> tuple[str, ...]:
    """What a user's rule matches by: the words of a name, or the name itself if it has letters of other scripts."""
    return words(name) if name.isascii() else (name.casefold(),)

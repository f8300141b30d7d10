"""Field names under a user's rules, remembered: the same few names come with every call."""

from __future__ import annotations

from antiphon.redact._fields import KEEP, Field, classify, words
from antiphon.redact._rules import Rules

_REMEMBERED = 4096


class Names(dict[str, Field | None]):
    """``names[name]`` is what a field's name says about its value."""

    __slots__ = ("_rules", "_user")

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self._rules = rules
        self._user = {_called(name): KEEP for name in rules.keep_fields}
        for rule in rules.user:
            if rule.field and (rules.personal or not rule.personal):
                self._user[_called(rule.field)] = Field(rule.name, "secret")

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
    """What a user's rule goes by: the words of a name, or the name itself if it has letters of other scripts."""
    return words(name) if name.isascii() else (name.casefold(),)

"""May this tool run live in an exploring replay? What its wording suggests, and what decides (K4, K6, D12, D20, L6).

A suggestion is made for a person to review. What decides is, in this order:

| # | situation                                             | may it run live?                       |
|---|-------------------------------------------------------|----------------------------------------|
| 1 | the boundary is ``static`` or ``fault``               | no                                     |
| 2 | declared ``effect="write"``                           | no, whatever the file says             |
| 3 | the file says ``false``                               | no, whatever the tool declares         |
| 4 | ``idempotent=False`` without ``effect="read"``        | no: to run it again is what hurts      |
| 5 | neither declared ``read`` nor ``true`` in the file    | no: unknown tools are side effects     |
| 6 | ``frozen``, and the call is in the recording          | no: the recorded result is returned    |
| 7 | otherwise                                             | yes                                    |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal, NamedTuple

from antiphon.contract._base import Name, Value
from antiphon.contract.spec import ToolSpec
from antiphon.errors import InvalidInput

Boundary = Literal["frozen", "live", "static", "fault"]
Fault = Literal["timeout", "rate_limited", "malformed", "refusal"]

SIDE_EFFECT_WORDS = ("update", "send", "write", "delete", "email", "payment", "purchase", "post", "create")
SAFE_WORDS = ("read", "get", "search", "find", "list", "fetch")
FOUND = "Contains side effect keywords in name/description"
NOT_FOUND = "No side effect keywords found"
NEITHER = "No known keywords found; unknown tools count as side effects"

_IRREGULAR = {
    "send": ("sent",),
    "write": ("wrote", "written"),
    "get": ("got", "getting"),
    "find": ("found",),
}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_EMAIL = re.compile(r"[eE]-[mM]ail|[eE]Mail")


def _forms(word: str) -> frozenset[str]:
    """The word and its simple inflections."""
    stem = word.removesuffix("e")
    plural = f"{word}es" if word.endswith("ch") else f"{word}s"
    return frozenset((word, plural, f"{stem}ed", f"{stem}ing", *_IRREGULAR.get(word, ())))


@cache
def _inflected(words: tuple[str, ...]) -> frozenset[str]:
    return frozenset().union(*map(_forms, words))


class Suggestion(NamedTuple):
    """What to put into ``side_effects.yaml`` for a tool, and why."""

    safe: bool
    reason: str
    words: tuple[str, ...] = ()
    """The words that decided, as found in the text."""


class Verdict(NamedTuple):
    """Whether a call may be made live in a replay."""

    allowed: bool
    reason: str


def words_of(text: str) -> list[str]:
    """The words of a name or sentence in lower case, with snake and camel case taken apart.

    >>> words_of("sendEmail to_list, HTTPGet")
    ['send', 'email', 'to', 'list', 'http', 'get']
    """
    return [word.lower() for word in _WORD.findall(_EMAIL.sub("Email", text))]


def suggest(name: str, description: str = "", docstring: str = "", spec: ToolSpec | None = None) -> Suggestion:
    """Whether the tool looks safe to run in a replay: its declaration first, then its wording (K6, D12)."""
    if spec is not None:
        if spec.effect is not None:
            return Suggestion(spec.effect == "read", f'The tool declares effect="{spec.effect}"')
        if not spec.idempotent:
            return Suggestion(False, "The tool declares idempotent=False")
        description = description or spec.description
    words = dict.fromkeys(words_of(f"{name} {description} {docstring}"))
    found = tuple(word for word in words if word in _inflected(SIDE_EFFECT_WORDS))
    if found:
        return Suggestion(False, FOUND, found)
    found = tuple(word for word in words if word in _inflected(SAFE_WORDS))
    return Suggestion(True, NOT_FOUND, found) if found else Suggestion(False, NEITHER)


def reviewed_as(name: str, reviewed: Mapping[str, bool]) -> bool | None:
    """The entry of ``side_effects.yaml`` for a tool: by its name with the namespace, else without; ``None``: none."""
    return reviewed.get(name, reviewed.get(name.partition("/")[2]))


def block_message(tool: str) -> str:
    """What a blocked tool answers when the recording has nothing for it (K6)."""
    return f"[Antiphon] Tool '{tool}' blocked (side effect, no cache available)"


class BoundaryRule(Value, frozen=True):
    """What happens at the boundaries whose name fits ``match`` (``llm``, ``tool:search_*``, ``mcp:*``)."""

    match: Name
    mode: Boundary
    value: Any = None
    """The answer, for ``static``."""
    fault: Fault | None = None
    """The fault, for ``fault``."""

    def fits(self, kind: str, name: str) -> bool:
        """Whether the rule covers a call of *kind* to *name*; a namespace before the name may be omitted."""
        if self.match == kind or fnmatchcase(f"{kind}:{name}", self.match):
            return True
        short = name.partition("/")[2]
        return bool(short) and fnmatchcase(f"{kind}:{short}", self.match)


class BoundaryTable(Value, frozen=True):
    """What is frozen, per boundary (D20). The first matching rule wins; what no rule names is frozen."""

    rules: tuple[BoundaryRule, ...] = ()

    def __post_init__(self) -> None:
        for number, rule in enumerate(self.rules):
            if (rule.mode == "fault") != (rule.fault is not None):
                raise InvalidInput(
                    f"The boundary rule for '{rule.match}' needs a fault exactly when its mode is 'fault'.",
                    path=f"$.rules[{number}].fault",
                )
            if rule.fault == "refusal" and rule.match.partition(":")[0] != "llm":
                raise InvalidInput(
                    f"Only models refuse, and '{rule.match.removeprefix('*:')}' is not one.",
                    path=f"$.rules[{number}].fault",
                    hint="A model's refusal: llm=refusal. Faults of tools: timeout, rate_limited, malformed.",
                )

    def rule(self, kind: str, name: str) -> BoundaryRule:
        """The rule for a call of *kind* (``llm``, ``tool``, ``mcp``) to *name*, which may have its namespace."""
        return next((rule for rule in self.rules if rule.fits(kind, name)), _FROZEN)


_FROZEN = BoundaryRule(match="*", mode="frozen")
MODEL_LIVE = BoundaryTable(rules=(BoundaryRule(match="llm", mode="live"),))
"""Explore: asks the model again, tools answer from the recording (tests the model)."""


def may_run_live(spec: ToolSpec | None, yaml_value: bool | None, rule: BoundaryRule, *, recorded: bool) -> Verdict:
    """Decide for one call of an exploring replay: a strict one runs nothing. *yaml_value*: the reviewed entry, ``None``
    if there is none. *rule*: the table's for this call. *recorded*: the recording has an answer for it.
    """
    if rule.mode in ("static", "fault"):
        return Verdict(False, f"the boundary is answered by a {rule.mode} rule")
    effect = spec.effect if spec is not None else None
    if effect == "write":
        return Verdict(False, 'side effect: the tool declares effect="write"')
    if yaml_value is False:
        return Verdict(False, "side effect: side_effects.yaml says false")
    if spec is not None and effect is None and not spec.idempotent:
        return Verdict(
            False, 'side effect: the tool declares idempotent=False (declare effect="read" if it only reads)'
        )
    if effect != "read" and yaml_value is not True:
        return Verdict(False, "side effect: the tool is unknown (declare its effect or add it to side_effects.yaml)")
    if rule.mode == "frozen" and recorded:
        return Verdict(False, "frozen: the recorded result is returned")
    return Verdict(True, "safe: live by the table" if rule.mode == "live" else "safe, and not in the recording")

"""Exceptions quote what they were given: a password that only its name makes a secret is one in the message, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from antiphon._gateway.hooks import HookCall
from antiphon._gateway.outcome import Outcome

_SHORTEST = 4
"""A shorter value would be found in any text."""


def secrets_in(arguments: Mapping[str, Any], mask: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, str]:
    """The texts among *arguments* that are masked, with what stands for them."""
    given = dict(arguments)
    try:
        masked = mask(given)
    except Exception:  # nothing is known about it, and the message is redacted as any other text
        return {}
    return dict(_changed(given, masked))


def _changed(before: Any, after: Any) -> Iterator[tuple[str, str]]:
    if isinstance(before, str) and isinstance(after, str):
        if before != after and len(before) >= _SHORTEST:
            yield before, after
    elif isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in before.keys() & after.keys():
            yield from _changed(before[name], after[name])
    elif isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        for one, other in zip(before, after, strict=False):
            yield from _changed(one, other)
    elif isinstance(before, (int, float)) and isinstance(after, str) and len(str(before)) >= _SHORTEST:
        yield str(before), after


def without_values(text: str, values: Mapping[str, str]) -> str:
    """*text* with the stand-ins of *values*, longest first.

    >>> without_values("bad password hunter2!", {"hunter2!": "[secret]"})
    'bad password [secret]'
    """
    for value in sorted(values, key=len, reverse=True):
        shown = values[value]
        for written in dict.fromkeys((value, repr(value)[1:-1], json.dumps(value)[1:-1])):
            text = text.replace(written, shown)
    return text


def unquoting(redact: Callable[[Any], Any]) -> Callable[[HookCall, Outcome], None]:
    """An after-hook that keeps secrets among the arguments of a call out of what is said of its failure."""

    def hook(call: HookCall, outcome: Outcome) -> None:
        if outcome.status != "success" and outcome.message:
            found = secrets_in(call.params, redact)
            if found:
                outcome.message = without_values(outcome.message, found)

    return hook

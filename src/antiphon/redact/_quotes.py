"""Exceptions quote their arguments: a password that only its name identifies is also one in the message."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

_SHORTEST = 3
"""Shorter values would match in any text."""
_WORD = 6
"""Shorter values only count as separate words."""


def secrets_in(arguments: Mapping[str, Any], mask: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, str]:
    """The masked texts among *arguments*, with their stand-ins."""
    given = dict(arguments)
    try:
        masked = mask(given)
    except Exception:  # nothing is known about it, and the message is redacted like any other text
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
    elif type(before) in (int, float) and isinstance(after, str) and len(str(before)) >= _SHORTEST:
        yield str(before), after


def without_values(text: str, values: Mapping[str, str]) -> str:
    """*text* with the stand-ins of *values*, longest first.

    >>> without_values("bad password hunter2!", {"hunter2!": "[secret]"})
    'bad password [secret]'
    """
    for value in sorted(values, key=len, reverse=True):
        shown = values[value]
        ways = (
            value,
            repr(value)[1:-1],
            json.dumps(value)[1:-1],
            quote(value, safe=""),
            quote_plus(value),
            quote(value),
        )
        for written in dict.fromkeys(ways):
            if len(value) >= _WORD:
                text = text.replace(written, shown)
            else:
                text = re.sub(rf"(?<!\w){re.escape(written)}(?!\w)", lambda _: shown, text)  # noqa: B023
    return text

"""Parameters of a query string, checked."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.requests import Request

from antiphon.errors import InvalidInput

_NUMBER = re.compile(r"-?[0-9]{1,15}")


def whole(text: str, name: str, low: int, high: int) -> int:
    """A whole number between *low* and *high*."""
    if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise InvalidInput(f"'{name}' is a whole number from {low} to {high}.", path=name)
    return int(text)


def integer(request: Request, name: str, default: int, low: int, high: int) -> int:
    """A whole number of the query string."""
    text = request.query_params.get(name)
    return default if text is None else whole(text, name, low, high)


def choice(request: Request, name: str, allowed: Sequence[str]) -> str:
    """One of a few words, or nothing."""
    text = request.query_params.get(name)
    if text is None:
        return ""
    if text not in allowed:
        raise InvalidInput(f"'{name}' is one of {', '.join(allowed)}.", path=name)
    return text

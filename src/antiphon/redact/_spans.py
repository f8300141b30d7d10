"""A place in a text that must not be written."""

from __future__ import annotations

from typing import NamedTuple


class Span(NamedTuple):
    """``text[start:end]`` is a secret of *kind*."""

    start: int
    end: int
    kind: str

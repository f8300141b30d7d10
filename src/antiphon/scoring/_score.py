"""A score is a number that carries its parts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from antiphon.errors import InvalidInput

_DIGITS = 12
"""Rounding that removes binary noise (0.8449999999999999) and nothing else."""


class Score(float):
    """A float with ``parts``: usable wherever a number is, explainable wherever a person asks why."""

    __slots__ = ("parts",)
    parts: Mapping[str, float]

    def __new__(cls, value: float, parts: Mapping[str, float] | None = None) -> Self:
        made = super().__new__(cls, round(value, _DIGITS))
        made.parts = MappingProxyType(dict(parts or {}))
        return made

    def __getnewargs__(self) -> tuple[float, dict[str, float]]:  # type: ignore[override]
        return float(self), dict(self.parts)

    def __getstate__(self) -> None:
        return None

    @property
    def score(self) -> float:
        """The plain number."""
        return float(self)

    def to_wire(self) -> dict[str, Any]:
        """The JSON form."""
        return {"score": float(self), "parts": dict(self.parts)}


def unit(value: Any, name: str) -> float:
    """*value* if it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise InvalidInput(f"{name} must be a number from 0 to 1, not {value!r}.", path=name)
    return float(value)

"""Deprecated: use :mod:`antiphon.similarity`."""

from __future__ import annotations

from typing import Any
from warnings import warn

from antiphon import similarity


def __getattr__(name: str) -> Any:
    if name not in similarity.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn(f"antiphon.embed.{name} is now antiphon.similarity.{name}", DeprecationWarning, stacklevel=2)
    return getattr(similarity, name)

"""Model calls that an SDK sends with aiohttp itself: no public hook can record and answer them, so they are told."""

from __future__ import annotations

import functools
import warnings
from types import ModuleType
from typing import Any

from antiphon.adapters._seam import recording_scope
from antiphon.adapters._wire import place_of


def tell_unseen(module: ModuleType) -> None:
    """Warn of every model call of a run that leaves through a session of *module* (aiohttp) and is not recorded."""
    _notice(module.ClientSession, "post", 0)
    _notice(module.ClientSession, "request", 1)


def _notice(kind: Any, name: str, place: int) -> None:
    """Look at a session's method whose address is the argument at *place*."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def noticed(self: Any, *args: Any, **options: Any) -> Any:
        method = "POST" if not place else str(args[0] if args else options.get("method")).upper()
        path = str(args[place] if len(args) > place else options.get("url")).partition("?")[0]
        if place_of(method, path) is not None and recording_scope() is not None:
            message = f"a model call over aiohttp is not recorded: {path}. Let its SDK send over httpx."
            warnings.warn(f"antiphon: {message}", RuntimeWarning, stacklevel=2)
        return original(self, *args, **options)

    setattr(kind, name, noticed)

"""Transports for httpx and httpx2: model calls made through them are recorded, and answered by a replay.

>>> import openai, httpx2                                                       # doctest: +SKIP
>>> from antiphon.adapters.httpx import transport
>>> client = openai.OpenAI(http_client=httpx2.Client(transport=transport(module=httpx2)), max_retries=0)
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from antiphon.adapters._http import make_transports
from antiphon.errors import InvalidInput, missing_extra


@cache
def _types(name: str) -> tuple[Any, Any]:
    return make_transports(_load(name))


def _load(name: str) -> ModuleType:
    if name not in ("httpx", "httpx2"):
        raise InvalidInput(f"The module is httpx or httpx2, not {name!r}.")
    try:
        return import_module(name)
    except ImportError:
        raise missing_extra(name, name, "The HTTP transport", "httpx >= 0.27 or httpx2 >= 2.0") from None


def _name(module: ModuleType | str) -> str:
    return module if isinstance(module, str) else module.__name__


def transport(inner: Any = None, *, module: ModuleType | str = "httpx") -> Any:
    """A synchronous transport around *inner* (a plain ``HTTPTransport`` by default)."""
    return _types(_name(module))[0](inner)


def async_transport(inner: Any = None, *, module: ModuleType | str = "httpx") -> Any:
    """An asynchronous transport around *inner* (a plain ``AsyncHTTPTransport`` by default)."""
    return _types(_name(module))[1](inner)

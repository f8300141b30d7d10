"""Transports for httpx and httpx2: model calls made through them are recorded, and answered by a replay.

>>> import openai, httpx2                                                       # doctest: +SKIP
>>> from antiphon.adapters.httpx import transport
>>> client = openai.OpenAI(http_client=httpx2.Client(transport=transport(module=httpx2)), max_retries=0)
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

from antiphon.adapters._http import make_transports
from antiphon.adapters._need import need
from antiphon.errors import InvalidInput


@cache
def _types(name: str) -> tuple[Any, Any]:
    if name not in ("httpx", "httpx2"):
        raise InvalidInput(f"The module is httpx or httpx2, not {name!r}.")
    return make_transports(need(name))


def _name(module: ModuleType | str) -> str:
    return module if isinstance(module, str) else module.__name__


def transport(inner: Any = None, *, module: ModuleType | str = "httpx") -> Any:
    """A synchronous transport around *inner* (a plain ``HTTPTransport`` by default)."""
    return _types(_name(module))[0](inner)


def async_transport(inner: Any = None, *, module: ModuleType | str = "httpx") -> Any:
    """An asynchronous transport around *inner* (a plain ``AsyncHTTPTransport`` by default)."""
    return _types(_name(module))[1](inner)


def client_options(inner: Any = None, *, module: ModuleType | str = "httpx", asynchronous: bool = False) -> Any:
    """Keywords for a client of *module*: the recording transport, and the environment's proxies through it too.

    A client that is given a transport does not look for proxies itself, so that is done here.
    """
    make = async_transport if asynchronous else transport
    options: dict[str, Any] = {"transport": make(inner, module=module)}
    if inner is None:
        found = need(_name(module))
        plain = found.AsyncHTTPTransport if asynchronous else found.HTTPTransport
        mounts = {place: make(plain(proxy=proxy), module=module) for place, proxy in _proxies().items()}
        if mounts:
            options["mounts"] = mounts
    return options


def _proxies() -> dict[str, str | None]:
    """The environment's proxies as patterns of httpx; ``None`` for hosts that are reached directly."""
    from urllib.request import getproxies

    found = getproxies()
    routes: dict[str, str | None] = {}
    for scheme in ("http", "https", "all"):
        if found.get(scheme):
            address = found[scheme]
            routes[f"{scheme}://"] = address if "://" in address else f"http://{address}"
    if routes:
        for host in filter(None, (name.strip() for name in found.get("no", "").split(","))):
            if host == "*":
                return {}
            routes[f"all://{host}" if ":" in host or host == "localhost" else f"all://*{host}"] = None
    return routes

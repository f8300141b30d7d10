"""Wraps public methods when their modules are imported: transports of httpx, httpx2 and LiteLLM, entry points of MCP.

The methods of the classes are replaced, so clients that were made earlier are covered too.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from antiphon.adapters._aiohttp import tell_unseen
from antiphon.adapters._http import handle, handle_async
from antiphon.adapters._mcp_stdio import wrap_stdio

_MARK = "__antiphon_original__"


def wrap_transports(module: ModuleType) -> None:
    """Record and answer every model call that goes through *module* (httpx or httpx2)."""
    _replace(module.HTTPTransport, "handle_request", lambda send, request: handle(module, request, send))
    _replace(
        module.AsyncHTTPTransport,
        "handle_async_request",
        lambda send, request: handle_async(module, request, send),
    )


def wrap_litellm(module: ModuleType) -> None:
    """The same for the transport that LiteLLM gives its asynchronous clients of httpx: aiohttp is underneath."""
    import httpx

    transport = getattr(module, "LiteLLMAiohttpTransport", None)
    if transport is not None:
        _replace(transport, "handle_async_request", lambda send, request: handle_async(httpx, request, send))


def _replace(kind: Any, name: str, around: Callable[[Callable[[Any], Any], Any], Any]) -> None:
    original = getattr(kind, name)
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def wrapped(self: Any, request: Any) -> Any:
        return around(functools.partial(original, self), request)

    setattr(wrapped, _MARK, original)
    setattr(kind, name, wrapped)


WRAPPERS: dict[str, Callable[[ModuleType], None]] = {
    "httpx": wrap_transports,
    "httpx2": wrap_transports,
    "litellm.llms.custom_httpx.aiohttp_transport": wrap_litellm,
    "aiohttp": tell_unseen,
    "mcp.client.stdio": wrap_stdio,
}
"""What is done to a module after its own code has run."""


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: importlib.abc.Loader, wrap: Callable[[ModuleType], None]) -> None:
        self._inner = inner
        self._wrap = wrap

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._wrap(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        wrap = WRAPPERS.get(name)
        if wrap is None:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, wrap)
                return spec
        return None


def install() -> None:
    """Wrap what is loaded already, and the rest when it is loaded."""
    for name, wrap in WRAPPERS.items():
        if name in sys.modules:
            wrap(sys.modules[name])
    sys.meta_path.insert(0, _Finder())

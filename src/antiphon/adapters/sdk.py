"""``antiphon.wrap``: SDK clients whose model calls go through a recording transport, with their own retries off (D22)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeVar

from antiphon.adapters.httpx import async_transport, transport
from antiphon.errors import InvalidInput

C = TypeVar("C")

_STAINLESS = ("openai", "anthropic")


def wrap(client: C, *, inner: Any = None) -> C:
    """The client with a recording transport; for one that cannot be wrapped, an error that says what to do.

    Works for the clients of ``openai`` and ``anthropic`` (synchronous and asynchronous, Azure included) and for
    ``httpx``/``httpx2`` clients. *inner* is the transport underneath, for proxies or tests.
    """
    package = type(client).__module__.partition(".")[0]
    if package in _STAINLESS:
        return _wrap_stainless(client, inner)
    if package in ("httpx", "httpx2"):
        return _wrap_http(client, package, inner)
    raise InvalidInput(
        f"A client of {package or type(client).__name__} cannot be wrapped.",
        hint="Give it an HTTP client with antiphon.adapters.httpx.transport(), or run it under: antiphon exec",
    )


def _is_async(client: Any) -> bool:
    return type(client).__name__.startswith("Async")


def _wrap_stainless(client: Any, inner: Any) -> Any:
    module = import_module("httpx2")
    if _is_async(client):
        http = module.AsyncClient(
            transport=async_transport(inner, module=module), timeout=client.timeout, base_url=client.base_url
        )
    else:
        http = module.Client(
            transport=transport(inner, module=module), timeout=client.timeout, base_url=client.base_url
        )
    return client.with_options(http_client=http, max_retries=0)


def _wrap_http(client: Any, package: str, inner: Any) -> Any:
    module = import_module(package)
    kind = module.AsyncClient if _is_async(client) else module.Client
    make = async_transport if _is_async(client) else transport
    return kind(
        transport=make(inner, module=module),
        base_url=client.base_url,
        headers=client.headers,
        timeout=client.timeout,
        cookies=client.cookies,
        follow_redirects=client.follow_redirects,
    )

"""``antiphon.wrap``: records the model calls of SDK clients and makes their retries below the recording."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from antiphon.adapters._need import need
from antiphon.adapters.httpx import client_options
from antiphon.errors import InvalidInput

C = TypeVar("C")

_STAINLESS = ("openai", "anthropic")
_KEPT = ("base_url", "headers", "params", "auth", "timeout", "cookies", "event_hooks", "follow_redirects")
"""What a wrapped HTTP client keeps."""


def wrap(client: C, *, inner: Any = None) -> C:
    """The client with a recording transport; an unsupported client raises an error that says what to do.

    Works for the clients of ``openai`` and ``anthropic`` (synchronous and asynchronous, Azure included) and for
    ``httpx``/``httpx2`` clients. The SDK client's number of retries is kept, but they are made below the recording: a
    call that took three requests is one recorded call. *inner* is the transport to wrap; pass it if the client had its
    own.
    """
    package = type(client).__module__.partition(".")[0]
    if package in _STAINLESS:
        need(package)
        return cast(C, _wrap_stainless(client, inner))
    if package in ("httpx", "httpx2"):
        kept = {name: getattr(client, name) for name in _KEPT}
        return cast(C, _http_client(client, need(package), inner, **kept))
    if package == "google":
        hint = "Make it with: google.genai.Client(http_options=antiphon.adapters.google.http_options())"
    else:
        hint = "Give it an HTTP client with antiphon.adapters.httpx.transport(), or run it under: antiphon exec"
    raise InvalidInput(f"A client of {package or type(client).__name__} cannot be wrapped.", hint=hint)


def _http_client(client: Any, module: Any, inner: Any, retries: int = 0, **options: Any) -> Any:
    """A client of *module* with a recording transport; asynchronous if *client* is."""
    asynchronous = any(kind.__name__.startswith("Async") for kind in type(client).__mro__)
    kind = module.AsyncClient if asynchronous else module.Client
    return kind(**client_options(inner, module=module, asynchronous=asynchronous, retries=retries), **options)


def _wrap_stainless(client: Any, inner: Any) -> Any:
    options = {"timeout": client.timeout, "base_url": client.base_url, "follow_redirects": True}
    http = _http_client(client, need("httpx2"), inner, client.max_retries, **options)
    return client.with_options(http_client=http, max_retries=0)

"""The gateways that users create, configured from the settings."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from antiphon._gateway import gateway as engine
from antiphon._gateway.tool import Tool
from antiphon.config.wiring import ConfigLike, wire
from antiphon.contract.spec import ToolSpec
from antiphon.ports import Clock, Listener, Store

_alive: weakref.WeakSet[engine.Gateway | engine.AsyncGateway] = weakref.WeakSet()
_lock = threading.Lock()


def _living() -> list[engine.Gateway | engine.AsyncGateway]:
    with _lock:
        return list(_alive)


def declared(store: Store | None = None) -> dict[str, ToolSpec]:
    """The tools of every gateway in this process by full name; one on *store* is preferred."""
    gateways = sorted(_living(), key=lambda one: store is not None and _is_on(one, store))
    return {name: spec for gateway in gateways for name, spec in gateway.tools.items()}


def _is_on(gateway: engine.Gateway | engine.AsyncGateway, store: Store) -> bool:
    own = gateway._plans.store
    return own is store or (not own.in_process and own.url == store.url)


def listen(listener_of: Callable[[str], Listener], store: Store) -> None:
    """Add a listener, created per tenant, to every gateway in this process on *store*."""
    for gateway in _living():
        if _is_on(gateway, store):
            gateway._plans.reporter.add(listener_of(gateway._plans.settings.tenant))


def find_tool(name: str, store: Store) -> tuple[engine.Gateway | engine.AsyncGateway, Tool] | None:
    """The tool of that full name and its gateway: preferably on *store*, then preferably with an undo."""
    namespace, _, short = name.rpartition("/")
    found = [(gateway, gateway.find(namespace, short)) for gateway in _living()]
    known = [(gateway, tool) for gateway, tool in found if tool is not None]

    def fits(one: tuple[engine.Gateway | engine.AsyncGateway, Tool]) -> tuple[bool, bool]:
        return _is_on(one[0], store), one[1].undo is not None

    return max(known, key=fits, default=None)


class _Wired:
    """A gateway that is created from a store and a configuration."""

    def __init__(
        self,
        store: Store | str | None = None,
        config: ConfigLike = None,
        *,
        tenant: str | None = None,
        workspace: str | None = None,
        clock: Clock | None = None,
        listeners: tuple[Listener, ...] = (),
    ) -> None:
        parts = wire(store, config, tenant=tenant, workspace=workspace, clock=clock, listeners=listeners)
        super().__init__(parts)  # type: ignore[call-arg]
        with _lock:
            _alive.add(self)  # type: ignore[arg-type]


class Gateway(_Wired, engine.Gateway):
    """Makes tool calls safe for synchronous code.

    A store is an object or its URL (``"redis://…"``). Without one it is the configured one: a SQLite file under
    ``.antiphon/`` unless told otherwise.

    >>> from antiphon.stores import MemoryStore
    >>> gateway = Gateway(store=MemoryStore())
    >>> @gateway.tool(idempotent=False)
    ... def send_email(to: str, subject: str) -> str:
    ...     return f"sent to {to}"
    >>> send_email("ada@example.com", subject="hello")
    'sent to ada@example.com'
    """


class AsyncGateway(_Wired, engine.AsyncGateway):
    """Makes tool calls safe for asyncio code; synchronous tools run on worker threads."""

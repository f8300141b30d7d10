"""The gateways users construct: wired from the configuration."""

from __future__ import annotations

import weakref

from antiphon._gateway import gateway as engine
from antiphon.config.wiring import ConfigLike, wire
from antiphon.contract.spec import ToolSpec
from antiphon.ports import Clock, Listener, Store

_alive: weakref.WeakSet[engine.Gateway | engine.AsyncGateway] = weakref.WeakSet()


def declared() -> dict[str, ToolSpec]:
    """The tools of every gateway of this process by full name, whoever made it."""
    return {name: spec for gateway in list(_alive) for name, spec in gateway.tools.items()}


class _Wired:
    """A gateway that is made from a store and a configuration."""

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

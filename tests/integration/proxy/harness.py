"""A proxy in this process, served over real HTTP on loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import uvicorn

from antiphon import Antiphon
from antiphon.config.model import HostSection
from antiphon.host.http.connections import ServerConfig
from antiphon.proxy.app import Proxy, Settings
from antiphon.proxy.upstreams import Upstream


class Served(NamedTuple):
    """A proxy that answers."""

    url: str
    proxy: Proxy
    server: uvicorn.Server

    def at(self, run: str, upstream: str = "openai") -> str:
        return f"{self.url}/run/{run}/{upstream}"


@contextmanager
def serving(
    app: Antiphon, mode: Any = "record", *, models: str = "", mcp: str = "", body_s: float = 60.0, **settings: Any
) -> Iterator[Served]:
    """A proxy whose providers are all at *models*, and whose MCP server ``desk`` is at *mcp*."""
    known = {name: Upstream(name, models or "http://127.0.0.1:9") for name in ("openai", "anthropic", "gemini")}
    if mcp:
        known["desk"] = Upstream("desk", mcp, mcp=True)
    proxy = Proxy(app, Settings(known, mode, **settings))
    listening = socket.create_server(("127.0.0.1", 0))
    limits = HostSection(request_timeout_s=body_s, max_connections=200)
    config = ServerConfig(proxy, limits, log_config=None, proxy_headers=False, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]

    def serve() -> None:
        asyncio.run(server.serve(sockets=[listening]))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", proxy, server)
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()

"""An MCP server in this process, over real HTTP, that counts what it does."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer


class Desk:
    """What the server did, and where it is."""

    def __init__(self) -> None:
        self.charged: Counter[str] = Counter()
        self.requests = 0
        self.hold = threading.Event()
        """Set: ``slow`` ends."""
        self.cuts = threading.Event()
        """Set: connections break off."""
        self.url = ""


def server_of(desk: Desk) -> MCPServer:
    server = MCPServer("desk")

    @server.tool()
    def charge(order: str) -> str:
        """Charge an order."""
        desk.charged[order] += 1
        return f"charged {order}, number {desk.charged[order]}"

    @server.tool()
    async def slow(order: str) -> str:
        """Charge an order, when told so."""
        desk.charged[order] += 1
        while not desk.hold.is_set():
            await asyncio.sleep(0.01)
        return f"slowly charged {order}"

    @server.tool()
    def fall(order: str) -> str:
        """Charge an order, and break off before the answer."""
        desk.charged[order] += 1
        desk.cuts.set()
        return "never told"

    @server.tool()
    async def steps(count: int, ctx: Context) -> str:
        """Tell how far it is."""
        for number in range(count):
            await ctx.report_progress(number + 1, count)
        return "done"

    @server.resource("desk://rules")
    def rules() -> str:
        return "no rules"

    @server.prompt()
    def greet(name: str) -> str:
        return f"Greet {name}."

    return server


@contextmanager
def served_desk() -> Iterator[Desk]:
    desk = Desk()
    inner: Any = server_of(desk).streamable_http_app()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def tell(message: Any) -> None:
            if desk.cuts.is_set() and scope["type"] == "http":
                if message["type"] == "http.response.start":
                    await send({**message, "headers": [(b"content-length", b"100")]})
                raise ConnectionAbortedError
            await send(message)

        if scope["type"] == "http":
            desk.requests += 1
        await inner(scope, receive, tell)

    listening = socket.create_server(("127.0.0.1", 0))
    desk.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
    thread.start()
    try:
        yield desk
    finally:
        desk.hold.set()
        server.should_exit = True
        thread.join(30)
        listening.close()

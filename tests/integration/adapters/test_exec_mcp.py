"""``antiphon exec`` with an MCP server over HTTP: recorded, and replayed with the server gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer

from tests.servers import free_port

_CLIENT = """
import asyncio, os
from mcp import Client

async def main():
    async with Client(os.environ["MCP_URL"]) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        results = await asyncio.gather(*(client.call_tool("charge", {"order": name}) for name in ("A", "B")))
        return names, [result.content[0].text for result in results]

print(asyncio.run(main()))
"""


class Desk:
    """A real server on loopback that counts what it did."""

    def __init__(self) -> None:
        self.done: list[str] = []
        server = MCPServer("desk")

        @server.tool()
        def charge(order: str) -> str:
            """Charge an order."""
            self.done.append(order)
            return f"charged {order}"

        port = free_port()
        self.url = f"http://127.0.0.1:{port}/mcp"
        config = uvicorn.Config(server.streamable_http_app(), host="127.0.0.1", port=port, log_level="warning")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 60
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.02)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.stop()


def test_mcp_calls_are_recorded_and_answered_without_the_server(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(_CLIENT)
    env = {**os.environ, "MCP_URL": desk.url}

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "antiphon"), "exec", *options, "--", sys.executable, "client.py"]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)

    first = run()
    assert first.returncode == 0, first.stderr
    assert first.stdout == "(['charge'], ['charged A', 'charged B'])\n"
    assert " MCP calls" in first.stderr
    assert "0 MCP calls" not in first.stderr
    assert sorted(desk.done) == ["A", "B"]
    desk.stop()
    again = run("--replay", "latest")
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout
    assert "no divergence" in again.stderr
    assert sorted(desk.done) == ["A", "B"]


_SERVER = """
import sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("desk")

@server.tool()
def charge(order: str) -> str:
    with open(sys.argv[1], "a") as ledger:
        ledger.write(order)
    return f"charged {order}"

server.run()
"""


def test_a_server_over_stdio_is_recorded_and_not_started_by_a_replay(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(_SERVER)
    ledger = tmp_path / "ledger"
    target = f"StdioServerParameters(command={sys.executable!r}, args=['server.py', {str(ledger)!r}])"
    code = _CLIENT.replace('os.environ["MCP_URL"]', target).replace(
        "import Client", "import Client, StdioServerParameters"
    )
    (tmp_path / "client.py").write_text(code)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "antiphon"), "exec", *options, "--", sys.executable, "client.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)

    first = run()
    assert first.returncode == 0, first.stderr
    assert first.stdout == "(['charge'], ['charged A', 'charged B'])\n"
    assert sorted(ledger.read_text()) == ["A", "B"]
    again = run("--replay", "latest")
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout
    assert "no divergence" in again.stderr
    assert sorted(ledger.read_text()) == ["A", "B"]

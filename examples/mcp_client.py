"""MCP: a client whose calls to a server process are guarded and recorded; the replay starts no server.

    python examples/mcp_client.py

The server is this file, started with ``serve``. The model delivers its call twice, as after a reconnect.
"""

import os
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters
from mcp.server.mcpserver import MCPServer

import antiphon
from antiphon.adapters.mcp import connect, protect

server = MCPServer("mail", log_level="WARNING")
OUTBOX = Path("outbox.txt")
TICKET = f"ticket-{os.urandom(4).hex()}"  # yours comes from the conversation


@server.tool()
def send_email(to: str) -> str:
    """Send an e-mail."""
    with OUTBOX.open("a") as outbox:
        outbox.write(f"{to}\n")
    return f"sent to {to}"


async def agent() -> str:
    here = StdioServerParameters(command=sys.executable, args=[__file__, "serve"], env=dict(os.environ))
    async with Client(connect(here)) as client:
        tools = protect(client, server="mail", session=TICKET)
        await tools.list_tools()
        for _ in range(2):
            result = await tools.call_tool("send_email", {"to": "ada"}, call_id="call_1")
    return str(result.content[0].text)


def main() -> None:
    OUTBOX.unlink(missing_ok=True)
    run = antiphon.record(agent)
    report = antiphon.replay(run, function=agent, mode="strict")
    sent = OUTBOX.read_text().split()
    assert run.output == "sent to ada" and sent == ["ada"] and report.passed, (run.output, sent, report.text())
    print(f"2 deliveries, {len(sent)} mail, replayed without a server: {report.verdict}")


if __name__ == "__main__":
    server.run() if "serve" in sys.argv else main()

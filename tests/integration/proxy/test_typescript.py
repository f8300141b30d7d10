"""The official TypeScript SDKs, and published MCP servers, through the proxy and through ``antiphon mcp wrap``."""

from __future__ import annotations

import asyncio
import base64
import json
import queue
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon import Antiphon
from antiphon.proxy.stdio import StdioProxy
from tests.fake_provider import FakeProvider, Reply
from tests.integration.proxy import web
from tests.integration.proxy.desk import served_desk
from tests.integration.proxy.harness import serving
from tests.integration.proxy.test_approvals import FALLS, check_told
from tests.nodejs import Node, Script

_KEY = "sk-test-" + "Qw7" * 12
SDKS = ("openai-chat", "openai-responses", "anthropic", "gemini")


@pytest.fixture(scope="module")
def script(node: Node) -> Iterator[Script]:
    with node.start("models.mjs") as found:
        yield found


def _reply(body: dict[str, Any]) -> Reply:
    return Reply("one two three — naïve")


@pytest.mark.parametrize("sdk", SDKS)
def test_recorded_then_replayed_with_the_provider_off_and_a_change_is_named(
    sdk: str, app: Antiphon, script: Script
) -> None:
    def ask(base: str, text: str, *, stream: bool = False) -> Any:
        return script.ask(sdk=sdk, base=base, key=_KEY, text=text, stream=stream)

    with FakeProvider(_reply) as provider:
        # each SDK has a path of its own behind the base URL: the fake provider answers at all of them
        direct = ask(provider.url, "hello"), ask(provider.url, "count", stream=True)
        assert direct[0]["text"] == "one two three — naïve"
        assert len(direct[1]["events"]) > 1
        with serving(app, models=provider.url) as served:
            base = f"{served.url}/run/orders"
            assert (ask(base, "hello"), ask(base, "count", stream=True)) == direct  # values, events and bytes
            assert web.get(base).json()["recorded"] == 2
    before = provider.requests
    with serving(app, "replay", models=provider.url) as served:
        base = f"{served.url}/run/orders"
        assert ask(base, "count", stream=True) == direct[1]
        assert ask(base, "hello") == direct[0]
        for wrong in (ask(base, "hallo"), ask(base, "hallo", stream=True)):
            assert wrong["error"]["status"] == 422
            assert "'hello' -> 'hallo'" in base64.b64decode(wrong["bytes"][0]).decode()
            assert "hallo" in wrong["error"]["message"]
        report = web.delete(base).json()
    assert (report["answered"], report["missed"], report["notAsked"]) == (2, 2, 0)
    assert provider.requests == before


# -- MCP -------------------------------------------------------------------------------------------------------------

_ANY_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ONE = {"order": "A1"}
_ALL_LOGS = {"io.modelcontextprotocol/logLevel": "debug"}
DESK: list[list[Any]] = [
    ["tools"],
    ["call", "charge", _ONE],
    ["call", "charge", _ONE],
    ["progress", "steps", {"count": 3}, _ALL_LOGS],
    ["call", "ask", {"question": "6 * 7?"}],
    ["resources"],
    ["read", "desk://rules"],
    ["prompts"],
    ["prompt", "greet", {"name": "Ada"}],
]
EVERYTHING: list[list[Any]] = [
    ["tools"],
    ["level", "debug"],
    ["call", "echo", {"message": "hi"}],
    ["call", "get-sum", {"a": 1, "b": 2}],
    ["structured", "get-structured-content", {"location": "New York"}],
    ["progress", "trigger-long-running-operation", {"duration": 0.01, "steps": 3}],
    ["call", "trigger-sampling-request", {"prompt": "6 * 7?", "maxTokens": 9}],
    ["resources"],
    ["read", "demo://resource/static/document/features.md"],
    ["prompts"],
    ["prompt", "args-prompt", {"city": "Lima"}],
    ["call", "toggle-simulated-logging", {}],
    ["log"],
    ["call", "toggle-simulated-logging", {}],
]


@pytest.fixture(scope="module")
def clients(node: Node) -> Iterator[Script]:
    with node.start("mcp.mjs") as found:
        yield found


@pytest.fixture(scope="module")
def servers(node: Node) -> Iterator[Script]:
    with node.start("servers.mjs") as found:
        yield found


def _files(folder: Path) -> list[list[Any]]:
    return [
        ["tools"],
        ["call", "write_file", {"path": str(folder / "a.txt"), "content": "one"}],
        ["call", "read_text_file", {"path": str(folder / "a.txt")}],
        ["call", "list_directory", {"path": str(folder)}],
    ]


def _alike(session: dict[str, Any]) -> Any:
    """A session without what every session has of its own; levels of simulated log lines are drawn."""
    found = json.loads(_ANY_ID.sub("ID", json.dumps(session)))
    return {**found, "logs": sorted({re.sub(r"^\w+[- ]level[- ]", "", log) for log in found["logs"]})}


@pytest.mark.parametrize(
    ("server", "sdk", "era"),
    [("desk", 2, "modern"), ("desk", 1, "legacy"), ("everything", 2, "legacy"), ("everything", 1, "legacy")],
)
def test_a_session_over_http_passes_unchanged_and_replays_with_the_server_off(
    server: str, sdk: int, era: str, app: Antiphon, clients: Script, servers: Script
) -> None:
    steps = DESK if server == "desk" else EVERYTHING
    port = _port(servers, server)

    def session(url: str, steps: list[list[Any]] = steps) -> dict[str, Any]:
        servers.ask(reset=True)
        found: dict[str, Any] = clients.ask(sdk=sdk, mode="auto", url=url, steps=steps)
        return found

    direct = session(f"http://127.0.0.1:{port}/mcp")
    assert direct["era"] == era
    assert direct["logs"]
    with serving(app, mcp=f"http://127.0.0.1:{port}") as served:
        live = session(f"{served.at('shop', 'desk')}/mcp")
    assert _alike(live) == _alike(direct)
    before = servers.ask(count=port)
    with serving(app, "replay", mcp=f"http://127.0.0.1:{port}") as served:
        asked = [step for step in steps if step != ["log"]]  # it came outside of all calls
        again = session(f"{served.at('shop', 'desk')}/mcp", asked)
        report = web.delete(f"{served.url}/run/shop").json()
        assert (report["missed"], report["notAsked"]) == (0, 0), report
        changed = session(f"{served.at('shop', 'desk')}/mcp", [["wrong", steps[2][1], {"order": "B2", "message": "x"}]])
    assert servers.ask(count=port) == {**before, "charged": {}}  # nothing was sent
    assert again["found"] == [item for item in live["found"] if item is not True]
    if server == "desk":
        assert again["logs"] == live["logs"]
    assert "-> " in json.dumps(changed["found"])
    assert "B2" in json.dumps(changed["found"])


_LOST: list[list[Any]] = [["call", "charge", _ONE], ["call", "fall", {"order": "B2"}]]
CLIENTS = [(2, "auto", "modern"), (2, "legacy", "legacy"), (1, "", "legacy")]


def _check_told(app: Antiphon, session: dict[str, Any], era: str) -> None:
    assert session["era"] == era
    check_told(app, [found[0]["text"] for found in session["found"]])


@pytest.mark.parametrize(("sdk", "mode", "era"), CLIENTS)
def test_an_agent_reads_why_there_is_no_result(sdk: int, mode: str, era: str, app: Antiphon, clients: Script) -> None:
    with served_desk() as desk, serving(app, mcp=desk.url, tools=("desk/charge:approve",)) as served:
        _check_told(app, clients.ask(sdk=sdk, mode=mode, url=f"{served.at('shop', 'desk')}/mcp", steps=_LOST), era)


@pytest.mark.parametrize(("sdk", "mode", "era"), CLIENTS)
def test_an_agent_on_stdio_reads_why_there_is_no_result(
    sdk: int, mode: str, era: str, app: Antiphon, clients: Script
) -> None:
    with _wrapped(app, "record", [sys.executable, "-c", FALLS], tools=("charge:approve",)) as (port, reports):
        _check_told(app, clients.ask(sdk=sdk, mode=mode, port=port, steps=_LOST), era)
        reports.get(timeout=60)


_ports: dict[str, int] = {}


def _port(servers: Script, server: str) -> int:
    if server not in _ports:
        _ports[server] = servers.ask(serve=server)
    return _ports[server]


def test_a_server_of_files_over_http(app: Antiphon, clients: Script, servers: Script, tmp_path: Path) -> None:
    steps = _files(tmp_path)
    (tmp_path / "a.txt").write_text("none")
    port = servers.ask(serve="files", folder=str(tmp_path))
    with serving(app, mcp=f"http://127.0.0.1:{port}") as served:
        live = clients.ask(sdk=1, url=f"{served.at('shop', 'desk')}/mcp", steps=steps)
    assert live["found"][2] == [{"type": "text", "text": "one"}]
    (tmp_path / "a.txt").write_text("not touched")
    with serving(app, "replay", mcp="http://127.0.0.1:9") as served:
        assert clients.ask(sdk=1, url=f"{served.at('shop', 'desk')}/mcp", steps=steps) == live
    assert (tmp_path / "a.txt").read_text() == "not touched"


@contextmanager
def _wrapped(
    app: Antiphon, mode: Any, command: list[str], tools: tuple[str, ...] = ()
) -> Iterator[tuple[int, queue.Queue[dict[str, Any]]]]:
    """What ``antiphon mcp wrap`` does, with a socket for its pipes: a port, and the reports of the sessions."""
    reports: queue.Queue[dict[str, Any]] = queue.Queue()
    ports: queue.Queue[int] = queue.Queue()
    ended = asyncio.Event()

    async def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def read() -> None:
            while line := await reader.readline():
                lines.put_nowait(line)
            lines.put_nowait(None)

        reading = asyncio.ensure_future(read())
        wrapped = StdioProxy(app, "desk", mode=mode, run="pipe", tools=tools, write=writer.write)
        _, report = await wrapped.serve(command, lines)
        writer.close()
        await reading
        reports.put(report)

    async def serve() -> None:
        server = await asyncio.start_server(session, "127.0.0.1", 0, limit=64 * 1024 * 1024)
        ports.put(server.sockets[0].getsockname()[1])
        async with server:
            await ended.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    try:
        yield ports.get(timeout=60), reports
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(60)
        loop.close()


@pytest.mark.parametrize(("server", "sdk"), [("desk", 2), ("everything", 1), ("files", 1)])
def test_a_session_over_stdio_passes_unchanged_and_replays_without_a_process(
    server: str, sdk: int, app: Antiphon, clients: Script, node: Node, tmp_path: Path
) -> None:
    packages = "node_modules/@modelcontextprotocol"
    steps, command = {
        "desk": (DESK, node.words("desk-stdio.mjs")),
        "everything": (EVERYTHING, node.words(f"{packages}/server-everything/dist/index.js")),
        "files": (
            _files(tmp_path),
            [*node.words(f"{packages}/server-filesystem/dist/index.js"), str(tmp_path)],
        ),
    }[server]
    with _wrapped(app, "record", command) as (port, reports):
        live = clients.ask(sdk=sdk, mode="auto", port=port, steps=steps)
        recorded = reports.get(timeout=60)
    assert live["era"] == ("modern" if server == "desk" else "legacy")
    assert "42" in json.dumps(live["found"]) or server == "files"  # the client's model was asked
    assert live["logs"] or server == "files"
    with _wrapped(app, "replay", ["no-such-program"]) as (port, reports):
        again = clients.ask(sdk=sdk, mode="auto", port=port, steps=steps)
        report = reports.get(timeout=60)
    assert again["found"] == live["found"]
    assert again["logs"][:1] == live["logs"][:1]  # there is another one every five seconds
    assert (report["answered"], report["missed"]) == (recorded["recorded"], 0)

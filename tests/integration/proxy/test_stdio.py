"""``antiphon mcp wrap``: a server on stdio, recorded, replayed without a process, and guarded."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from antiphon import Antiphon
from antiphon.proxy import stdio
from antiphon.proxy.stdio import StdioProxy

_SERVER = """
import os
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("desk")

@server.tool()
def charge(order: str) -> str:
    "Charge an order."
    with open(os.environ["EFFECTS"], "a") as log:
        print(order, file=log)
    return f"charged {order}"

@server.tool()
async def steps(count: int, ctx: Context) -> str:
    "Tell how far it is."
    for number in range(count):
        await ctx.report_progress(number + 1, count)
    return "done"

server.run("stdio")
"""


async def _session(words: list[str], env: dict[str, str], mode: Any, keys: tuple[str, ...]) -> list[Any]:
    found: list[Any] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        found.append(progress)

    place = StdioServerParameters(command=sys.executable, args=["-m", "antiphon.cli", *words], env=env)
    async with Client(stdio_client(place), mode=mode) as client:
        found.append(sorted(tool.name for tool in (await client.list_tools()).tools))
        for key in keys:
            meta: Any = {"dev.antiphon/callId": key}
            answer: Any = await client.call_tool("charge", {"order": "A1"}, meta=meta)
            found.append(answer.content[0].text)
        answer = await client.call_tool("steps", {"count": 2}, progress_callback=tell)
        found.append(answer.content[0].text)
    return found


@pytest.mark.parametrize("mode", ["legacy"])  # the processes are slow to start; over HTTP both revisions are tested
def test_a_session_passes_runs_once_and_replays_without_a_process(tmp_path: Path, mode: str) -> None:
    program, effects = tmp_path / "server.py", tmp_path / "effects"
    program.write_text(_SERVER)
    env = {**os.environ, "EFFECTS": str(effects), "ANTIPHON_HOME": str(tmp_path / "home")}
    wrap = ["mcp", "wrap", "--server", "desk", "--run", "shop"]
    command = ["--", sys.executable, str(program)]
    keys = ("k1", "k1", "k2")
    live = asyncio.run(_session([*wrap, *command], env, mode, keys))
    assert live == [["charge", "steps"], *["charged A1"] * 3, 1, 2, "done"]
    assert effects.read_text().split() == ["A1", "A1"]
    program.unlink()
    replayed = asyncio.run(_session([*wrap, "--mode", "replay", *command], env, mode, keys))
    assert replayed == live
    split = ["mcp", "--mode", "replay", "--server", "desk", "wrap", "--run", "shop"]
    assert asyncio.run(_session([*split, *command], env, mode, keys)) == live, "options also stand before wrap"
    assert effects.read_text().split() == ["A1", "A1"]


def test_a_server_that_ends_leaves_an_unknown_outcome_and_what_it_wrote_is_passed_on(app: Antiphon) -> None:
    told: list[bytes] = []

    async def session() -> int:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        lines.put_nowait(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge"}}\n')
        lines.put_nowait(b'{"jsonrpc": "2.0", "id": 2, "method": "tools/list"}\n')
        program = "import sys; sys.stdin.readline(); print('not JSON', flush=True); sys.stdin.readline(); sys.exit(3)"
        wrapped = StdioProxy(app, "desk", write=told.append)
        code, _ = await wrapped.serve([sys.executable, "-c", program], lines)
        return code

    assert asyncio.run(session()) == 3
    assert told[0] == b"not JSON\n"
    assert b"outcome_unknown" in told[1]
    [manifest] = app.journal.runs(tenant=app.tenant)
    ends = [event.payload["outcome"] for event in app.journal.events(manifest.id) if event.type == "call.finished"]
    assert ends == ["error", "error"]


@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
def test_an_answer_is_recorded_although_its_client_has_left(app: Antiphon, method: str) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": "charge"}}
    program = (
        "import sys; sys.stdin.readline()\n"
        'print(\'{"jsonrpc": "2.0", "method": "notifications/message"}\', flush=True)\n'
        'sys.stdin.readline(); print(\'{"jsonrpc": "2.0", "id": 1, "result": {"done": true}}\', flush=True)\n'
    )

    def write(line: bytes) -> None:
        raise BrokenPipeError

    async def session() -> None:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        lines.put_nowait(json.dumps(asked).encode() + b"\n")
        await StdioProxy(app, "desk", write=write).serve([sys.executable, "-c", program], lines)

    with pytest.raises(BrokenPipeError):  # the exit code says so
        asyncio.run(session())
    [manifest] = app.journal.runs(tenant=app.tenant)
    ends = [event.payload["outcome"] for event in app.journal.events(manifest.id) if event.type == "call.finished"]
    assert (manifest.status, ends) == ("completed", ["ok"])


def test_an_answer_with_half_a_character_is_passed_on_and_given_again(app: Antiphon) -> None:
    said: list[bytes] = []
    call = b'{"jsonrpc": "2.0", "id": %d, "method": "tools/call", "params": {"name": "half", "_meta": %b}}\n'
    result = rb'{"content": [{"type": "text", "text": "half \ud83d"}]}'
    answer = b'{"jsonrpc": "2.0", "id": 1, "result": %b}\n' % result
    program = f"import sys; sys.stdin.readline(); sys.stdout.write({answer.decode()!r}); sys.stdout.flush(); input()"

    async def session() -> None:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()

        def write(line: bytes) -> None:
            said.append(line)
            lines.put_nowait(None if len(said) == 2 else call % (2, b'{"dev.antiphon/callId": "k1"}'))

        lines.put_nowait(call % (1, b'{"dev.antiphon/callId": "k1"}'))
        await StdioProxy(app, "desk", write=write, timeout_s=30).serve([sys.executable, "-c", program], lines)

    asyncio.run(session())
    assert said == [answer, b'{"jsonrpc":"2.0","id":2,"result":%b}\n' % result]


def test_a_server_that_ends_while_its_client_waits_is_an_exit_code(tmp_path: Path) -> None:
    program = "import sys; sys.stdin.readline(); sys.exit(3)"
    command = [str(Path(sys.executable).parent / "antiphon"), "mcp", "wrap", "--", sys.executable, "-c", program]
    env = {**os.environ, "ANTIPHON_HOME": str(tmp_path / "home")}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as wrap:
        assert wrap.stdin is not None
        wrap.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge"}}\n')
        wrap.stdin.flush()
        assert wrap.wait(30) == 3


def test_record_new_sends_no_call_of_a_tool_that_a_review_calls_a_side_effect(
    app: Antiphon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a reviewed file keep the server from other tools."""
    monkeypatch.chdir(tmp_path)
    echo = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    print(asked['params']['name'], file=open('heard', 'a'))\n"
        "    answer = {'content': [{'type': 'text', 'text': 'done'}]}\n"
        "    print(json.dumps({'jsonrpc': '2.0', 'id': asked['id'], 'result': answer}), flush=True)\n"
    )

    def session(mode: Any, *tools: str) -> tuple[list[Any], dict[str, Any]]:
        told: list[bytes] = []

        async def serve() -> dict[str, Any]:
            lines: asyncio.Queue[bytes | None] = asyncio.Queue()
            for number, tool in enumerate(tools):
                call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": tool}}
                lines.put_nowait(json.dumps(call).encode() + b"\n")
            wrapped = StdioProxy(app, "desk", mode=mode, run="shop", write=told.append)
            serving = asyncio.ensure_future(wrapped.serve([sys.executable, "-c", echo], lines))
            while len(told) < len(tools):
                await asyncio.sleep(0.01)
            lines.put_nowait(None)
            return (await serving)[1]

        report = asyncio.run(asyncio.wait_for(serve(), 60))
        return sorted(map(json.loads, told), key=lambda answer: int(answer["id"])), report

    assert session("record", "look")[0][0]["result"]["content"][0]["text"] == "done"
    file = tmp_path / "side_effect" / "side_effects.yaml"
    file.parent.mkdir()
    file.write_text("tools:\n  charge: false\ndone: true\n")
    answers, report = session("record-new", "look", "charge", "other")
    assert [answer["result"].get("isError", False) for answer in answers] == [False, True, False]
    assert "side_effects.yaml says false" in answers[1]["result"]["content"][0]["text"]
    assert (report["blocked"], report["new"]) == (["tool mcp.desk/charge"], ["tool mcp.desk/other"])
    assert (tmp_path / "heard").read_text().split() == ["look", "other"]


_ORDERLY = """
import json, sys
heard = []
for line in sys.stdin:
    asked = json.loads(line)
    heard.append(asked["method"])
    if "id" in asked:
        text = " ".join(heard) + " by " + str(asked.get("params"))
        result = {"content": [{"type": "text", "text": text}], "isError": heard[0] != "initialize"}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def test_record_new_initialises_a_server_whose_client_the_recording_answers(app: Antiphon) -> None:
    def session(mode: Any, *tools: str) -> list[Any]:
        told: list[bytes] = []

        async def serve() -> None:
            lines: asyncio.Queue[bytes | None] = asyncio.Queue()
            messages: list[dict[str, Any]] = [{"id": 0, "method": "initialize", "params": {"protocolVersion": "x"}}]
            messages.append({"method": "notifications/initialized"})
            calls = [{"name": tool, "arguments": {}} for tool in tools]
            messages += [{"id": number, "method": "tools/call", "params": c} for number, c in enumerate(calls, 1)]
            for message in messages:
                lines.put_nowait(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            wrapped = StdioProxy(app, "desk", mode=mode, run="shop", write=told.append)
            serving = asyncio.ensure_future(wrapped.serve([sys.executable, "-c", _ORDERLY], lines))
            while len(told) <= len(tools):
                await asyncio.sleep(0.01)
            lines.put_nowait(None)
            await serving

        asyncio.run(asyncio.wait_for(serve(), 60))
        return sorted(map(json.loads, told), key=lambda answer: int(answer["id"]))

    recorded = session("record", "look")
    answers = session("record-new", "look", "other")
    assert answers[:2] == recorded
    result = answers[2]["result"]
    assert not result["isError"], result
    assert result["content"][0]["text"].startswith("initialize notifications/initialized tools/call by ")


_DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if len(sys.argv) > 2:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1] + ".new", "w") as file:
    print(os.getpid(), file=file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(60)
"""


def _until(met: Callable[[], Any], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """Whether the process is there, and is no mere entry of one that nobody has asked about."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in ("", "Z")


@pytest.mark.parametrize("leaves", [False, True], ids=["in its group", "in a session of its own"])
def test_a_server_that_stays_or_leaves_somebody_behind_is_ended(
    app: Antiphon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    monkeypatch.setattr(stdio, "_END_S", 0.2)
    program, told = tmp_path / "server.py", tmp_path / "pid"
    program.write_text(_DEAF)
    inner = shlex.join([sys.executable, str(program), str(told), *(["leaves"] if leaves else [])])

    async def session() -> None:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        wrapped = StdioProxy(app, "desk", write=lambda line: None)
        serving = asyncio.ensure_future(wrapped.serve(["sh", "-c", f"{inner}; true"], lines))
        await asyncio.to_thread(_until, told.exists)
        lines.put_nowait(None)
        await asyncio.wait_for(serving, 20)

    asyncio.run(session())
    pid = int(told.read_text())
    assert _runs(pid) is leaves  # who has left the group is left alone, and not waited for
    if leaves:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_wrap_and_its_server_before_a_client_loses_patience(
    tmp_path: Path, number: signal.Signals
) -> None:
    program, told = tmp_path / "server.py", tmp_path / "pid"
    program.write_text(_DEAF)
    command = [sys.executable, "-m", "antiphon.cli", "mcp", "wrap", "--", sys.executable, str(program), str(told)]
    env = {**os.environ, "ANTIPHON_HOME": str(tmp_path / "home")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    ) as wrap:
        _until(told.exists)
        wrap.send_signal(number)
        _until(lambda: not _runs(int(told.read_text())), 2.0)
        assert wrap.wait(20) == 128 + signal.SIGTERM
        assert wrap.stderr is not None
        assert b"0 requests, 0 recorded" in wrap.stderr.read()


def test_servers_of_one_program_do_not_share_the_identities_of_calls(tmp_path: Path) -> None:
    echo = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    answer = {'content': [{'type': 'text', 'text': sys.argv[1]}]}\n"
        "    print(json.dumps({'jsonrpc': '2.0', 'id': json.loads(line)['id'], 'result': answer}), flush=True)\n"
    )
    env = {**os.environ, "ANTIPHON_HOME": str(tmp_path / "home")}
    params = {"name": "look", "_meta": {"dev.antiphon/callId": "k1"}}
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode() + b"\n"

    def ask(word: str, *options: str) -> str:
        wrapped = ["mcp", "wrap", *options, "--", sys.executable, "-c", echo, word]
        command = [sys.executable, "-m", "antiphon.cli", *wrapped]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as wrap:
            assert wrap.stdin is not None
            assert wrap.stdout is not None
            wrap.stdin.write(asked)
            wrap.stdin.flush()
            answer = json.loads(wrap.stdout.readline())
            wrap.stdin.close()
            wrap.wait(30)
        return str(answer["result"]["content"][0]["text"])

    assert [ask(word) for word in ("one", "two", "one")] == ["one", "two", "one"]
    assert ask("two", "--mode", "replay") == "one"  # the latest run of that name, whatever the command
    assert [ask(word, "--server", "desk") for word in ("three", "four")] == ["three", "three"]

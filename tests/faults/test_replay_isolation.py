"""A strict replay touches nothing, as seen from outside of its process: by the kernel, a server and the file system.

Antiphon's own fence is switched off here: that nothing happens is a fact of construction, not of the hook.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

REPLAYS = 1_000

AGENT = """
import asyncio, os, socket, sys
from pathlib import Path
import antiphon
from antiphon.stores import SQLiteStore

FOLDER = Path(os.environ["ISOLATION_FOLDER"])
app = antiphon.Antiphon({"telemetry": {"logs": False}}, store=SQLiteStore(str(FOLDER / "runs.db")))


def reach() -> str:
    with socket.create_connection(("127.0.0.1", int(os.environ["ISOLATION_PORT"])), timeout=5) as link:
        return link.recv(64).decode()


@app.gateway.tool(idempotent=False, effect="write")
def pay(amount: int) -> str:
    with (FOLDER / "effects.txt").open("a") as file:
        file.write(f"paid {amount}\\n")
    return reach()


@app.async_gateway.tool(idempotent=False, effect="write")
async def pay_later(amount: int) -> str:
    return pay.__wrapped__(amount) if hasattr(pay, "__wrapped__") else reach()


def ask(body):
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": reach()}, "finish_reason": "stop"}]}


def main(question):
    run = antiphon.current_run()
    said = run.llm({"model": "m", "messages": [{"role": "user", "content": question}]}, ask)
    return [said, pay(amount=3), run.now().isoformat()]


async def main_async(question):
    found = await asyncio.gather(pay_later(amount=1), pay_later(amount=2))
    return [found, main(question)]


if __name__ == "__main__":
    what, kind, times = sys.argv[1:]
    function = main if kind == "sync" else main_async
    if what == "record":
        app.record(function, "how?")
    else:
        for _ in range(int(times)):
            report = antiphon.replay(app=app, mode="strict", function=function, sandbox=False, keep=False)
            assert report.passed, report.text()
    print("done", flush=True)
    sys.stdin.readline()
"""


class World:
    """A server that counts who comes, and a folder in which effects would show."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.visits = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()
        (folder / "agent.py").write_text(AGENT)

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            self.visits += 1
            link.sendall(b"hello")
            link.close()

    def close(self) -> None:
        self._listener.close()

    def effects(self) -> int:
        path = self.folder / "effects.txt"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def watch(self, *words: str) -> tuple[list[str], set[str]]:
        """Run the agent; what the kernel saw of sockets and programs, and the sockets that were open at any look."""
        trace = self.folder / "trace.txt"
        command = [sys.executable, str(self.folder / "agent.py"), *words]
        strace = shutil.which("strace")
        if strace:
            calls = "trace=socket,connect,bind,sendto,sendmsg,execve,execveat"
            command = [strace, "-f", "-qq", "--seccomp-bpf", "-e", calls, "-o", str(trace), *command]
        environment = {**os.environ, "ISOLATION_FOLDER": str(self.folder), "ISOLATION_PORT": str(self.port)}
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        seen: set[str] = set()
        finished = threading.Event()

        def look() -> None:
            while not finished.is_set():
                seen.update(_network_sockets(process.pid))
                time.sleep(0.002)

        looker = threading.Thread(target=look)
        looker.start()
        said = process.stdout.readline()
        finished.set()
        looker.join()
        process.stdin.close()
        complaint = process.stderr.read()
        assert process.wait(30) == 0, complaint
        assert said == "done\n", complaint
        calls_seen = trace.read_text().splitlines() if strace else []
        return calls_seen[1:], seen  # the first line is the start of the program itself


def _network_sockets(parent: int) -> set[str]:
    """Open IPv4 and IPv6 sockets of a process and of those it started, read from /proc."""
    found: set[str] = set()
    for pid in (parent, *_children(parent)):
        inodes = {name[len("socket:[") : -1] for name in _descriptors(pid) if name.startswith("socket:[")}
        tables = "".join(_text(Path(f"/proc/{pid}/net/{name}")) for name in ("tcp", "tcp6", "udp", "udp6"))
        found |= {inode for inode in inodes if f" {inode} " in tables}
    return found


def _descriptors(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):  # it ended while we looked
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed while we looked
                yield str(entry.readlink())


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _children(parent: int) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


@pytest.mark.parametrize(("kind", "times"), [("sync", REPLAYS), ("async", 100)])
def test_strict_replays_open_no_socket_and_run_no_tool(world: World, kind: str, times: int) -> None:
    calls, _ = world.watch("record", kind, "1")
    recorded = (world.visits, world.effects())
    assert recorded[0] >= 2
    assert recorded[1] >= 1
    assert not calls or any("connect(" in line for line in calls)  # the view from outside sees what there is to see

    calls, sockets = world.watch("replay", kind, str(times))
    assert calls == []
    assert sockets == set()
    assert (world.visits, world.effects()) == recorded


def test_the_look_into_proc_sees_a_socket() -> None:
    """The view that stands alone where strace is missing."""
    with socket.create_server(("127.0.0.1", 0)):
        assert _network_sockets(os.getpid())


def test_the_command_line_leaves_the_network_where_it_can(world: World) -> None:
    world.watch("record", "sync", "1")
    (world.folder / "probe.py").write_text(
        "import sys\nfrom antiphon.ops.sandbox import leave_network\n"
        "left = leave_network()\nimport socket\n"
        "try:\n    socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2).close()\n"
        "except OSError:\n    print('unreachable', left)\nelse:\n    print('reached', left)\n"
    )
    done = subprocess.run(
        [sys.executable, str(world.folder / "probe.py"), str(world.port)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() in ("unreachable True", "reached False")

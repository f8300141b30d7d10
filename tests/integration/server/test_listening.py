"""``serve``, ``proxy`` and ``console``: when they tell their address, what they say if they cannot have it, Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

COMMANDS = [
    ["serve"],
    ["serve", "--workers", "2"],
    ["proxy", "--upstream", "openai=http://127.0.0.1:9"],
    ["console", "--no-open"],
]
each = pytest.mark.parametrize("command", COMMANDS, ids=" ".join)


@contextmanager
def _started(tmp_path: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    with subprocess.Popen(
        [sys.executable, "-m", "antiphon.cli", *words],
        env={**kept, "ANTIPHON_HOME": str(tmp_path / "state")},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _address(process: subprocess.Popen[str]) -> str:
    """What the program says where it is."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise AssertionError(said)


@each
def test_clients_can_connect_as_soon_as_the_address_is_told(tmp_path: Path, command: list[str]) -> None:
    with _started(tmp_path, *command, "--port", "0") as process:
        assert httpx.get(f"{_address(process)}/healthz", timeout=60).status_code == 200


@each
def test_a_port_in_use_is_one_error_and_nothing_else_is_said(tmp_path: Path, command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with _started(tmp_path, *command, "--port", str(port)) as process:
            _, said = process.communicate(timeout=60)
    lines = [line.strip() for line in said.splitlines() if not line.startswith("claims and runs are kept in")]
    assert lines == [f"antiphon: Port {port} of 127.0.0.1 is in use.", "Choose another: --port N"]
    assert process.returncode == 2


def test_a_host_that_this_machine_has_not(tmp_path: Path) -> None:
    with _started(tmp_path, "proxy", "--require-key", "--host", "192.0.2.1") as process:
        _, said = process.communicate(timeout=60)
    assert "antiphon: 192.0.2.1 is not an address of this machine: " in said
    assert (process.returncode, "Traceback" in said) == (2, False)


@each
def test_a_second_ctrl_c_ends_the_program_and_its_runs_without_a_traceback(tmp_path: Path, command: list[str]) -> None:
    with _started(tmp_path, *command, "--port", "0") as process:
        address = _address(process)
        asked = httpx.post(f"{address}/run/shop/openai/v1/chat/completions", json={"messages": []}, timeout=60)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.02)
        _, said = process.communicate(timeout=60)
    assert "Traceback" not in said
    assert process.returncode == 0, said
    if command[0] == "proxy":
        assert asked.status_code == 502
        assert "antiphon: run shop (" in said

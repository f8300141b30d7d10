"""Servers shared by a session: one for all its processes, gone with the session, even if it was killed."""

from __future__ import annotations

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.servers import Postgres, ServerFailed, Valkey
from tests.sharing import shared, stop_all


def _answers(address: str) -> bool:
    port = urlsplit(address).port
    assert port is not None
    probe = Valkey.__new__(Valkey)
    probe.port, probe.password = port, ""
    try:
        return probe.command("PING") == b"+PONG"
    except OSError:
        return False


def test_many_ask_and_one_server_starts(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        addresses = set(pool.map(lambda _: shared("valkey", tmp_path, os.getpid()), range(8)))
    (address,) = addresses
    assert _answers(address)
    stop_all(tmp_path)
    assert not _answers(address)


def test_a_killed_session_leaves_no_server(tmp_path: Path) -> None:
    owner = subprocess.Popen(["sleep", "60"])
    address = shared("valkey", tmp_path, owner.pid)
    assert _answers(address)
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 60
    while _answers(address) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _answers(address)


def test_a_server_that_cannot_start_is_an_error_for_everyone(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ServerFailed, match="KeyError: 'nothing'"):
            shared("nothing", tmp_path, os.getpid())


def test_postgres_runs_from_an_environment_that_nobody_cannot_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.servers._open_to_others", lambda _: False)
    with Postgres() as server:
        assert server.url.startswith("postgresql://")
        if os.geteuid() == 0:
            assert (server.folder / "program").is_dir()

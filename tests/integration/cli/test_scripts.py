"""The same first steps in Python: a script that records and replays itself, stores by URL, wrong declarations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import antiphon
from antiphon.errors import ConfigError, InvalidInput

SCRIPT = """
import antiphon

print("started")
gateway = antiphon.Gateway()


@gateway.tool(idempotent=False)
def send(text: str) -> str:
    print("sending")
    return "sent"


def agent(text: str) -> str:
    return send(text=text)


run = antiphon.record(agent, "hello")
report = antiphon.replay(run.id, mode="strict")
print(report)
"""


def test_a_script_that_replays_its_own_agent_runs_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["started", "sending"]
    assert lines[2].startswith("<A replay of ")
    assert lines[2].endswith(": pass>")
    assert len(lines) == 3


def test_a_store_may_be_given_by_its_url(tmp_path: Path) -> None:
    gateway = antiphon.Gateway(f"sqlite:///{tmp_path / 'claims.db'}")

    @gateway.tool(idempotent=False)
    def send() -> str:
        return "sent"

    assert send() == "sent"
    assert (tmp_path / "claims.db").exists()
    with pytest.raises(ConfigError, match="unknown scheme"):
        antiphon.Gateway("mysql://host/db")


def test_a_wrong_declaration_is_refused() -> None:
    gateway = antiphon.Gateway("memory:")
    says = r"'send' is invalid: Invalid enum value 'reed' \(effect\)\. It can be 'read', 'write'"
    with pytest.raises(InvalidInput, match=says):

        @gateway.tool(idempotent=False, effect="reed")  # type: ignore[call-overload, untyped-decorator]
        def send() -> None: ...

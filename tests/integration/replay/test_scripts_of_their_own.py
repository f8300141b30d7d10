"""Exceptions of a script are raised again as what they were, however and wherever it is run (D15, K8)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import antiphon


class Boom(Exception):
    pass


app = antiphon.configure()


@app.gateway.tool(idempotent=True, effect="read")
def look_up(order: int) -> str:
    raise Boom("no such order")


def main(given=None):
    run, caught = antiphon.current_run(), []

    def send(body):
        raise Boom("no such model")

    try:
        run.llm({"model": "m", "messages": []}, send)
    except Boom:
        caught.append("model")
    try:
        look_up(1)
    except Boom:
        caught.append("tool")
    if given == "fail":
        raise Boom("and now for real")
    return caught


if __name__ == "__main__":
    print(antiphon.record(main).output)
"""


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ANTIPHON_HOME": str(folder / "state")}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    "how",
    [
        ("agent.py",),
        ("-m", "antiphon.cli", "run", "agent.py:main"),
        ("-m", "antiphon.cli", "run", "agent.py:main", "--input", '"fail"'),
    ],
)
def test_a_replay_elsewhere_raises_what_the_script_catches(tmp_path: Path, how: tuple[str, ...]) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "agent.py").write_text(SCRIPT)
    recorded = ran(here, *how)
    assert recorded.returncode == (1 if "--input" in how else 0), recorded.stderr
    replayed = ran(here, "-m", "antiphon.cli", "replay", "--latest", "--strict")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    artifact = str(tmp_path / "run.antiphon")
    assert ran(here, "-m", "antiphon.cli", "export", "--latest", "-o", artifact).returncode == 0
    moved = ran(there, "-m", "antiphon.cli", "replay", artifact, "--strict")
    assert moved.returncode == 0, moved.stdout + moved.stderr
    assert "antiphon_script_" not in Path(artifact).read_text()

"""The benchmark harness runs every kind of case in a process of its own and reports failures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bench import Case, Context
from bench._envs import PeerUnavailable, python_of
from bench._harness import CaseFailed, Worker

CASES = """
import asyncio, time

def plain(mark):
    calls = []
    yield lambda: calls.append(1)
    open(mark, "w").write("closed")

def counted():
    print("noise on standard output")
    def batch(n):
        return {"n": float(n)}
    return batch

async def asynchronous():
    async def call():
        await asyncio.sleep(0)
    yield call

def busy():
    def call():
        end = time.process_time() + 0.002
        while time.process_time() < end:
            pass
    return call

def path():
    import os
    return lambda n: {"set": float("PYTHONPATH" in os.environ)}

def broken():
    def call():
        raise ValueError("no")
    return call
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "cases.py").write_text(CASES)
    return str(tmp_path / "cases")


def test_every_kind_of_case(file: str, tmp_path: Path) -> None:
    with Context() as ctx:
        race = ctx.race(
            {
                "plain": Case(file, "plain", {"mark": str(tmp_path / "mark")}),
                "counted": Case(file, "counted"),
                "asynchronous": Case(file, "asynchronous"),
                "busy": Case(file, "busy"),
            },
            rounds=3,
            n=5,
        )
    assert (tmp_path / "mark").read_text() == "closed"
    assert race["counted"].extra == {"n": 5.0}
    assert race["busy"].us() >= 1900
    assert race.ratio("plain", "busy") < 0.5
    assert len(race["plain"].cpu) == 3


def test_a_peer_does_not_import_the_code_that_is_measured_beside_it(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(file).parent))
    monkeypatch.setattr("bench._harness.python_of", lambda peer: Path(sys.executable))
    with Context() as ctx:
        race = ctx.race({"ours": Case(file, "path"), "peer": Case(file, "path", peer="other")}, rounds=1, n=1)
    assert (race["ours"].extra["set"], race["peer"].extra["set"]) == (1.0, 0.0)


def test_calibration_aims_at_the_asked_time(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Worker.ask

    def steady(worker: Worker, **question: Any) -> dict[str, Any]:
        """Every call takes 2 ms, whatever else the machine does."""
        answer = asked(worker, **question)
        return {**answer, "wall": 0.002 * question["n"]} if question["op"] == "run" else answer

    monkeypatch.setattr(Worker, "ask", steady)
    with Context() as ctx:
        assert ctx.race({"busy": Case(file, "busy")}, rounds=1, seconds=0.05)["busy"].n == 25


def test_a_case_that_raises_is_named(file: str) -> None:
    with Context() as ctx, pytest.raises(CaseFailed, match="bad: ValueError: no"):
        ctx.race({"bad": Case(file, "broken")}, rounds=1, n=1)


def test_an_unknown_peer_is_an_error() -> None:
    with pytest.raises(PeerUnavailable, match=r"nobody\.txt does not exist"):
        python_of("nobody")


def test_a_command_that_fails_is_an_error() -> None:
    with Context(quick=True) as ctx, pytest.raises(CaseFailed, match="exit code 3"):
        ctx.commands({"bad": ["sh", "-c", "exit 3"]})

"""No way out of a replay: each attempt is refused and named, in strict and in explore, and the world stays the same."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon._lineage import Replay
from antiphon.stores import MemoryStore
from tests.integration.replay.escapes import ATTEMPTS, World

CONFIG = {"replay": {"embedder": "lexical"}, "telemetry": {"logs": False}}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    reviewed = tmp_path / "project" / "side_effect"
    reviewed.mkdir(parents=True)
    (reviewed / "side_effects.yaml").write_text("tools: {}\ndone: true\n")
    monkeypatch.chdir(tmp_path / "project")
    folder = tmp_path / "world"
    folder.mkdir()
    made = World(folder)
    yield made
    made.close()


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads whose effects are refused end with an exception; nobody has to read it."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)


@contextlib.contextmanager
def late_ones() -> Iterator[list[str]]:
    found: list[str] = []

    def note(replay: Replay, what: str) -> None:
        found.append(what)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("antiphon._lineage.on_late", [note])  # else they would fail this very session
        yield found


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("mode", ["strict", "explore"])
@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_is_refused_and_named(name: str, mode: Any, world: World, tmp_path: Path) -> None:
    app = antiphon.Antiphon(CONFIG, store=MemoryStore())
    acts = False
    triggers: list[Any] = []

    def main() -> str:
        if acts:
            with contextlib.suppress(Exception):
                triggers.append(ATTEMPTS[name](world))
        return "done"

    with app.run("agent") as run:
        run.output = main()
    before = world.state()
    me = os.getpid()
    acts = True
    with late_ones() as late:
        report = antiphon.replay(run, app=app, mode=mode, function=main, keep=False)
        if triggers and triggers[0] is not None:
            with contextlib.suppress(Exception):
                triggers[0]()
    assert os.getpid() == me
    named = [found["message"] for found in report.divergences] + late
    assert world.state() == before, f"{name} had an effect"
    if name == "late_exit_handler":  # refused when the process ends: see test_the_end_of_a_process
        return
    assert named, f"{name} was not named"
    assert late or not report.passed


def test_there_are_enough_attempts(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nescape attempts: {len(ATTEMPTS)}, each in strict and explore")
    assert len(ATTEMPTS) >= 60


AGENT = """
import atexit, gc, sys, threading, time, weakref
from pathlib import Path
import antiphon

HERE = Path(__file__).parent
KEPT = []


def touch(name):
    (HERE / "effects" / name).write_text("x")


class Deleted:
    def __init__(self, name):
        self.name, self.touch = name, touch

    def __del__(self):
        self.touch(self.name)


def opened():
    try:
        yield 1
    finally:
        touch("generator")


class Thing:
    pass


def outlive():
    time.sleep(1.3)
    touch("thread")


@antiphon.agent
def main(acts):
    if Path(HERE / "acts").exists():
        atexit.register(touch, "exit handler")
        threading.Thread(target=outlive).start()
        threading.Timer(1.5, touch, ("timer",)).start()
        KEPT.append(Deleted("del at exit"))
        KEPT.append(opened())
        next(KEPT[-1])
        KEPT.append(Thing())
        weakref.finalize(KEPT[-1], touch, "finalizer at exit")
        print("printed by the agent")
    return "done"
"""


@pytest.mark.parametrize("mode", ["--strict", "--explore", "test"])
def test_the_end_of_a_process_belongs_to_the_verdict(tmp_path: Path, mode: str) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "effects").mkdir()
    (tmp_path / "side_effect").mkdir()
    (tmp_path / "side_effect" / "side_effects.yaml").write_text("tools: {}\ndone: true\n")

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "ANTIPHON_HOME": str(tmp_path / "home")}
        antiphon_command = [sys.executable, "-m", "antiphon.cli", *words]
        return subprocess.run(
            antiphon_command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    made = command("run", "agent.py:main", "--input", "1", "--json")
    assert made.returncode == 0, made.stderr
    run = json.loads(made.stdout)["run"]
    command("export", run, "-o", "golden.antiphon")
    (tmp_path / "acts").touch()
    done = command("test", "golden.antiphon", "--json") if mode == "test" else command("replay", run, mode, "--json")
    assert done.returncode == 1, done.stderr
    assert "printed by the agent" in done.stderr
    said = json.dumps(json.loads(done.stdout))
    assert list((tmp_path / "effects").iterdir()) == []
    for name in ("exit handler", "thread", "timer", "del at exit", "generator", "finalizer at exit"):
        assert f"effects/{name}" in said, name


LATE = """
import atexit, os, threading, time
import antiphon

app = antiphon.Antiphon()


@app.gateway.tool(idempotent=False, effect="write")
def send(to: str) -> str:
    return f"sent {to}"


def later(seconds, to):
    time.sleep(seconds)
    send(to=to)


@antiphon.agent
def main(dropped):
    kept = {"soon": 0.05, "later": 1.2, "exit handler": 0}
    kept.pop(os.environ.get("DROPPED"), None)
    for to, seconds in kept.items():
        if seconds:
            threading.Thread(target=antiphon.wrap_context(later), args=(seconds, to)).start()
        else:
            atexit.register(send, to)
    return "done"
"""


@pytest.mark.parametrize("dropped", ["nothing", "soon", "later", "exit handler"])
def test_what_the_recording_has_after_its_end_belongs_to_the_verdict(tmp_path: Path, dropped: str) -> None:
    (tmp_path / "agent.py").write_text(LATE)

    def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "antiphon.cli", *words],
            cwd=tmp_path,
            env={**os.environ, "ANTIPHON_HOME": str(tmp_path / "home"), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    made = command("run", "agent.py:main", "--input", "1", "--json")
    assert made.returncode == 0, made.stderr
    run = json.loads(made.stdout)["run"]
    assert command("export", run, "-o", "golden.antiphon").returncode == 0
    for words in (("replay", run, "--strict", "--json"), ("test", "golden.antiphon", "--json")):
        done = command(*words, DROPPED=dropped)
        assert done.returncode == (0 if dropped == "nothing" else 1), done.stdout + done.stderr
        assert ("send did not happen" in done.stdout) == (dropped != "nothing"), done.stdout

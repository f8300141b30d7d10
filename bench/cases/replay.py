"""Strict replay of recorded calls."""

import subprocess
import sys
import tempfile
from pathlib import Path

import antiphon
from antiphon.ops.execution import execute_strictly
from antiphon.ops.runs import load_recording
from antiphon.stores import MemoryStore, SQLiteStore

QUIET = {"telemetry": {"logs": False}, "loop": {"enabled": False}}
ANSWER = {"hits": [{"title": "x" * 40, "url": "y" * 60, "text": "z" * 200} for _ in range(3)]}


def _agent(app, ask="what a person asks "):
    @app.gateway.tool(idempotent=True, effect="read")
    def search(query: str, number: int) -> dict:
        return ANSWER

    def main(calls: int) -> int:
        for number in range(calls):
            search(query=ask * 30, number=number)
        return calls

    return main


def _recorded(calls, *ask):
    app = antiphon.Antiphon(QUIET, store=MemoryStore())
    main = _agent(app, *ask)
    run = app.record(main, calls)
    return app, main, run.manifest


def masked(calls):
    """The same with an e-mail address in each argument: the recording holds pseudonyms, the replay has the key."""
    return tools(calls, "mail ada@corp.com ")


def tools(calls, *ask):
    """The code on a recording that has been opened: what a peer's resume or playback does."""
    app, main, manifest = _recorded(calls, *ask)
    recording = load_recording(app, manifest)
    assert bool(recording.masks.pseudonyms) == bool(ask)

    def replay(n):
        for _ in range(n // calls):
            result = execute_strictly(app, recording, main)
            assert not result.divergences
            assert recording.answered == calls

    return replay


def whole(calls):
    """The same with opening the recording."""
    app, main, manifest = _recorded(calls)

    def replay(n):
        for _ in range(n // calls):
            result = execute_strictly(app, load_recording(app, manifest), main)
            assert not result.divergences

    return replay


def masked_models(calls):
    """The same with an e-mail address in each prompt."""
    return models(calls, "mail ada@corp.com ")


def models(calls, ask="what a person asks "):
    """Model calls at the run's own boundary."""
    app = antiphon.Antiphon(QUIET, store=MemoryStore())

    def main(calls):
        run = antiphon.current_run()
        for number in range(calls):
            messages = [{"role": "user", "content": f"{number} " + ask * 30}]
            run.llm({"model": "m", "temperature": 0, "messages": messages}, lambda body: ANSWER)

    run = app.record(main, calls)
    recording = load_recording(app, run.manifest)

    def replay(n):
        for _ in range(n // calls):
            assert not execute_strictly(app, recording, main).divergences

    return replay


_BIG = """
import sys, antiphon
from antiphon.stores import SQLiteStore
app = antiphon.Antiphon({"telemetry": {"logs": False}, "loop": {"enabled": False}}, store=SQLiteStore(sys.argv[1]))
@app.gateway.tool(idempotent=True, effect="read")
def page(number: int) -> str:
    return f"{number} " + "words of a page " * 1600
def main(calls):
    return sum(len(page(number=number)) for number in range(calls))
print(app.record(main, int(sys.argv[2])).id)
"""


def big(megabytes):
    """A run too large to hold, replayed from its file: recorded by another process, so that memory is the replay's."""
    folder = tempfile.TemporaryDirectory()
    path = str(Path(folder.name) / "runs.db")
    calls = megabytes * 40
    made = subprocess.run(
        [sys.executable, "-c", _BIG, path, str(calls)],
        capture_output=True,
        text=True,
        check=True,
        env={"ANTIPHON_HOME": folder.name, "PATH": ""},
    )
    app = antiphon.Antiphon(QUIET, store=SQLiteStore(path))

    @app.gateway.tool(idempotent=True, effect="read")
    def page(number: int) -> str:
        raise AssertionError("a strict replay called the tool")

    def main(calls):
        return sum(len(page(number=number)) for number in range(calls))

    def replay(n):
        report = antiphon.replay(made.stdout.strip(), app=app, mode="strict", function=main, keep=False)
        assert report.passed, report.text()

    yield replay
    folder.cleanup()

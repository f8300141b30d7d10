"""A recorded run that is killed at any moment leaves a log that opens, has no gaps and misses no finished outcome."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from antiphon import Antiphon
from antiphon._recording.recorder import Recorder
from antiphon.contract.events import Event
from antiphon.ops.runs import find_run, list_runs, timeline
from antiphon.ports import Row
from tests.integration.recording.kit import application, stored
from tests.processes import process

KILLS = 55
MOST_OUTCOMES = 8
LONGEST_S = 0.01


def agent(app: Antiphon, name: str, tell: Any, rounds: int = 10_000) -> None:
    """Calls tools, models and streams until somebody ends the process; tells each outcome it has seen."""

    @app.gateway.tool(idempotent=False)
    def write(n: int, run: str) -> dict[str, int]:
        return {"wrote": n}

    @app.gateway.tool(idempotent=True)
    def stream(n: int, run: str) -> Iterator[str]:
        yield from (f"piece {n}.{part} " for part in range(3))

    def model(request: dict[str, Any]) -> dict[str, Any]:
        return {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": request["messages"][0]["content"]}}]
        }

    with app.run(name) as run:
        tell(run.id)
        for n in range(rounds):
            assert write(n, name) == {"wrote": n}
            tell(f"write {n}")
            run.llm({"model": "m", "messages": [{"role": "user", "content": f"ask {n}"}]}, model)
            tell(f"ask {n}")
            list(stream(n, name))
            tell(f"stream {n}")
            run.uuid4()


def _record(name: str, tell: Connection) -> None:
    agent(application(), name, tell.send)


def record_until_killed(name: str, outcomes: int, after_s: float, record: Any = _record) -> list[str]:
    """What a process told that recorded *name* and was killed *after_s* seconds after so many *outcomes*."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = process(record, name, theirs)
    child.start()
    theirs.close()
    words = [ours.recv() for _ in range(1 + outcomes)]
    time.sleep(after_s)
    child.kill()
    with contextlib.suppress(EOFError, OSError):  # the last word may be cut
        while True:
            words.append(ours.recv())
    child.join()
    assert child.exitcode == -signal.SIGKILL
    return words


def missing(told: list[str], events: list[Event]) -> set[str]:
    """Outcomes that were told and are not in the log."""
    ends = {event.call: event.payload for event in events if event.type == "call.finished"}
    started = [event for event in events if event.type == "call.started" and event.call in ends]
    assert all(ends[event.call]["outcome"] == "ok" for event in started)
    return set(told) - {_word(event.payload) for event in started}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Antiphon:
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "state"))
    return application()


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_points(app: Antiphon, seed: int) -> None:
    chance = random.Random(seed)
    cut_inside = 0
    for number in range(KILLS):
        outcomes, after_s = chance.randint(0, MOST_OUTCOMES), chance.uniform(0, LONGEST_S)
        run_id, *told = record_until_killed(f"agent {number}", outcomes, after_s)
        events = stored(app, run_id)
        assert not missing(told, events), "an outcome that its caller had seen is not in the log"
        kinds = [event.type for event in events]
        cut_inside += kinds.count("call.started") > kinds.count("call.finished")
        shown = timeline(app, find_run(app, run_id))
        assert shown["status"] == "interrupted"
        assert shown["stoppedAt"] == events[-1].seq
    assert cut_inside, "some were killed between the start of a call and its end"
    assert len(list_runs(app, status="interrupted", limit=500)) == KILLS


def _record_late(name: str, tell: Connection) -> None:
    later: list[Row] = []
    make = Recorder.__init__

    def make_late(self: Recorder, *args: Any, **kwargs: Any) -> None:
        def write(rows: Sequence[Row]) -> None:
            later.extend(rows)
            if len(later) > 20:
                self.journal.append(self.run_id, later)
                later.clear()

        make(self, *args, **kwargs)
        self.scope.write = write

    Recorder.__init__ = make_late  # type: ignore[method-assign]
    _record(name, tell)


def test_a_recorder_that_writes_later_would_be_caught(app: Antiphon) -> None:
    lost: set[str] = set()
    for number in range(10):
        run_id, *told = record_until_killed(f"agent {number}", MOST_OUTCOMES, LONGEST_S, _record_late)
        lost |= missing(told, stored(app, run_id))
    assert lost


def _word(payload: dict[str, Any]) -> str:
    if payload["kind"] == "llm":
        return str(payload["request"]["messages"][0]["content"])
    return f"{payload['name']} {payload['arguments']['n']}"

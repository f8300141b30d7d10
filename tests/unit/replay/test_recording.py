"""A recording as something that can be asked: resumed runs, edits, large events, damage."""

from __future__ import annotations

from typing import Any

import pytest

import antiphon
from antiphon._replay import recording as module
from antiphon._replay.recording import Recording, set_at
from antiphon.errors import ArtifactError, InvalidInput
from antiphon.ops.runs import load_recording
from tests.unit.replay.kit import copied, memory_app


def test_a_resumed_run_replays_as_its_last_attempt() -> None:
    app = memory_app()
    fails = True

    @app.gateway.tool(idempotent=True, effect="read")
    def look(n: int) -> int:
        return n * n

    def main() -> list[Any]:
        run = antiphon.current_run()
        found = [look(n=1), str(run.uuid4())]
        if fails:
            raise RuntimeError("half-way")
        return [*found, look(n=2)]

    with pytest.raises(RuntimeError):
        app.record(main)
    first = app.journal.runs
    run_id = antiphon.replay(app=app, mode="strict", function=main, keep=False)["sourceRun"]
    assert first is not None
    fails = False
    with app.run("main", resume=run_id) as run:
        run.output = main()
    report = antiphon.replay(run_id, app=app, mode="strict", function=main, keep=False)
    assert report.passed, report.text()


def test_a_gap_in_the_log_is_an_error() -> None:
    app = memory_app()
    run = app.record(lambda: None)
    other = copied(app, run, lambda events: events)

    class Holes:
        def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> Any:
            return [event for event in other.journal.events(run, start=start, limit=limit) if event.seq != 0]

    with pytest.raises(ArtifactError, match="gap"):
        Recording.load(run.manifest, Holes())


def test_events_too_large_to_hold_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_TOTAL_BYTES", 0)
    app = memory_app()

    @app.gateway.tool(idempotent=True, effect="read")
    def look(n: int) -> str:
        return "x" * n

    def main() -> int:
        return sum(len(look(n=n)) for n in range(100))

    run = app.record(main)
    recording = load_recording(app, run.manifest)
    assert not recording._kept
    assert antiphon.replay(run, app=app, mode="strict", function=main, keep=False).passed


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", {"a": 9, "b": [1, {"c": 2}]}),
        ("b.1.c", {"a": 0, "b": [1, {"c": 9}]}),
        ("n", {"a": 0, "b": [1, {"c": 2}], "n": 9}),
    ],
)
def test_set_at(path: str, expected: Any) -> None:
    before = {"a": 0, "b": [1, {"c": 2}]}
    assert set_at(before, path, 9, "event 1") == expected
    assert before == {"a": 0, "b": [1, {"c": 2}]}


@pytest.mark.parametrize("path", ["x.y", "b.7", "a.b", ""])
def test_set_at_nowhere(path: str) -> None:
    with pytest.raises(InvalidInput):
        set_at({"a": 0, "b": [1]}, path, 9, "event 1")


def test_a_nested_call_is_part_of_the_call_that_made_it() -> None:
    app = memory_app()

    @app.gateway.tool(idempotent=True, effect="read")
    def inner(n: int) -> int:
        return n + 1

    @app.gateway.tool(idempotent=True, effect="read")
    def outer(n: int) -> int:
        return inner(n=n) + inner(n=n + 1)

    run = app.record(lambda: outer(n=1))
    recording = load_recording(app, run.manifest)
    assert [call.name for call in recording.top_calls()] == ["tools/outer"]
    report = antiphon.replay(run, app=app, mode="strict", function=lambda: outer(n=1), keep=False)
    assert report.passed, report.text()
    assert (report["cacheHits"], report["unusedToolCalls"]) == (1, 0)


def test_a_strict_replay_leaves_a_run_that_can_be_shown() -> None:

    app = memory_app()
    run = app.record(lambda: 1)
    passed = antiphon.replay(run, app=app, mode="strict", function=lambda: 1)
    failed = antiphon.replay(run, app=app, mode="strict", function=lambda: 2)
    kinds = [[event.type for event in app.journal.events(report["replayRun"])] for report in (passed, failed)]
    assert kinds == [["run.started", "run.finished"], ["run.started", "replay.diverged", "run.finished"]]
    manifest = app.journal.manifest(failed["replayRun"])
    assert manifest is not None
    assert (manifest.status, manifest.source_run) == ("failed", run.id)

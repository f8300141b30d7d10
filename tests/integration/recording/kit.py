"""What recording tests stand on: a state folder of their own, and an agent with tools of several kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from antiphon import Antiphon
from antiphon._recording.run import Run
from antiphon.contract.events import Event

QUIET = {"telemetry": {"logs": False}}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder and a state folder below it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("ANTIPHON_TELEMETRY_LOGS", "false")
    monkeypatch.setattr("antiphon.ops.app._default", {})  # the command line makes its own, of this folder
    for name in ("KURRAL_STORAGE_BACKEND", "R2_BUCKET_NAME", "R2_ENDPOINT_URL", "R2_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state"


def application(config: Mapping[str, Any] | None = None, **options: Any) -> Antiphon:
    """An application that logs nothing."""
    return Antiphon({**QUIET, **(config or {})}, **options)


def small_run(app: Antiphon, name: str = "small", output: str = "done") -> Run:
    """A run with one tool call."""

    @app.gateway.tool(idempotent=True, name=f"look_{name}")
    def look(q: str) -> str:
        return q.upper()

    with app.run(name, input={"args": ["hello"]}) as run:
        look("a")
        run.finish(output)
    return run


def stored(app: Antiphon, run: str) -> list[Event]:
    """All events of a run; checks that no number is missing."""
    events = list(app.events(run))
    assert [event.seq for event in events] == list(range(len(events)))
    return events


def calls(events: list[Event]) -> Iterator[tuple[Event, Event]]:
    """Each call's start with its end."""
    started = {event.call: event for event in events if event.type == "call.started"}
    for event in events:
        if event.type == "call.finished":
            yield started[event.call], event

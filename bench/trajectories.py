"""Trajectories of other tools: 50 in ATIF imported, how complete they are by field, and their next steps compared.

They are made with the published models of the format; ``BENCH_TRAJECTORIES`` names a folder with real ones instead.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from bench import Context, Row
from bench._envs import python_of

COUNT = 50
CASE = Path(__file__).parent / "cases" / "trajectories.py"


def run(_: Context) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        given = os.environ.get("BENCH_TRAJECTORIES")
        if given is None:
            given = str(Path(folder, "jobs"))
            command = [str(python_of("atif")), str(CASE), given, str(COUNT)]
            subprocess.run(command, check=True)
        with mock.patch.dict(os.environ, {"ANTIPHON_HOME": folder}):
            return rows(given)


def rows(given: str) -> list[Row]:
    """Import what is below a folder, and compare every step with a model that errs."""
    import antiphon
    from antiphon.ops.artifacts import import_all, whole_events
    from antiphon.ops.next_step import in_all, next_steps
    from antiphon.ops.runs import find_run, timeline

    app = antiphon.Antiphon({"telemetry": {"logs": False}})
    began = time.monotonic()
    done = import_all(app, [given])
    took = time.monotonic() - began
    runs = [find_run(app, one["run"]) for one in done.runs]
    shown = sum(bool(timeline(app, manifest)["timeline"]) for manifest in runs)
    model = Scripted()
    found = []
    for manifest in runs:
        asked = {event.call for event in whole_events(app, manifest.id) if event.payload.get("kind") == "llm"}
        ends = (event for event in whole_events(app, manifest.id) if event.type == "call.finished")
        model.begin([event.payload["value"] for event in ends if event.call in asked])
        found.append(next_steps(app, manifest, model))
    result, whole = in_all(found), done.completeness() or {"fields": {}, "overall": 0.0}
    gaps = sum(len(one["completeness"]["gaps"]) + one["completeness"]["moreGaps"] for one in done.runs)
    files = len({one["file"] for one in done.runs})
    made = [
        Row(name="files imported", value=files, unit="", at_least=1, note=f"{len(runs)} runs, {took:.1f} s"),
        Row(
            name="files refused",
            value=len(done.failed),
            unit="",
            note="; ".join(e.message for _, e in done.failed)[:200],
        ),
        Row(name="runs shown", value=shown / max(1, len(runs)), unit="", at_least=1.0),
        Row(name="completeness, overall", value=whole["overall"], unit="", note=f"{gaps} gaps named"),
    ]
    for name, count in whole["fields"].items():
        note = f"{count['present']} of {count['of']}"
        made.append(Row(name=f"completeness, {name}", value=count["present"] / count["of"], unit="", note=note))
    said = ", ".join(f"{count} {name}" for name, count in result["verdicts"].items() if count)
    compared = result["steps"] / max(1, result["steps"] + result["notCompared"])
    made += [
        Row(name="next steps compared", value=compared, unit="", note=f"{result['steps']} steps: {said}"),
        Row(
            name="next steps judged otherwise than planted",
            value=abs(result["verdicts"]["same"] - model.right)
            + abs(result["verdicts"]["answers instead"] - model.mute),
            unit="",
            at_most=0,
            note=f"planted: {model.right} the same, {model.mute} answers where the recorded model called",
        ),
    ]
    return made


class Scripted:
    """A model that takes the recorded step, and says something else at every third one."""

    def __init__(self) -> None:
        self.right = self.mute = 0
        self._recorded: list[Any] = []
        self._asked = 0

    def begin(self, recorded: list[Any]) -> None:
        """The next run, by the answers that its model calls had."""
        self._recorded, self._asked = recorded, 0

    def __call__(self, _: dict[str, Any]) -> Any:
        step = self._recorded[self._asked]
        self._asked += 1
        if self._asked % 3:
            self.right += 1
            return step
        self.mute += "tool_calls" in step["choices"][0]["message"]
        return "I do not know."

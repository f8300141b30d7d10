"""Writes trajectories made with the published models of ATIF, as agents of several kinds would leave them.

python bench/cases/trajectories.py FOLDER COUNT      (with an interpreter that has the package ``atif``)
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from atif import Trajectory  # type: ignore[import-not-found,unused-ignore]

VERSIONS = ("ATIF-v1.0", "ATIF-v1.2", "ATIF-v1.4", "ATIF-v1.5", "ATIF-v1.6", "ATIF-v1.7", "ATIF-v1.8")
TASKS = ("Count the files in /app.", "Fix the failing test.", "Which order is late?", "Write hello.txt.")
TOOLS = {"bash": {"cmd": "ls -la"}, "read_file": {"path": "/app/main.py"}, "search": {"query": "late orders", "top": 3}}


class Maker:
    """One trajectory; each agent tells some things and leaves out others."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.chance = random.Random(number)
        self.kind = number % 5

    def trajectory(self, *, inner: bool = False) -> dict[str, Any]:
        chance, kind = self.chance, self.kind
        agent: dict[str, Any] = {"name": f"agent-{kind}", "version": "1.0"}
        if kind != 3:
            agent["model_name"] = chance.choice(("provider/small", "provider/large"))
        if kind in (0, 1):
            agent["tool_definitions"] = [
                {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in TOOLS
            ]
        steps = self.steps()
        made: dict[str, Any] = {
            "schema_version": "ATIF-v1.8" if inner or kind == 4 else chance.choice(VERSIONS),
            "agent": agent,
            "steps": [{**step, "step_id": at} for at, step in enumerate(steps, 1)],
            "final_metrics": {"total_steps": len(steps), "total_cost_usd": 0.01},
        }
        made["trajectory_id" if inner else "session_id"] = f"{'inner' if inner else 'trial'}-{self.number}"
        if kind == 4 and not inner:
            made["subagent_trajectories"] = [Maker(self.number + 1000).trajectory(inner=True)]
            made["steps"][-2]["observation"]["results"][0]["subagent_trajectory_ref"] = [
                {"trajectory_id": f"inner-{self.number + 1000}"}
            ]
        return made

    def steps(self) -> list[dict[str, Any]]:
        chance, kind = self.chance, self.kind
        steps: list[dict[str, Any]] = [{"source": "system", "message": "You work in a terminal."}] if kind != 2 else []
        steps.append({"source": "user", "message": chance.choice(TASKS)})
        for _ in range(chance.randint(2, 9)):
            steps.append(self.agent())
        if kind == 1:
            steps.append({"source": "user", "message": "Are you sure?"})
            steps.append({"source": "agent", "message": "Let me look.", "llm_call_count": 0})
        steps.append({"source": "agent", "message": "Done.", **self.metrics()})
        if kind != 2:
            for at, step in enumerate(steps):
                step["timestamp"] = f"2026-05-01T10:{at:02}:00Z"
        return steps

    def agent(self) -> dict[str, Any]:
        chance, kind = self.chance, self.kind
        names = [chance.choice(list(TOOLS)) for _ in range(1 + (chance.random() < 0.2))]
        calls = [
            {"tool_call_id": f"c{at}", "function_name": name, "arguments": TOOLS[name]} for at, name in enumerate(names)
        ]
        results: list[dict[str, Any]] = [
            {"source_call_id": f"c{at}", "content": f"output {chance.randint(0, 99)}"} for at, _ in enumerate(names)
        ]
        if kind == 2:  # a terminal: one screen for all calls
            results = [{"content": "$ ls\nmain.py"}]
        elif kind != 4 and chance.random() < 0.15:
            results.pop()
        if kind == 1 and results and chance.random() < 0.2:
            source = {"media_type": "image/png", "path": "images/screen.png"}
            results[0]["content"] = [{"type": "text", "text": "a screen"}, {"type": "image", "source": source}]
        step: dict[str, Any] = {"source": "agent", "message": "", "tool_calls": calls, **self.metrics()}
        if results:
            step["observation"] = {"results": results}
        if kind in (0, 4):
            step["reasoning_content"] = "I look first."
        return step

    def metrics(self) -> dict[str, Any]:
        if self.kind == 3:
            return {}
        given = {"prompt_tokens": self.chance.randint(50, 900), "completion_tokens": self.chance.randint(5, 90)}
        return {"metrics": {**given, **({"cost_usd": 0.001} if self.kind != 2 else {})}}


def main(folder: str, count: int) -> None:
    for number in range(count):
        made = Trajectory.model_validate(Maker(number).trajectory())  # the published models say that it is valid
        path = Path(folder) / f"trial-{number:03}" / "agent" / "trajectory.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(made.to_json_dict(), indent=2), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

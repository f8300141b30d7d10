"""The agent of the matrix benchmark, and what drives it in processes of their own."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import antiphon

LATENCY_S = float(os.environ.get("BENCH_MODEL_SECONDS", "0.01"))
PAID = os.environ.get("BENCH_PAID", "")


def ask(body: dict[str, Any]) -> dict[str, Any]:
    """A provider that counts what it is paid for, across processes."""
    question = body["messages"][-1]["content"]
    if PAID:
        file = os.open(PAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, f"{body['model']} {question}\n".encode())
        os.close(file)
    time.sleep(LATENCY_S)
    return {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": f"answer {question}"}}],
        "usage": {"prompt_tokens": 50, "completion_tokens": 10},
    }


def main(number: int) -> list[str]:
    """Two model calls."""
    run = antiphon.current_run()
    said = []
    for turn in range(2):
        request = {"model": "old", "messages": [{"role": "user", "content": f"{number} {turn}"}]}
        said.append(run.llm(request, ask)["choices"][0]["message"]["content"])
    return said


def bare(runs: list[str]) -> int:
    """What a loop without a matrix does: replay after replay with both models."""
    from antiphon.ops.entry import load_entry

    app = _app()
    found = {name: load_entry(f"{__file__}:{name}") for name in ("main", "ask")}
    for run in runs:
        for model in (None, "new"):
            antiphon.replay(run, app=app, mode="explore", function=found["main"], llm=found["ask"], model=model)
    return len(runs) * 2


_apps: list[antiphon.Antiphon] = []


def _app() -> antiphon.Antiphon:
    if not _apps:
        _apps.append(antiphon.Antiphon())
    return _apps[0]


class Echo:
    """Answers at once: what is left is the driver."""

    remote = False

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def capacity(self) -> int:
        return 2

    def submit(self, batch: Any) -> None:
        answer = {"status": "pass", "score": 1.0, "reasons": [], "seconds": 0.001, "cost": 0.0, "calls": 2}
        for work in batch:
            self._rows.append({**{name: work[name] for name in ("key", "run", "variant", "sample")}, **answer})

    def completed(self, timeout_s: float) -> list[dict[str, Any]]:
        rows, self._rows = self._rows, []
        return rows

    def cancel(self) -> None:
        self._rows.clear()


def rss_mb() -> float:
    """The memory of this process now."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def drive(samples: int, count: int) -> float:
    """How much the driver of a matrix grows; *count* runs × 2 variants × *samples*."""
    app = _app()
    ours = f"{__file__}:"
    plan = antiphon.matrix(
        f"name=main limit={count}", ["new"], samples, baseline=True, llm=f"{ours}ask", entry=f"{ours}main", app=app
    )
    before = rss_mb()
    plan.run(Echo())
    return rss_mb() - before


if __name__ == "__main__":
    print(drive(int(sys.argv[1]), int(sys.argv[2])))

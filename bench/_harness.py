"""What a benchmark module works with: races of cases in processes of their own, and timed commands."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from bench._envs import HERE, python_of
from bench._report import Row
from bench._servers import Servers

Metric = Literal["cpu", "wall"]
OURS = ""
OUT = HERE / "out"
"""Results, and the files that cases write while they run: on the clone's disk, unlike some /tmp."""


class CaseFailed(RuntimeError):
    """A case raised; the message says which and what."""


@dataclass(frozen=True, slots=True)
class Case:
    """``function`` of ``bench/cases/FILE.py``, run in the environment of ``peer`` (ours if empty)."""

    file: str
    function: str
    params: Mapping[str, Any] = field(default_factory=dict)
    peer: str = OURS
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timing:
    """The samples of one case; times are seconds per iteration."""

    n: int
    cpu: tuple[float, ...]
    wall: tuple[float, ...]
    rss_mb: float
    extra: Mapping[str, float]

    def seconds(self, metric: Metric = "cpu") -> float:
        """The median over the rounds."""
        return statistics.median(self.cpu if metric == "cpu" else self.wall)

    def us(self, metric: Metric = "cpu") -> float:
        """The median in microseconds."""
        return self.seconds(metric) * 1e6

    def per_second(self, metric: Metric = "wall") -> float:
        """Iterations per second."""
        return 1 / self.seconds(metric)


@dataclass(frozen=True, slots=True)
class Race:
    """The timings of cases whose rounds were interleaved."""

    timings: Mapping[str, Timing]

    def __getitem__(self, name: str) -> Timing:
        return self.timings[name]

    def ratio(self, ours: str, peer: str, metric: Metric = "cpu") -> float:
        """Ours ÷ peer: the median of the ratios of each round, so that a slow minute hurts both."""
        left, right = self.timings[ours], self.timings[peer]
        pairs = zip(left.cpu, right.cpu, strict=True) if metric == "cpu" else zip(left.wall, right.wall, strict=True)
        return statistics.median(a / b for a, b in pairs)

    def row(
        self,
        name: str,
        ours: str,
        peer: str = "",
        *,
        metric: Metric = "cpu",
        at_most: float | None = None,
        at_least: float | None = None,
        faster: float | None = None,
        note: str = "",
    ) -> Row:
        """A row of the table; ``faster=5`` asks for at least five times faster than the peer."""
        if faster is not None:
            at_most = 1 / faster
        return Row(
            name=name,
            value=self[ours].us(metric),
            peer=peer,
            peer_value=self[peer].us(metric) if peer else None,
            ratio=self.ratio(ours, peer, metric) if peer else None,
            at_most=at_most,
            at_least=at_least,
            note=note or ("" if metric == "cpu" else "wall time"),
        )


class Worker:
    """One case in a process of its own, with a temporary folder of its own under ``bench/out``."""

    def __init__(self, name: str, case: Case) -> None:
        self.name = name
        python = python_of(case.peer) if case.peer else Path(sys.executable)
        OUT.mkdir(exist_ok=True)
        self._folder = tempfile.mkdtemp(prefix="case-", dir=OUT)
        self._process = subprocess.Popen(
            [str(python), str(HERE / "_worker.py"), str(HERE / "cases" / f"{case.file}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=HERE.parent,
            env={**os.environ, "TMPDIR": self._folder, **case.env},
        )
        try:
            self.ask(op="open", case=case.function, params=dict(case.params))
        except CaseFailed:
            self._end()
            raise

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise CaseFailed(f"{self.name}: the worker ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if not answer["ok"]:
            raise CaseFailed(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Take the case down and end its process."""
        try:
            self.ask(op="close")
        except CaseFailed as error:
            print(f"[bench] {error}", file=sys.stderr)
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


class Context:
    """Handed to ``run(ctx)`` of each benchmark module."""

    def __init__(self, *, quick: bool = False) -> None:
        self.quick = quick
        self.servers = Servers()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.servers.stop()

    def payload(self, name: str) -> str:
        """The path of a fixed input: ``params-100``, ``params-900`` (bytes, about) or ``chat-100k``."""
        path = HERE / "payloads" / f"{name}.json"
        if not path.exists():
            raise FileNotFoundError(path)
        return str(path)

    def race(
        self, cases: Mapping[str, Case], *, rounds: int = 9, seconds: float = 0.2, n: int | None = None, warmup: int = 1
    ) -> Race:
        """Run all cases in interleaved rounds, one at a time.

        Each sample repeats its case for about *seconds* (or exactly *n* times); the order turns with each
        round so that none is always first.
        """
        if self.quick:
            rounds, seconds = min(rounds, 3), min(seconds, 0.05)
        workers: dict[str, Worker] = {}
        try:
            for name, case in cases.items():
                workers[name] = Worker(name, case)
            counts = {name: n or self._calibrate(worker, seconds) for name, worker in workers.items()}
            for worker in workers.values():
                for _ in range(warmup):
                    worker.ask(op="run", n=counts[worker.name])
            samples: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
            order = list(workers)
            for _ in range(rounds):
                for name in order:
                    samples[name].append(workers[name].ask(op="run", n=counts[name]))
                order.append(order.pop(0))
        finally:
            for worker in workers.values():
                worker.close()
        return Race({name: _timing(counts[name], samples[name]) for name in cases})

    def commands(self, commands: Mapping[str, Sequence[str]], *, rounds: int = 15) -> Race:
        """Time whole processes (start to end) in an empty folder, interleaved; a command that fails is an error."""
        rounds = min(rounds, 5) if self.quick else rounds
        samples: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
        with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
            for turn in range(rounds + 1):
                for name, command in commands.items():
                    sample = _time_command(name, command, folder)
                    if turn:  # the first turn fills the caches of files
                        samples[name].append(sample)
        return Race({name: _timing(1, taken) for name, taken in samples.items()})

    @staticmethod
    def _calibrate(worker: Worker, seconds: float) -> int:
        worker.ask(op="run", n=1)  # the first call imports and connects: it says nothing about the others
        n = 1
        while True:
            taken: float = worker.ask(op="run", n=n)["wall"]
            if taken >= seconds / 2 or n >= 10_000_000:
                return max(1, round(n * seconds / taken))
            n = max(n * 2, round(n * min(100.0, seconds / max(taken, 1e-7))))


def _timing(n: int, samples: list[dict[str, Any]]) -> Timing:
    keys = samples[0]["extra"].keys()
    return Timing(
        n=n,
        cpu=tuple(sample["cpu"] / n for sample in samples),
        wall=tuple(sample["wall"] / n for sample in samples),
        rss_mb=max(sample["rss_kb"] for sample in samples) / 1024,
        extra={key: statistics.median(sample["extra"][key] for sample in samples) for key in keys},
    )


def _time_command(name: str, command: Sequence[str], folder: str) -> dict[str, Any]:
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stderr is not None
    complaint = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.stderr.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise CaseFailed(f"{name}: exit code {process.returncode}: {complaint.decode(errors='replace').strip()[-400:]}")
    return {"cpu": usage.ru_utime + usage.ru_stime, "wall": wall, "rss_kb": usage.ru_maxrss, "extra": {}}

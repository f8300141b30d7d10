"""What a benchmark module works with: races of cases in processes of their own, and timed commands."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from bench._envs import HERE, PeerUnavailable, python_of
from bench._report import Row, table
from bench._servers import Servers

Metric = Literal["cpu", "wall"]
OURS = ""
OUT = HERE / "out"
"""Results, and the files that cases write while they run: on the clone's disk, unlike some /tmp."""

LEAST_ROUNDS = 5


class CaseFailed(RuntimeError):
    """A case raised; the message says which and what."""


@dataclass(frozen=True, slots=True)
class Case:
    """``function`` of ``bench/cases/FILE.py``, run in the environment of ``peer`` (ours if empty).

    A sample is a multiple of ``batch`` iterations: for cases that do so many at a time.
    """

    file: str
    function: str
    params: Mapping[str, Any] = field(default_factory=dict)
    peer: str = OURS
    env: Mapping[str, str] = field(default_factory=dict)
    batch: int = 1


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
    """The timings of cases whose rounds were interleaved, and why others could not be run."""

    timings: Mapping[str, Timing]
    missing: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Timing:
        if name in self.missing:
            raise PeerUnavailable(self.missing[name])
        return self.timings[name]

    def ratio(self, ours: str, peer: str, metric: Metric = "cpu") -> float:
        """Ours ÷ peer: the median of the ratios of each round, so that a slow minute hurts both."""
        return statistics.median(self._ratios(ours, peer, metric))

    def margin(self, ours: str, peer: str, metric: Metric = "cpu") -> float:
        """How far that median may be off: about 95 % of repeated races fall within (1.57 × IQR ÷ √rounds)."""
        ratios = self._ratios(ours, peer, metric)
        if len(ratios) < 2:
            return 0.0
        low, _, high = statistics.quantiles(ratios, n=4)
        return 1.57 * (high - low) / math.sqrt(len(ratios))

    def _ratios(self, ours: str, peer: str, metric: Metric) -> list[float]:
        left, right = self[ours], self[peer]
        pairs = zip(left.cpu, right.cpu, strict=True) if metric == "cpu" else zip(left.wall, right.wall, strict=True)
        return [a / b for a, b in pairs]

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
        release: str = "",
        release_peer: str = "",
        setup: object = "",
        note: str = "",
    ) -> Row:
        """A row of the table; ``faster=5`` asks for at least five times faster than the peer.

        *release* is the case of release 0.1.0 that does the same as *ours*, *release_peer* the case that it is
        divided by, if that is not *peer*. Where a peer is missing, the row says why.
        """
        beside = peer if peer in self.timings else ""
        before = release if release in self.timings else ""
        under = (release_peer or peer) if before and (release_peer or peer) in self.timings else ""
        return Row(
            name=name,
            value=self[ours].us(metric),
            peer=peer,
            peer_value=self[beside].us(metric) if beside else None,
            ratio=self.ratio(ours, beside, metric) if beside else None,
            margin=self.margin(ours, beside, metric) if beside else None,
            at_most=at_most,
            at_least=at_least,
            faster=faster,
            release=self[before].us(metric) if before else None,
            release_ratio=self.ratio(before, under, metric) if under else None,
            setup=str(setup),
            note=note or ("" if metric == "cpu" or "wall time" in name else "wall time"),
            failed=self.missing.get(peer, "") or self.missing.get(release, ""),
        )


def _environment(peer: str) -> dict[str, str]:
    """The variables of this process; a peer finds its packages in its own environment only, whatever ours names."""
    return {name: value for name, value in os.environ.items() if not (peer and name == "PYTHONPATH")}


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
            env={**_environment(case.peer), "TMPDIR": self._folder, **case.env},
        )
        self._send(op="open", case=case.function, params=dict(case.params))

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and wait for its answer."""
        self._send(**request)
        return self.answer()

    def _send(self, **request: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # no answer will tell
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to the last request; the first one is to open the case."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
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
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


class Context:
    """Handed to ``run(ctx)`` of each benchmark module."""

    def __init__(self, *, quick: bool = False, parts: Sequence[str] = ()) -> None:
        self.quick = quick
        self.servers = Servers()
        self._parts = parts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.servers.stop()

    def parts(self, known: Mapping[str, Callable[[Context], Sequence[Row]]]) -> list[Row]:
        """Run the parts of a long benchmark, or those that were asked for; each prints its rows when it ends."""
        if unknown := sorted(set(self._parts) - set(known)):
            raise ValueError(f"no such part: {', '.join(unknown)}; there are: {', '.join(known)}")
        rows: list[Row] = []
        for name in self._parts or known:
            self.say(f"{name} …")
            began = time.monotonic()
            found = list(known[name](self))
            print(f"\n### {name} ({time.monotonic() - began:.0f} s)\n\n{table(found)}\n", flush=True)
            rows += found
        return rows

    def say(self, text: str) -> None:
        """How far a long benchmark is."""
        print(f"[bench] {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    def payload(self, name: str) -> str:
        """The path of a fixed input: ``params-100``, ``params-900`` (bytes, about) or ``chat-100k``."""
        path = HERE / "payloads" / f"{name}.json"
        if not path.exists():
            raise FileNotFoundError(path)
        return str(path)

    def race(
        self,
        cases: Mapping[str, Case],
        *,
        rounds: int = 9,
        seconds: float = 0.2,
        n: int | None = None,
        warmup: int = 1,
        limit: float = 60,
    ) -> Race:
        """Run all cases in interleaved rounds, one at a time.

        Each sample repeats its case for about *seconds* (or exactly *n* times); the order turns with each
        round so that none is always first. A case whose peer cannot be installed is missing from the race. After
        *limit* seconds no further round begins: a machine that is busy or has a slow disk does fewer.
        """
        if self.quick:
            rounds, seconds = min(rounds, 3), min(seconds, 0.05)
        workers: dict[str, Worker] = {}
        missing: dict[str, str] = {}
        try:
            for name, case in cases.items():
                try:
                    workers[name] = Worker(name, case)
                except PeerUnavailable as error:
                    missing[name] = str(error)
            for worker in workers.values():  # they have been starting side by side
                worker.answer()
            counts = {
                name: n or _multiple(self._calibrate(worker, seconds), cases[name].batch)
                for name, worker in workers.items()
            }
            for worker in workers.values():
                for _ in range(warmup):
                    worker.ask(op="run", n=counts[worker.name])
            samples: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
            order = list(workers)
            end = time.monotonic() + limit
            for done in range(rounds):
                if done >= LEAST_ROUNDS and time.monotonic() > end:
                    break
                for name in order:
                    samples[name].append(workers[name].ask(op="run", n=counts[name]))
                order.append(order.pop(0))
        finally:
            for worker in workers.values():
                worker.close()
        return Race({name: _timing(counts[name], samples[name]) for name in workers}, missing)

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


def _multiple(n: int, batch: int) -> int:
    return -(-n // batch) * batch


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
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,  # compiled once, like an installed program
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
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

"""A matrix of runs and models: the verdict's power and false alarms, throughput, kills, interruptions, memory."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from antiphon.scoring.sequential import compare
from bench import Context, Row
from bench._harness import OUT

ALPHA, MARGIN, ROUNDS = 0.05, 0.05, 5
BASE = 0.9
"""The pass rate of the baseline; runs differ in how hard they are (a beta distribution of that mean)."""


class Power(NamedTuple):
    """What came of the same comparison made many times."""

    worse: int
    not_worse: int
    trials: int
    samples: float
    """Pairs used, of those that a fixed k = 5 takes."""
    fixed: int
    """How often the z-test on the means of k = 5 samples of each run finds it worse."""


def simulate(*, runs: int, drop: float, trials: int, seed: int) -> Power:
    """Compare a model with one that passes *drop* less often, *trials* times."""
    chance = random.Random(seed)
    worse = fine = fixed = 0
    used: list[float] = []
    for _ in range(trials):
        rates = [chance.betavariate(9, 1) for _ in range(runs)]
        sums = [0.0] * runs
        tables = [
            [(chance.random() < rate * (1 - drop / BASE)) - (chance.random() < rate) for rate in rates]
            for _ in range(ROUNDS)
        ]
        for table in tables:
            sums = [total + value for total, value in zip(sums, table, strict=True)]
        found = compare(_pairs(tables, chance), alpha=ALPHA, margin=MARGIN)
        worse += found.decision == "worse"
        fine += found.decision == "not worse"
        used.append(found.pairs / (runs * ROUNDS))
        means = [total / ROUNDS for total in sums]
        error = statistics.stdev(means) / math.sqrt(runs)
        fixed += error > 0 and statistics.fmean(means) / error < -1.6449
    return Power(worse, fine, trials, statistics.fmean(used), fixed)


def _pairs(tables: list[list[int]], chance: random.Random) -> Iterator[tuple[int, object, float]]:
    for round_, table in enumerate(tables):
        order = list(range(len(table)))
        chance.shuffle(order)
        for run in order:
            yield round_, run, float(table[run])


def bound(trials: int, rate: float, confidence: float = 0.99) -> int:
    """The number that a binomial count stays below with *confidence*."""
    total, term = 0.0, (1 - rate) ** trials
    for count in range(trials + 1):
        total += term
        if total >= confidence:
            return count
        term *= (trials - count) / (count + 1) * rate / (1 - rate)
    return trials


def run(ctx: Context) -> list[Row]:
    parts = {"verdicts": verdicts, "cluster": cluster, "kills": kills, "interruptions": interruptions, "memory": memory}
    return ctx.parts(parts)


def verdicts(ctx: Context) -> list[Row]:
    """Power, samples and false alarms beside a fixed k = 5."""
    rows: list[Row] = []
    nulls, trials = (200, 40) if ctx.quick else (2_000, 200)
    sizes, drops = (1_000, 200, 100), (0, 5, 10, 20)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        made = {
            (runs, points): pool.submit(
                simulate, runs=runs, drop=points / 100, trials=trials if points else nulls, seed=runs + points
            )
            for runs in sizes
            for points in drops
        }
        for runs in reversed(sizes):
            null = made[runs, 0].result()
            ctx.say(f"{runs} runs: {null.worse} false alarms in {nulls}")
            fine = f"{null.not_worse / nulls:.0%} called not worse by 5 points"
            note = f"{null.worse} of {nulls}, {fine}; k = 5: {null.fixed}"
            most = bound(nulls, ALPHA)
            rows.append(Row(name=f"false alarms, {runs:,} runs", value=null.worse, unit="", at_most=most, note=note))
            for points in drops[1:]:
                found = made[runs, points].result()
                what = f"regression of {points} points, {runs:,} runs"
                ctx.say(f"{what}: found {found.worse} of {trials}, {found.samples:.0%} of the samples of k = 5")
                sure = runs == 1_000 and points >= 10
                note = f"k = 5: {found.fixed / trials:.2f}; called not worse: {found.not_worse / trials:.2f}"
                power, used = found.worse / trials, found.samples
                rows += [
                    Row(name=f"power, {what}", value=power, unit="", at_least=0.9 if sure else None, note=note),
                    Row(name=f"samples of those of k = 5, {what}", value=used, unit="", at_most=0.4 if sure else None),
                ]
    return rows


# -- real workers -----------------------------------------------------------------------------------------------------

CASE = Path(__file__).parent / "cases" / "matrix.py"
KILLS, INTERRUPTIONS, LATENCY_S, BLOCKS = 20, 5, 0.01, 5


class Project:
    """A folder with recorded runs, and the file in which the provider counts."""

    def __init__(self, store: str | None) -> None:
        self.folder = OUT / f"matrix-{os.getpid()}-{time.monotonic_ns()}"
        self.paid = self.folder / "paid"
        self.env = {
            "ANTIPHON_HOME": str(self.folder / "home"),
            "BENCH_PAID": str(self.paid),
            "BENCH_MODEL_SECONDS": str(LATENCY_S),
            **({"ANTIPHON_STORE": store} if store else {}),
        }
        side_effects = CASE.parent / "side_effect" / "side_effects.yaml"
        side_effects.parent.mkdir(exist_ok=True)
        side_effects.write_text("tools: {}\ndone: true\n", encoding="ascii")
        self.folder.mkdir(parents=True)

    def __enter__(self) -> Project:
        self._before = {name: os.environ.get(name) for name in self.env}
        os.environ.update(self.env)
        return self

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(CASE.parent / "side_effect", ignore_errors=True)

    def record(self, count: int) -> list[str]:
        """Runs of the agent, recorded by another process."""
        script = (
            "import antiphon; from antiphon.ops.entry import load_entry\n"
            f"main = load_entry({f'{CASE}:main'!r})\n"
            f"for number in range({count}): print(antiphon.record(main, number).id)"
        )
        env = {**os.environ, "BENCH_PAID": "", "BENCH_MODEL_SECONDS": "0"}
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        return done.stdout.split()

    def again(self) -> int:
        """How many model calls were paid for more than once."""
        counted = Counter(self.paid.read_text(encoding="ascii").splitlines()) if self.paid.exists() else Counter()
        return sum(times - 1 for times in counted.values())


def _plan(runs: list[str]) -> Any:
    import antiphon

    ours = {"llm": f"{CASE}:ask", "entry": f"{CASE}:main"}
    return antiphon.matrix(runs, ["new"], 1, baseline=True, app=antiphon.Antiphon(), **ours)  # type: ignore[arg-type]


def _cluster() -> Any:
    """Two workers; one that is killed may take long to start again on a busy machine, and is not given up for that."""
    import dask
    import distributed

    settings: Any = dask.config
    settings.set({"distributed.deploy.lost-worker-timeout": "1h", "distributed.comm.timeouts.connect": "5m"})
    make: Any = distributed.LocalCluster
    return make(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1")


def _what(count: int) -> str:
    return f"{count:,} runs × 2 models, LocalCluster with 2 workers, Valkey"


def cluster(ctx: Context) -> list[Row]:
    """A cluster of two workers beside a bare loop in two processes."""
    import distributed

    from antiphon.ops.executors import Dask
    from bench.cases.matrix import bare

    count = 60 if ctx.quick else 1_000
    size = count // BLOCKS
    client: Any = distributed.Client
    loop = ours = cells = busy = 0.0
    twice = 0
    with (
        Project(ctx.servers.valkey_url()) as project,
        ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool,
        _cluster() as workers,
        client(workers) as connected,
    ):
        warm, *runs = project.record(count + 1)
        ctx.say(f"{count} runs recorded")
        connected.wait_for_workers(2)
        list(pool.map(bare, [[warm], [warm]]))
        _plan([warm]).run(Dask(connected))
        project.paid.unlink()
        for at in range(0, count, size):  # in turns: what else the machine does is the same for both
            block = runs[at : at + size]
            began = time.monotonic()
            list(pool.map(bare, [block[place : place + 10] for place in range(0, len(block), 10)]))
            loop += time.monotonic() - began
            paid = project.paid.read_bytes() if project.paid.exists() else b""
            project.paid.unlink(missing_ok=True)
            began = time.monotonic()
            rows = _plan(block).run(Dask(connected)).to_dicts()
            ours += time.monotonic() - began
            assert paid.count(b"\n") == 2 * len(rows)
            cells, busy = cells + len(rows), busy + sum(row["seconds"] for row in rows)
            twice += project.again()
            project.paid.unlink(missing_ok=True)
            ctx.say(f"{cells:.0f} cells: {cells / loop:.1f}/s bare, {cells / ours:.1f}/s in the cluster")
    load = f"load of the machine {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores"
    note = f"a cell takes {busy / cells * 1000:.1f} ms; {load}"
    return [
        Row(name="cells per second", value=cells / ours, unit="/s", setup=_what(count), note=note),
        Row(
            name="of a bare loop in 2 processes",
            value=loop / ours,
            unit="",
            at_least=0.85,
            note=f"{cells / loop:.1f}/s",
        ),
        Row(name="model calls paid twice", value=twice, unit="", at_most=0),
    ]


def kills(ctx: Context) -> list[Row]:
    """A cluster whose workers are killed again and again."""
    count = 60 if ctx.quick else 1_000
    with Project(ctx.servers.valkey_url()) as project:
        runs = project.record(count)
        ctx.say(f"{count} runs recorded")
        lost, killed = _killed(ctx, runs, 3 if ctx.quick else KILLS)
        again = project.again()
    what = _what(count)
    return [
        Row(name=f"cells lost with {killed} killed workers", value=lost, unit="", at_most=0, setup=what),
        Row(name=f"model calls paid twice with {killed} killed workers", value=again, unit="", at_most=killed),
    ]


def _killed(ctx: Context, runs: list[str], kills: int) -> tuple[int, int]:
    """Cells that are missing or not as they should be, and how many workers were killed."""
    from antiphon.ops.executors import Dask

    killed: list[int] = []
    chance = random.Random(5)
    points = sorted(chance.sample(range(1, 2 * len(runs)), kills))
    with _cluster() as workers:
        executor = Dask(workers.scheduler_address)
        executor.client.wait_for_workers(2)

        def kill(status: Any) -> None:
            while len(killed) < kills and status.done >= points[len(killed)]:
                there = {key: one.pid for key, one in workers.workers.items() if one.pid}
                fresh = [pid for pid in there.values() if pid not in killed]
                if not fresh:
                    return  # both are starting again
                killed.append(chance.choice(fresh))
                ctx.say(f"kill {len(killed)} of {kills}, {status.done} cells done")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)

        rows = _plan(runs).run(executor, progress=kill).to_dicts()
    good = {(row["variant"], row["run"]) for row in rows if row["status"] == "pass"}
    return 2 * len(runs) - len(good) + len(rows) - len({(row["variant"], row["run"]) for row in rows}), len(killed)


def interruptions(ctx: Context) -> list[Row]:
    """The command is killed with all its processes, five times, and started again each time."""
    count = 40 if ctx.quick else 1_000
    with Project(None) as project:
        runs = project.record(count)
        words = ["--model", "new", "--baseline", "--samples", "1", "--jobs", "2", "--llm", f"{CASE}:ask"]
        first = [*runs, *words, "--entry", f"{CASE}:main"]
        tables = project.folder / "home" / "matrix"
        for number in range(1, INTERRUPTIONS + 1):
            named = [path.name for path in tables.glob("*")] if tables.exists() else []
            words = ["--resume", named[0], "--jobs", "2"] if named else first
            command = [sys.executable, "-m", "antiphon.cli", "matrix", *words, "--json"]
            process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
            goal = 2 * count * number // (INTERRUPTIONS + 1)
            while process.poll() is None and _length(tables) < goal:
                time.sleep(0.01)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ctx.say(f"interruption {number} of {INTERRUPTIONS}, {_length(tables)} of {2 * count} cells done")
        named = [path.name for path in tables.glob("*")]
        command = [sys.executable, "-m", "antiphon.cli", "matrix", "--resume", named[0], "--jobs", "2", "--json"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        lines = (tables / named[0] / "table.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        again = project.again()
    cells = {(row["variant"], row["run"]) for row in rows if row["status"] == "pass"}
    what = f"{count:,} runs × 2 variants, the command and its 2 processes killed {INTERRUPTIONS} times"
    return [
        Row(name="cells missing or there twice", value=2 * count - len(cells) + len(rows) - len(cells), unit="",
            at_most=0, setup=what),
        Row(name="model calls paid twice", value=again, unit="", at_most=2 * INTERRUPTIONS, setup=what,
            note="in flight at the kills: at most one in each process"),
    ]  # fmt: skip


def _length(tables: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in tables.glob("*/table.jsonl"))


def memory(ctx: Context) -> list[Row]:
    """What the driver of 10,000 cells needs more than that of 100."""
    with Project(None) as project:
        project.record(50)

        def grows(samples: int) -> float:
            command = [sys.executable, str(CASE), str(samples), "50"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            return float(done.stdout.split()[-1])

        small, large = grows(1), grows(10 if ctx.quick else 100)
    most = 1_000 if ctx.quick else 10_000
    note = f"grows by {small:.1f} MB with 100 cells, by {large:.1f} MB with {most:,}"
    name = f"memory of the driver, {most:,} cells beside 100"
    return [Row(name=name, value=large - small, unit="MB", at_most=16, note=note)]

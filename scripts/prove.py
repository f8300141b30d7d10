"""Checks every promise of docs/explanation/guarantees.md: simulated schedules, planted bugs, real kills and pauses.

    make prove                        what the page says, in less than 20 minutes on 2 cores
    make prove-long                   five times as much, and mutation testing
    python -m scripts.prove --short   the same in small, for CI: less than 3 minutes
    python -m scripts.prove --only faults --kills 30 --pauses 6
    python -m tests.faults.campaign --store redis-failover --faults 5    one campaign alone; --help names the stores

Exit code 1 if a promise was broken, a planted bug was not found, or a goal was missed. The result is written to --out
as JSON; `python -m scripts.make_guarantees` makes the page's tables from it.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import count, islice
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import antiphon
from antiphon.testing.sim import BUGS, explore
from tests.faults.campaign import PLANTED
from tests.faults.stages import LOSING, STAGES
from tests.mutants import MUTANTS

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "docs" / "explanation" / "proof.json"
PARTS = ("faults", "bugs", "schedules")
PLANTED_FAULTS = "bugs-among-faults"
"""The planted bugs that only real faults show; the others are found by `make test`, too."""
Task = tuple[Any, ...]
_CHUNK = 250
_NICE = 10
"""Schedules make way for the campaigns, in which real leases run."""


class Size(NamedTuple):
    """How much is done at least; kills and pauses are shared out among the stores that promise something."""

    schedules: int
    kills: int
    pauses: int
    faults: int
    """Each fault of each store so often, and more often where a store has only one."""
    bug_seeds: int


SIZES = {
    "short": Size(3_000, 15, 3, 1, 4_000),
    "prove": Size(200_000, 156, 42, 3, 4_000),
    "long": Size(1_000_000, 612, 102, 10, 4_000),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that were asked for, print as they go, write the result."""
    options = _parser().parse_args(arguments)
    size = SIZES[options.size]
    size = size._replace(**{n: v for n in ("schedules", "kills", "pauses") if (v := getattr(options, n)) is not None})
    parts = options.only.split(",") if options.only else list(PARTS)
    began = time.monotonic()
    result: dict[str, Any] = {
        "version": antiphon.__version__,
        "size": options.size,
        "command": _command(options, arguments),
        "python": platform.python_version(),
        "processes": options.processes,
    }
    failures: list[str] = []
    campaigns = _campaigns(size, options.seed) if "faults" in parts else {}  # they mostly wait: the rest goes on
    if "schedules" in parts:
        result["schedules"] = _schedules(size, options.start, options.processes, failures)
    if "faults" in parts:
        result["faults"] = _faults(size, campaigns, options.seed, failures)
    if "bugs" in parts:
        result["bugs"] = _bugs(size, options.processes, failures)
    elif PLANTED_FAULTS in parts:
        result["bugs"] = _found_among_faults(_start_planted(), failures)
    result["seconds"] = round(time.monotonic() - began)
    result["failures"] = failures
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    for failure in failures:
        _say(f"FAILED: {failure}")
    _say(f"{'proved' if not failures else 'NOT PROVED'} in {result['seconds']} s")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.prove", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = parser.add_mutually_exclusive_group()
    for name in ("short", "long"):
        sizes.add_argument(f"--{name}", dest="size", action="store_const", const=name)
    parser.set_defaults(size="prove")
    names = ", ".join((*PARTS, PLANTED_FAULTS))
    parser.add_argument("--only", default="", help=f"some of the parts, with commas between: {names}")
    parser.add_argument("--schedules", type=int, help="how many distinct schedules")
    parser.add_argument("--kills", type=int, help="how many kills, on all stores together")
    parser.add_argument("--pauses", type=int, help="how many pauses, on all stores together")
    parser.add_argument("--start", type=int, default=0, help="the first seed of the simulator (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="of the campaigns with real faults (default: 0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="for the simulator")
    parser.add_argument("--out", type=Path, help="write the result here as JSON")
    return parser


def _command(options: argparse.Namespace, arguments: list[str] | None) -> str:
    """What was asked for: `make prove` if it is nothing else."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    where = ["--out", str(options.out)]
    kept = [word for word in words if word not in where and word != f"--out={options.out}"]
    as_made = {(): "make prove", ("--long",): "make prove-long"}
    return as_made.get(tuple(kept)) or " ".join(("python -m scripts.prove", *kept))


def _say(text: str) -> None:
    print(text, flush=True)


# -- real faults -----------------------------------------------------------------------------------------------------


class Share(NamedTuple):
    """A campaign's part of the kills and pauses, how often it makes each fault, and how many workers it has."""

    kills: float
    pauses: float
    faults: int
    workers: int


SHARES = {
    "sqlite": Share(1 / 3, 1 / 3, 2, 5),
    "redis": Share(1 / 3, 1 / 3, 1, 5),
    "postgres": Share(1 / 3, 1 / 3, 1, 5),
    "redis-cluster": Share(1 / 15, 1 / 15, 3, 3),
    "bucket": Share(1 / 15, 0, 1, 3),
    "redis-no-persistence": Share(1 / 10, 1 / 10, 2, 3),
    "redis-failover": Share(1 / 15, 1 / 15, 2, 3),
}


class Started(NamedTuple):
    """A program that runs beside, and the file that it writes to."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]

    @classmethod
    def module(cls, *command: str) -> Started:
        output = TemporaryFile()  # noqa: SIM115 - closed when it was read
        return cls(subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, stdout=output), output)

    def lines(self) -> list[str]:
        """What it wrote, when it is over."""
        self.process.wait()
        with self.output as written:
            written.seek(0)
            return written.read().decode().splitlines()


def _campaign(store: str, kills: int, pauses: int, faults: int, workers: int, *more: str) -> Started:
    numbers = {"kills": kills, "pauses": pauses, "faults": faults, "workers": workers}
    options = [word for name, number in numbers.items() for word in (f"--{name}", str(number))]
    return Started.module("tests.faults.campaign", "--store", store, *options, *more)


def _campaigns(size: Size, seed: int) -> dict[str, Started]:
    """One campaign per store, all at once. One that loses writes gets less: it promises nothing."""
    promising = [store for store in STAGES if store not in LOSING]
    _say(f"real faults: {size.kills} kills and {size.pauses} pauses on {', '.join(promising)}; some on the others")
    return {
        store: _campaign(
            store,
            math.ceil(size.kills * share.kills),
            math.ceil(size.pauses * share.pauses),
            size.faults * share.faults,
            share.workers,
            *("--seed", str(seed)),
        )
        for store, share in SHARES.items()
    }


def _faults(size: Size, started: dict[str, Started], seed: int, failures: list[str]) -> dict[str, Any]:
    """What the campaigns found."""
    promising = [store for store in STAGES if store not in LOSING]
    found: dict[str, Any] = {}
    for store, campaign in started.items():
        lines = campaign.lines()
        if not lines:
            failures.append(f"the campaign on {store} ended with code {campaign.process.returncode}")
            continue
        verdict = found[store] = json.loads(lines[-1])
        counts = ", ".join(f"{number} {what}" for what, number in sorted(verdict["counts"].items()))
        _say(f"  {store} ({verdict['seconds']:.0f} s): {counts}")
        for matched in verdict["matched"]:
            _say(f"    not promised here: {matched}")
        failures += [f"{store}, seed {seed}: {violation}" for violation in verdict["violations"]]
    for what, goal in (("kill", size.kills), ("pause", size.pauses)):
        made = sum(found[store]["counts"].get(what, 0) for store in promising if store in found)
        if made < goal:
            failures.append(f"only {made} of {goal}: {what}")
    return found


_FINDINGS = ("twice", "was repeated", "is lost")


def _start_planted() -> dict[str, Started]:
    """The planted bugs that only a real fault shows, side by side; these campaigns mostly wait, too."""
    return {name: _campaign(bug.store, 1, 0, 3, 3, "--planted", name) for name, bug in PLANTED.items()}


def _found_among_faults(started: dict[str, Started], failures: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, campaign in started.items():
        lines = campaign.lines()
        verdict = json.loads(lines[-1]) if lines else {"violations": []}
        if not any(word in violation for violation in verdict["violations"] for word in _FINDINGS):
            failures.append(f"planted bug {name} was not found among real faults")
            continue
        calls = verdict["counts"]["calls"]
        found[name] = {"what": PLANTED[name].what, "found by": "history checker, real faults", "after": calls}
        _say(f"  {name:30} history checker  after {calls:5d} calls, {verdict['seconds']:.0f} s  {PLANTED[name].what}")
    return found


# -- planted bugs ----------------------------------------------------------------------------------------------------


def _bugs(size: Size, processes: int, failures: list[str]) -> dict[str, Any]:
    """Every planted bug, by the first schedule that shows it."""
    others = f"{len(MUTANTS)} for property tests, rules and tests, {len(PLANTED)} for the checker of real faults"
    _say(f"planted bugs: {len(BUGS)} for the simulator, {others}")
    started, beside = _start_planted(), Started.module("tests.mutants")
    found: dict[str, Any] = {}
    for (name, most), (law, after) in _forked(_hunt, ((name, size.bug_seeds) for name in BUGS), processes):
        if not law:
            failures.append(f"planted bug {name} was not found in {most} schedules")
            continue
        found[name] = {"what": BUGS[name].what, "found by": f"simulator: {law}", "after": after}
        _say(f"  {name:30} {law:16} after {after:5d} schedules  {BUGS[name].what}")
    for said in map(json.loads, beside.lines()):
        if said["failed"]:
            found[said["name"]] = {"what": said["what"], "found by": said["by"], "after": said["after"]}
            _say(f"  {said['name']:30} {said['by']:16} after {said['after']:5d} examples   {said['what']}")
    failures += [f"planted bug {name} was not found" for name in MUTANTS if name not in found]
    found |= _found_among_faults(started, failures)
    return found


def _hunt(bug: str, most: int) -> tuple[str, int]:
    """The law that the bug breaks, and the number of schedules until then."""
    explored = explore(range(most), bug, stop_at=1)
    return explored.broken[0].broken.partition(":")[0] if explored.broken else "", explored.seeds


# -- simulated schedules -------------------------------------------------------------------------------------------


def _chunk(start: int) -> tuple[int, Counter[str], list[tuple[int, str]], set[int]]:
    explored = explore(range(start, start + _CHUNK))
    broken = [(simulation.seed, simulation.broken) for simulation in explored.broken]
    return explored.steps, explored.seen, broken, explored.schedules


def _schedules(size: Size, start: int, processes: int, failures: list[str]) -> dict[str, Any]:
    """Seeds until there are enough distinct schedules."""
    _say(f"schedules: {size.schedules} distinct ones, {processes} processes")
    began = told = time.monotonic()
    seeds = steps = 0
    cpu = _cpu_of_children()
    seen: Counter[str] = Counter()
    distinct: set[int] = set()
    broken: list[tuple[int, str]] = []
    chunks = _forked(_chunk, ((first,) for first in count(start, _CHUNK)), processes)
    with closing(chunks):
        for _, taken in chunks:
            seeds, steps = seeds + _CHUNK, steps + taken[0]
            seen.update(taken[1])
            broken += taken[2]
            for seed, what in taken[2]:
                _say(f"  seed {seed}: {what}")
            distinct |= taken[3]
            if len(distinct) >= size.schedules or len(broken) >= 10:
                break
            if time.monotonic() - told > 15:
                told = time.monotonic()
                rate = len(distinct) / (told - began)
                left = max(0, size.schedules - len(distinct)) / rate
                done = f"{len(distinct)} distinct of {seeds} seeds, {len(broken)} broken"
                _say(f"  {done}, {rate:.0f}/s, {left:.0f} s left")
    failures += [f"seed {seed}: {what} (python -m antiphon.testing.sim --seed {seed})" for seed, what in broken]
    seconds, cpu = time.monotonic() - began, _cpu_of_children() - cpu
    done = f"{len(distinct)} distinct schedules of {seeds} seeds, {steps} steps, {len(broken)} broken"
    _say(f"  {done}, {seconds:.0f} s, {1000 * cpu / seeds:.1f} ms of CPU time each")
    return {
        "distinct": len(distinct),
        "seeds": seeds,
        "first": start,
        "steps": steps,
        "broken": len(broken),
        "seen": dict(sorted(seen.items())),
        "seconds": round(seconds),
    }


def _cpu_of_children() -> float:
    """Of those that are over."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _forked(work: Callable[..., Any], tasks: Iterable[Task], processes: int) -> Generator[tuple[Task, Any]]:
    """Every task in a process of its own, some at a time; what comes out in the order in which it does.

    A child that lives for seconds needs no garbage collection, and starts with everything imported.
    """
    fork, waiting = multiprocessing.get_context("fork"), iter(tasks)
    running: dict[Any, tuple[Any, Task]] = {}
    gc.collect()
    gc.freeze()
    try:
        while True:
            for task in islice(waiting, processes - len(running)):
                ours, theirs = fork.Pipe(duplex=False)
                child = fork.Process(target=_child, args=(theirs, work, task), daemon=True)
                child.start()
                theirs.close()
                running[ours] = child, task
            if not running:
                return
            ready: list[Any] = wait(list(running))
            for ours in ready:
                child, task = running.pop(ours)
                try:
                    came = ours.recv()
                except EOFError:
                    child.join()
                    raise RuntimeError(f"{work.__name__}{task} ended with code {child.exitcode}") from None
                child.join()
                yield task, came
    finally:
        gc.unfreeze()
        for child, _ in running.values():
            child.kill()
            child.join()


def _child(answers: Any, work: Callable[..., Any], task: Task) -> None:
    gc.disable()
    os.nice(_NICE)
    with _quiet():
        answers.send(work(*task))
    answers.close()
    os._exit(0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of thousands of simulated crashes."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


if __name__ == "__main__":
    sys.exit(main())

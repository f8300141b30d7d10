"""Checks every promise of docs/explanation/guarantees.md: simulated schedules, planted bugs, real kills and pauses.

    make prove                        what the page says, in less than 20 minutes on 2 cores
    make prove-long                   five times as much, and mutation testing
    python -m scripts.prove --short   the same in small, for CI: less than 3 minutes
    python -m scripts.prove --only faults --kills 30 --pauses 6

Exit code 1 if a promise was broken, a planted bug was not found, or a goal was missed. The result is written to --out
as JSON; `python -m scripts.make_guarantees` makes the page's tables from it.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import antiphon
from antiphon.testing.sim import BUGS, explore
from tests.faults.campaign import FORGETFUL, STORES
from tests.mutants import MUTANTS

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "docs" / "explanation" / "proof.json"
PARTS = ("faults", "bugs", "schedules")
_CHUNK = 250


class Size(NamedTuple):
    """How much is done at least; kills and pauses are shared out among the stores that promise something."""

    schedules: int
    kills: int
    pauses: int
    server_faults: int
    """Per server."""
    bug_seeds: int


SIZES = {
    "short": Size(3_000, 15, 3, 2, 4_000),
    "prove": Size(200_000, 156, 42, 6, 4_000),
    "long": Size(1_000_000, 612, 102, 20, 4_000),
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
        "python": platform.python_version(),
        "processes": options.processes,
    }
    failures: list[str] = []
    if "faults" in parts:
        result["faults"] = _faults(size, options.seed, failures)
    if "bugs" in parts:
        result["bugs"] = _bugs(size, failures)
    if "schedules" in parts:
        result["schedules"] = _schedules(size, options.start, options.processes, failures)
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
    parser.add_argument("--only", default="", help=f"some of the parts, with commas between: {', '.join(PARTS)}")
    parser.add_argument("--schedules", type=int, help="how many distinct schedules")
    parser.add_argument("--kills", type=int, help="how many kills, on all stores together")
    parser.add_argument("--pauses", type=int, help="how many pauses, on all stores together")
    parser.add_argument("--start", type=int, default=0, help="the first seed of the simulator (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="of the campaigns with real faults (default: 0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="for the simulator")
    parser.add_argument("--out", type=Path, help="write the result here as JSON")
    return parser


def _say(text: str) -> None:
    print(text, flush=True)


# -- real faults -----------------------------------------------------------------------------------------------------


def _faults(size: Size, seed: int, failures: list[str]) -> dict[str, Any]:
    """One campaign per store, all at once: they mostly wait. One that loses writes gets less: it promises nothing."""
    promising = [store for store in STORES if store != FORGETFUL]
    share = dict.fromkeys(promising, (-(-size.kills // 3), -(-size.pauses // 3)))
    share[FORGETFUL] = (size.kills // 10, size.pauses // 10)
    _say(f"real faults: {size.kills} kills and {size.pauses} pauses on {', '.join(promising)}; some on {FORGETFUL}")
    started = {
        store: subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.faults.campaign", "--store", store, "--seed", str(seed)),
                *("--kills", str(share[store][0]), "--pauses", str(share[store][1])),
                *("--server-faults", str(0 if store == "sqlite" else size.server_faults)),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for store in STORES
    }
    found: dict[str, Any] = {}
    for store, process in started.items():
        output, _ = process.communicate()
        if not output.strip():
            failures.append(f"the campaign on {store} ended with code {process.returncode}")
            continue
        verdict = found[store] = json.loads(output.splitlines()[-1])
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


# -- planted bugs ----------------------------------------------------------------------------------------------------


def _bugs(size: Size, failures: list[str]) -> dict[str, Any]:
    """Every planted bug, by the first schedule that shows it."""
    _say(f"planted bugs: {len(BUGS)} for the simulator, {len(MUTANTS)} for property tests, rules and tests")
    found: dict[str, Any] = {}
    for name, bug in BUGS.items():
        with _quiet():
            explored = explore(range(size.bug_seeds), name, stop_at=1)
        if not explored.broken:
            failures.append(f"planted bug {name} was not found in {explored.seeds} schedules")
            continue
        simulation = explored.broken[0]
        by = simulation.broken.partition(":")[0]
        found[name] = {"what": bug.what, "found by": f"simulator: {by}", "after": explored.seeds}
        _say(f"  {name:30} {by:16} after {explored.seeds:5d} schedules  {bug.what}")
    hunt = subprocess.run(
        [sys.executable, "-m", "tests.mutants"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    for said in map(json.loads, hunt.stdout.splitlines()):
        if said["failed"]:
            found[said["name"]] = {"what": said["what"], "found by": said["by"], "after": said["after"]}
            _say(f"  {said['name']:30} {said['by']:16} after {said['after']:5d} examples   {said['what']}")
    failures += [f"planted bug {name} was not found" for name in MUTANTS if name not in found]
    return found


# -- simulated schedules -------------------------------------------------------------------------------------------


def _chunk(start: int) -> tuple[int, Counter[str], list[tuple[int, str]], set[int]]:
    with _quiet():
        explored = explore(range(start, start + _CHUNK))
    broken = [(simulation.seed, simulation.broken) for simulation in explored.broken]
    return explored.steps, explored.seen, broken, explored.schedules


def _schedules(size: Size, start: int, processes: int, failures: list[str]) -> dict[str, Any]:
    """Seeds until there are enough distinct schedules."""
    _say(f"schedules: {size.schedules} distinct ones, {processes} processes")
    began = told = time.monotonic()
    seeds = steps = 0
    seen: Counter[str] = Counter()
    distinct: set[int] = set()
    broken: list[tuple[int, str]] = []
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        starts = count(start, _CHUNK)
        waiting = [pool.apply_async(_chunk, (first,)) for first in islice(starts, 2 * processes)]
        while len(distinct) < size.schedules and len(broken) < 10:
            taken = waiting.pop(0).get()
            waiting.append(pool.apply_async(_chunk, (next(starts),)))
            seeds, steps = seeds + _CHUNK, steps + taken[0]
            seen.update(taken[1])
            broken += taken[2]
            distinct |= taken[3]
            if time.monotonic() - told > 15:
                told = time.monotonic()
                rate = len(distinct) / (told - began)
                left = max(0, size.schedules - len(distinct)) / rate
                done = f"{len(distinct)} distinct of {seeds} seeds, {len(broken)} broken"
                _say(f"  {done}, {rate:.0f}/s, {left:.0f} s left")
        pool.terminate()
    failures += [f"seed {seed}: {what} (python -m antiphon.testing.sim --seed {seed})" for seed, what in broken]
    seconds = time.monotonic() - began
    _say(f"  {len(distinct)} distinct schedules of {seeds} seeds, {steps} steps, {len(broken)} broken, {seconds:.0f} s")
    return {
        "distinct": len(distinct),
        "seeds": seeds,
        "first": start,
        "steps": steps,
        "broken": len(broken),
        "seen": dict(sorted(seen.items())),
        "seconds": round(seconds),
    }


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

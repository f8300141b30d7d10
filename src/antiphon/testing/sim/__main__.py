"""``python -m antiphon.testing.sim --seeds N``: explore, then look for every planted bug."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from antiphon.testing.sim.bugs import BUGS
from antiphon.testing.sim.explore import Explored, explore, shrink, simulate

_BUG_SEEDS = 2_000


def main(arguments: list[str] | None = None) -> int:
    """Print what was explored; 1 if an invariant was broken or a planted bug was not found."""
    parser = argparse.ArgumentParser(prog="python -m antiphon.testing.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds to try (default: 1000)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this bug and stop at the first seed that finds it")
    parser.add_argument("--seed", type=int, help="print the trace of one seed; a broken one is shrunk")
    parser.add_argument("--without", default="", help="with --seed: leave out these parts (call0,kill1,loss)")
    chosen = parser.parse_args(arguments)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # the warnings of a thousand simulated crashes
    try:
        return _explore(chosen)
    finally:
        logging.disable(before)


def _explore(chosen: argparse.Namespace) -> int:
    if chosen.seed is not None:
        return _one(chosen.seed, chosen.bug or "", frozenset(chosen.without.split(",")) - {""})
    seeds = range(chosen.start, chosen.start + chosen.seeds)
    if chosen.bug:
        return 0 if _hunt(chosen.bug, seeds) else 1
    began = time.perf_counter()
    explored = explore(seeds)
    _report(explored, time.perf_counter() - began)
    found = [_hunt(bug, range(_BUG_SEEDS)) for bug in BUGS]
    return 0 if all(found) and not explored.broken else 1


def _one(seed: int, bug: str, without: frozenset[str]) -> int:
    """Print one simulation; a broken one is shrunk first, with the command that reproduces it."""
    simulation = simulate(seed, bug, without)
    if simulation.broken and not without:
        simulation, without = shrink(simulation, bug)
    _out("\n".join(simulation.trace))
    if not simulation.broken:
        return 0
    words = ["python -m antiphon.testing.sim --seed", str(seed), *(["--bug", bug] if bug else [])]
    _out(f"again with: {' '.join(words)}" + (f" --without {','.join(sorted(without))}" if without else ""))
    return 1


def _hunt(bug: str, seeds: range) -> bool:
    explored = explore(seeds, bug, stop_at=1)
    if not explored.broken:
        _out(f"planted bug {bug}: NOT FOUND in {explored.seeds} seeds")
        return False
    seed, broken, *_ = explored.broken[0]
    _out(f"planted bug {bug} ({BUGS[bug].what}): found by seed {seed} after {explored.seeds} seeds: {broken}")
    return True


def _report(explored: Explored, seconds: float) -> None:
    rate = explored.seeds / seconds if seconds else 0.0
    found = f"{explored.seeds} seeds, {len(explored.schedules)} distinct schedules, {explored.steps} steps"
    _out(f"{found} in {seconds:.1f} s ({rate:.0f} seeds/s)")
    for what, number in sorted(explored.seen.items()):
        _out(f"  {number:8d}  {what}")
    for simulation in explored.broken[:10]:
        _out(f"BROKEN by seed {simulation.seed}: {simulation.broken}")
        _out(f"  see it with: python -m antiphon.testing.sim --seed {simulation.seed}")
    _out(f"invariants broken: {len(explored.broken)}")


def _out(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())

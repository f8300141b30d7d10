"""``python -m bench [--only NAME,NAME] [--quick] [--check]``: run the benchmarks, print tables, keep the numbers."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from collections.abc import Sequence

from bench import Context, Row
from bench._envs import HERE
from bench._harness import OUT
from bench._report import table, write


def modules() -> list[str]:
    """Every ``bench/NAME.py`` that is not part of the harness."""
    return sorted(path.stem for path in HERE.glob("[!_]*.py"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; non-zero when a benchmark failed, or with ``--check`` when a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help="names of benchmark modules, with commas between")
    parser.add_argument(
        "--quick", action="store_true", help="fewer and shorter rounds: a smoke test, not a measurement"
    )
    parser.add_argument(
        "--parts", default="", help="only these parts of a benchmark that has parts, with commas between"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal was missed")
    options = parser.parse_args(arguments)
    known = modules()
    chosen = [name for name in options.only.replace(",", " ").split() if name] or known
    if unknown := sorted(set(chosen) - set(known)):
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(known)}")
    groups: dict[str, Sequence[Row]] = {}
    failures: dict[str, str] = {}
    with Context(quick=options.quick, parts=options.parts.replace(",", " ").split()) as ctx:
        for name in chosen:
            start = time.monotonic()
            try:
                module = importlib.import_module(f"bench.{name}")
                groups[name] = module.run(ctx)
            except Exception as error:
                traceback.print_exc()
                failures[name] = f"{type(error).__name__}: {error}"
                continue
            if reasons := dict.fromkeys(row.failed for row in groups[name] if row.failed):
                failures[name] = "; ".join(reasons)
            title = (module.__doc__ or name).strip().splitlines()[0]
            print(f"\n## {name}: {title} ({time.monotonic() - start:.0f} s)\n\n{table(groups[name])}", flush=True)
    write(OUT / "latest.json", groups, failures)
    rows = [row for group in groups.values() for row in group]
    missed = [row for row in rows if row.met is False]
    goals = sum(row.met is not None for row in rows)
    print(f"\n{goals - len(missed)} of {goals} goals met; numbers in bench/out/latest.json")
    for row in missed:
        print(f"  missed: {row.name}{row.peer and f', beside {row.peer}'}{row.setup and f' ({row.setup})'}")
    for name, reason in failures.items():
        print(f"  FAILED: {name}: {reason}")
    return 1 if failures or (options.check and missed) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes the measured part of docs/explanation/guarantees.md from the result of the last `make prove`.

python -m scripts.make_guarantees          write it
python -m scripts.make_guarantees --check  exit 1 if page and result do not agree
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

PLACE = Path(__file__).resolve().parent.parent / "docs" / "explanation"
PAGE, RESULT = PLACE / "guarantees.md", PLACE / "proof.json"
BEGIN = "<!-- Made by scripts/make_guarantees.py from proof.json; do not edit. -->"
END = "<!-- end of the made part -->"
NAMES = {
    "sqlite": "SQLite",
    "redis": "Redis, every write on disk",
    "postgres": "PostgreSQL",
    "redis-cluster": "Redis Cluster",
    "bucket": "SQLite and a bucket",
    "redis-no-persistence": "Redis that forgets",
    "redis-failover": "Redis that fails over",
}
COMMANDS = {"short": "python -m scripts.prove --short", "prove": "make prove", "long": "make prove-long"}
_FAULTS = (
    ("kill", "worker killed (`kill -9`)"),
    ("pause", "worker paused beyond its lease"),
    ("stall", "unplanned stall: a worker starved of CPU or disk I/O for half a second"),
    ("server killed", "server killed and started again"),
    ("server restarted", "server stopped and started again"),
    ("server frozen", "server frozen"),
    ("connections terminated", "connections terminated (`pg_terminate_backend`)"),
    ("network cut", "network cut"),
    ("network slow", "network slow (150 ms each way)"),
    ("answers lost", "requests arrive, answers do not"),
    ("network half-closed", "connections half closed"),
    ("disk full", "disk full"),
    ("memory full", "memory full (`maxmemory`)"),
    ("clock stepped", "workers' wall clock set forward or back beyond a lease, and back"),
    ("slot moved", "slot moved to another node while it is used"),
    ("bucket away", "bucket's server killed and started again"),
    ("server failed over", "failover to a replica that lags half a second"),
    ("writes lost", "confirmed writes lost"),
)


def made(result: dict[str, Any]) -> str:
    """The part of the page that the result decides."""
    schedules, faults, bugs = result["schedules"], result["faults"], result["bugs"]
    broken = "No law was broken" if not schedules["broken"] else f"**{schedules['broken']} broke a law**"
    seeds = f"{schedules['first']} to {schedules['first'] + schedules['seeds'] - 1}"
    parts = [
        BEGIN,
        "",
        f"Last run: `{result.get('command') or COMMANDS[result['size']]}`, version {result['version']}, "
        f"Python {result['python']}, processes for the simulator: {result['processes']}, {result['seconds']} s.",
        "",
        f"**Simulated:** {schedules['distinct']:,} distinct schedules (seeds {seeds}, {schedules['steps']:,} steps).",
        f"Two schedules are distinct if they differ in the order of what happened; times do not count. {broken}.",
        "",
        f"**Real:** {_sum(faults, 'kill')} kills, {_sum(faults, 'pause')} pauses, {_sum(faults, 'calls'):,} calls "
        f"of {_sum(faults, 'orders'):,} orders.",
        "A recorder process counted the effects; a checker that sees only the two logs compared them.",
        "",
        *_faults(faults),
        "",
        f"**Planted bugs:** {len(bugs)}, all of them found.",
        "",
        "| planted bug | what is wrong | found by | after schedules or examples |",
        "|---|---|---|---|",
        *(f"| `{name}` | {bug['what']} | {bug['found by']} | {bug['after']:,} |" for name, bug in bugs.items()),
        "",
        END,
    ]
    return "\n".join(parts)


def _sum(faults: dict[str, Any], what: str) -> int:
    return sum(verdict["counts"].get(what, 0) for verdict in faults.values())


def _faults(faults: dict[str, Any]) -> list[str]:
    stores = [store for store in NAMES if store in faults]
    rows = ["| fault | " + " | ".join(NAMES[store] for store in stores) + " |", "|---" * (len(stores) + 1) + "|"]
    counts = {store: faults[store]["counts"] for store in stores}

    def row(title: str, cells: list[str]) -> None:
        rows.append(f"| {title} | " + " | ".join(cells) + " |")

    for what, title in _FAULTS:
        row(title, _cells(counts, stores, what))
    row("effects of calls that may not be repeated, doubled", [_doubled(counts[store]) for store in stores])
    row("answered calls whose effect is missing, lost calls", [str(_lost(faults[store])) for store in stores])
    row(
        "`outcome_unknown`, each explained by a fault",
        [str(counts[s].get("outcome_unknown, justified", 0)) for s in stores],
    )
    row("recordings answered for, all in the bucket in the end", _cells(counts, stores, "recordings in the bucket"))
    row("calls of workers on uvloop", _cells(counts, stores, "calls, uvloop"))
    row("calls over TLS", _cells(counts, stores, "calls, TLS"))
    row("repeatable calls taken over after a fault", [str(counts[s].get("repeated after a fault", 0)) for s in stores])
    return rows


def _cells(counts: dict[str, dict[str, int]], stores: list[str], what: str) -> list[str]:
    return [str(counts[store].get(what, "–")) for store in stores]


def _doubled(counts: dict[str, int]) -> str:
    after = counts.get("duplicates after lost writes", 0)
    doubled = str(counts.get("duplicates", 0))
    return f"not promised: {after}, each after the loss of its claim" if counts.get("writes lost") else doubled


def _lost(verdict: dict[str, Any]) -> int:
    return sum("took effect twice" not in violation for violation in verdict["violations"])


def page(text: str, result: dict[str, Any]) -> str:
    """The whole page with the part made anew."""
    before, _, rest = text.partition(BEGIN)
    return before + made(result) + rest.partition(END)[2]


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or say that it is not current."""
    parser = argparse.ArgumentParser(prog="python -m scripts.make_guarantees", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if page and result do not agree")
    check = parser.parse_args(arguments).check
    text, result = PAGE.read_text(encoding="utf-8"), json.loads(RESULT.read_text(encoding="utf-8"))
    current = page(text, result)
    if check:
        if current != text:
            print(
                "docs/explanation/guarantees.md does not agree with proof.json; run: python -m scripts.make_guarantees"
            )
        return int(current != text)
    PAGE.write_text(current, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Recording: a call, a long run, a stream, and looking at one event of a large run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench import Case, Context, Race, Row
from bench._calls import (
    DBOS,
    DURABLE,
    LANGGRAPH,
    RAW,
    TIGHT,
    Setup,
    both,
    large_rows,
    open_row,
    peer_rows,
    release_rows,
    with_open,
    with_release,
)
from bench._envs import HERE, RELEASE, PeerUnavailable, python_of

CALL = "guarded and recorded call"


def run(ctx: Context) -> list[Row]:
    """All rows."""
    return [*_calls(ctx), *large_rows(CALL, ctx, recorded=True), *_growth(ctx), *_first_chunk(ctx), *_one_event(ctx)]


def _calls(ctx: Context) -> list[Row]:
    """Beside release 0.1.0, and on SQLite beside durable steps of others."""
    rows = []
    for asyncio in (False, True):
        setup = Setup("memory", asyncio, recorded=True)
        rows += release_rows(CALL, ctx.race(with_release(ctx, setup), **TIGHT), setup)
    for store, faster in zip(DURABLE, (8, 12), strict=True):
        setup = Setup(store, recorded=True)
        peers = {DBOS: setup.dbos(ctx), LANGGRAPH: setup.langgraph(ctx), RAW: setup.raw(ctx)}
        race = ctx.race({**with_release(ctx, setup), **with_open(ctx, setup), **peers}, **TIGHT)
        rows += [*release_rows(CALL, race, setup), open_row(CALL, race, setup)]
        rows += peer_rows(CALL, race, setup, {DBOS: faster, LANGGRAPH: 5})
        setup = Setup(store, asyncio=True, recorded=True)
        rows += release_rows(CALL, ctx.race(with_release(ctx, setup), **TIGHT), setup)
    return rows


def _extra(race: Race, name: str, key: str) -> tuple[float, float | None, str]:
    """A number of the working tree, the same of release 0.1.0, and why there is none."""
    old = f"0.1.0 {name}"
    missing = race.missing.get(old, "")
    return race[name].extra[key], None if missing else race[old].extra[key], missing


def _growth(ctx: Context) -> list[Row]:
    race = ctx.race(both("growth", Case("recording", "growth", {"file": ctx.payload("params-900")})), rounds=5, n=20)
    value, release, failed = _extra(race, "growth", "late")
    row = Row(
        name="cost of a late event",
        value=value,
        unit="×",
        at_most=1.2,
        at_least=0.8,
        release=release,
        setup="SQLite NORMAL, sync, 0.9 KB, no logs, built-in metrics, long run",
        note="a call after 10,000 events ÷ a call after 10",
        failed=failed,
    )
    return [row]


def _first_chunk(ctx: Context) -> list[Row]:
    race = ctx.race(both("first", Case("recording", "first_chunk")), rounds=5, n=20)
    rows = []
    for kind in ("model", "tool"):
        value, release, failed = _extra(race, "first", kind)
        name, setup = (
            f"first piece of a {kind}'s stream, delay",
            "SQLite FULL, sync, no logs, built-in metrics, in a run",
        )
        rows.append(Row(name=name, value=value, unit="ms", at_most=1.0, release=release, setup=setup, failed=failed))
    return rows


def _one_event(ctx: Context) -> list[Row]:
    pythons, failed = {"show": sys.executable}, ""
    try:
        pythons["0.1.0 show"] = str(python_of(RELEASE))
    except PeerUnavailable as error:
        failed = str(error)
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
        commands = {name: _show(python, Path(folder) / name) for name, python in pythons.items()}
        race = ctx.commands(commands, rounds=9)
    old = race["0.1.0 show"] if "0.1.0 show" in pythons else None
    setup = "SQLite, 10,000 events"
    return [
        Row(
            name="show one event of 50 MB",
            value=race["show"].seconds("wall") * 1000,
            unit="ms",
            at_most=300,
            release=None if old is None else old.seconds("wall") * 1000,
            setup=setup,
            failed=failed,
        ),
        Row(
            name="show one event of 50 MB, memory",
            value=race["show"].rss_mb,
            unit="MB",
            at_most=100,
            release=None if old is None else old.rss_mb,
            setup=setup,
            failed=failed,
        ),
    ]


def _show(python: str, home: Path) -> list[str]:
    """The command that shows one event of a large run, which is made first."""
    home.mkdir()
    alone = [] if python == sys.executable else ["-u", "PYTHONPATH"]  # release 0.1.0 must not find our modules
    make = ["env", *alone, python, str(HERE / "cases" / "recording.py"), str(home)]
    made = subprocess.run(make, capture_output=True, text=True, check=True)
    return [
        "env",
        *alone,
        f"ANTIPHON_HOME={home}",
        python,
        "-m",
        "antiphon.cli",
        "show",
        made.stdout.strip(),
        "--event",
        "9001",
    ]

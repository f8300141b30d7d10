"""Recording: a call, a long run, a stream, and looking at one event of a large run."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile

from bench import Case, Context, Row

PARAMS = "params-900"


def run(ctx: Context) -> list[Row]:
    """All rows."""
    return [*_calls(ctx), *_growth(ctx), *_first_chunk(ctx), *_one_event(ctx)]


def _calls(ctx: Context) -> list[Row]:
    """At both durabilities; the peers' is as they come (FULL), and LangGraph's is ours where it can be set."""
    rows = []
    for payload, size, goals in (("params-100", "100 B", (10, 5)), (PARAMS, "0.9 KB", (None, None))):
        file = {"file": ctx.payload(payload)}
        for durability in ("FULL", "NORMAL"):
            how = {**file, "synchronous": durability}
            race = ctx.race(
                {
                    "recorded": Case("recording", "calls", how),
                    "dbos": Case("dbos_sqlite", "step", file, peer="dbos"),
                    "langgraph": Case("langgraph_sqlite", "tasks", how, peer="langgraph"),
                },
                seconds=0.5,
            )
            for peer, goal in zip(("dbos", "langgraph"), goals, strict=True):
                theirs = "FULL" if peer == "dbos" else durability
                note = f"synchronous = {durability}" + (f" (theirs {theirs})" if theirs != durability else "")
                rows.append(race.row(f"guarded and recorded call, {size}", "recorded", peer, faster=goal, note=note))
                rows.append(race.row("the same, wall time", "recorded", peer, metric="wall", note=note))
    return rows


def _growth(ctx: Context) -> list[Row]:
    race = ctx.race({"growth": Case("recording", "growth", {"file": ctx.payload(PARAMS)})}, rounds=5, n=20)
    late = race["growth"].extra["late"]
    note = "a call after 10,000 events ÷ a call after 10"
    return [
        Row(name="cost of a late event", value=late, unit="×", at_most=1.2, note=note),
        Row(name="cost of a late event", value=late, unit="×", at_least=0.8, note=note),
    ]


def _first_chunk(ctx: Context) -> list[Row]:
    race = ctx.race({"first": Case("recording", "first_chunk", {"file": ctx.payload(PARAMS)})}, rounds=5, n=20)
    extra = race["first"].extra
    return [
        Row(name="first piece of a model's stream, delay", value=extra["model"], unit="ms", at_most=1.0),
        Row(name="first piece of a tool's stream, delay", value=extra["tool"], unit="ms", at_most=1.0),
    ]


def _one_event(ctx: Context) -> list[Row]:
    folder = tempfile.mkdtemp(prefix="antiphon-bench-")
    before = os.environ.get("ANTIPHON_HOME")
    os.environ["ANTIPHON_HOME"] = folder
    try:
        run_id = _large_run()
        show = [sys.executable, "-m", "antiphon.cli", "show", run_id, "--event", "9001"]
        race = ctx.commands({"show": show}, rounds=9)
    finally:
        os.environ.pop("ANTIPHON_HOME")
        if before is not None:
            os.environ["ANTIPHON_HOME"] = before
        shutil.rmtree(folder, ignore_errors=True)
    return [
        Row(name="show one event of 50 MB", value=race["show"].seconds("wall") * 1000, unit="ms", at_most=300),
        Row(name="show one event of 50 MB, memory", value=race["show"].rss_mb, unit="MB", at_most=100),
    ]


def _large_run() -> str:
    from antiphon import Antiphon
    from antiphon._scope import Site

    app = Antiphon({"telemetry": {"logs": False}})
    run = app.run("large")
    text = "lorem ipsum dolor sit amet " * 370
    with run:
        rows = []
        for number in range(5_000):
            site = Site("0", number, 0, f"0@{number}", None)
            asked = {"kind": "tool", "name": "work", "arguments": {"n": number, "text": text}, "digest": "", "nth": 0}
            rows.append(run._recorder.encode("call.started", site, asked, {}))
            rows.append(run._recorder.encode("call.finished", site, {"outcome": "ok", "value": number}, {}))
            if len(rows) == 500:
                app.journal.append(run.id, rows)
                rows = []
    return run.id

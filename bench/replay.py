"""Strict replay: per recorded call, by length of the run, by command line, and in memory."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench import Case, Context, Row
from bench._envs import python_of

CALLS = 200
_TAPE_MODEL = "agenttape 0.1.8, model call"
LENGTHS = (10, 100, 1_000, 10_000)
SAMPLE = Path(__file__).parent / "payloads" / "sample.kurral"


def run(ctx: Context) -> list[Row]:
    return [*_per_call(ctx), *_lengths(ctx), *_command(ctx), _large(ctx)]


def _per_call(ctx: Context) -> list[Row]:
    race = ctx.race(
        {
            "antiphon": Case("replay", "tools", {"calls": CALLS}),
            "antiphon, model call": Case("replay", "models", {"calls": CALLS}),
            "antiphon, redacted": Case("replay", "masked", {"calls": CALLS}),
            "antiphon, redacted model call": Case("replay", "masked_models", {"calls": CALLS}),
            "agenttape 0.1.8": Case("agenttape_playback", "tools", {"calls": CALLS}, peer="agenttape"),
            "agenttape 0.1.8, model call": Case("agenttape_playback", "models", {"calls": CALLS}, peer="agenttape"),
            "reeltime 1.0": Case("reeltime_playback", "tools", {"calls": CALLS}, peer="reeltime"),
            "LangGraph resumed @task": Case("langgraph_task", "resume", {"calls": CALLS}, peer="langgraph"),
            "vcrpy playback": Case("vcrpy_playback", "playback", peer="vcrpy"),
        },
        n=CALLS,
    )
    kinds = (
        ("tool call", "antiphon", "agenttape 0.1.8"),
        ("model call", "antiphon, model call", _TAPE_MODEL),
        ("tool call with an address in it", "antiphon, redacted", "agenttape 0.1.8"),
        ("model call with an address in it", "antiphon, redacted model call", _TAPE_MODEL),
    )
    rows = []
    for what, ours, tape in kinds:
        for peer, note in ((tape, ""), ("reeltime 1.0", "its cheapest call, a function")):
            rows.append(race.row(f"strict, per recorded {what}", ours, peer, at_most=1.0, note=note))
        for peer in ("LangGraph resumed @task", "vcrpy playback"):
            rows.append(race.row(f"strict, per recorded {what}", ours, peer, faster=12))
    return rows


def _lengths(ctx: Context) -> list[Row]:
    lengths = LENGTHS[:3] if ctx.quick else LENGTHS
    race = ctx.race(
        {f"{calls} calls": Case("replay", "whole", {"calls": calls}) for calls in lengths}, n=max(lengths), rounds=3
    )
    first = f"{lengths[0]} calls"
    return [
        race.row(
            f"open and replay {calls} calls, per call",
            f"{calls} calls",
            first if calls != lengths[0] else "",
            at_most=1.1 if calls != lengths[0] else None,
            note="flat: no more than in a run of 10",
        )
        for calls in lengths
    ]


def _command(ctx: Context) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        ours = [sys.executable, "-c", _OURS.format(folder=folder), "replay", str(SAMPLE)]
        theirs = [str(python_of("kurral")), "-m", "kurral.cli.replay_cmd", str(SAMPLE)]
        race = ctx.commands({"antiphon": ours, "kurral": theirs}, rounds=3)
    return [
        Row(
            name="A replay of kurral's sample by command line",
            value=race["antiphon"].seconds("wall") * 1e3,
            unit="ms",
            peer="kurral",
            peer_value=race["kurral"].seconds("wall") * 1e3,
            ratio=race.ratio("antiphon", "kurral", "wall"),
            at_most=1 / 5,
            note="wall time",
        )
    ]


_OURS = "import os; os.environ['ANTIPHON_HOME'] = {folder!r}; from antiphon.cli import main; raise SystemExit(main())"


def _large(ctx: Context) -> Row:
    megabytes = 5 if ctx.quick else 50
    race = ctx.race({"antiphon": Case("replay", "big", {"megabytes": megabytes})}, n=1, rounds=1, warmup=0)
    return Row(
        name=f"peak memory of replaying a run of {megabytes} MB",
        value=race["antiphon"].rss_mb,
        unit="MB",
        at_most=150,
        note=f"{race['antiphon'].seconds('wall'):.1f} s",
    )

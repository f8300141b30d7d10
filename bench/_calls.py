"""Guarded calls as ``bench/cases/gateway.py`` makes them: the same setup for the working tree and for release 0.1.0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from bench._envs import RELEASE
from bench._harness import Case, Context, Race
from bench._report import Row

PAYLOADS = {"100 B": "params-100", "0.9 KB": "params-900"}
Store = Literal["memory", "FULL", "NORMAL"]
DURABLE: tuple[Store, ...] = ("FULL", "NORMAL")
TIGHT: dict[str, Any] = {"rounds": 21, "seconds": 0.1, "limit": 20}
"""Many short rounds, for ratios with a goal near 1: the disk and the machine change from second to second."""
BATCH = 100
"""Calls per run, steps per workflow: beginning and end of a run are part of what a recorded call costs."""
OLD, OLD_LINES = "0.1.0", "0.1.0 with INFO lines"
OPEN, OLD_OPEN = "nothing to seal", "0.1.0, nothing to seal"
DBOS, LANGGRAPH, RAW = "DBOS step", "LangGraph task", "two raw commits"


@dataclass(frozen=True, slots=True)
class Setup:
    """How a call is made: what its case is given, and what its row prints as configured."""

    store: Store = "memory"
    """``FULL`` and ``NORMAL`` are SQLite's ``synchronous``."""
    asyncio: bool = False
    size: str = "100 B"
    """Of the parameters."""
    logs: bool = False
    """One INFO line per call, written to a stream; else the process logs nothing."""
    prometheus: bool = False
    listener: bool = False
    """A listener that wants every event and does nothing; it keeps release 0.1.0 off its fast path."""
    recorded: bool = False
    """Inside a run."""
    sealed: bool = True
    """Arguments are sealed where the working tree seals them: those of a write in its claim, an address in the log.
    Release 0.1.0 keeps neither. Without: a tool that may be repeated, and no address."""

    def but(self, **changes: Any) -> Self:
        """The same with changes."""
        return replace(self, **changes)

    def case(self, ctx: Context) -> Case:
        """The case of the working tree."""
        sqlite = self.store != "memory"
        kind = "recorded" if self.recorded else "sqlite" if sqlite else "memory"
        params: dict[str, Any] = {"file": ctx.payload(PAYLOADS[self.size] if self.sealed else "params-plain")}
        if not self.sealed:
            params["idempotent"] = True
        if self.recorded:
            params |= {"store": "sqlite" if sqlite else "memory", "batch": BATCH}
        if sqlite:
            params["synchronous"] = self.store
        params |= {name: True for name in ("logs", "prometheus", "listener") if getattr(self, name)}
        function = f"{'async_' if self.asyncio else ''}{kind}_call"
        return Case("gateway", function, params, batch=BATCH if self.recorded else 1)

    def release(self, ctx: Context) -> Case:
        """The same case on release 0.1.0."""
        return replace(self.case(ctx), peer=RELEASE)

    def raw(self, ctx: Context) -> Case:
        """The commits of the call as bare statements."""
        params = {"file": ctx.payload(PAYLOADS[self.size]), "synchronous": self.store, "recorded": self.recorded}
        return Case("raw_sqlite", "commits", params)

    def dbos(self, ctx: Context) -> Case:
        """A step of DBOS with the same parameters."""
        params = {"file": ctx.payload(PAYLOADS[self.size]), "batch": BATCH}
        return Case("dbos_sqlite", "step", params, peer="dbos", batch=BATCH)

    def langgraph(self, ctx: Context) -> Case:
        """A task of LangGraph with the same parameters and the same ``synchronous``."""
        params = {"file": ctx.payload(PAYLOADS[self.size]), "synchronous": self.store, "batch": BATCH}
        return Case("langgraph_sqlite", "tasks", params, peer="langgraph", batch=BATCH)

    def __str__(self) -> str:
        words = [
            "memory" if self.store == "memory" else f"SQLite {self.store}",
            "asyncio" if self.asyncio else "sync",
            self.size,
            "INFO lines" if self.logs else "no logs",
            "Prometheus" if self.prometheus else "built-in metrics",
        ]
        words += ["listener"] if self.listener else []
        words += [f"run of {BATCH}"] if self.recorded else []
        words += [] if self.sealed else ["nothing to seal"]
        return ", ".join(words)


def both(name: str, case: Case) -> dict[str, Case]:
    """A case of the working tree, and the same on release 0.1.0 as ``0.1.0 NAME``."""
    return {name: case, f"0.1.0 {name}": replace(case, peer=RELEASE)}


def with_release(ctx: Context, setup: Setup) -> dict[str, Case]:
    """Silent and logged calls of the working tree and of release 0.1.0."""
    lines = setup.but(logs=True)
    return {
        "silent": setup.case(ctx),
        OLD: setup.release(ctx),
        "lines": lines.case(ctx),
        OLD_LINES: lines.release(ctx),
    }


def with_open(ctx: Context, setup: Setup) -> dict[str, Case]:
    """The same calls where nothing is sealed, which release 0.1.0 never did: what sealing costs is the difference."""
    bare = setup.but(sealed=False)
    return {OPEN: bare.case(ctx), OLD_OPEN: bare.release(ctx)}


def open_row(name: str, race: Race, setup: Setup) -> Row:
    """Beside release 0.1.0, with what sealing costs."""
    note = f"the call that seals its arguments takes {race.ratio('silent', OPEN):.2f} of this"
    return race.row(f"{name}, {OPEN}", OPEN, OLD_OPEN, setup=setup.but(sealed=False), note=note)


def release_rows(name: str, race: Race, setup: Setup) -> list[Row]:
    """Each as fast as in release 0.1.0."""
    note = "" if OLD in race.missing else f"{race.ratio('lines', OLD):.2f} of 0.1.0 without logs"
    return [
        race.row(name, "silent", OLD, at_most=1.06, setup=setup),
        race.row(f"{name}, logged", "lines", OLD_LINES, at_most=1.06, setup=setup.but(logs=True), note=note),
    ]


def peer_rows(name: str, race: Race, setup: Setup, goals: Mapping[str, float | None]) -> list[Row]:
    """CPU and wall time beside durable steps of others, and beside what the disk alone costs."""
    rows = []
    for peer, faster in {**goals, RAW: None}.items():
        note = _NOTES.get((peer, setup.store)) or _NOTES[peer, ""]
        rows.append(race.row(name, "silent", peer, faster=faster, release=OLD, setup=setup, note=note))
        wall = f"{name}, wall time"
        rows.append(race.row(wall, "silent", peer, metric="wall", release=OLD, setup=setup, note=note))
    return rows


def large_rows(name: str, ctx: Context, recorded: bool) -> list[Row]:
    """CPU time with larger parameters, at both durabilities."""
    setups = {store: Setup(store, size="0.9 KB", recorded=recorded) for store in DURABLE}
    cases = {DBOS: setups["FULL"].dbos(ctx)}
    for store, setup in setups.items():
        cases |= both(store, setup.case(ctx))
        if recorded:
            cases[f"{LANGGRAPH} {store}"] = setup.langgraph(ctx)
    race = ctx.race(cases, seconds=0.1, limit=20)
    rows = []
    for store, setup in setups.items():
        rows.append(race.row(name, store, DBOS, release=f"0.1.0 {store}", setup=setup, note=_NOTES[DBOS, store]))
        if recorded:
            task, note = f"{LANGGRAPH} {store}", _NOTES[LANGGRAPH, ""]
            rows.append(race.row(name, store, task, release=f"0.1.0 {store}", setup=setup, note=note))
    return rows


_NOTES = {
    (RAW, ""): "what the disk alone costs",
    (DBOS, "FULL"): f"workflows of {BATCH} steps",
    (DBOS, "NORMAL"): f"workflows of {BATCH} steps; DBOS has synchronous = FULL",
    (LANGGRAPH, ""): f"workflows of {BATCH} tasks",
}

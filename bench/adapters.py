"""What an adapter adds to one model call, beside the framework's own floor (its answer is already there).

The floor is the same agent with the framework's own hook doing nothing: what a framework takes for calling a
middleware, a capability or a wrapped model is its own. Both are called in turns in one process, and neighbours are
compared: a machine that changes its speed changes it for both. The first row of a framework has a goal; the others
show how the cost grows with what the call carries, and what a file costs in place of memory (where events are written
out when they are read).
"""

from __future__ import annotations

from typing import Any

from bench import Case, Context, Row

FRAMEWORKS = {
    "pydantic_ai": ("Pydantic AI, one request", "hooked", 1.10),
    "openai_agents": ("OpenAI Agents, one turn", "hooked", 1.10),
    "langgraph": ("LangGraph agent with middleware, one turn", "hooked", 1.10),
    "openai_sdk": ("OpenAI SDK over the transport, one call", "", None),
}
LOADED = {"messages": 20, "tools": 5}
ROUNDS, TURNS = 7, 150


def run(ctx: Context) -> list[Row]:
    """All rows."""
    rows = []
    for name, (title, floor, goal) in FRAMEWORKS.items():
        rows.append(_row(ctx, f"{title} recorded", name, floor, goal))
        if goal is not None:
            history = f"… with {LOADED['messages']} messages and {LOADED['tools']} tools"
            rows.append(_row(ctx, history, name, floor, None, **LOADED))
            rows.append(_row(ctx, "… and into a file", name, floor, None, **LOADED, store="NORMAL"))
    return rows


def _row(ctx: Context, title: str, name: str, floor: str, goal: float | None, **how: Any) -> Row:
    case = Case("adapters", "in_turns", {"framework": name, "floor": floor, **how})
    found = ctx.race({"turns": case}, rounds=ROUNDS, n=TURNS)["turns"].extra
    note = f"adds {found['ours'] - found['theirs']:.0f} µs"
    if "store" in how:
        note += f"; SQLite, synchronous = {how['store']}"
    return Row(
        name=title,
        value=found["ours"],
        peer="empty hook" if floor else "alone",
        peer_value=found["theirs"],
        ratio=found["ratio"],
        at_most=goal,
        note=note,
    )

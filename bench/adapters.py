"""What an adapter adds to one model call, beside the framework's own floor (its answer is already there).

The floor is the same agent with the framework's own hook doing nothing: what a framework takes for calling a middleware
or capability is its own. The note says what the agent costs without any hook. The first row of a framework has a goal;
the others show how the cost grows with what the call carries, and what a file costs in place of memory.
"""

from __future__ import annotations

from bench import Case, Context, Row

FRAMEWORKS = {
    "pydantic_ai": ("Pydantic AI, one request", True, 1.10),
    "openai_agents": ("OpenAI Agents, one turn", False, 1.10),
    "langgraph": ("LangGraph agent with middleware, one turn", True, 1.10),
    "openai_sdk": ("OpenAI SDK over the transport, one call", False, None),
}
LOADED = {"messages": 20, "tools": 5}


def run(ctx: Context) -> list[Row]:
    """All rows."""
    rows = []
    for name, (title, hooked, goal) in FRAMEWORKS.items():
        floor = "empty hook" if hooked else "alone"
        cases = {"antiphon": Case("adapters", f"{name}_recorded"), "alone": Case("adapters", name)}
        if hooked:
            cases["empty hook"] = Case("adapters", f"{name}_hooked")
        race = ctx.race(cases, rounds=9, seconds=0.4)
        bare = f"; no hook at all: {race['alone'].us():.0f} µs" if hooked else ""
        note = f"adds {race['antiphon'].us() - race[floor].us():.0f} µs{bare}"
        rows.append(race.row(f"{title} recorded", "antiphon", floor, at_most=goal, note=note))
        if goal is not None:
            rows += _more(ctx, name, floor, f"{name}_hooked" if hooked else name)
    return rows


def _more(ctx: Context, name: str, floor: str, floor_case: str) -> list[Row]:
    """The same with a history and tools, in memory and in a file."""
    race = ctx.race(
        {
            "antiphon": Case("adapters", f"{name}_recorded", LOADED),
            "SQLite": Case("adapters", f"{name}_recorded", {**LOADED, "store": "NORMAL"}),
            floor: Case("adapters", floor_case, LOADED),
        },
        rounds=5,
        seconds=0.3,
    )
    memory, file = (f"adds {race[ours].us() - race[floor].us():.0f} µs" for ours in ("antiphon", "SQLite"))
    title = f"… with {LOADED['messages']} messages and {LOADED['tools']} tools"
    return [
        race.row(title, "antiphon", floor, note=memory),
        race.row("… and into a file", "SQLite", floor, note=f"{file}; SQLite, synchronous = NORMAL"),
    ]

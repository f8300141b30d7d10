"""What an adapter adds to one model call, beside the framework's own floor (its answer is already there).

The floor is the same agent with the framework's own hook doing nothing: what a framework takes for calling a middleware
or capability is its own. The note says what the agent costs without any hook.
"""

from __future__ import annotations

from bench import Case, Context, Row

FRAMEWORKS = {
    "pydantic_ai": ("Pydantic AI, one request recorded", True, 1.10),
    "openai_agents": ("OpenAI Agents, one turn recorded", False, 1.10),
    "langgraph": ("LangGraph agent with middleware, one turn recorded", True, 1.10),
    "openai_sdk": ("OpenAI SDK over the transport, one call recorded", False, None),
}


def run(ctx: Context) -> list[Row]:
    rows = []
    for name, (title, hooked, goal) in FRAMEWORKS.items():
        cases = {"antiphon": Case("adapters", f"{name}_recorded"), "alone": Case("adapters", name)}
        if hooked:
            cases["empty hook"] = Case("adapters", f"{name}_hooked")
        race = ctx.race(cases, rounds=9, seconds=0.5)
        floor = "empty hook" if hooked else "alone"
        added = race["antiphon"].us() - race[floor].us()
        note = f"adds {added:.0f} µs" + (f"; no hook at all: {race['alone'].us():.0f} µs" if hooked else "")
        rows.append(race.row(title, "antiphon", floor, at_most=goal, note=note))
    return rows

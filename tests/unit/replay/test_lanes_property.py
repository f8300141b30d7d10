"""Any tree of parallel work replays under any order of its parts (D17)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import antiphon
from tests.unit.replay.kit import memory_app

Tree = st.recursive(
    st.sampled_from(["call", "now", "uuid", "prompt"]),
    lambda inner: st.tuples(st.sampled_from(["together", "one by one"]), st.lists(inner, min_size=1, max_size=4)),
    max_leaves=14,
)


@settings(max_examples=60)
@given(tree=Tree, seeds=st.lists(st.integers(0, 10_000), min_size=3, max_size=3))
def test_no_order_is_reported(tree: Any, seeds: list[int]) -> None:
    app = memory_app()
    chance = random.Random()
    executed = 0

    @app.async_gateway.tool(idempotent=True, effect="read", reuse="never")
    async def look(path: str) -> str:
        nonlocal executed
        executed += 1
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        return f"{path} {executed}"

    async def work(part: Any, path: str) -> list[Any]:
        run = antiphon.current_run()
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        if isinstance(part, tuple):
            how, parts = part
            named = [(inner, f"{path}.{place}") for place, inner in enumerate(parts)]
            if how == "one by one":
                return [await work(inner, name) for inner, name in named]
            first = [await look(path=path)]  # what runs in parallel begins with a call of its own
            return first + list(await asyncio.gather(*(_strand(inner, name) for inner, name in named)))
        if part == "call":
            return [await look(path=path)]
        if part == "prompt":
            return [run.prompt("p", "{path}", {"path": path})]
        return [run.now().isoformat() if part == "now" else str(run.uuid4())]

    async def _strand(part: Any, path: str) -> list[Any]:
        return [await look(path=f"begin {path}"), await work(part, path)]

    async def main() -> list[Any]:
        return await work(tree, "0")

    run = app.record(main)
    made = executed
    for seed in seeds:
        chance.seed(seed)
        report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
        assert report.passed, report.text()
        assert report["outputsA"] == report["outputsB"]
    assert executed == made

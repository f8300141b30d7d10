"""The cap on the cost of a run counts what its tools declare and what its models' tokens cost (D25)."""

from __future__ import annotations

from typing import Any

import pytest

import antiphon
from antiphon.errors import LoopBlocked
from antiphon.stores import MemoryStore

PRICES = {"m-1": {"input": 1_000.0, "output": 2_000.0}}


def application(**loop: Any) -> antiphon.Antiphon:
    config = {"prices": PRICES, "loop": loop, "telemetry": {"logs": False}}
    return antiphon.Antiphon(config, store=MemoryStore())


def answer(body: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 100, "completion_tokens": 50}  # 0.1 + 0.1
    return {"choices": [{"index": 0, "message": {"content": "ok"}, "finish_reason": "stop"}], "usage": usage}


def ask(run: Any, model: str = "m-1") -> None:
    run.llm({"model": model, "messages": [{"role": "user", "content": "q"}]}, answer)


@pytest.mark.parametrize("enabled", [True, False])
def test_tokens_are_counted(enabled: bool) -> None:
    app = application(enabled=enabled, max_cost=0.5)

    @app.gateway.tool(idempotent=True, cost=0.05)
    def look(n: int) -> int:
        return n

    with app.run("costly") as run:
        ask(run)
        ask(run)
        assert look(1) == 1  # 0.45 by now
        ask(run, "a model without a price")
        assert look(2) == 2  # 0.5
        with pytest.raises(LoopBlocked, match=r"a cost of 0\.5"):
            look(3)
    with app.run("the next one starts anew") as run:
        assert look(4) == 4


def test_tokens_alone_can_reach_the_cap() -> None:
    app = application(max_cost=0.3)

    @app.gateway.tool(idempotent=True)
    def look(n: int) -> int:
        return n

    with app.run("costly") as run:
        ask(run)
        assert look(1) == 1
        ask(run)
        with pytest.raises(LoopBlocked):
            look(2)


def test_without_a_cap_nothing_is_counted() -> None:
    app = application()

    @app.gateway.tool(idempotent=True, cost=5.0)
    def look(n: int) -> int:
        return n

    with app.run("free") as run:
        for n in range(5):
            ask(run)
            assert look(n) == n

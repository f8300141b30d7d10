"""Lines of the console: why a call was not sent."""

from __future__ import annotations

import contextlib

import antiphon
from antiphon.ops.lines import line
from antiphon.stores import MemoryStore


def test_what_the_gateway_said_is_why_a_call_was_not_sent() -> None:
    app = antiphon.Antiphon(store=MemoryStore())

    @app.gateway.tool(idempotent=False, approve="always")
    def pay(order: str) -> str:
        return order

    @app.gateway.tool(idempotent=False)
    def ship(order: str) -> str:
        return order

    def agent() -> str:
        with contextlib.suppress(antiphon.AntiphonError):
            pay("1042")
        return ship("1042")

    ends = [line(event) for event in app.record(agent).events() if event.type == "call.finished"]
    assert "needs approval by a person" in ends[0]["notSent"]
    assert "notSent" not in ends[1]

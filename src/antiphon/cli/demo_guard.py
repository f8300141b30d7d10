"""The part of the demo that needs no run: a redelivered envelope, and a breaker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def _envelope(request_id: str, tool: str, params: dict[str, Any]) -> dict[str, Any]:
    return {
        "contractVersion": "1.1",
        "requestId": request_id,
        "toolName": tool,
        "toolNamespace": "demo",
        "target": {"sessionKey": "s1", "actorId": "ada"},
        "payload": {"version": "1.0", "params": params},
        "transport": {"dedupeMode": "enforced", "retryBudget": {"maxAttempts": 1, "maxElapsedMs": 1000}},
        "control": {},
        "trace": {},
    }


def redelivery() -> Iterator[str]:
    """One envelope, delivered three times."""
    from antiphon.ops.gateways import Gateway
    from antiphon.stores import MemoryStore

    gateway = Gateway(store=MemoryStore(), config={"telemetry": {"logs": False}})
    effects: list[str] = []

    @gateway.tool(namespace="demo", idempotent=False)
    def book(room: str) -> str:
        effects.append(room)
        return f"booked {room}"

    answers = [gateway.execute(_envelope("r-1", "book", {"room": "7"})) for _ in range(3)]
    cached = sum(answer.from_cache for answer in answers)
    yield f"book(room=7) delivered 3 times: {len(effects)} booking, {cached} answers from the record"


def breaker() -> Iterator[str]:
    """A dependency that is down: five failures, then nobody waits for it any more."""
    from antiphon.ops.gateways import Gateway
    from antiphon.stores import MemoryStore

    gateway = Gateway(store=MemoryStore(), config={"telemetry": {"logs": False}})
    touched = []

    @gateway.tool(namespace="demo", idempotent=True)
    def quote(symbol: str) -> float:
        touched.append(symbol)
        raise ConnectionRefusedError("the quote service is down")

    results = [gateway.execute(_envelope(f"q-{n}", "quote", {"symbol": f"S{n}"})) for n in range(8)]
    result = results[-1]
    yield f"quote() called 8 times: the service was tried {len(touched)} times, then: {result.status}"
    yield f"  {result.error.message}"  # type: ignore[union-attr]

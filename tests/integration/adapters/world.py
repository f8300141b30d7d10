"""What every adapter is tested in: a provider that counts, and tools that count what they did."""

from __future__ import annotations

import json
import threading
from typing import Any

from tests.fake_provider import FakeProvider, Reply, ToolCall

REFUSAL = "I cannot help with that."


class World:
    """Tools with an effect that can be counted, and a model that asks for them when it is told to."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.broken = False
        self._lock = threading.Lock()
        self._charged = threading.Event()
        self.provider = FakeProvider(self.answer)

    def charge(self, order: str) -> str:
        """Charge an order."""
        with self._lock:
            self.done.append(order)
        self._charged.set()
        return f"charged {order}"

    def flaky(self) -> str:
        """Fail the first time, once something was charged: a framework cancels what still runs then."""
        self._charged.wait(60)
        if not self.broken:
            self.broken = True
            raise RuntimeError("the worker died")
        return "charged nothing"

    def answer(self, body: dict[str, Any]) -> Reply:
        """``charge X`` and ``charge X and Y`` make calls, ``refuse`` is refused, anything else is greeted."""
        said = json.dumps(body)
        if "refuse" in said:
            return Reply(refusal=REFUSAL)
        if "charged " in said:
            return Reply("all done")
        if "charge A and B" in said:
            calls = [ToolCall("charge", {"order": name}, f"call_{name}") for name in ("A", "B")]
            return Reply(calls=tuple(calls))
        if "charge A then fail" in said:
            return Reply(calls=(ToolCall("charge", {"order": "A"}, "call_A"), ToolCall("flaky", {}, "call_F")))
        if "charge A" in said:
            return Reply(calls=(ToolCall("charge", {"order": "A"}, "call_A"),))
        return Reply("hello there, friend")

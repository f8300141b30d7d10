"""A gateway as users build it, with scripted tools and a clock of the test's own."""

from __future__ import annotations

from typing import Any

from antiphon import Gateway
from antiphon.contract.record import DedupeRecord
from antiphon.contract.spec import BreakerPolicy
from antiphon.ports import Store
from tests.unit.gateway.kit import Ears, Hold, HttpError, ManualClock, Script, eventually, in_thread
from tests.unit.gateway.kit import envelope as envelope_of

__all__ = ["NEVER_TRIPS", "Bench", "Hold", "HttpError", "Script", "eventually", "in_thread"]

NEVER_TRIPS = BreakerPolicy(consecutive=1_000_000, min_calls=1_000)


class Bench:
    """One gateway, its store, its tools."""

    def __init__(self, store: Store, **config: Any) -> None:
        self.store = store
        self.clock = ManualClock()
        self.ears = Ears()
        self.gateway = self.another(**config)

    def another(self, **config: Any) -> Gateway:
        """A further gateway on the same store, as after a restart."""
        return Gateway(store=self.store, config=config, clock=self.clock, listeners=(self.ears,))

    def tool(self, *steps: Any, name: str = "act", idempotent: bool = False, **spec: Any) -> Script:
        """Register a scripted tool ``name(to=..., text=...)``."""
        script = Script(*steps)

        def act(to: str = "ada", text: str = "hi") -> Any:
            return script(to=to, text=text)

        self.gateway.tool(name, idempotent=idempotent, **spec)(act)
        return script

    def envelope(self, **changes: Any) -> dict[str, Any]:
        return envelope_of(**({"tool": "act"} | changes))

    def execute(self, **changes: Any) -> dict[str, Any]:
        """Run an envelope; the result in its wire form."""
        return self.gateway.execute(self.envelope(**changes)).to_wire()

    def records(self) -> list[DedupeRecord]:
        journal = self.store.open_sync()
        try:
            return journal.list(tenant="default")
        finally:
            journal.close()

    def breaker_state(self, name: str = "act") -> str:
        state: str = self.gateway._plans.breakers.get(f"tool/tools/{name}").state
        return state

    def close(self) -> None:
        self.gateway.close()

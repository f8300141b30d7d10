"""What the model calls of a run cost, by ``[prices]`` (D25)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from antiphon.config.model import PriceSection
from antiphon.contract.events import Event
from antiphon.ports import Row

if TYPE_CHECKING:
    from antiphon._gateway.turns import Guard
    from antiphon._scope import RunScope, Site

CHARGES = "charges"
"""Where the scope of a run keeps its :class:`CostMeter`."""


class CostMeter:
    """Charges a run for the tokens of its model calls; once the cap is reached, tools are refused."""

    def __init__(self, scope: RunScope, prices: Mapping[str, PriceSection], guard: Guard) -> None:
        self._prices, self._guard, self._write = prices, guard, scope.encode
        self.open_calls: dict[str, dict[str, Any]] = {}
        """Model calls in progress: the payloads of their starts."""
        self.usage: Callable[[str, dict[str, Any], dict[str, Any], dict[str, Any]], Any] = paid_usage
        """(call, payload of its start, payload and ``meta`` of its end) -> the tokens to pay for."""
        scope.encode = self._encode
        scope.gateway_state[CHARGES] = self

    def _encode(self, kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> Row:
        if site is not None:
            if kind == "call.started" and payload.get("kind") == "llm":
                self.open_calls[site.call] = payload
            elif kind == "call.finished" and site.call in self.open_calls:
                began = self.open_calls.pop(site.call)
                self.charge(model_of(began), self.usage(site.call, began, payload, meta))
        return self._write(kind, site, payload, meta)

    def charge(self, model: str, usage: Any) -> None:
        """Charge the run for tokens of *model*."""
        self._guard.loop.spend(cost_of(self._prices.get(model), usage))


def paid_usage(call: str, began: dict[str, Any], ended: dict[str, Any], meta: dict[str, Any]) -> Any:
    """The usage that an answer reports; a reused answer has been paid for already."""
    return None if meta.get("fromCache") else meta.get("usage")


def model_of(payload: Mapping[str, Any]) -> str:
    """The model that a recorded call asked."""
    for name in ("request", "providerRequest"):
        request = payload.get(name)
        if isinstance(request, Mapping) and request.get("model"):
            return str(request["model"])
    return ""


def answered_by(meta: Mapping[str, Any]) -> str:
    """What answered a call in a replay, by the ``meta`` of its end; empty if it was no replay that made the call."""
    metadata = meta.get("metadata")
    return str(metadata.get("answeredBy") or "") if isinstance(metadata, Mapping) else ""


def tokens_of(usage: Any) -> tuple[int, int]:
    """Tokens in and out; anything but a number in an imported recording counts as nothing."""
    counts = usage if isinstance(usage, Mapping) else {}
    found = (counts.get(name) for name in ("inputTokens", "outputTokens"))
    given, taken = (value if isinstance(value, int) and not isinstance(value, bool) else 0 for value in found)
    return given, taken


def cost_of(price: PriceSection | None, usage: Any) -> float:
    """The cost of one call's tokens; 0 without a price."""
    given, taken = tokens_of(usage)
    return 0.0 if price is None else (given * price.input + taken * price.output) / 1_000_000


class UsageTotals:
    """What the model calls of a run cost, including interrupted attempts; reused answers cost nothing."""

    def __init__(self, prices: Mapping[str, PriceSection]) -> None:
        self._prices = prices
        self._asked: dict[str, str] = {}
        self.calls: int = 0
        self.failed: int = 0
        self.input_tokens: int = 0
        self.output_tokens: int = 0
        self.cost: float = 0.0
        self.unpriced: dict[str, None] = {}
        """Models without a price."""
        self.without_usage: int = 0
        """Calls whose answer reported no usage: their cost is unknown."""
        self.unfinished: int = 0
        """Calls in progress when their attempt was interrupted: their cost is unknown as well."""

    def add(self, event: Event) -> None:
        """Count an event; events must come in the order of the run."""
        if event.type == "call.started" and event.payload.get("kind") == "llm":
            self._asked[event.call or ""] = model_of(event.payload)
            self.unfinished += 1
        elif event.type == "call.finished" and event.call in self._asked:
            model = self._asked.pop(event.call)
            self.unfinished -= 1
            if event.meta.get("fromCache"):
                return
            usage = event.meta.get("usage")
            given, taken = tokens_of(usage)
            self.calls += 1
            self.input_tokens += given
            self.output_tokens += taken
            self.cost += cost_of(self._prices.get(model), usage)
            failed = event.payload.get("outcome") == "error"
            self.failed += failed
            self.without_usage += not (failed or given or taken)
            if model not in self._prices:
                self.unpriced[model] = None

    def to_wire(self) -> dict[str, Any]:
        return {
            "calls": self.calls + self.unfinished,
            "failed": self.failed,
            "withoutUsage": self.without_usage + self.unfinished,
            "inputTokens": self.input_tokens,
            "outputTokens": self.output_tokens,
            "cost": self.cost,
        }

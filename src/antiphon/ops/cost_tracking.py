"""What the model calls of a run cost, counted towards the cap of that run (D25)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from antiphon._scope import RunScope, Site
from antiphon.config.model import PriceSection
from antiphon.ports import Row

if TYPE_CHECKING:
    from antiphon.decide.loop import LoopPolicy


def charge_models(scope: RunScope, prices: Mapping[str, PriceSection], policy: LoopPolicy, now: float) -> None:
    """From here on the tokens of model calls of the run are paid for; tools are refused once the cap is reached."""
    from antiphon._gateway.turns import Guard

    write = scope.encode
    asked: dict[str, str] = {}
    guard: Guard = scope.gateway_state.setdefault("loop", Guard(policy, now))

    def encode(kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> Row:
        if site is not None:
            if kind == "call.started" and payload.get("kind") == "llm":
                asked[site.call] = model_of(payload)
            elif kind == "call.finished" and site.call in asked:
                price = prices.get(asked.pop(site.call))
                if price is not None and not meta.get("fromCache"):
                    guard.loop.spend(cost_of(price, meta.get("usage")))
        return write(kind, site, payload, meta)

    scope.encode = encode


def model_of(payload: Mapping[str, Any]) -> str:
    """The model that a recorded call asked."""
    for name in ("request", "providerRequest"):
        request = payload.get(name)
        if isinstance(request, Mapping) and request.get("model"):
            return str(request["model"])
    return ""


def tokens_of(usage: Any) -> tuple[int, int]:
    """Tokens in and out; what a recording from elsewhere says instead of a number counts as nothing."""
    counts = usage if isinstance(usage, Mapping) else {}
    found = (counts.get(name) for name in ("inputTokens", "outputTokens"))
    given, taken = (value if isinstance(value, int) and not isinstance(value, bool) else 0 for value in found)
    return given, taken


def cost_of(price: PriceSection | None, usage: Any) -> float:
    """The money for the tokens of one call; nothing without a price."""
    given, taken = tokens_of(usage)
    return 0.0 if price is None else (given * price.input + taken * price.output) / 1_000_000

"""What a gateway is built from. The config layer wires it; the engine only uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from antiphon._gateway.report import Reporter
from antiphon._gateway.settings import Settings
from antiphon.ports import Blobs, Clock, Store


def _nothing() -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """Store, settings, telemetry and what keeps results, of one gateway."""

    store: Store
    settings: Settings = field(default_factory=Settings)
    clock: Clock = field(default_factory=Clock)
    reporter: Reporter = field(default_factory=Reporter)
    redactor: Any = None
    """``None`` for a store that never leaves the process."""
    sealer: Callable[[], Any] = _nothing
    blobs: Callable[[], Blobs | None] = _nothing
    reload: Callable[[], Settings | None] = _nothing
    """New settings if the configuration changed since it was asked last."""
    renews: bool = True
    """Whether the process's thread renews leases; otherwise the owner of the gateway does (tests, simulations)."""

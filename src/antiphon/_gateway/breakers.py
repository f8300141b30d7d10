"""The breakers of one gateway: one per tool, dependency and tenant, with their shared state (R9)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from antiphon._gateway.tool import Tool
from antiphon.contract.spec import DEFAULT_BREAKER, BreakerPolicy
from antiphon.decide.breaker import Breaker, Transition
from antiphon.ports import BreakerRow

Publish = Callable[[str, BreakerRow], None]


def breaker_key(hint: str, tool: Tool) -> str:
    """The name a breaker goes by in the store, in logs and in the admin commands."""
    if hint == "global":
        return "global"
    if hint == "dependency" and tool.spec.dependency:
        return f"dependency/{tool.spec.dependency}"
    return f"tool/{tool.full_name}"


class Breakers:
    """A registry that remembers, for each tool and hint, which breakers a call must pass."""

    def __init__(self) -> None:
        self._by_key: dict[str, Breaker] = {}
        self._paths: dict[tuple[str, str], tuple[tuple[str, Breaker], ...]] = {}
        self._rows: dict[str, BreakerRow] = {}
        self._lock = threading.Lock()

    def path(self, tool: Tool, hint: str) -> tuple[tuple[str, Breaker], ...]:
        """The breaker that counts this call, first, then the enclosing ones that exist."""
        found = self._paths.get((tool.full_name, hint))
        return found if found is not None else self._make_path(tool, hint)

    def _make_path(self, tool: Tool, hint: str) -> tuple[tuple[str, Breaker], ...]:
        own = breaker_key(hint, tool)
        wider = {"tool": ("dependency", "global"), "dependency": ("global",)}.get(hint, ())
        keys = [own, *(breaker_key(scope, tool) for scope in wider)]
        with self._lock:
            self._ensure(own, tool.breaker_policy if own.startswith("tool/") else DEFAULT_BREAKER)
            path = tuple((key, self._by_key[key]) for key in dict.fromkeys(keys) if key in self._by_key)
            self._paths[(tool.full_name, hint)] = path
        return path

    def _ensure(self, key: str, policy: BreakerPolicy) -> Breaker:
        breaker = self._by_key.get(key)
        if breaker is None:
            breaker = self._by_key[key] = Breaker(policy)
            self._paths.clear()
            row = self._rows.get(key)
            if row is not None:
                breaker.adopt(row.state, row.epoch, row.until_ms, row.reason)
        return breaker

    def get(self, key: str) -> Breaker:
        """The breaker of that name, made if need be (an operator may force one before its first call)."""
        with self._lock:
            return self._ensure(key, DEFAULT_BREAKER)

    def items(self) -> list[tuple[str, Breaker]]:
        with self._lock:
            return list(self._by_key.items())

    def adopt(self, rows: Iterable[BreakerRow]) -> list[tuple[str, Transition]]:
        """Take over state that another process or an operator wrote; returns what changed here."""
        changed: list[tuple[str, Transition]] = []
        with self._lock:
            for row in rows:
                known = self._rows.get(row.key)
                if known is not None and known[:5] == row[:5]:
                    continue
                self._rows[row.key] = row
                breaker = self._by_key.get(row.key)
                if breaker is None:
                    self._paths.clear()
                    breaker = self._by_key[row.key] = Breaker(DEFAULT_BREAKER)
                changed.extend((row.key, t) for t in breaker.adopt(row.state, row.epoch, row.until_ms, row.reason))
        return changed

"""The breakers of one gateway: one per tool, dependency and tenant, and the state that processes share (R9).

Shared rows come in two kinds. An operator's act (forced, reset) is one row under the breaker's own name and binds every
process. A trip is one row per process, ``name#owner``: it opens the breaker of another process only when ``quorum``
processes say so, because one bad node must not stop calls to a healthy dependency for all. When a process starts, any
live trip counts, so that a restart does not lose it. An operator's act overrides all earlier trips. Counters are never
shared.

The clocks of machines differ, so what counts is how long a row lasts. It is no older than the previous read of the
process, and new if the store pushed it. Only within these bounds, and when a process starts, clocks are compared.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable

from antiphon._gateway.owner import owner_token
from antiphon._gateway.tool import Tool
from antiphon.contract.spec import DEFAULT_BREAKER, BreakerPolicy
from antiphon.decide.breaker import CONFIGURED_REASON, RESET_REASON, Breaker, Transition
from antiphon.ports import BreakerRow, Clock

Path = tuple[Breaker, ...]


def breaker_key(hint: str, tool: Tool) -> str:
    """The breaker's name in the store, in logs and in the admin commands."""
    if hint == "global":
        return "global"
    if hint == "dependency" and tool.spec.dependency:
        return f"dependency/{tool.spec.dependency}"
    return f"tool/{tool.full_name}"


class Breakers:
    """A registry that remembers, for each tool and hint, which breakers a call must pass."""

    def __init__(self, clock: Clock, quorum: int, changed: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self.quorum: int = quorum
        self._changed = changed
        """Called when a path may have changed, for callers that cache one."""
        self._by_key: dict[str, Breaker] = {}
        self._paths: dict[tuple[str, str], Path] = {}
        self._seen: dict[str, BreakerRow] = {}
        self._ends: dict[str, tuple[BreakerRow, float]] = {}
        """When the known rows expire, on the monotonic clock."""
        self._last_adopted = -math.inf
        """When rows were last adopted, on the monotonic clock."""
        self._lock = threading.Lock()
        self.dirty: dict[str, Breaker] = {}
        """Breakers whose state changed here and has not been written yet."""

    def path(self, tool: Tool, hint: str) -> Path:
        """The breaker that counts this call, then the enclosing ones that exist."""
        found = self._paths.get((tool.full_name, hint))
        return found if found is not None else self._make_path(tool, hint)

    def _make_path(self, tool: Tool, hint: str) -> Path:
        own = breaker_key(hint, tool)
        wider = {"tool": ("dependency", "global"), "dependency": ("global",)}.get(hint, ())
        keys = [own, *(breaker_key(scope, tool) for scope in wider)]
        with self._lock:
            self._ensure(own, tool.breaker_policy if own.startswith("tool/") else DEFAULT_BREAKER)
            path = tuple(self._by_key[key] for key in dict.fromkeys(keys) if key in self._by_key)
            self._paths[(tool.full_name, hint)] = path
        return path

    def _ensure(self, key: str, policy: BreakerPolicy = DEFAULT_BREAKER) -> Breaker:
        breaker = self._by_key.get(key)
        if breaker is None:
            breaker = self._by_key[key] = Breaker(policy)
            self._forget_paths()
        elif policy is not DEFAULT_BREAKER and breaker.policy is DEFAULT_BREAKER:
            breaker = self._renew(key, breaker, policy)  # it was requested before the tool's first call
        return breaker

    def _renew(self, key: str, old: Breaker, policy: BreakerPolicy) -> Breaker:
        """Replace a breaker after a policy change. State set by time or an operator is kept; counters start at zero."""
        now = self._clock.monotonic()
        new = self._by_key[key] = Breaker(policy)
        self._forget_paths()
        state = old.export(now)
        if state.state not in ("CLOSED", new.state) and state.reason != CONFIGURED_REASON:
            new.adopt(state.state, state.epoch, state.remaining_ms, state.reason, now)
        new.epoch = max(new.epoch, state.epoch)
        return new

    def _forget_paths(self) -> None:
        self._paths.clear()
        self._changed()

    def replace(self, tool: Tool) -> None:
        """Apply the tool's new policy."""
        key = breaker_key("tool", tool)
        with self._lock:
            old = self._by_key.get(key)
            if old is not None:
                self.dirty[key] = self._renew(key, old, tool.breaker_policy)

    def name_of(self, breaker: Breaker) -> str:
        """The name of *breaker*; empty if another one has replaced it."""
        return next((key for key, known in self.items() if known is breaker), "")

    def get(self, key: str) -> Breaker:
        """The breaker of that name, created if needed (an operator may force one before its first call)."""
        with self._lock:
            return self._ensure(key)

    def items(self) -> list[tuple[str, Breaker]]:
        with self._lock:
            return list(self._by_key.items())

    # -- shared state --------------------------------------------------------------------------------------------

    def row(self, key: str, breaker: Breaker) -> BreakerRow:
        """The row that tells the other processes about a change made here."""
        wall, state = self._clock.now_ms(), breaker.export(self._clock.monotonic())
        operator = state.state == "FORCED_OPEN" or state.reason.startswith(RESET_REASON)
        name = key if operator else f"{key}#{owner_token()}"
        until = wall + state.remaining_ms if state.remaining_ms or not operator else 0
        row = BreakerRow(name, state.state, state.epoch, until, state.reason, wall, owner_token())
        self._seen[name] = row
        return row

    def adopt(self, rows: Iterable[BreakerRow], *, pushed: bool = False) -> list[tuple[str, Transition]]:
        """Adopt what other processes or an operator wrote; return what changed here.

        *pushed*: the store pushes every row at once, so one that was not seen before is new.
        """
        now = self._clock.monotonic()
        changed: list[tuple[str, Transition]] = []
        votes: dict[str, list[BreakerRow]] = {}
        with self._lock:
            quorum = 1 if self._last_adopted == -math.inf else self.quorum
            rows, oldest_ms = list(rows), 0 if pushed else (now - self._last_adopted) * 1000
            left = {row.key: self._left_ms(row, now, oldest_ms) for row in rows}
            self._last_adopted = now
            acts = {row.key: row.epoch for row in rows if not row.is_trip}
            for row in rows:
                key = row.name
                if row.is_trip:
                    others = row.tripped_by != owner_token()
                    live = row.state in ("OPEN", "HALF_OPEN") and left[row.key] > 0 and others
                    if live and row.epoch > acts.get(key, 0):  # trips before an operator's reset no longer count
                        votes.setdefault(key, []).append(row)
                elif self._seen.get(row.key) != row:
                    self._seen[row.key] = row
                    if row.state == "FORCED_OPEN" and row.until_ms and not left[row.key]:
                        continue
                    moves = self._ensure(key).adopt(row.state, row.epoch, left[row.key], row.reason, now)  # type: ignore[arg-type]
                    changed.extend((key, move) for move in moves)
            for key, trips in votes.items():
                if len({trip.tripped_by for trip in trips}) < quorum:
                    continue
                breaker = self._ensure(key)
                last = max(trips, key=lambda trip: left[trip.key])
                if breaker.state == "CLOSED" and self._seen.get(last.key) != last:
                    self._seen[last.key] = last
                    why = f"shared: {last.reason}"
                    moves = breaker.adopt("OPEN", breaker.epoch + 1, left[last.key], why, now)
                    changed.extend((key, move) for move in moves)
        return changed

    def _left_ms(self, row: BreakerRow, now: float, oldest_ms: float) -> float:
        """How long a row still lasts, at most *oldest_ms* old if it is new here; 0 if it has expired or has no end."""
        if not row.until_ms:
            return 0
        known = self._ends.get(row.key)
        if known is None or known[0] != row:
            age_ms = min(max(0, self._clock.now_ms() - row.updated_at_ms), oldest_ms)
            known = self._ends[row.key] = (row, now + (row.until_ms - row.updated_at_ms - age_ms) / 1000)
        return max(0.0, (known[1] - now) * 1000)

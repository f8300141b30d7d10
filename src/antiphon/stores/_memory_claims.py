"""Claims in a dictionary: every step of a call costs the same at 100 and at 25,000 keys.

The current node of each key stands in one ordered dictionary, least recently used first; earlier executions and aliases
stand in a second one. A node that must be kept goes to the end when it comes up for eviction. Only a sweep looks at
all nodes, and only when one of them can have expired.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

from antiphon.errors import StoreUnavailable
from antiphon.ports import Ask, Claimed, Existing, Final
from antiphon.stores._common import must_be_kept, next_version
from antiphon.stores._memory_node import Form, Node, new_node
from antiphon.stores._waiters import Waiters

_ROOM = 32
_new = tuple.__new__  # half the price of a named tuple's own constructor

QuickSteps = tuple[
    Callable[[str, str, Form, Any], int],
    Callable[[str, int, bytes, float], int | None],
    Callable[[str], bytes | None],
]


class ClaimTable:
    """The claim steps of a journal as plain functions of the time. The caller holds the lock."""

    __slots__ = (
        "_current",
        "_full_at",
        "_history",
        "_last",
        "_max",
        "_past",
        "_room",
        "_soonest",
        "_waiting",
        "waiters",
    )

    def __init__(self, max_keys: int) -> None:
        self._max = max_keys
        self._room = max_keys
        """How many current nodes there may be beside the past ones."""
        self._last = 0
        self._current: OrderedDict[str, Node] = OrderedDict()
        self._past: OrderedDict[int, Node] = OrderedDict()
        self._history: dict[str, dict[str, Node]] = {}
        """The past nodes by key and identity."""
        self._soonest: float = math.inf
        """Before this moment nothing expires."""
        self._full_at = -1
        """The last version given out when nothing could be evicted; a later one may have changed that."""
        self.waiters = Waiters()
        self._waiting = self.waiters.by_key

    def __len__(self) -> int:
        return len(self._current) + len(self._past)

    # -- for callers in this process -----------------------------------------------------------------------------------

    def quick_steps(self, lock: Lock, time_ns: Callable[[], int]) -> QuickSteps:
        """``claim_now``, ``succeed_now`` and ``done_now`` of a journal, each in one frame."""
        current, history, waiters, waiting = self._current, self._history, self.waiters, self._waiting

        def claim_now(key: str, identity: str, form: Form, material: Any) -> int:
            with lock:
                if key in current or key in history:
                    return 0
                now = time_ns() // 1_000_000
                if len(current) >= self._room:
                    self._make_room(now)
                version = now * 1000
                if version <= self._last:
                    version = self._last + 1
                self._last = version
                ttl_ms, lease_ms = form.ttl_ms, form.lease_ms
                expires = now + (ttl_ms if ttl_ms > lease_ms else lease_ms)
                if expires < self._soonest:
                    self._soonest = expires
                current[key] = new_node(key, identity, form, material, version, now, expires)
                return version

        def succeed_now(key: str, version: int, payload: bytes, took_ms: float) -> int | None:
            with lock:
                now = time_ns() // 1_000_000
                node = current.get(key)
                if node is None or node.version != version or (node.expires <= now and node.state != "inflight"):
                    return None
                version = now * 1000
                if version <= self._last:
                    version = self._last + 1
                self._last = node.version = version
                node.state = "done"
                node.kept = False
                node.answer = payload
                node.took_ms = took_ms
                node.updated = now
                node.final = node.record = None
                node.expires = expires = now + node.form.ttl_ms
                if expires < self._soonest:
                    self._soonest = expires
                current.move_to_end(key)
                if waiting:
                    waiters.wake(key)
                return version

        def done_now(key: str) -> bytes | None:
            with lock:
                node = current.get(key)
                if node is None or node.answer is None or node.expires <= time_ns() // 1_000_000:
                    return None
                current.move_to_end(key)
                return node.answer

        return claim_now, succeed_now, done_now

    # -- the steps of a journal --------------------------------------------------------------------------------------

    def begin(self, ask: Ask, now: int) -> Claimed | Existing:
        node = self._current.get(ask[0])
        if node is not None and (node.expires > now or node.state == "inflight"):
            return self._existing(node, ask[1], now)
        if self._history:
            own = self._earlier(ask.key, ask.identity, now)
            if own is not None:
                return self._existing(own, ask.identity, now)
        if node is not None:
            self._drop(node)
        return _new(Claimed, (self._insert(ask, now), now))

    def take(self, ask: Ask, version: int, now: int) -> Claimed | Existing:
        key, identity = ask.key, ask.identity
        node = self._living(key, now)
        own = node if node is not None and node.identity == identity else self._earlier(key, identity, now)
        live = node or own
        if live is not None and (live.version != version or (own is not None and own.state == "done")):
            return self._existing(live, identity, now)
        self._make_room(now)
        node = self._current.get(key)  # making room may have dropped it
        if node is not None:
            if node.expires > now and node.identity != identity:
                self._keep_as_history(node)
            else:
                self._drop(node)
        own = self._earlier(key, identity, 0)
        if own is not None:
            self._drop(own)
        self.waiters.wake(key)
        return _new(Claimed, (self._insert(ask, now), now))

    def settle(self, key: str, version: int, final: Final, now: int) -> int | None:
        node = self._current.get(key)
        if node is None or node.version != version or (node.expires <= now and node.state != "inflight"):
            return None
        self._last = node.version = next_version(self._last, now)
        node.final = final
        node.state = final.state
        node.answer = final.payload if final.state == "done" and not final.output_redacted else None
        node.kept = must_be_kept(final)
        node.record = None
        node.updated = now
        self._expire_at(node, now + final.ttl_ms)
        self._current.move_to_end(key)
        if self._waiting:
            self.waiters.wake(key)
        return node.version

    def alias(self, key: str, identity: str, version: int, now: int) -> bool:
        node = self._living(key, now)
        if node is not None and node.identity == identity:
            return node.version == version and node.state != "inflight"
        own = self._earlier(key, identity, now)
        if own is not None and (own.state == "done" or own.version == version):
            return own.version == version
        if node is None or node.version != version:
            node = next((past for past in self._history.get(key, {}).values() if past.version == version), None)
        if node is None or node.state == "inflight" or node.expires <= now:
            return False
        older = self._earlier(key, identity, 0)
        if older is not None:
            self._drop(older)
        self._make_room(now)
        self._last = next_version(self._last, now)
        node.to_record()
        self._remember(key, node.alias(identity, self._last))
        return True

    def renew(self, key: str, version: int, lease_ms: int, now: int) -> bool:
        node = self._current.get(key)
        if node is None or node.version != version or node.state != "inflight":
            return False
        node.renewed_until = now + lease_ms
        node.updated = now
        node.record = None
        self._expire_at(node, max(node.expires, node.lock_until))
        return True

    def read(self, key: str, identity: str, now: int) -> Existing | None:
        node = self._living(key, now) or self._earlier(key, identity, now)
        return None if node is None else self._existing(node, identity, now)

    def waiting_for(self, key: str, version: int) -> bool:
        """Whether *version* is still in flight."""
        node = self._current.get(key)
        return node is not None and node.version == version and node.state == "inflight"

    def clear(self, key: str) -> bool:
        node = self._current.get(key)
        past = tuple(self._history.get(key, {}).values())
        for forgotten in past:
            self._drop(forgotten)
        if node is not None:
            self._drop(node)
        return node is not None or bool(past)

    def nodes(self) -> tuple[Node, ...]:
        """The current nodes, as they were last used."""
        return tuple(self._current.values())

    def all_nodes(self) -> Iterator[Node]:
        """The current nodes and all earlier executions."""
        yield from self._current.values()
        yield from self._past.values()

    def sweep(self, limit: int, now: int) -> int:
        if now < self._soonest:
            return 0
        dropped, soonest = 0, math.inf
        for node in tuple(self.all_nodes()):
            if node.expires <= now and dropped < limit:
                if node.state != "inflight" or node.spared or self._current.get(node.key) is not node:
                    self._drop(node)
                    dropped += 1
                    continue
                node.expires = now + max(1, node.form.ttl_ms)
                node.record = None
            if node.expires < soonest:
                soonest = node.expires
        self._soonest = soonest
        return dropped

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _existing(self, node: Node, identity: str, now: int) -> Existing:
        record = node.record or node.to_record()
        self._touch(node)
        if node.identity == identity:
            return _new(Existing, (record, record, now))
        own = self._earlier(node.key, identity, now) if self._history else None
        if own is None:
            return Existing(record, None, now)
        self._touch(own)
        return Existing(record, own.to_record(), now)

    def _touch(self, node: Node) -> None:
        """Used just now: the last to be evicted."""
        if node.serial in self._past:
            self._past.move_to_end(node.serial)
        else:
            self._current.move_to_end(node.key)

    def _living(self, key: str, now: int) -> Node | None:
        """The current node, unless it is settled and has expired."""
        node = self._current.get(key)
        return node if node is not None and node.lives(now) else None

    def _earlier(self, key: str, identity: str, now: int) -> Node | None:
        past = self._history.get(key)
        node = None if past is None else past.get(identity)
        return node if node is not None and node.expires > now else None

    def _insert(self, ask: Ask, now: int) -> int:
        if len(self._current) >= self._room:
            self._make_room(now)
        self._last = version = next_version(self._last, now)
        expires = now + max(ask.ttl_ms, ask.lease_ms)
        node = new_node(ask.key, ask.identity, ask, None, version, now, expires)
        self._current[ask.key] = node
        self._expire_at(node, expires)
        return version

    def _expire_at(self, node: Node, expires: int) -> None:
        node.expires = expires
        if expires < self._soonest:
            self._soonest = expires

    def _make_room(self, now: int) -> None:
        """Evict what was used longest ago; refuse if all that is left must be kept (D3)."""
        size = len(self)
        if size < self._max or self._evict(min(_ROOM, max(1, self._max // 8))) or self.sweep(64, now):
            return
        raise StoreUnavailable(
            f"The memory store is full: {size} claims are in flight or of unknown outcome and must be kept.",
            hint="Settle or clear some of them, give MemoryStore more max_keys, or use SQLiteStore.",
            code="store_full",
        )

    def _evict(self, wanted: int) -> int:
        """A few at once: making room has its own cost. Returns how many."""
        if self._full_at == self._last:
            return 0
        evicted = self._evict_either(wanted) if self._past else self._evict_current(wanted)
        self._full_at = -1 if evicted else self._last
        return evicted

    def _evict_current(self, wanted: int) -> int:
        evicted, current = 0, self._current
        for _ in range(len(current)):
            key, node = current.popitem(last=False)
            if node.kept:
                current[key] = node
                continue
            evicted += 1  # nobody waits for it: it is settled
            if evicted == wanted:
                break
        return evicted

    def _evict_either(self, wanted: int) -> int:
        evicted = 0
        current, past = len(self._current), len(self._past)  # to look at, once each
        while evicted < wanted and (current or past):
            node = self._oldest(current, past)
            if node.serial in self._past:
                past -= 1
            else:
                current -= 1
            if node.kept:
                self._touch(node)
            else:
                self._drop(node)
                evicted += 1
        return evicted

    def _oldest(self, current: int, past: int) -> Node:
        """The node that was used longest ago; between a current and a past one, what changed longest ago."""
        used = next(iter(self._current.values())) if current else None
        before = next(iter(self._past.values())) if past else None
        if used is not None and (before is None or used.updated < before.updated):
            return used
        assert before is not None
        return before

    def _keep_as_history(self, node: Node) -> None:
        key = node.key
        older = self._earlier(key, node.identity, 0)
        if older is not None:
            self._drop(older)
        del self._current[key]
        self._remember(key, node)

    def _remember(self, key: str, node: Node) -> None:
        """Among the past ones."""
        self._history.setdefault(key, {})[node.identity] = node
        self._past[node.serial] = node
        self._room = self._max - len(self._past)
        if node.expires < self._soonest:
            self._soonest = node.expires

    def _drop(self, node: Node) -> None:
        key = node.key
        if self._current.get(key) is node:
            del self._current[key]
            if self._waiting:
                self.waiters.wake(key)
            return
        past = self._history[key]
        del past[node.identity]
        if not past:
            del self._history[key]
        del self._past[node.serial]
        self._room = self._max - len(self._past)

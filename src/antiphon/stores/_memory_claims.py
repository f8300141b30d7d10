"""Claims in a dictionary: every step costs the same at 100 and at 25,000 keys.

Three structures point at the same nodes: the current node of each key, an LRU of those that may be
evicted, and timer buckets of eight seconds for expiry. Nothing is ever scanned to find a victim.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush

import msgspec
from msgspec import UNSET, Raw

from antiphon.contract.record import DedupeRecord
from antiphon.errors import StoreUnavailable
from antiphon.ports import Ask, Claimed, Existing, Final
from antiphon.stores._common import NO_OUTCOME, must_be_kept, next_version, outcome_of
from antiphon.stores._waiters import Waiters

_BUCKET_SHIFT = 13  # 8.192 s
_ROOM = 32
_new = tuple.__new__  # half the price of a named tuple's own constructor


class Node(msgspec.Struct, gc=False, eq=False):
    """One execution of an intent; the record is built when somebody asks for it."""

    ask: Ask
    identity: str
    serial: int
    """Its place in the LRU and the timers; the fence, except for an alias."""
    version: int
    fence: int
    created: int
    updated: int
    lock_until: int
    expires: int
    final: Final | None = None
    kept: bool = True
    """In flight or unknown: never evicted."""
    record: DedupeRecord | None = None

    @property
    def state(self) -> str:
        return "inflight" if self.final is None else self.final.state

    def to_record(self) -> DedupeRecord:
        if self.record is None:
            self.record = self._build()
        return self.record

    def _build(self) -> DedupeRecord:
        ask, final = self.ask, self.final
        outcome = NO_OUTCOME if final is None else outcome_of(final)
        return DedupeRecord(
            key=ask.key,
            tool=ask.tool,
            idempotency_key=ask.idempotency_key,
            state=self.state,  # type: ignore[arg-type]
            created_at_ms=self.created,
            updated_at_ms=self.updated,
            expires_at_ms=self.expires,
            ttl_ms=ask.ttl_ms if final is None else final.ttl_ms,
            request=ask.request() if callable(ask.request) else ask.request,
            version=self.version,
            fence=self.fence,
            tenant=ask.tenant,
            workspace=ask.workspace,
            owner=ask.owner,
            dispatched=False if final is None else final.dispatched,
            execution=outcome.execution,
            payload=UNSET if final is None or final.payload is None else Raw(final.payload),
            payload_ref=outcome.payload_ref,
            payload_sealed=outcome.payload_sealed,
            output_redacted=outcome.output_redacted,
            error=outcome.error,
            lock_until_ms=self.lock_until if final is None else UNSET,
        )


class ClaimTable:
    """The claim steps of a journal as plain functions of the time. The caller holds the lock."""

    __slots__ = ("_current", "_due", "_history", "_last", "_lru", "_max", "_size", "_timers", "_waiting", "waiters")

    def __init__(self, max_keys: int) -> None:
        self._max = max_keys
        self._size = 0
        self._last = 0
        self._current: dict[str, Node] = {}
        self._history: dict[str, dict[str, Node]] = {}
        self._lru: OrderedDict[int, Node] = OrderedDict()
        self._timers: dict[int, dict[int, Node]] = {}
        self._due: list[int] = []
        self.waiters = Waiters()
        self._waiting = self.waiters.by_key

    def __len__(self) -> int:
        return self._size

    def begin(self, ask: Ask, now: int) -> Claimed | Existing:
        node = self._current.get(ask[0])
        if node is not None and node.expires > now:
            return self._existing(node, ask[1], now)
        if self._history:
            own = self._earlier(ask.key, ask.identity, now)
            if own is not None:
                return self._existing(own, ask.identity, now)
        if node is not None:
            self._drop(node)
        return _new(Claimed, (self._insert(ask, now), now))

    def insert(self, ask: Ask, now: int) -> int:
        """The version of a new claim, or 0 if anything is known of the key."""
        key = ask[0]
        if key in self._current or (self._history and key in self._history):
            return 0
        return self._insert(ask, now)

    def result(self, key: str, now: int) -> bytes | None:
        """The kept result of a live, successful record."""
        node = self._current.get(key)
        if node is None or node.expires <= now or node.final is None:
            return None
        final = node.final
        if final.state != "done" or final.payload is None or final.output_redacted:
            return None
        if not node.kept:
            self._lru.move_to_end(node.serial)
        return final.payload

    def take(self, ask: Ask, version: int, now: int) -> Claimed | Existing:
        key = ask.key
        node = self._current.get(key)
        own = self._earlier(key, ask.identity, now)
        live = node if node is not None and node.expires > now else own
        if live is not None and live.version != version:
            return self._existing(live, ask.identity, now)
        self._make_room(now)
        node = self._current.get(key)  # making room may have dropped it
        if node is not None:
            if node.expires > now and node.identity != ask.identity:
                self._keep_as_history(node)
            else:
                self._drop(node)
        own = self._earlier(key, ask.identity, 0)
        if own is not None:
            self._drop(own)
        self.waiters.wake(key)
        return _new(Claimed, (self._insert(ask, now), now))

    def settle(self, key: str, version: int, final: Final, now: int) -> int | None:
        node = self._current.get(key)
        if node is None or node.version != version or node.expires <= now:
            return None
        version = now * 1000
        if version <= self._last:
            version = self._last + 1
        self._last = node.version = version
        node.final = final
        node.record = None
        node.updated = now
        kept = must_be_kept(final)
        if kept is not node.kept:
            node.kept = kept
            if kept:
                del self._lru[node.serial]
            else:
                self._lru[node.serial] = node
        expires = now + final.ttl_ms
        if node.expires >> _BUCKET_SHIFT == expires >> _BUCKET_SHIFT:
            node.expires = expires
        else:
            self._expire_at(node, expires)
        if self._waiting:
            self.waiters.wake(key)
        return version

    def alias(self, key: str, identity: str, version: int, now: int) -> None:
        node = self._current.get(key)
        if node is not None and node.identity == identity and node.expires > now:
            return
        if node is None or node.version != version:
            node = next((past for past in self._history.get(key, {}).values() if past.version == version), None)
        if node is None or node.final is None or node.identity == identity or node.expires <= now:
            return
        older = self._earlier(key, identity, 0)
        if older is not None:
            self._drop(older)
        self._make_room(now)
        self._last = next_version(self._last, now)
        node.to_record()
        copy = msgspec.structs.replace(node, identity=identity, serial=self._last)
        self._history.setdefault(key, {})[identity] = copy
        self._size += 1
        if not copy.kept:
            self._lru[copy.serial] = copy
        self._timers[copy.expires >> _BUCKET_SHIFT][copy.serial] = copy

    def renew(self, key: str, version: int, lease_ms: int, now: int) -> bool:
        node = self._current.get(key)
        if node is None or node.version != version or node.final is not None or node.expires <= now:
            return False
        node.lock_until = now + lease_ms
        node.updated = now
        node.record = None
        self._expire_at(node, max(node.expires, node.lock_until))
        return True

    def read(self, key: str, identity: str, now: int) -> Existing | None:
        node = self._current.get(key)
        if node is None or node.expires <= now:
            node = self._earlier(key, identity, now)
        return None if node is None else self._existing(node, identity, now)

    def waiting_for(self, key: str, version: int) -> bool:
        """Whether *version* is still in flight."""
        node = self._current.get(key)
        return node is not None and node.version == version and node.final is None

    def clear(self, key: str) -> bool:
        node = self._current.get(key)
        past = tuple(self._history.get(key, {}).values())
        for forgotten in past:
            self._drop(forgotten)
        if node is not None:
            self._drop(node)
        return node is not None or bool(past)

    def nodes(self) -> tuple[Node, ...]:
        """The current nodes, oldest claim first."""
        return tuple(self._current.values())

    def all_nodes(self) -> Iterator[Node]:
        """The current nodes and all earlier executions."""
        yield from self._current.values()
        for past in self._history.values():
            yield from past.values()

    def sweep(self, limit: int, now: int) -> int:
        dropped = 0
        for node in self._expired(now):
            self._drop(node)
            dropped += 1
            if dropped >= limit:
                break
        return dropped

    def _existing(self, node: Node, identity: str, now: int) -> Existing:
        record = node.record or node.to_record()
        if not node.kept:
            self._lru.move_to_end(node.serial)
        if node.identity == identity:
            return _new(Existing, (record, record, now))
        own = self._earlier(node.ask.key, identity, now) if self._history else None
        if own is None:
            return Existing(record, None, now)
        if not own.kept:
            self._lru.move_to_end(own.serial)
        return Existing(record, own.to_record(), now)

    def _earlier(self, key: str, identity: str, now: int) -> Node | None:
        past = self._history.get(key)
        node = None if past is None else past.get(identity)
        return node if node is not None and node.expires > now else None

    def _insert(self, ask: Ask, now: int) -> int:
        if self._size >= self._max:
            self._make_room(now)
        version = now * 1000
        if version <= self._last:
            version = self._last + 1
        self._last = version
        lease_ms = ask[6]
        expires = now + max(ask[5], lease_ms)
        node = Node(ask, ask[1], version, version, version, now, now, now + lease_ms, expires)
        self._current[ask[0]] = node
        self._size += 1
        try:
            self._timers[expires >> _BUCKET_SHIFT][version] = node
        except KeyError:
            self._start_bucket(expires >> _BUCKET_SHIFT)[version] = node
        return version

    def _start_bucket(self, bucket: int) -> dict[int, Node]:
        members = self._timers[bucket] = {}
        heappush(self._due, bucket)
        return members

    def _expire_at(self, node: Node, expires: int) -> None:
        before, after = node.expires >> _BUCKET_SHIFT, expires >> _BUCKET_SHIFT
        node.expires = expires
        if before == after:
            return
        del self._timers[before][node.serial]
        members = self._timers.get(after)
        if members is None:
            members = self._start_bucket(after)
        members[node.serial] = node

    def _expired(self, now: int) -> Iterator[Node]:
        bucket_now = now >> _BUCKET_SHIFT
        while self._due and self._due[0] <= bucket_now:
            bucket = self._due[0]
            for node in tuple(self._timers[bucket].values()):
                if node.expires <= now:
                    yield node
            if self._timers[bucket]:  # later in this same bucket
                return
            del self._timers[bucket]
            heappop(self._due)

    def _make_room(self, now: int) -> None:
        """Evict what was used longest ago; refuse if all that is left must be kept (D3)."""
        if self._size < self._max:
            return
        lru = self._lru
        if lru:
            for _ in range(min(_ROOM, len(lru), max(1, self._max // 8))):  # a few at once: making room has its own cost
                self._unlink(lru.popitem(last=False)[1])
        elif not self.sweep(64, now):
            raise StoreUnavailable(
                f"The memory store is full: {self._size} claims are in flight or of unknown outcome and must be kept.",
                hint="Settle or clear some of them, give MemoryStore more max_keys, or use SQLiteStore.",
                code="store_full",
            )

    def _keep_as_history(self, node: Node) -> None:
        key = node.ask.key
        older = self._earlier(key, node.identity, 0)
        if older is not None:
            self._drop(older)
        del self._current[key]
        self._history.setdefault(key, {})[node.identity] = node

    def _drop(self, node: Node) -> None:
        if not node.kept:
            del self._lru[node.serial]
        self._unlink(node)

    def _unlink(self, node: Node) -> None:
        key = node.ask[0]
        if self._current.get(key) is node:
            del self._current[key]
            if self._waiting:
                self.waiters.wake(key)
        else:
            past = self._history[key]
            del past[node.identity]
            if not past:
                del self._history[key]
        self._size -= 1
        del self._timers[node.expires >> _BUCKET_SHIFT][node.serial]

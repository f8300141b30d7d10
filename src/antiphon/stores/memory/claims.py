"""Claims in a dictionary: every step of a call costs the same with 100 and with 25,000 keys.

All nodes are in one ordered dictionary, least recently used first. A node that must be kept is moved to the end when it
comes up for eviction. Only a sweep looks at all nodes, and only when one of them can have expired.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Sequence

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.contract.record import RECORD_VERSION, DedupeRecord
from antiphon.errors import StoreUnavailable
from antiphon.ports import (
    Begun,
    Claimed,
    ClaimRequest,
    ClaimTemplate,
    Clock,
    Existing,
    Pinned,
    Row,
    Settlement,
    StaticClaimRequest,
    Success,
)
from antiphon.stores._common import (
    digests_of,
    inflight_outcome,
    must_be_kept,
    next_version,
    outcome_of,
    owner_of,
    record_of,
    recorded_request,
)
from antiphon.stores._waiters import ThreadWaiter, Waiter, Waiters
from antiphon.stores.memory.log import MemoryLog

log: logging.Logger = logging.getLogger("antiphon.stores")

_ROOM = 32
_KEPT_BYTES = 2048
"""Longer parameters are kept as their digests, so that claims stay small."""
_new = tuple.__new__  # half the cost of a named tuple's own constructor


class Node(Struct, gc=False, eq=False):
    """One execution of an intent: the values of its request as given; the record is built when somebody reads it.

    It is part of no reference cycle, and the garbage collector never looks at it: that matters with thousands of them.
    """

    key: str
    template: ClaimTemplate
    identity: str
    idempotency_key: str
    params: bytes | tuple[str, str]
    request_id: str
    token: str
    call_id: str | None
    shown: str
    found_by: str
    """The identity that finds it: the requesting one, except for an alias."""
    serial: int
    """Its position among all nodes; the fence, except for an alias."""
    fence: int
    version: int
    created: int
    updated: int
    expires: int
    renewed_until: int = 0
    """End of the lease, if that differs from the original one."""
    state: str = "inflight"
    settlement: Settlement | None = None
    """How it ended, except for a plain success, of which only the differing values are kept."""
    payload: bytes | None = None
    """The result of a plain success; only then are its times kept, too."""
    began: int = 0
    ended: int = 0
    record: DedupeRecord | None = None

    @property
    def lock_until(self) -> int:
        return self.renewed_until or self.created + self.template.lease_ms

    @property
    def kept(self) -> bool:
        """In flight or unknown: never evicted."""
        if self.settlement is None or self.payload is not None:
            return self.state == "inflight"
        return must_be_kept(self.settlement)

    @property
    def is_unknown(self) -> bool:
        """Nobody knows its outcome."""
        return self.state != "done" and self.settlement is not None and must_be_kept(self.settlement)

    def lives(self, now: int) -> bool:
        """Whether it still counts; one in flight always does."""
        return self.expires > now or self.state == "inflight"

    @property
    def had_grace_period(self) -> bool:
        """In flight, and a sweep has already seen it past its life: only then does it expire, that late."""
        return self.expires > max(self.created + self.template.ttl_ms, self.lock_until)

    def to_record(self) -> DedupeRecord:
        if self.record is None:
            self.record = self._build()
        return self.record

    def _settled(self) -> Settlement | None:
        if self.payload is None:
            return self.settlement
        attempts = ((self.began, self.ended, "", False),)
        return Success("done", self.expires - self.updated, self.payload, attempts=attempts, attempt_count=1)

    def _build(self) -> DedupeRecord:
        template, settlement = self.template, self._settled()
        ids = (self.request_id, self.token, self.call_id)
        request = StaticClaimRequest(self.key, self.identity, template, self.idempotency_key, self.params, *ids)
        times = (self.created, self.updated, self.expires, template.ttl_ms if settlement is None else settlement.ttl_ms)
        held = (self.version, self.fence, template.tenant, template.workspace, owner_of(request))
        known = (self.key, template.tool, self.idempotency_key, self.state, *times, recorded_request(request), *held)
        if settlement is None:
            return record_of((*known, False), inflight_outcome(self.shown), None, self.lock_until, RECORD_VERSION)
        outcome = outcome_of(settlement)
        return record_of((*known, settlement.dispatched), outcome, settlement.payload, UNSET, RECORD_VERSION)


class MemoryClaims(MemoryLog):
    """The claim steps of a journal: its public methods take the lock, the others require it to be held.

    ``begin`` and ``settle`` are each written as a single function: every call pays for them.
    """

    def __init__(self, max_keys: int, max_events: int, clock: Clock) -> None:
        super().__init__(max_events)
        self._max = max_keys
        self._last = 0
        self._nodes: OrderedDict[int, Node] = OrderedDict()
        """By serial number, least recently used first."""
        self._current: dict[str, Node] = {}
        self._history: dict[str, dict[str, Node]] = {}
        """Earlier executions and aliases by key and identity."""
        self._unknown: set[int] = set()
        """Serial numbers of nodes of unknown outcome, which only an operator or ``reconcile`` ends."""
        self._warned = False
        self._pins: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """Mark and expiry by call, oldest first."""
        self._soonest: float = math.inf
        """Nothing expires before this time."""
        self._full_at = -1
        """The last version issued when nothing could be evicted; a later one may have changed that."""
        self._time_ns = time.time_ns if type(clock) is Clock else lambda: clock.now_ms() * 1_000_000
        self.waiters: Waiters = Waiters()
        self._waiting = self.waiters.by_key

    # -- the steps ---------------------------------------------------------------------------------------------------

    def begin(self, request: ClaimRequest, events: Sequence[Row] = (), replaces: int = 0) -> Begun:
        """Insert a claim, or return what is there; *replaces* is the version that may be replaced."""
        key, identity, params = request.key, request.identity, request.params
        if len(params) > _KEPT_BYTES:
            params = digests_of(params)
        with self.lock:
            time_ns, current, nodes, last = self._time_ns, self._current, self._nodes, self._last
            now = time_ns() // 1_000_000
            pin = request.pin
            if pin is not None and not replaces and (mark := self._mark(*pin, request.template, now)) != pin[1]:
                return Pinned(mark)
            if key in current or key in self._history:
                found = self._displace(key, identity, replaces, now) if replaces else self._live(key, identity, now)
                if found is not None:
                    return found
            if len(nodes) >= self._max:
                self._make_room(now)
            version = now * 1000
            if version <= last:
                version = last + 1
            self._last = version
            template = request.template
            expires = now + template.lives_ms
            if expires < self._soonest:
                self._soonest = expires
            node = Node(
                key,
                template,
                identity,
                request.idempotency_key,
                params,
                request.request_id,
                request.token,
                request.call_id,
                request.shown,
                identity,
                version,
                version,
                version,
                now,
                now,
                expires,
            )
            current[key] = nodes[version] = node
            if events:
                self._write(events)
            return _new(Claimed, (version, now))

    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        with self.lock:
            time_ns, current, last = self._time_ns, self._current, self._last
            now = time_ns() // 1_000_000
            node = current.get(key)
            if node is None or node.version != version or (node.expires <= now and node.state != "inflight"):
                if events:
                    self._write(events)
                return self._settle_earlier(key, version, settlement, now)
            version = now * 1000
            if version <= last:
                version = last + 1
            self._last = version
            node.state, ttl_ms = settlement[0], settlement[1]
            if type(settlement) is Success:
                node.payload = settlement[2]
                ((node.began, node.ended, _, _),) = settlement[7]
                if self._unknown:
                    self._unknown.discard(node.serial)
            else:
                node.payload, node.settlement = None, settlement
                self._count_unknown(node.serial, settlement)
            if node.record is not None:
                node.record = None
            node.updated = now
            node.expires = expires = now + ttl_ms
            if expires < self._soonest:
                self._soonest = expires
            self._nodes.move_to_end(node.serial)
            if self._waiting:
                self.waiters.wake(key)
            if events:
                self._write(events)
            node.version = version  # last: a caller interrupted before this can settle again
            return version

    def _settle_earlier(self, key: str, version: int, settlement: Settlement, now: int) -> int | None:
        """The same for an execution of unknown outcome that others have followed, and for all who share it."""
        past = [node for node in self._history.get(key, {}).values() if node.version == version and node.expires > now]
        if not past or not past[0].is_unknown:
            return None
        self._last = next_version(self._last, now)
        for node in past:
            node.state, node.settlement, node.payload = settlement.state, settlement, None
            node.version, node.updated, node.record = self._last, now, None
            self._count_unknown(node.serial, settlement)
        return self._last

    def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Begun:
        return MemoryClaims.begin(self, request, events, version)

    def alias(self, key: str, identity: str, version: int) -> bool:
        with self.lock:
            now = self._now()
            node = self._living(key, now)
            if node is not None and node.found_by == identity:
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
            self._remember(key, replace(node, found_by=identity, serial=self._last))
            return True

    def renew(self, key: str, version: int, lease_ms: int) -> bool:
        with self.lock:
            now = self._now()
            node = self._current.get(key)
            if node is None or node.version != version or node.state != "inflight":
                return False
            node.renewed_until = now + lease_ms
            node.updated = now
            node.record = None
            node.expires = max(node.expires, node.lock_until)
            return True

    def read(self, key: str, identity: str = "") -> Existing | None:
        with self.lock:
            if key not in self._current and key not in self._history:
                return None
            now = self._now()
            node = self._living(key, now) or self._earlier(key, identity, now)
            return None if node is None else self._existing(node, identity, now)

    def wait(self, key: str, version: int, timeout_s: float) -> None:
        waiter = ThreadWaiter()
        if self.add_waiter(key, version, waiter):
            try:
                waiter.block(timeout_s)
            finally:
                self.remove_waiter(key, version, waiter)

    def add_waiter(self, key: str, version: int, waiter: Waiter) -> bool:
        """Wake *waiter* when *version* is no longer in flight; return whether it is in flight now."""
        with self.lock:
            node = self._current.get(key)
            if node is None or node.version != version or node.state != "inflight":
                return False
            self.waiters.add(key, version, waiter)
            return True

    def remove_waiter(self, key: str, version: int, waiter: Waiter) -> None:
        with self.lock:
            self.waiters.discard(key, version, waiter)

    def clear(self, key: str, version: int | None = None) -> bool:
        with self.lock:
            node = self._current.get(key)
            return version in (None, node and node.version) and self._clear(key)

    def forgotten(self, request: ClaimRequest, version: int) -> bool:
        """Memory loses no records by itself."""
        return True

    def sweep(self, limit: int = 1000) -> int:
        with self.lock:
            return self._sweep(limit, self._now())

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _mark(self, call: str, mark: int, template: ClaimTemplate, now: int) -> int:
        """The mark of a call; *mark* if it had none."""
        pins = self._pins
        kept, expires = pins.get(call, (mark, 0))
        if expires > now:
            return kept
        pins.pop(call, None)
        pins[call] = (mark, now + template.ttl_ms)
        if len(pins) > self._max:
            pins.popitem(last=False)
        return mark

    def _now(self) -> int:
        return self._time_ns() // 1_000_000

    def _live(self, key: str, identity: str, now: int) -> Existing | None:
        """What is there for this key and identity, if anything lives; a current node that has expired is dropped."""
        node = self._current.get(key)
        if node is not None and (node.expires > now or node.state == "inflight"):
            return self._existing(node, identity, now)
        own = self._earlier(key, identity, now)
        if own is not None:
            return self._existing(own, identity, now)
        if node is not None:
            self._drop(node)
        return None

    def _existing(self, node: Node, identity: str, now: int) -> Existing:
        record = node.record or node.to_record()
        self._nodes.move_to_end(node.serial)
        if node.found_by == identity:
            return _new(Existing, (record, record, now))
        own = self._earlier(node.key, identity, now) if self._history else None
        if own is None:
            return _new(Existing, (record, None, now))
        self._nodes.move_to_end(own.serial)
        return Existing(record, own.to_record(), now)

    def _living(self, key: str, now: int) -> Node | None:
        """The current node, unless it is settled and has expired."""
        node = self._current.get(key)
        return node if node is not None and node.lives(now) else None

    def _earlier(self, key: str, identity: str, now: int) -> Node | None:
        past = self._history.get(key)
        node = None if past is None else past.get(identity)
        return node if node is not None and node.expires > now else None

    def _displace(self, key: str, identity: str, version: int, now: int) -> Existing | None:
        """Make way for a claim in place of *version*; return what is there if that is something else."""
        node = self._living(key, now)
        own = node if node is not None and node.found_by == identity else self._earlier(key, identity, now)
        live = node or own
        if live is not None and (live.version != version or (own is not None and own.state == "done")):
            return self._existing(live, identity, now)
        self._make_room(now)
        node = self._current.get(key)  # making room may have dropped it
        if node is not None:
            if node.expires > now and node.found_by != identity:
                self._keep_as_history(node)
            else:
                self._drop(node)
        own = self._earlier(key, identity, 0)
        if own is not None:
            self._drop(own)
        self.waiters.wake(key)
        return None

    def _make_room(self, now: int) -> None:
        """Evict the least recently used; refuse if everything left must be kept (D3)."""
        size = len(self._nodes)
        if size < self._max or self._evict(min(_ROOM, max(1, self._max // 8))) or self._sweep(64, now):
            return
        raise StoreUnavailable(
            f"The memory store is full: {size} claims are in flight or unknown ({len(self._unknown)}) and cannot be "
            "evicted.",
            hint="Settle or clear some of them, give MemoryStore more max_keys, or use SQLiteStore.",
            code="store_full",
        )

    def _count_unknown(self, serial: int, settlement: Settlement) -> None:
        """Count an outcome that became unknown or known; warn when unknown ones fill half of the store."""
        if settlement.state == "done" or not must_be_kept(settlement):
            self._unknown.discard(serial)
            return
        self._unknown.add(serial)
        if len(self._unknown) * 2 < self._max:
            self._warned = False
        elif not self._warned:
            self._warned = True
            log.warning(
                "%d outcomes in the memory store are unknown; at %d it refuses new calls. Declare reconcile "
                "functions, or use a store that operators can reach (SQLiteStore) and antiphon claims resolve.",
                len(self._unknown),
                self._max,
            )

    def _evict(self, wanted: int) -> int:
        """Evict a few at once, because making room has its own cost. Returns how many."""
        if self._full_at == self._last:
            return 0
        evicted, nodes, current = 0, self._nodes, self._current
        for _ in range(len(nodes)):
            serial, node = nodes.popitem(last=False)
            if node.kept:
                nodes[serial] = node
                continue
            if current.get(node.key) is node:
                del current[node.key]  # nobody waits for it: it is settled
            else:
                self._drop(node)
            evicted += 1
            if evicted == wanted:
                break
        self._full_at = -1 if evicted else self._last
        return evicted

    def _keep_as_history(self, node: Node) -> None:
        key = node.key
        older = self._earlier(key, node.found_by, 0)
        if older is not None:
            self._drop(older)
        del self._current[key]
        self._remember(key, node)

    def _remember(self, key: str, node: Node) -> None:
        """Keep the node among the earlier executions."""
        self._history.setdefault(key, {})[node.found_by] = node
        self._nodes[node.serial] = node
        if node.expires < self._soonest:
            self._soonest = node.expires

    def _drop(self, node: Node) -> None:
        key = node.key
        past = self._history.get(key, {})
        if self._current.get(key) is node:
            del self._current[key]
            if self._waiting:
                self.waiters.wake(key)
        elif past.get(node.found_by) is node:
            del past[node.found_by]
            if not past:
                del self._history[key]
        self._unknown.discard(node.serial)
        self._nodes.pop(node.serial, None)  # last: an interrupt before it leaves what can be dropped again

    def _clear(self, key: str) -> bool:
        node = self._current.get(key)
        past = tuple(self._history.get(key, {}).values())
        for forgotten in past:
            self._drop(forgotten)
        if node is not None:
            self._drop(node)
        return node is not None or bool(past)

    def _sweep(self, limit: int, now: int) -> int:
        if now < self._soonest:
            return 0
        dropped, soonest = 0, math.inf
        for node in tuple(self._nodes.values()):
            if node.expires <= now and dropped < limit:
                if node.state != "inflight" or node.had_grace_period or self._current.get(node.key) is not node:
                    self._drop(node)
                    dropped += 1
                    continue
                node.expires = now + max(1, node.template.ttl_ms)
                node.record = None
            if node.expires < soonest:
                soonest = node.expires
        self._soonest = soonest
        return dropped

"""The synchronous journal of the Redis store: blocking connections, no thread hop per call."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon._drive import drive
from antiphon.ports import Claimed, ClaimRequest, Existing, Row, Settlement
from antiphon.stores._adapters import SyncFromAsync
from antiphon.stores._redis_journal import Options, RedisJournal
from antiphon.stores._redis_keys import Names
from antiphon.stores._redis_pool import Pool, dialer
from antiphon.stores._redis_push_thread import ThreadHub
from antiphon.stores._redis_reads import ThreadReads
from antiphon.stores._redis_url import Address, Target
from antiphon.stores._redis_wire import Node


class SyncRedisJournal(SyncFromAsync):
    """A journal for threads. A new claim and a settlement without events are sent without a coroutine."""

    def __init__(self, target: Target, names: Names, options: Options) -> None:
        self._blocking = BlockingJournal(target, names, options)
        super().__init__(self._blocking)
        self._send = self._blocking.direct_send()

    def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Claimed | Existing:
        if events or self._send is None:
            return drive(self._blocking.begin(request, events))
        return self._blocking.steps.claim_blocking(request, self._send)

    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        if events or self._send is None:
            return drive(self._blocking.settle(key, version, settlement, events))
        return self._blocking.steps.settle_blocking(key, version, settlement, self._send)

    def usage(self, tenant: str) -> Mapping[str, float]:
        """How many records a tenant has and what one costs the server (for ``doctor``)."""
        return drive(self._blocking.usage(tenant))


class BlockingJournal(RedisJournal):
    """Coroutines that never suspend, on blocking connections; a thread listens once somebody waits."""

    def __init__(self, target: Target, names: Names, options: Options) -> None:
        def make(address: Address | None) -> Node:
            return Pool(target, dialer(target, address), options.patience_s)

        super().__init__(target, names, options, make)
        self._listen()
        _open.add(self)

    def _listen(self) -> None:
        self._reads = ThreadReads(self.steps.read)
        self._hub = ThreadHub(
            dialer(self._target),
            lambda key, version: drive(self.steps.flag(key, version)),
            lambda key: self._names.shard(key).channel,
        )

    def direct_send(self) -> Callable[..., Any] | None:
        """How to send a command to the only server and block for its answer; ``None`` for a Cluster."""
        node = self._link.only_node()
        return node.ask if isinstance(node, Pool) else None

    def _reload_with(self, reload: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: drive(reload())

    def after_fork(self) -> None:
        """In the child: leave the parent's connections alone, and have threads and locks of our own."""
        self.steps.new_nonces()
        for node in self._link.nodes():
            assert isinstance(node, Pool)
            node.forget()
        self._listen()


_open: weakref.WeakSet[BlockingJournal] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for journal in tuple(_open):
        journal.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)

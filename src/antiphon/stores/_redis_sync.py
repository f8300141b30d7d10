"""The synchronous face of the Redis store: blocking connections, no thread hop per call."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from antiphon._drive import drive
from antiphon.ports import Ask, Claimed, Existing, Final, Row
from antiphon.stores._redis_journal import Options, RedisJournal
from antiphon.stores._redis_keys import Names
from antiphon.stores._redis_pool import Pool, dialer
from antiphon.stores._redis_push_thread import ThreadHub
from antiphon.stores._redis_reads import ThreadReads
from antiphon.stores._redis_url import Address, Target
from antiphon.stores._redis_wire import Node


class SyncJournal(RedisJournal):
    """The synchronous face: blocking connections, and a thread that listens once somebody waits."""

    def __init__(self, target: Target, names: Names, options: Options) -> None:
        def make(address: Address | None) -> Node:
            return Pool(target, dialer(target, address), options.patience_s)

        super().__init__(target, names, options, make)
        only = self._link.only_node()
        self._ask = only.ask if isinstance(only, Pool) else None
        self._listen()
        _open.add(self)

    def _listen(self) -> None:
        self._reads = ThreadReads(self._steps.read)
        self._hub = ThreadHub(
            dialer(self._target),
            lambda key, version: drive(self._steps.flag(key, version)),
            lambda key: self._names.shard(key).channel,
        )

    def begin_now(self, ask: Ask, events: Sequence[Row] = ()) -> Claimed | Existing:
        """:meth:`begin` for who blocks anyway: without a coroutine, where there is nothing but a claim to write."""
        if events or self._ask is None:
            return drive(self.begin(ask, events))
        return self._steps.claim_now(ask, self._ask)

    def settle_now(self, key: str, version: int, final: Final, events: Sequence[Row] = ()) -> int | None:
        """:meth:`settle`, in the same way."""
        if events or self._ask is None:
            return drive(self.settle(key, version, final, events))
        return self._steps.settle_now(key, version, final, self._ask)

    def _reload_with(self, reload: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: drive(reload())

    def after_fork(self) -> None:
        """In the child: leave the parent's connections alone, and have threads and locks of our own."""
        self._steps.new_nonces()
        for node in self._link.nodes():
            assert isinstance(node, Pool)
            node.forget()
        self._listen()


_open: weakref.WeakSet[SyncJournal] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for journal in tuple(_open):
        journal.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)

"""A Redis server for the synchronous journal: blocking connections, one per thread that is inside a call."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.errors import StoreUnavailable
from antiphon.stores._redis_url import Address, Target
from antiphon.stores._redis_wire import Wire, ask_sentinels, unreachable

if TYPE_CHECKING:
    from antiphon.stores._redis_wire import Orphan

_BATCH = 256
_MOST_IDLE = 64
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.25

Dial = Callable[[], Wire]


def dialer(target: Target, address: Address | None = None) -> Dial:
    """How to connect: to *address*, to the first of the target's that answers, or to what Sentinel names."""
    if address is not None:
        return lambda: Wire(target, address)
    if target.mode == "sentinel":
        return lambda: Wire(target, ask_sentinels(target))
    return lambda: _first(target)


def _first(target: Target) -> Wire:
    failure: OSError | None = None
    for address in target.addresses:
        try:
            return Wire(target, address)
        except OSError as error:
            failure = error
    raise failure or OSError("no address")


class Pool:
    """Idle connections in a deque: taking one and putting it back are atomic, so no lock is needed."""

    __slots__ = ("_closed", "_dial", "_idle", "_patience_s", "_target")

    def __init__(self, target: Target, dial: Dial, patience_s: float) -> None:
        self._target = target
        self._dial = dial
        self._patience_s = patience_s
        self._idle: deque[Wire] = deque()
        self._closed = False

    async def call(self, data: bytes, again: bytes = b"", orphan: Orphan | None = None, patience_s: float = 0.0) -> Any:
        return self.ask(data, again, patience_s)

    def ask(self, data: bytes, again: bytes = b"", patience_s: float = 0.0) -> Any:
        """The answer to one command."""
        try:
            wire = self._idle.pop()
        except IndexError:
            return self._ask_new(data, again or data, patience_s)
        try:
            reply = wire.ask(data)
        except OSError:
            wire.close()
            self._drop_idle()  # what broke one connection has most likely broken all of them
            return self._ask_new(again or data, again or data, patience_s)
        except BaseException:
            wire.close()  # interrupted between question and answer: the next user would get the wrong reply
            raise
        if self._closed or len(self._idle) >= _MOST_IDLE:
            wire.close()
        else:
            self._idle.append(wire)
        return reply

    def _ask_new(self, data: bytes, again: bytes, patience_s: float) -> Any:
        return self._retry(lambda wire, first: wire.ask(data if first else again), patience_s)

    async def many(self, datas: Sequence[bytes], *, orphan: Orphan | None = None) -> list[Any]:
        replies: list[Any] = []
        for start in range(0, len(datas), _BATCH):
            replies += self._batch(datas[start : start + _BATCH])
        return replies

    def _batch(self, datas: Sequence[bytes]) -> Any:
        text = b"".join(datas)
        return self._retry(lambda wire, first: wire.ask_many(text, len(datas)), 0.0)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def reset(self) -> None:
        self._drop_idle()

    async def close(self) -> None:
        self._closed = True
        self._drop_idle()

    def forget(self) -> None:
        """After a fork: the connections belong to the parent."""
        self._idle = deque()

    def _retry(self, ask: Callable[[Wire, bool], Any], patience_s: float) -> Any:
        """Ask, and connect anew until the patience ends. Every command of this store may be repeated."""
        until = time.monotonic() + max(patience_s, self._patience_s)
        pause = _FIRST_PAUSE_S
        first = True
        while True:
            if self._closed:
                raise StoreUnavailable("The store was closed.", hint="Open it again.")
            wire: Wire | None = None
            try:
                wire = self._idle.pop() if self._idle else self._dial()
                reply = ask(wire, first)
            except (OSError, IndexError) as error:
                first = first and wire is None
                if wire is not None:
                    wire.close()
                    self._drop_idle()
                if time.monotonic() + pause > until:
                    raise unreachable(self._target, error) from None
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, _LONGEST_PAUSE_S)
            except BaseException:
                if wire is not None:
                    wire.close()
                raise
            else:
                self._put(wire)
                return reply

    def _put(self, wire: Wire) -> None:
        if self._closed or len(self._idle) >= _MOST_IDLE:
            wire.close()
        else:
            self._idle.append(wire)

    def _drop_idle(self) -> None:
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

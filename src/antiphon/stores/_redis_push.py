"""Being told of changes: one subscriber per process (or event loop) for all who wait there.

Who waits for a claim subscribes to the channel of its shard, then flags the record, and only then waits: a
change before the flag is seen by the flag itself, a change after it is published. When the subscriber had to
connect anew, every flag is set again, which also is the look at what was missed. Nothing polls.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from antiphon.stores._redis_wire import pack

LINGER_S = 10.0
"""How long a channel stays subscribed after the last one who waited: the next one often comes soon."""

WatchKey = tuple[str, int]
"""Key and version of the claim that is waited for."""


class Hub(Protocol):
    """What the journal asks of a subscriber."""

    def wait(self, key: str, version: int, timeout_s: float) -> Awaitable[None]: ...

    def listen(self, name: str, on_message: Callable[[bytes], None], reload: Callable[[], Any]) -> Callable[[], None]:
        """Call *on_message* for each message, and *reload* whenever messages may have been missed."""
        ...

    def close(self) -> Awaitable[None]: ...


class Listener:
    """Somebody who wants every message of a channel."""

    __slots__ = ("on_message", "reload")

    def __init__(self, on_message: Callable[[bytes], None], reload: Callable[[], Any]) -> None:
        self.on_message = on_message
        self.reload = reload


class Channel:
    """A channel with local users. ``ready`` is what its first user waits for: the server's confirmation."""

    __slots__ = ("idle_since", "listeners", "name", "of_claims", "ready", "users")

    def __init__(self, name: str, ready: Any, *, of_claims: bool) -> None:
        self.name = name
        self.ready = ready
        self.of_claims = of_claims
        self.users = 0
        self.idle_since = 0.0
        self.listeners: set[Listener] = set()


class Channels:
    """Which channels are subscribed. A hub guards it."""

    __slots__ = ("_by_name", "_new_ready")

    def __init__(self, new_ready: Callable[[], Any]) -> None:
        self._by_name: dict[str, Channel] = {}
        self._new_ready = new_ready

    def get(self, name: str) -> Channel | None:
        return self._by_name.get(name)

    def names(self) -> list[str]:
        return list(self._by_name)

    def all(self) -> list[Channel]:
        return list(self._by_name.values())

    def enter(self, name: str, *, of_claims: bool) -> tuple[Channel, bool]:
        """One more user; whether the channel must be subscribed first."""
        channel = self._by_name.get(name)
        new = channel is None
        if channel is None:
            channel = self._by_name[name] = Channel(name, self._new_ready(), of_claims=of_claims)
        channel.users += 1
        return channel, new

    def leave(self, channel: Channel) -> list[str]:
        """One user less; the channels that nobody has used for a while and are given up."""
        channel.users -= 1
        now = time.monotonic()
        if not channel.users:
            channel.idle_since = now
        idle = [other.name for other in self._by_name.values() if not other.users and now - other.idle_since > LINGER_S]
        for name in idle:
            del self._by_name[name]
        return idle


def subscribe(names: Iterable[str]) -> bytes:
    """The command; empty if there is nothing to subscribe to."""
    words = tuple(names)
    return pack(("SUBSCRIBE", *words)) if words else b""


def unsubscribe(names: Iterable[str]) -> bytes:
    words = tuple(names)
    return pack(("UNSUBSCRIBE", *words)) if words else b""


def watch_key(message: bytes) -> WatchKey:
    """Whom a message about a claim concerns: ``VERSION KEY``. Nobody waits for what is not such a message."""
    version, _, key = message.partition(b" ")
    return key.decode(errors="replace"), int(version) if version.isdigit() else 0

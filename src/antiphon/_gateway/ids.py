"""Names for the outside: UUIDv7 (ordered by time, unique across processes), and fingerprints of store keys."""

from __future__ import annotations

import functools
import hmac
import os
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

_next_series = count().__next__
_time = time.time
_LOW = tuple(f"{number:03x}" for number in range(4096))
_random = ""
_latest = 0
_series: tuple[float, str, Callable[[], str], str]
"""The ids of one millisecond, at most 4096: when it is over, what they begin with, the next number, how they end."""


def _renew() -> None:
    """A new random part for this process; a forked child draws its own."""
    global _random
    noise = os.urandom(8)
    _random = f"-{0x8000 | int.from_bytes(noise[:2], 'big') & 0x3FFF:04x}-{noise[2:6].hex()}"
    _begin_series()


def _begin_series() -> None:
    global _latest, _series
    n = _next_series()
    ms = _latest = max(_latest, int(_time() * 1000))  # a clock may be set back
    head, tail = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7", f"{_random}{n & 0xFFFF:04x}"
    _series = ((ms + 1) / 1000, head, iter(_LOW).__next__, tail)


_renew()
os.register_at_fork(after_in_child=_renew)


def uuid7() -> str:
    """A new id: 48 bits of time, 28 bits of a counter, and a random part drawn once per process."""
    until, head, low, tail = _series
    if _time() < until:
        try:
            return f"{head}{low()}{tail}"
        except StopIteration:  # all of this millisecond are given out
            pass
    _begin_series()
    return uuid7()


_OF_THIS_PROCESS: Final = os.urandom(32)


class Fingerprints:
    """What names a store key outside the store: an HMAC under a key of the store, so that nobody can try out arguments.

    A store without a key of its own (*secrets* gives none) has fingerprints of this process. They are equal for equal
    store keys, too, but another process makes others.

    >>> Fingerprints().of("ab" * 32) == Fingerprints().of("ab" * 32) != "ab" * 8
    True
    """

    def __init__(self, secrets: Callable[[], Sequence[bytes]] = tuple, *, in_process: bool = False) -> None:
        self._secrets = secrets
        self._in_process = in_process

    @functools.cached_property
    def _keys(self) -> tuple[bytes, ...]:
        return tuple(self._secrets())

    @functools.cached_property
    def _key(self) -> bytes:
        return self._keys[0] if self._keys else _OF_THIS_PROCESS

    @property
    def last(self) -> bool:
        """Whether everyone who can open the store makes the same ones."""
        return self._in_process or bool(self._keys)

    def of(self, store_key: str) -> str:
        """The fingerprint of a store key."""
        return hmac.digest(self._key, store_key.encode(), "sha256")[:8].hex()

    def name(self, store_key: str, beginning: str) -> bool:
        """Whether a fingerprint of *store_key* begins so, under the present key of the store or an older one."""
        keys = self._keys or (self._key,)
        return any(hmac.digest(k, store_key.encode(), "sha256")[:8].hex().startswith(beginning) for k in keys)

"""Names for the outside: UUIDv7 (ordered by time, unique across processes), and fingerprints of store keys."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import count
from typing import Any, Final

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
_Hash = Any
"""A hash of ``hashlib``."""


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
    def _fed(self) -> tuple[tuple[_Hash, _Hash], ...]:
        return tuple(map(_fed, self._keys or (_OF_THIS_PROCESS,)))

    @property
    def last(self) -> bool:
        """Whether everyone who can open the store makes the same ones."""
        return self._in_process or bool(self._keys)

    def of(self, store_key: str) -> str:
        """The fingerprint of a store key."""
        return _hmac(self._fed[0], store_key)

    def name(self, store_key: str, beginning: str) -> bool:
        """Whether a fingerprint of *store_key* begins so, under the present key of the store or an older one."""
        return any(_hmac(fed, store_key).startswith(beginning) for fed in self._fed)


def _fed(key: bytes) -> tuple[_Hash, _Hash]:
    """The two hashes of an HMAC, fed with the key: a copy of them is cheaper than ``hmac.digest``."""
    block = key.ljust(64, b"\0")
    return sha256(bytes(byte ^ 0x36 for byte in block)), sha256(bytes(byte ^ 0x5C for byte in block))


def _hmac(fed: tuple[_Hash, _Hash], text: str) -> str:
    """The first 16 digits of the HMAC-SHA-256 of *text*."""
    inner, outer = fed[0].copy(), fed[1].copy()
    inner.update(text.encode())
    outer.update(inner.digest())
    return str(outer.hexdigest()[:16])

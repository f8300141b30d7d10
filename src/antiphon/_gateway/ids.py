"""External identifiers: UUIDv7 (ordered by time, unique across processes), and fingerprints of store keys."""

from __future__ import annotations

import hmac
import os
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import count
from typing import Any, Final

_next_series = count().__next__
_time = time.time
_monotonic = time.monotonic
_LOW = tuple(f"{number:03x}" for number in range(4096))
_random = ""
_latest = 0
_series: tuple[float, str, Callable[[], str], str]
"""The ids of one millisecond, at most 4096: when it ends, their prefix, the next number, their suffix."""


def _renew() -> None:
    """Draw a new random part for this process; a forked child draws its own."""
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
        except StopIteration:  # the ids of this millisecond are used up
            pass
    _begin_series()
    return uuid7()


_OF_THIS_PROCESS: Final = os.urandom(32)
_Hash = Any
"""A hash of ``hashlib``."""
_Fed = tuple[tuple[_Hash, _Hash], ...]
_LOOK_EVERY_S: Final = 0.002
"""How often calls check for a new key: a check costs as much as a fingerprint."""


class Fingerprints:
    """What names a store key outside the store: an HMAC under a key of the store, so that nobody can guess arguments.

    In a store without a key of its own (*secrets* gives none), fingerprints are those of this process: equal for equal
    store keys, too, but different in another process.

    >>> Fingerprints().of("ab" * 32) == Fingerprints().of("ab" * 32) != "ab" * 8
    True
    """

    def __init__(self, secrets: Callable[[], Sequence[bytes]] = tuple, *, in_process: bool = False) -> None:
        """*secrets* gives the current key and older ones. It is called repeatedly, so that a rotation takes effect."""
        self._secrets = secrets
        self._in_process = in_process
        self._look_at = 0.0
        self._in_use: tuple[tuple[bytes, ...], _Fed] | None = None
        self._latest: tuple[str | None, _Fed, str] = (None, (), "")
        """The store key requested last, and its fingerprint: start and end of a call request the same one."""

    def _look(self) -> tuple[tuple[bytes, ...], _Fed]:
        """The current keys, and their hashes."""
        keys, known = tuple(self._secrets()), self._in_use
        if known is None or known[0] != keys:
            known = self._in_use = (keys, tuple(map(_fed, keys or (_OF_THIS_PROCESS,))))
        return known

    @property
    def _keys(self) -> tuple[bytes, ...]:
        return self._look()[0]

    @property
    def last(self) -> bool:
        """Whether everyone who can open the store computes the same ones."""
        return self._in_process or bool(self._keys)

    def of(self, store_key: str) -> str:
        """The fingerprint of a store key, under a key that was current at most two milliseconds ago."""
        now, in_use = _monotonic(), self._in_use
        if in_use is None or now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            in_use = self._look()
        fed = in_use[1]
        known, made_with, fingerprint = self._latest
        if known != store_key or made_with is not fed:
            fingerprint = _hmac(fed[0], store_key)
            self._latest = (store_key, fed, fingerprint)
        return fingerprint

    def bindings(self, text: str) -> tuple[str, ...]:
        """What binds an approval to a call: the HMAC of *text* under the current key of the store, and older ones.

        Without a key of the store it is a digest that is the same in every process.
        """
        return tuple(hmac.digest(key, b"approval\0" + text.encode(), "sha256").hex() for key in self._keys or (b"",))

    def sign(self, text: str) -> str | None:
        """A signature that only whoever can open the store makes; ``None`` if the store has no key of its own."""
        keys = self._signing
        return _signature(keys[0], text) if keys else None

    def signed(self, text: str, signature: str) -> bool:
        """Whether :meth:`sign` made this, under the current key of the store or an older one."""
        return any(hmac.compare_digest(_signature(key, text).encode(), signature.encode()) for key in self._signing)

    @property
    def _signing(self) -> tuple[bytes, ...]:
        return self._keys or ((_OF_THIS_PROCESS,) if self._in_process else ())

    def name(self, store_key: str, beginning: str) -> bool:
        """Whether a fingerprint of *store_key* begins so, under the current key of the store or an older one."""
        return any(_hmac(fed, store_key).startswith(beginning) for fed in self._look()[1])


def _signature(key: bytes, text: str) -> str:
    return urlsafe_b64encode(hmac.digest(key, b"signed\0" + text.encode(), "sha256")).decode().rstrip("=")


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

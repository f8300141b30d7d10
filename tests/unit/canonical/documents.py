"""Random JSON documents of every awkward kind, small and fast to make."""

from __future__ import annotations

import random
import struct
from typing import Any

ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz_",
    'ab"\\/\b\f\n\r\t\x00\x01\x1f\x7f \u2028',
    "äöüßéΩжд中文字",
    "\ue000\uf8ff\ufb33\ufe0f\uffee\uffff",
    "😀🎉𐀀\U0010ffff🙂",
    "a\u0301é\uff01😀\ue000z",
)
NUMBERS = (
    0,
    -0.0,
    1.0,
    -1.0,
    1e15,
    1e16,
    1e20,
    1e21,
    1e22,
    1e-3,
    1e-4,
    1e-5,
    1e-6,
    1e-7,
    0.1,
    1.5,
    5e-324,
    2.0**53,
    7.0,
)


def text(rng: random.Random) -> str:
    alphabet = rng.choice(ALPHABETS)
    return "".join(rng.choices(alphabet, k=rng.choice((0, 1, 1, 2, 3, 8))))


def number(rng: random.Random) -> int | float:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return rng.randint(-(2**53) + 1, 2**53 - 1)
    if kind == 2:
        return round(rng.uniform(-1e6, 1e6), rng.randrange(8))
    if kind == 3:
        while True:
            value: float = struct.unpack(">d", rng.randbytes(8))[0]
            if value - value == 0:
                return value
    return rng.randint(-100, 100)


def document(rng: random.Random, depth: int = 4) -> Any:
    kind = rng.randrange(9 if depth else 6)
    if kind < 2:
        return text(rng)
    if kind < 4:
        return number(rng)
    if kind < 6:
        return rng.choice((None, True, False))
    size = rng.choice((0, 1, 2, 2, 3, 5))
    if kind == 6:
        return [document(rng, depth - 1) for _ in range(size)]
    if kind == 7:
        return tuple(document(rng, depth - 1) for _ in range(size))
    return {text(rng): document(rng, depth - 1) for _ in range(size)}

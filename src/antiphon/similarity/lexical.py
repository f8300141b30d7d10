"""The fallback embedder: spelling, not meaning. Pure Python, the same numbers on every machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import log, sqrt
from zlib import crc32

_WORD = re.compile(r"\w+", re.UNICODE)


class LexicalEmbedder:
    """Hashes words and the character trigrams inside them into a vector of fixed size.

    >>> a, b = lexical(["San Francisco", "san francisco!"])
    >>> round(sum(x * y for x, y in zip(a, b)), 3)
    1.0
    """

    __slots__ = ("dimensions",)
    name = "lexical"

    def __init__(self, dimensions: int = 512) -> None:
        self.dimensions = dimensions

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        counts: dict[str, int] = {}
        for word in _WORD.findall(text.casefold()):
            counts[word] = counts.get(word, 0) + 1
            padded = f"^{word}$"
            for start in range(len(padded) - 2):
                gram = padded[start : start + 3]
                counts[gram] = counts.get(gram, 0) + 1
        vector = [0.0] * self.dimensions
        for gram, count in counts.items():
            digest = crc32(gram.encode("utf-8", "surrogatepass"))
            # A sign from the hash keeps collisions from always adding up.
            weight = (1.0 + log(count)) * (1.0 if digest & 1 else -1.0)
            vector[(digest >> 1) % self.dimensions] += weight
        norm = sqrt(sum(x * x for x in vector))
        return [x / norm for x in vector] if norm else vector


lexical = LexicalEmbedder()
"""The embedder that is always there."""

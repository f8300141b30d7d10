"""Text similarity: an embedder is a callable from texts to vectors, nothing more.

Two are here. :func:`lexical` compares spelling and needs nothing; it says so in its ``name``. MiniLM
compares meaning; ``antiphon models install`` brings its weights once, and nothing is ever downloaded at run time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from math import log, sqrt
from pathlib import Path
from zlib import crc32

from antiphon.errors import ConfigError, MissingExtra
from antiphon.similarity._alike import Embedder
from antiphon.similarity.install import ModelMissing, model_folder

_WORD = re.compile(r"\w+", re.UNICODE)


class LexicalEmbedder:
    """Spelling, not meaning: hashes words and the character trigrams inside them into a vector of fixed size.

    Pure Python, the same numbers on every machine.

    >>> a, b = lexical(["San Francisco", "san francisco!"])
    >>> round(sum(x * y for x, y in zip(a, b)), 3)
    1.0
    """

    name = "lexical"

    def __init__(self, dimensions: int = 512) -> None:
        self.dimensions = dimensions

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        counts: Counter[str] = Counter()
        for word in _WORD.findall(text.casefold()):
            padded = f"^{word}$"
            counts.update((word, *(padded[start : start + 3] for start in range(len(padded) - 2))))
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


def load(name: str = "auto", folder: Path | None = None) -> Embedder:
    """The embedder called *name*: ``minilm``, ``lexical``, or ``auto`` (MiniLM where installed, else lexical).

    >>> load("lexical").name
    'lexical'
    """
    if name == "lexical":
        return lexical
    if name not in ("auto", "minilm"):
        raise ConfigError(f"There is no embedder '{name}'.", path="embedder", hint="Use auto, minilm or lexical.")
    try:
        return _minilm(folder if folder is not None else model_folder())
    except (ModelMissing, MissingExtra):
        if name == "minilm":
            raise
        return lexical


@cache
def _minilm(folder: Path) -> Embedder:
    """The model of one folder, read once per process."""
    from antiphon.similarity.minilm import MiniLM

    return MiniLM(folder)


def name_of(embedder: Embedder | None) -> str:
    """What a report calls *embedder*."""
    if embedder is None:
        return "none"
    return str(getattr(embedder, "name", getattr(embedder, "__name__", type(embedder).__name__)))

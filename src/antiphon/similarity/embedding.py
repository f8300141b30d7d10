"""Text similarity: an embedder is a callable from texts to vectors, nothing more.

There are two here. :func:`lexical` compares spelling and needs nothing; it says so in its ``name``. MiniLM compares
meaning; ``antiphon models install`` installs its weights once, and nothing is ever downloaded at run time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from math import log, sqrt
from operator import mul
from pathlib import Path
from typing import Literal, NamedTuple
from zlib import crc32

from antiphon._minilm import ModelMissing, model_folder
from antiphon.errors import ConfigError, MissingExtra

Embedder = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Texts in, vectors out.

An embedder may have ``name`` (a string), ``same_from`` (the cosine from which two texts mean the same; default 0.88)
and ``unknown`` (a method: the parts of a text that it cannot read, and how many parts there are).
"""
SAME_FROM = 0.88
"""The MiniLM cosine from which precision on SICK's training pairs is at least 0.94."""
_WORD = re.compile(r"\w+", re.UNICODE)
_LOST = 10
"""At most one part in this many may be unreadable on only one side."""


class Likeness(NamedTuple):
    """How close two texts are: by the embedder's vectors, or by characters where it cannot read them."""

    score: float
    how: Literal["meaning", "characters"]


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    """The cosine of two vectors, 0 if one is empty."""
    dot = sum(map(mul, left, right))
    norms = sqrt(sum(map(mul, left, left)) * sum(map(mul, right, right)))
    return dot / norms if norms else 0.0


_MOST_KEPT = 20_000


class Vectors:
    """Vectors of texts, each computed once."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: dict[str, Sequence[float]] = {}

    def warm(self, texts: Sequence[str]) -> None:
        """Compute missing vectors in one batch."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        if len(self._known) + len(missing) > _MOST_KEPT:
            self._known = {text: self._known[text] for text in texts if text in self._known}
        if missing:
            self._known.update(zip(missing, self._embedder(missing), strict=True))

    def compare(self, left: str, right: str) -> Likeness:
        """How close two texts are, from 0 to 1."""
        if self._unreadable(left, right):
            return Likeness(characters(left, right), "characters")
        self.warm((left, right))
        return Likeness(min(1.0, max(0.0, cosine(self._known[left], self._known[right]))), "meaning")

    def _unreadable(self, left: str, right: str) -> bool:
        """Unknown parts all have the same vector: it says nothing if they differ, or if they are the majority."""
        unknown = None if left.isascii() and right.isascii() else getattr(self._embedder, "unknown", None)
        if unknown is None:
            return False
        (ours, count), (theirs, other_count) = unknown(left), unknown(right)
        old, new = Counter[str](ours), Counter[str](theirs)
        lost = ((old - new) + (new - old)).total()
        return bool(max(lost * _LOST, old.total() * 2, new.total() * 2) > max(count, other_count))


def characters(left: str, right: str) -> float:
    """The share of character bigrams that two texts have in common.

    >>> characters("退款已批准", "退款已批准。") > characters("退款已批准", "退款未批准")
    True
    """
    old, new = (Counter(zip(f" {text}", f"{text} ", strict=True)) for text in (left, right))
    return 2 * (old & new).total() / (old.total() + new.total())


class LexicalEmbedder:
    """Spelling, not meaning: hashes words and the character trigrams inside them into a vector of fixed size.

    Pure Python, with the same results on every machine.

    >>> a, b = lexical(["San Francisco", "san francisco!"])
    >>> round(sum(x * y for x, y in zip(a, b)), 3)
    1.0
    """

    name = "lexical"
    same_from: float = 2.0
    """Never: texts with similar spelling may mean different things."""

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


lexical: LexicalEmbedder = LexicalEmbedder()
"""The embedder that is always available."""


def load(name: str = "auto", folder: Path | None = None) -> Embedder:
    """The embedder called *name*: ``minilm``, ``lexical``, or ``auto`` (MiniLM if installed, else lexical).

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
    """The model in one folder, loaded once per process."""
    from antiphon._minilm.model import MiniLM

    return MiniLM(folder)


def name_of(embedder: Embedder | None) -> str:
    """The name of *embedder* in reports."""
    if embedder is None:
        return "none"
    return str(getattr(embedder, "name", getattr(embedder, "__name__", type(embedder).__name__)))

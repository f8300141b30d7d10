"""How close the replayed answers are to the recorded ones (K5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, Self

import orjson

from antiphon._differ import ABSENT
from antiphon.scoring._score import Score
from antiphon.similarity import Contradiction, Embedder, contradictions, cosine


@dataclass(frozen=True, slots=True)
class Interaction:
    """The answers to one input, compared."""

    index: int
    score: float
    how: Literal["equal", "meaning", "missing", "extra"]
    contradictions: list[Contradiction]


class OutputSimilarity(Score):
    """The mean over interactions; a contradiction is listed, never priced in."""

    __slots__ = ("embedder", "interactions")
    interactions: list[Interaction]
    embedder: str

    @classmethod
    def of(cls, interactions: list[Interaction], embedder: str) -> Self:
        """The mean of *interactions*, 1 if there are none."""
        mean = sum(entry.score for entry in interactions) / len(interactions) if interactions else 1.0
        made = cls(mean, {f"interaction{entry.index}": entry.score for entry in interactions})
        made.interactions, made.embedder = interactions, embedder
        return made

    @property
    def contradictions(self) -> list[tuple[int, Contradiction]]:
        """Every contradiction with the index of its interaction."""
        return [(entry.index, found) for entry in self.interactions for found in entry.contradictions]

    def __reduce__(self) -> tuple[Any, ...]:
        return OutputSimilarity.of, (self.interactions, self.embedder)

    def to_wire(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "score": float(self),
            "embedder": self.embedder,
            "interactions": [
                {
                    "index": entry.index,
                    "score": entry.score,
                    "how": entry.how,
                    "contradictions": [found.to_wire() for found in entry.contradictions],
                }
                for entry in self.interactions
            ],
        }


def output_similarity(recorded: Sequence[Any], replayed: Sequence[Any], embedder: Embedder) -> OutputSimilarity:
    """Mean cosine of the answers, clipped to 0–1: equal text 1, a missing or an extra interaction 0.

    >>> same = output_similarity(["done"], ["done"], embedder=lambda texts: [[1.0]] * len(texts))
    >>> same, output_similarity(["a", "b"], ["a"], embedder=lambda texts: [[1.0]] * len(texts))
    (1.0, 0.5)
    """
    pairs = [
        (ABSENT if old is ABSENT else answer_text(old), ABSENT if new is ABSENT else answer_text(new))
        for old, new in zip_longest(recorded, replayed, fillvalue=ABSENT)
    ]
    unequal = [pair for pair in pairs if pair[0] is not ABSENT and pair[1] is not ABSENT and pair[0] != pair[1]]
    texts = list(dict.fromkeys(text for pair in unequal for text in pair if isinstance(text, str) and text.strip()))
    vectors = dict(zip(texts, embedder(texts), strict=True)) if texts else {}
    interactions = []
    for index, (old, new) in enumerate(pairs):
        if not isinstance(old, str):
            interactions.append(Interaction(index, 0.0, "extra", []))
        elif not isinstance(new, str):
            interactions.append(Interaction(index, 0.0, "missing", []))
        elif old == new:
            interactions.append(Interaction(index, 1.0, "equal", []))
        else:
            empty = old not in vectors or new not in vectors
            near = 0.0 if empty else min(1.0, max(0.0, cosine(vectors[old], vectors[new])))
            interactions.append(Interaction(index, near, "meaning", contradictions(old, new)))
    return OutputSimilarity.of(interactions, str(getattr(embedder, "name", "custom")))


def answer_text(output: Any) -> str:
    """An interaction's output as text: a string as it is, an interaction its output, else its JSON."""
    if isinstance(output, str):
        return output
    if isinstance(output, Mapping) and "output" in output and output.keys() <= {"input", "output"}:
        return answer_text(output["output"])
    try:
        return orjson.dumps(output, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, orjson.JSONEncodeError):
        return repr(output)

"""The agent regression score: how faithfully a replay did what the recording did (K5)."""

from __future__ import annotations

from typing import Any, NamedTuple

from antiphon.errors import InvalidInput
from antiphon.scoring._score import Score, unit

OUTPUT_WEIGHT = 0.7
TOOL_WEIGHT = 0.3
PENALTY = 0.1
MAX_PENALTY = 0.5


class Band(NamedTuple):
    """What a score means; ``low`` belongs to the band."""

    low: float
    label: str
    action: str


BANDS = (
    Band(0.9, "Excellent fidelity", "Minimal differences, likely safe"),
    Band(0.7, "Good fidelity", "Acceptable variations, review changes"),
    Band(0.5, "Moderate fidelity", "Investigate differences, potential issues"),
    Band(0.0, "Poor fidelity", "Likely regression, review carefully"),
)


def band(score: float) -> Band:
    """The band that *score* falls into.

    >>> band(0.9).label, band(0.8999).label
    ('Excellent fidelity', 'Good fidelity')
    """
    value = unit(score, "score")
    return next(entry for entry in BANDS if value >= entry.low)


def tool_accuracy(total: int, used: int, new: int, unused: int) -> Score:
    """Share of recorded calls that were used again, less a tenth for each new and each unused call (at most half each).

    Numbers count calls. A semantic hit is used; a blocked call is new. Without recorded calls the share is 1.

    >>> tool_accuracy(total=5, used=4, new=1, unused=1)
    0.6
    """
    counts: dict[str, Any] = {"total": total, "used": used, "new": new, "unused": unused}
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidInput(f"{name} must be a whole number of calls, not {value!r}.", path=name)
    if used > total:
        raise InvalidInput(f"{used} recorded calls were used, but there are only {total}.", path="used")
    base = used / total if total else 1.0
    new_penalty = min(MAX_PENALTY, new * PENALTY)
    unused_penalty = min(MAX_PENALTY, unused * PENALTY)
    parts = {"base": base, "newPenalty": new_penalty, "unusedPenalty": unused_penalty}
    return Score(max(0.0, base - new_penalty - unused_penalty), parts)


class Ars(Score):
    """An agent regression score with its two parts and its band."""

    __slots__ = ()

    @property
    def band(self) -> Band:
        """What the score means."""
        return band(self)

    def to_wire(self) -> dict[str, object]:
        """The JSON form."""
        return {"score": float(self), **self.parts, "band": self.band.label}


def ars(output_similarity: float, tool_accuracy: float) -> Ars:
    """0.7 · output similarity + 0.3 · tool accuracy.

    >>> ars(0.95, 0.60), ars(0.95, 0.60).band.label
    (0.845, 'Good fidelity')
    """
    output = unit(output_similarity, "output_similarity")
    tools = unit(tool_accuracy, "tool_accuracy")
    return Ars(output * OUTPUT_WEIGHT + tools * TOOL_WEIGHT, {"outputSimilarity": output, "toolAccuracy": tools})

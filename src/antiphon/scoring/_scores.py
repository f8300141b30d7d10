"""The scores: how similar two configurations, two sets of answers and two runs are, and the verdict (K3, K5)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

import orjson

from antiphon._diff import ABSENT
from antiphon.errors import InvalidInput
from antiphon.scoring._structure import Violation
from antiphon.similarity import Contradiction, Embedder, Vectors, contradictions

_DIGITS = 12
"""Rounds away binary noise (0.8449999999999999) and nothing else."""


class Score(float):
    """A float with ``parts``: usable like any number, and self-explanatory for people."""

    __slots__ = ("parts",)
    parts: Mapping[str, float]

    def __new__(cls, value: float, parts: Mapping[str, float] | None = None) -> Self:
        made = super().__new__(cls, round(value, _DIGITS))
        made.parts = MappingProxyType(dict(parts or {}))
        return made

    def __getnewargs__(self) -> tuple[float, dict[str, float]]:  # type: ignore[override]
        return float(self), dict(self.parts)

    def __getstate__(self) -> None:
        return None

    @property
    def score(self) -> float:
        """The plain number."""
        return float(self)

    def to_wire(self) -> dict[str, Any]:
        """The JSON form."""
        return {"score": float(self), "parts": dict(self.parts)}


def unit(value: Any, name: str) -> float:
    """*value* if it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise InvalidInput(f"{name} must be a number from 0 to 1, not {value!r}.", path=name)
    return float(value)


THRESHOLD = 0.8
"""From this score on, recorded outputs may stand in for the current configuration."""

_NAMES: Mapping[str, tuple[str, ...]] = {
    "temperature": ("temperature",),
    "seed": ("seed",),
    "model": ("model_name", "model", "modelName"),
    "provider": ("provider",),
}


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as one flat level, even if its sampling values are under ``parameters``."""
    if not isinstance(config, Mapping):
        raise InvalidInput(f"An LLM configuration must be a mapping, not {type(config).__name__}.", path="llm_config")
    nested = config.get("parameters")
    flat = dict(nested) if isinstance(nested, Mapping) else {}
    flat.update((name, value) for name, value in config.items() if name != "parameters" and value is not None)
    return {name: value for name, value in flat.items() if value is not None}


def setting(config: Mapping[str, Any], name: str) -> Any:
    """``temperature``, ``seed``, ``model`` or ``provider`` of a flat configuration; ``None`` if absent."""
    return next((config[spelling] for spelling in _NAMES[name] if spelling in config), None)


def determinism(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> Score:
    """The mean of the temperature, seed, model and provider scores.

    >>> old = {"model_name": "gpt-4", "provider": "openai", "temperature": 0.0, "seed": 42}
    >>> score = determinism(old, {**old, "temperature": 0.5})
    >>> score, score.parts["temperature"]
    (0.875, 0.5)
    """
    old, new = flat_config(recorded), flat_config(current)
    rules = {"temperature": _temperature, "seed": _seed, "model": _name, "provider": _name}
    parts = {name: rule(setting(old, name), setting(new, name)) for name, rule in rules.items()}
    return Score(sum(parts.values()) / len(parts), parts)


def _temperature(old: Any, new: Any) -> float:
    for value in (old, new):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value)):
            raise InvalidInput(f"temperature must be a number, not {value!r}.", path="temperature")
    if old is None or new is None:
        return 1.0 if old is new else 0.5
    if old == new:
        return 1.0
    return max(0.0, round(1.0 - abs(float(old) - float(new)), 12))


def _seed(old: Any, new: Any) -> float:
    if old is None or new is None:
        return 0.5
    return 1.0 if old == new and isinstance(old, bool) == isinstance(new, bool) else 0.0


def _name(old: Any, new: Any) -> float:
    return 1.0 if old == new else 0.0


OUTPUT_WEIGHT = 0.7
TOOL_WEIGHT = 0.3
PENALTY = 0.1
MAX_PENALTY = 0.5


class Band(NamedTuple):
    """The meaning of a score; ``low`` belongs to the band."""

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


@dataclass(frozen=True, slots=True)
class Interaction:
    """The answers to one input, compared."""

    index: int
    score: float
    how: Literal["equal", "meaning", "characters", "missing", "extra"]
    """``characters``: the embedder cannot read the texts, so their characters were compared."""
    contradictions: list[Contradiction]


class OutputSimilarity(Score):
    """The mean over interactions; a contradiction is listed, but does not affect it."""

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
    def counts(self) -> dict[str, int]:
        """How many answers were compared in each way."""
        return dict(Counter(entry.how for entry in self.interactions))

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
    pairs = list(answer_pairs(recorded, replayed))
    unequal = [pair for pair in pairs if pair[0] is not ABSENT and pair[1] is not ABSENT and pair[0] != pair[1]]
    texts = list(dict.fromkeys(text for pair in unequal for text in pair if isinstance(text, str) and text.strip()))
    vectors = Vectors(embedder)
    vectors.warm(texts)
    interactions = []
    for index, (old, new) in enumerate(pairs):
        if not isinstance(old, str):
            interactions.append(Interaction(index, 0.0, "extra", []))
        elif not isinstance(new, str):
            interactions.append(Interaction(index, 0.0, "missing", []))
        elif old == new:
            interactions.append(Interaction(index, 1.0, "equal", []))
        elif not old.strip() or not new.strip():
            interactions.append(Interaction(index, 0.0, "meaning", contradictions(old, new)))
        else:
            interactions.append(Interaction(index, *vectors.compare(old, new), contradictions(old, new)))
    return OutputSimilarity.of(interactions, str(getattr(embedder, "name", "custom")))


def answer_pairs(recorded: Sequence[Any], replayed: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """The answers of two runs as text, side by side; ``ABSENT`` where one has no more."""
    for old, new in zip_longest(recorded, replayed, fillvalue=ABSENT):
        yield (old if old is ABSENT else answer_text(old)), (new if new is ABSENT else answer_text(new))


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


REPLAY_MIN_ARS = 0.8


class Verdict(NamedTuple):
    """The result of a replay; a failed one lists why."""

    verdict: Literal["pass", "fail"]
    reasons: list[str]

    @property
    def passed(self) -> bool:
        """Whether it passed."""
        return self.verdict == "pass"


def judge(
    ars: float,
    *,
    min_ars: float = REPLAY_MIN_ARS,
    violations: Sequence[Violation] = (),
    contradictions: Sequence[tuple[int, Contradiction]] = (),
    divergences: Sequence[Any] = (),
    refusal_flips: int = 0,
    allow_contradictions: bool = False,
) -> Verdict:
    """Fail on a score below *min_ars*, a side effect that changed, a contradiction, a divergence or a refusal flip.

    >>> judge(0.95).verdict, judge(0.5).reasons
    ('pass', ['ARS 0.500 is below 0.800'])
    """
    score, limit = unit(ars, "ars"), unit(min_ars, "min_ars")
    reasons = [f"ARS {score:.3f} is below {limit:.3f}"] if score < limit else []
    reasons += [violation.message for violation in violations]
    if not allow_contradictions:
        reasons += [
            f"Answer {index}: {found.kind}, {found.recorded!r:.80} became {found.replayed!r:.80}"
            for index, found in contradictions
        ]
    if divergences:
        reasons.append(f"{len(divergences)} divergence{'s' * (len(divergences) != 1)} from the recording")
    if refusal_flips:
        reasons.append(f"{refusal_flips} model answer{'s' * (refusal_flips != 1)} changed between valid and refusal")
    return Verdict("fail" if reasons else "pass", reasons)

"""Pass or fail, with every reason: the score, the side effects, and what no score can see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from antiphon.scoring._score import unit
from antiphon.scoring._structure import Violation
from antiphon.similarity import Contradiction

REPLAY_MIN_ARS = 0.8
TEST_MIN_ARS = 0.9


class Verdict(NamedTuple):
    """The end of a replay; a failed one lists why."""

    verdict: Literal["pass", "fail"]
    reasons: list[str]

    @property
    def passed(self) -> bool:
        """Whether there is nothing against it."""
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

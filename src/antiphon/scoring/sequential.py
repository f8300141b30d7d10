"""Is a variant worse than the baseline? A test that may be checked after every pair, with valid error bounds.

The test is by betting (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B
2024): anyone who bets against a true hypothesis multiplies a capital of 1 by *x* with a probability of at most 1/*x*,
whenever they stop. The bets are the paper's approximate GRAPA.

Pairs of one run are not independent, so a round has one value per run: the mean of the run's differences so far. Each
round is a separate test over the runs, and the rounds share alpha.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Decision = Literal["worse", "not worse", "undecided"]

_FIRST = 0.7
_BOLD = 0.75
"""No bet risks more than this share of the capital."""


def shares(rounds: int) -> tuple[float, ...]:
    """The share of alpha that each round may use: most of what can be found is found in the first.

    >>> shares(1), shares(4)
    ((1.0,), (0.7, 0.1, 0.1, 0.1))
    """
    return (1.0,) if rounds == 1 else (_FIRST, *(round((1.0 - _FIRST) / (rounds - 1), 12),) * (rounds - 1))


class Bets:
    """The capital of a bettor who bets that a mean in [0, 1] is above *m*, one value after another."""

    def __init__(self, m: float) -> None:
        self.m = m
        self.capital: float = 1.0
        self.highest: float = 1.0
        self._n, self._sum, self._squares = 0, 0.5, 0.25

    def see(self, value: float) -> float:
        """Bet by what is known so far, then see *value*; returns the highest capital so far."""
        n = self._n + 1
        lead = self._sum / n - self.m
        bet = min(max(lead / (self._squares / n + lead * lead), 0.0), _BOLD / self.m)
        self.capital *= 1.0 + bet * (value - self.m)
        self.highest = max(self.highest, self.capital)
        self._n, self._sum = n, self._sum + value
        self._squares += (value - self._sum / (n + 1)) ** 2
        return self.highest


class Result(NamedTuple):
    """The result of a comparison, and how much evidence it needed."""

    decision: Decision
    pairs: int
    """Pairs that were seen until the decision."""
    difference: float
    """The mean difference of those pairs, as a share: -0.1 is ten points worse."""
    evidence_worse: float
    """How much the bet on "worse" won, relative to what it needs (1 decides)."""
    evidence_not_worse: float


class Comparison:
    """Paired differences of one variant, in the order drawn in advance; decides as soon as it can.

    ``alpha`` bounds the chance of calling a variant worse that is not, and of calling one not worse that is worse by
    more than ``margin``; several variants share it.

    >>> test = Comparison(alpha=0.05, margin=0.05)
    >>> for run in range(200):
    ...     test.add_pair(0, run, -1.0 if run % 3 == 0 else 0.0)
    >>> test.result().decision
    'worse'
    """

    def __init__(self, *, alpha: float = 0.05, margin: float = 0.05, shares: Sequence[float] = shares(5)) -> None:
        if not (0.0 < alpha < 1.0 and 0.0 < margin < 1.0 and sum(shares) <= 1.0 + 1e-9):
            raise ValueError("alpha and margin must be between 0 and 1, and the rounds must share no more than alpha")
        self._limits = [1.0 / (alpha * share) for share in shares]
        self._margin = margin
        self._of_run: dict[object, tuple[int, float]] = {}
        self._round = -1
        self._worse, self._fine = self._fresh()
        self._best = [0.0, 0.0]
        self._total = 0.0
        self.pairs: int = 0
        self.decision: Decision = "undecided"

    def _fresh(self) -> tuple[Bets, Bets]:
        # Differences d in [-1, 1] as (1 - d) / 2 and (1 + d) / 2: "worse" bets against d >= 0, the other against
        # d <= -margin.
        return Bets(0.5), Bets((1.0 - self._margin) / 2)

    def add_pair(self, round_: int, run: object, difference: float) -> Decision:
        """Add a pair: of *run*, in *round_* (from 0, never decreasing). A decision is final."""
        if not -1.0 <= difference <= 1.0:
            raise ValueError(f"a difference of two scores must be between -1 and 1, not {difference}")
        if self.decision != "undecided" or round_ >= len(self._limits):
            return self.decision
        if round_ != self._round:
            self._round = round_
            self._worse, self._fine = self._fresh()
        count, total = self._of_run.get(run, (0, 0.0))
        self._of_run[run] = (count + 1, total + difference)
        mean = (total + difference) / (count + 1)
        self.pairs += 1
        self._total += difference
        limit = self._limits[round_]
        worse, fine = self._worse.see((1.0 - mean) / 2) / limit, self._fine.see((1.0 + mean) / 2) / limit
        self._best = [max(self._best[0], worse), max(self._best[1], fine)]
        if worse >= 1.0:
            self.decision = "worse"
        elif fine >= 1.0:
            self.decision = "not worse"
        return self.decision

    def result(self) -> Result:
        """The current state."""
        mean = self._total / self.pairs if self.pairs else 0.0
        return Result(self.decision, self.pairs, mean, self._best[0], self._best[1])


def compare(pairs: Iterable[tuple[int, object, float]], *, alpha: float = 0.05, margin: float = 0.05) -> Result:
    """The result of ``(round, run, difference)`` in their order; nothing is read after the decision."""
    test = Comparison(alpha=alpha, margin=margin)
    for pair in pairs:
        if test.add_pair(*pair) != "undecided":
            break
    return test.result()

"""How the calls of two runs differ, and which of those differences no score may excuse (D13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from antiphon._differ import FieldDiff
from antiphon.scoring._alignment import Call, Pair, align


class CallChange(NamedTuple):
    """A call that was made in both runs, but not in the same way."""

    recorded: Call
    replayed: Call
    diffs: list[FieldDiff]


class Total(NamedTuple):
    """A quantity in both runs."""

    recorded: float
    replayed: float

    @property
    def difference(self) -> float:
        """What the replay has more (or, negative, less)."""
        return self.replayed - self.recorded

    def to_wire(self) -> dict[str, float]:
        """The JSON form."""
        return {"recorded": self.recorded, "replayed": self.replayed, "difference": self.difference}


class Violation(NamedTuple):
    """A side effect that is not the recorded one."""

    kind: str
    """``dropped``, ``added``, ``changed`` or ``reordered``."""
    tool: str
    message: str


@dataclass(frozen=True, slots=True)
class Structure:
    """Every difference between two sequences of calls."""

    pairs: list[Pair]
    equal: int
    added: list[Call]
    dropped: list[Call]
    changed: list[CallChange]
    """Same tool, other arguments, name or outcome."""
    results_changed: list[CallChange]
    """Same call and outcome, other result."""
    reordered: list[Call]
    refusal_flips: list[CallChange]
    tokens: Total
    cost: Total
    latency_ms: Total

    @property
    def same(self) -> bool:
        """Whether both runs made the same calls in the same order with the same outcomes."""
        return not (self.added or self.dropped or self.changed or self.reordered)

    @property
    def side_effects_changed(self) -> int:
        """How many calls with a side effect were added, dropped or changed."""
        return len(effect_gate(self))

    def to_wire(self) -> dict[str, Any]:
        """The JSON form: counts, and the calls behind them."""
        return {
            "equal": self.equal,
            "added": [call.to_wire() for call in self.added],
            "dropped": [call.to_wire() for call in self.dropped],
            "changed": [_wire(change) for change in self.changed],
            "resultsChanged": [_wire(change) for change in self.results_changed],
            "reordered": [call.name for call in self.reordered],
            "sideEffectsChanged": self.side_effects_changed,
            "refusalFlips": [_wire(change) for change in self.refusal_flips],
            "tokens": self.tokens.to_wire(),
            "cost": self.cost.to_wire(),
            "latencyMs": self.latency_ms.to_wire(),
        }


def structure(recorded: Sequence[Call | Mapping[str, Any]], replayed: Sequence[Call | Mapping[str, Any]]) -> Structure:
    """Compare two sequences of calls.

    >>> report = structure([{"name": "search", "arguments": {"q": "a"}}], [{"name": "search", "arguments": {"q": "b"}}])
    >>> [str(diff) for diff in report.changed[0].diffs]
    ["arguments.q: 'a' -> 'b'"]
    """
    old, new = [Call.of(call) for call in recorded], [Call.of(call) for call in replayed]
    pairs = align(old, new)
    added: list[Call] = []
    dropped: list[Call] = []
    changed: list[CallChange] = []
    results: list[CallChange] = []
    flips: list[CallChange] = []
    reordered: list[Call] = []
    equal = 0
    for left, right, diffs, moved in pairs:
        if left is None:
            added.extend(new[n] for n in (right,) if n is not None)
        elif right is None:
            dropped.append(old[left])
        else:
            change = CallChange(old[left], new[right], diffs)
            if (old[left].refusal is None) != (new[right].refusal is None):
                flips.append(change)
            if moved:
                reordered.append(old[left])
            if not diffs:
                equal += not moved
            elif all(_in_result(diff) for diff in diffs):
                results.append(change)
            else:
                changed.append(change)
    return Structure(
        pairs,
        equal,
        added,
        dropped,
        changed,
        results,
        reordered,
        flips,
        Total(sum(call.tokens for call in old), sum(call.tokens for call in new)),
        Total(sum(call.cost for call in old), sum(call.cost for call in new)),
        Total(sum(call.latency_ms for call in old), sum(call.latency_ms for call in new)),
    )


def effect_gate(compared: Structure, *, ordered: bool = False) -> list[Violation]:
    """Every dropped, added or changed side effect: one is enough to fail, whatever the score says.

    With *ordered*, side effects that changed places count too.
    """
    found = [_violation("dropped", call, "was made in the recording and is missing now") for call in compared.dropped]
    found += [_violation("added", call, "was not made in the recording") for call in compared.added]
    for change in compared.changed:
        call = change.replayed if change.replayed.side_effect else change.recorded
        what = "; ".join(str(diff) for diff in change.diffs if not _in_result(diff))
        found.append(_violation("changed", call, f"differs: {what}"))
    if ordered:
        found += [_violation("reordered", call, "is made at another place") for call in compared.reordered]
    return [violation for violation in found if violation is not None]


def _violation(kind: str, call: Call, what: str) -> Violation | None:
    return Violation(kind, call.name, f"Side effect '{call.name}' {what}.") if call.side_effect else None


def _in_result(diff: FieldDiff) -> bool:
    return diff.path == "value" or diff.path.startswith(("value.", "value["))


def _wire(change: CallChange) -> dict[str, Any]:
    return {
        "name": change.recorded.name,
        "kind": change.recorded.kind,
        "recordedKind": _envelope(change.recorded),
        "replayedKind": _envelope(change.replayed),
        "fields": [diff.to_wire() for diff in change.diffs],
    }


def _envelope(call: Call) -> str:
    """``valid`` or ``refusal``: the words of a refusal divergence (L4)."""
    return "valid" if call.refusal is None else "refusal"

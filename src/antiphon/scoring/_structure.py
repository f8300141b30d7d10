"""How the calls of two runs are paired and differ, and which of those differences no score can excuse (D13)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import orjson

from antiphon._diff import FieldDiff, diff_values, flatten, likeness
from antiphon.errors import InvalidInput

_MAX_PAIRS = 10_000
"""The product of group sizes up to which every pair is considered; beyond it, order decides."""
_WIRE = {"side_effect": "sideEffect", "latency_ms": "latencyMs"}
_ALIASES = {"latency_ms": ("durationMs", "duration_ms"), "arguments": ("request", "input")}
_ALWAYS = ("kind", "name", "arguments", "outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a comparison needs to know about a call. ``side_effect`` is also true for tools of unknown effect (D12)."""

    kind: str = "tool"
    name: str
    arguments: Any = None
    outcome: str = "ok"
    value: Any = None
    side_effect: bool = False
    refusal: str | None = None
    tokens: int = 0
    cost: float = 0.0
    latency_ms: float = 0.0
    source: str = ""
    id: str = ""
    lane: str = "0"

    @classmethod
    def of(cls, call: Call | Mapping[str, Any]) -> Self:
        """*call* itself, or one built from a mapping with these names or their camelCase."""
        if isinstance(call, cls):
            return call
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            raise InvalidInput(f"A call must be a mapping with a name, not {call!r:.80}.", path="calls")
        known: dict[str, Any] = {}
        for entry in fields(cls):
            for spelling in (entry.name, _WIRE.get(entry.name, entry.name), *_ALIASES.get(entry.name, ())):
                if call.get(spelling) is not None:
                    known[entry.name] = call[spelling]
                    break
        return cls(**known)

    def to_wire(self) -> dict[str, Any]:
        """The JSON form, without unknown values."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        if self.lane == "0":
            del values["lane"]
        return {_WIRE.get(name, name): value for name, value in values.items() if value or name in _ALWAYS}


class Pair(NamedTuple):
    """Two corresponding calls, or one without a partner (the other side is ``None``)."""

    left: int | None
    right: int | None
    diffs: list[FieldDiff]
    moved: bool = False


def align(recorded: Sequence[Call], replayed: Sequence[Call]) -> list[Pair]:
    """Pairs in recorded order; a call that only the replay made follows its predecessor."""
    partners: dict[int, int] = {}
    _pair_equal(recorded, replayed, partners)
    taken = set(partners.values())
    left = _groups(recorded, (n for n in range(len(recorded)) if n not in partners))
    right = _groups(replayed, (n for n in range(len(replayed)) if n not in taken))
    for group, ours in left.items():
        _pair_nearest(recorded, replayed, ours, right.get(group, []), partners)
    moved = _moved(recorded, replayed, partners)
    return _in_order(recorded, replayed, partners, moved)


def _key(call: Call) -> tuple[str, str, bytes]:
    try:
        arguments = orjson.dumps(call.arguments, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except (TypeError, orjson.JSONEncodeError):
        arguments = repr(call.arguments).encode("utf-8", "surrogatepass")
    return call.kind, call.name, arguments


def _pair_equal(recorded: Sequence[Call], replayed: Sequence[Call], partners: dict[int, int]) -> None:
    """Pair the nth call with a key with the nth with that key; in the same lane if there is one."""
    ours, theirs = [_key(call) for call in recorded], [_key(call) for call in replayed]
    taken: set[int] = set()
    for same_lane in (True, False):
        places: dict[Any, list[int]] = {}
        for index in range(len(replayed) - 1, -1, -1):
            if index not in taken:
                places.setdefault((theirs[index], same_lane and replayed[index].lane), []).append(index)
        for index, call in enumerate(recorded):
            found = places.get((ours[index], same_lane and call.lane))
            if index not in partners and found:
                partners[index] = found.pop()
                taken.add(partners[index])


def _groups(calls: Sequence[Call], indexes: Iterable[int]) -> dict[Any, list[int]]:
    """Unpaired calls by tool; all model calls form one group, whatever the model is called."""
    groups: dict[Any, list[int]] = {}
    for index in indexes:
        call = calls[index]
        groups.setdefault((call.kind, "" if call.kind == "llm" else call.name), []).append(index)
    return groups


def _pair_nearest(
    recorded: Sequence[Call], replayed: Sequence[Call], ours: list[int], theirs: list[int], partners: dict[int, int]
) -> None:
    """Pair calls of one tool, most similar first; model calls and large groups in order."""
    if not theirs:
        return
    if recorded[ours[0]].kind == "llm" or len(ours) * len(theirs) > _MAX_PAIRS:
        partners.update(zip(ours, theirs, strict=False))
        return
    flat = {index: flatten(replayed[index].arguments) for index in theirs}
    ranked = sorted(
        (-likeness(flatten(recorded[left].arguments), flat[right]), abs(number - place), left, right)
        for number, left in enumerate(ours)
        for place, right in enumerate(theirs)
    )
    used: set[int] = set()
    for _, _, left, right in ranked:
        if left not in partners and right not in used:
            partners[left] = right
            used.add(right)


def _moved(recorded: Sequence[Call], replayed: Sequence[Call], partners: dict[int, int]) -> set[int]:
    """Recorded calls that changed places within a lane: all but the longest subsequence that kept its order."""
    lanes: dict[tuple[str, str], list[int]] = {}
    for left in sorted(partners):
        lanes.setdefault((recorded[left].lane, replayed[partners[left]].lane), []).append(left)
    moved: set[int] = set()
    for lefts in lanes.values():
        kept = _longest_rise([partners[left] for left in lefts])
        moved.update(left for place, left in enumerate(lefts) if place not in kept)
    return moved


def _longest_rise(numbers: Sequence[int]) -> set[int]:
    """Indexes of a longest increasing subsequence."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int | None] = []
    for place, number in enumerate(numbers):
        length = bisect_left(tails, number)
        before.append(ends[length - 1] if length else None)
        tails[length : length + 1] = [number]
        ends[length : length + 1] = [place]
    chosen: set[int] = set()
    step = ends[-1] if ends else None
    while step is not None:
        chosen.add(step)
        step = before[step]
    return chosen


def _in_order(
    recorded: Sequence[Call], replayed: Sequence[Call], partners: dict[int, int], moved: set[int]
) -> list[Pair]:
    taken = set(partners.values())
    following: dict[int, list[int]] = {}
    anchor = -1
    for right in range(len(replayed)):
        if right in taken:
            anchor = right
        else:
            following.setdefault(anchor, []).append(right)
    rows = [Pair(None, right, []) for right in following.get(-1, ())]
    for left in range(len(recorded)):
        partner = partners.get(left)
        if partner is None:
            rows.append(Pair(left, None, []))
            continue
        rows.append(Pair(left, partner, _differences(recorded[left], replayed[partner]), left in moved))
        rows.extend(Pair(None, right, []) for right in following.get(partner, ()))
    return rows


def _differences(old: Call, new: Call) -> list[FieldDiff]:
    """What differs between two calls, arguments first; results are compared if both are known."""
    diffs = [FieldDiff("name", old.name, new.name)] if old.name != new.name else []
    diffs += diff_values(old.arguments, new.arguments, root="arguments")
    if old.outcome != new.outcome:
        diffs.append(FieldDiff("outcome", old.outcome, new.outcome))
    if old.refusal != new.refusal:
        diffs.append(FieldDiff("refusal", old.refusal, new.refusal))
    if old.value is not None and new.value is not None:
        diffs += diff_values(old.value, new.value, root="value")
    return diffs


class CallChange(NamedTuple):
    """A call that was made in both runs, but differently."""

    recorded: Call
    replayed: Call
    diffs: list[FieldDiff]


class Total(NamedTuple):
    """A quantity in both runs."""

    recorded: float
    replayed: float

    @property
    def difference(self) -> float:
        """How much more (or, if negative, less) the replay has."""
        return self.replayed - self.recorded

    def to_wire(self) -> dict[str, float]:
        """The JSON form."""
        return {"recorded": self.recorded, "replayed": self.replayed, "difference": self.difference}


class Violation(NamedTuple):
    """A side effect that differs from the recorded one."""

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
    both = [CallChange(old[n], new[m], diffs) for n, m, diffs, _ in pairs if n is not None and m is not None]
    different = [change for change in both if change.diffs]
    return Structure(
        pairs,
        equal=sum(None not in pair and not pair.diffs and not pair.moved for pair in pairs),
        added=[new[m] for n, m, *_ in pairs if n is None and m is not None],
        dropped=[old[n] for n, m, *_ in pairs if m is None and n is not None],
        changed=[change for change in different if not all(map(_in_result, change.diffs))],
        results_changed=[change for change in different if all(map(_in_result, change.diffs))],
        reordered=[old[n] for n, *_, moved in pairs if moved and n is not None],
        refusal_flips=[change for change in both if _envelope(change.recorded) != _envelope(change.replayed)],
        tokens=Total(sum(call.tokens for call in old), sum(call.tokens for call in new)),
        cost=Total(sum(call.cost for call in old), sum(call.cost for call in new)),
        latency_ms=Total(sum(call.latency_ms for call in old), sum(call.latency_ms for call in new)),
    )


def effect_gate(compared: Structure, *, ordered: bool = False) -> list[Violation]:
    """Every dropped, added or changed side effect: a single one fails the replay, whatever the score.

    With *ordered*, side effects that changed places count too.
    """
    found = [_violation("dropped", call, "was made in the recording and is missing now") for call in compared.dropped]
    found += [_violation("added", call, "was not made in the recording") for call in compared.added]
    for change in compared.changed:
        call = change.replayed if change.replayed.side_effect else change.recorded
        what = "; ".join(str(diff) for diff in change.diffs if not _in_result(diff))
        found.append(_violation("changed", call, f"differs: {what}"))
    if ordered:
        found += [_violation("reordered", call, "is made in a different position") for call in compared.reordered]
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
    """``valid`` or ``refusal``: the terms of a refusal divergence (L4)."""
    return "valid" if call.refusal is None else "refusal"

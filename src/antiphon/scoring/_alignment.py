"""Pair the calls of two runs: equal ones first, then the same tool with other arguments, then what has no partner."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import orjson

from antiphon._differ import FieldDiff, diff_values, flatten, likeness
from antiphon.errors import InvalidInput

_MAX_PAIRS = 10_000
"""Products of group sizes up to which every pair is looked at; beyond it, order decides."""
_WIRE = {
    "side_effect": ("sideEffect",),
    "latency_ms": ("latencyMs", "durationMs", "duration_ms"),
    "arguments": ("request", "input"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a comparison needs to know of one call. ``side_effect`` is true for tools of unknown effect too (D12)."""

    name: str
    arguments: Any = None
    kind: str = "tool"
    outcome: str = "ok"
    value: Any = None
    side_effect: bool = False
    refusal: str | None = None
    tokens: int = 0
    cost: float = 0.0
    latency_ms: float = 0.0
    lane: str = "0"
    source: str = ""
    id: str = ""

    @classmethod
    def of(cls, call: Call | Mapping[str, Any]) -> Self:
        """*call* itself, or one read from a mapping with these names or their camelCase."""
        if isinstance(call, cls):
            return call
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            raise InvalidInput(f"A call must be a mapping with a name, not {call!r:.80}.", path="calls")
        known: dict[str, Any] = {}
        for entry in fields(cls):
            for spelling in (entry.name, *_WIRE.get(entry.name, ())):
                if call.get(spelling) is not None:
                    known[entry.name] = call[spelling]
                    break
        return cls(**known)

    def to_wire(self) -> dict[str, Any]:
        """The JSON form, without what is not known."""
        wire: dict[str, Any] = {
            "kind": self.kind,
            "name": self.name,
            "arguments": self.arguments,
            "outcome": self.outcome,
        }
        extra = {
            "value": self.value,
            "sideEffect": self.side_effect,
            "refusal": self.refusal,
            "tokens": self.tokens,
            "cost": self.cost,
            "latencyMs": self.latency_ms,
            "source": self.source,
            "id": self.id,
            "lane": self.lane if self.lane != "0" else "",
        }
        return wire | {name: value for name, value in extra.items() if value}


class Pair(NamedTuple):
    """Two calls that belong together, or one without a partner (the other side is ``None``)."""

    left: int | None
    right: int | None
    diffs: list[FieldDiff]
    moved: bool = False


def align(recorded: Sequence[Call], replayed: Sequence[Call]) -> list[Pair]:
    """Pairs in the order of the recording; a call that only the replay made stands behind the one it followed."""
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
    """The nth call of a key with the nth of that key; in the same lane if there is one."""
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
    """Loose calls by tool; all model calls are one group, whatever the model is called."""
    groups: dict[Any, list[int]] = {}
    for index in indexes:
        call = calls[index]
        groups.setdefault((call.kind, "" if call.kind == "llm" else call.name), []).append(index)
    return groups


def _pair_nearest(
    recorded: Sequence[Call], replayed: Sequence[Call], ours: list[int], theirs: list[int], partners: dict[int, int]
) -> None:
    """Pair calls of one tool, the most alike first; model calls and crowds in their order."""
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
    """Recorded calls that left their order within a lane: all but the longest run that kept it."""
    lanes: dict[tuple[str, str], list[int]] = {}
    for left in sorted(partners):
        lanes.setdefault((recorded[left].lane, replayed[partners[left]].lane), []).append(left)
    moved: set[int] = set()
    for lefts in lanes.values():
        kept = _longest_rise([partners[left] for left in lefts])
        moved.update(left for place, left in enumerate(lefts) if place not in kept)
    return moved


def _longest_rise(numbers: Sequence[int]) -> set[int]:
    """Places of a longest increasing subsequence."""
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
    """What differs between two calls, arguments first; results are compared where both are known."""
    diffs = [FieldDiff("name", old.name, new.name)] if old.name != new.name else []
    diffs += diff_values(old.arguments, new.arguments, root="arguments")
    if old.outcome != new.outcome:
        diffs.append(FieldDiff("outcome", old.outcome, new.outcome))
    if old.refusal != new.refusal:
        diffs.append(FieldDiff("refusal", old.refusal, new.refusal))
    if old.value is not None and new.value is not None:
        diffs += diff_values(old.value, new.value, root="value")
    return diffs

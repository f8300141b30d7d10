"""Parallel lanes that only their order of arrival tells apart, found when a run ends (D17).

A replay may start them in another order. As long as they did the same this does not show; where they did not, the run
says so, and ``antiphon.branch`` gives such strands names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from antiphon.contract.events import Event

_COMPARED = frozenset({"call.started", "call.finished", "call.chunk", "draw", "prompt", "interaction.finished"})


def ambiguous(twins: Mapping[str, int], events: Callable[[], Iterable[Event]]) -> list[dict[str, Any]]:
    """The payload of a ``decision`` event for each group of lanes whose outcomes differ."""
    if not twins:
        return []
    groups: dict[str, dict[str, dict[str, Any]]] = {path: {} for path in twins}
    for event in events():
        if event.type not in _COMPARED:
            continue
        for path, lanes in groups.items():
            if event.lane.startswith(path):
                number, rest = _split(event.lane[len(path) :])
                parts = lanes.setdefault(number, {})
                digest = parts.setdefault(rest, hashlib.sha256())
                digest.update(orjson.dumps([event.type, event.payload], option=orjson.OPT_SORT_KEYS))
    return [_decision(path, lanes) for path, lanes in groups.items() if _differ(lanes)]


def _split(rest: str) -> tuple[str, str]:
    """The number of the lane, and where below it the event stands."""
    digits = len(rest) - len(rest.lstrip("0123456789"))
    return rest[:digits], rest[digits:]


def _differ(lanes: Mapping[str, Mapping[str, Any]]) -> bool:
    seen = {tuple(sorted((rest, digest.digest()) for rest, digest in parts.items())) for parts in lanes.values()}
    return len(seen) > 1


def _decision(path: str, lanes: Iterable[str]) -> dict[str, Any]:
    names = [f"{path}{number}" for number in sorted(lanes, key=int)]
    return {"what": "ambiguous", "detail": {"lanes": names, "hint": "name them with antiphon.branch(...)"}}

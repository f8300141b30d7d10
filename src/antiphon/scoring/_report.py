"""The shape of a replay report: what the console, ``--json`` and the HTML page are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict


class ArsPart(TypedDict, total=False):
    """The agent regression score and its parts."""

    score: float
    outputSimilarity: float
    toolAccuracy: float
    band: str


class Saved(TypedDict, total=False):
    """What did not have to be asked or paid again."""

    calls: int
    tokens: int
    cost: float
    seconds: float


class TimelineCall(TypedDict, total=False):
    """One call on one side of the timeline; the names of :class:`antiphon.scoring.Call` in camelCase."""

    kind: str
    name: str
    arguments: Any
    outcome: str
    value: Any
    sideEffect: bool
    refusal: str | None
    tokens: int
    cost: float
    latencyMs: float
    lane: str
    source: str
    id: str


class ReplayReport(TypedDict, total=False):
    """A replay or a comparison of two runs. Every field may be absent; a reader shows what is there."""

    title: str
    sourceRun: str
    replayRun: str
    createdAt: str
    replayType: Literal["A", "B"]
    reason: str
    determinismScore: float
    determinismParts: Mapping[str, float]
    threshold: float
    changes: Mapping[str, Mapping[str, Mapping[str, Any]]]
    notCompared: Sequence[str]
    cacheHits: int
    semanticHits: Sequence[Mapping[str, Any]]
    newToolCalls: int
    unusedToolCalls: int
    blocked: int | Sequence[Any]
    divergences: Sequence[Mapping[str, Any]]
    contradictions: Sequence[Mapping[str, Any]]
    ars: ArsPart
    embedder: str
    structure: Mapping[str, Any]
    saved: Saved
    verdict: Literal["pass", "fail"]
    verdictReasons: Sequence[str]
    outputsA: Sequence[Any]
    outputsB: Sequence[Any]
    timelineA: Sequence[TimelineCall]
    timelineB: Sequence[TimelineCall]


def count(value: Any) -> int:
    """How many, given as a number or as the things themselves."""
    if isinstance(value, (int, float)):
        return int(value)
    return len(value) if value is not None else 0

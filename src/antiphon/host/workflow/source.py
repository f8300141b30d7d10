"""What a replay fork knows of its source: the n-th outcome of each node, and where the two go apart (L4, L12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from antiphon._diff import diff_values
from antiphon.host.workflow.state import TERMINAL, WorkflowEvent

EnvelopeKind = Literal["valid", "refusal", "unknown"]


class Recorded(NamedTuple):
    """How one execution of a node ended in the source, and what it emitted on the way."""

    node: str
    emitted: tuple[WorkflowEvent, ...]
    terminal: WorkflowEvent
    sequence: int
    """Number of the event that shows the kind of the answer: the refusal, else the terminal event."""

    @property
    def kind(self) -> EnvelopeKind:
        """Whether the model answered or refused."""
        if any(told.type == "envelope.refusal" for told in self.emitted):
            return "refusal"
        return "valid" if self.terminal.type == "node.completed" else "unknown"


class Source:
    """The log of the run that is replayed."""

    def __init__(self, run: str, events: Sequence[WorkflowEvent]) -> None:
        self.run = run
        self.events = events

    def outcome(self, node: str, nth: int) -> Recorded | None:
        """The *nth* (from 0) outcome of a node: key (source run, node, n)."""
        seen, open_here = 0, False
        emitted: list[WorkflowEvent] = []
        shown = 0
        for sequence, told in enumerate(self.events):
            mine = told.payload.get("nodeId") == node
            if told.type == "node.started" and mine:
                open_here, emitted, shown = True, [], 0
            elif told.type in ("node.completed", "node.failed") and mine:
                if seen == nth:
                    return Recorded(node, tuple(emitted), told, shown or sequence)
                seen, open_here = seen + 1, False
            elif open_here and mine and not told.type.startswith("replay."):
                emitted.append(told)
                if told.type == "envelope.refusal":
                    shown = sequence
        return None

    def event_id(self, sequence: int) -> str:
        return event_id(self.run, sequence)


def event_id(run: str, sequence: int) -> str:
    """The id of an event: the same whenever it is read."""
    return f"{run}.{sequence}"


class Comparison:
    """Watches a replay fork write its log and says once where it does something else than its source."""

    def __init__(self, source: Source, seen: int = 0) -> None:
        self.source = source
        self._recorded: list[tuple[int, WorkflowEvent]] = []
        self._read = 0
        self._place = seen
        self._lost = False
        """After an extra or missing event the rest cannot be compared by position."""

    def see(self, told: WorkflowEvent) -> dict[str, Any] | None:
        """The payload of ``replay.diverged`` if *told* is not what the source has at this place."""
        if told.type == "replay.divergedAtRefusal":
            self._lost = True  # what follows is the failure, which the source did not have
        if self._lost or told.type.startswith("replay."):
            return None
        place, self._place = self._place, self._place + 1
        for number in range(self._read, len(self.source.events)):  # the source may still be running
            if not self.source.events[number].type.startswith("replay."):
                self._recorded.append((number, self.source.events[number]))
        self._read = len(self.source.events)
        if place >= len(self._recorded):
            self._lost = True
            return self._diverged(len(self.source.events), "extra", told) if self._ended() else None
        sequence, recorded = self._recorded[place]
        if recorded.type == "run.cancelled":  # somebody stopped the source; what came next is not known
            self._lost = True
            return None
        same_node = recorded.payload.get("nodeId") == told.payload.get("nodeId")
        if recorded.type != told.type or not same_node:
            self._lost = True
            early = told.type in TERMINAL and recorded.type not in TERMINAL
            return self._diverged(sequence, "missing" if early else "type-mismatch", told)
        if diff_values(dict(recorded.payload), dict(told.payload), limit=1):
            return self._diverged(sequence, "output", told)
        return None

    def _ended(self) -> bool:
        return bool(self.source.events) and self.source.events[-1].type in TERMINAL

    def _diverged(self, place: int, kind: str, told: WorkflowEvent) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "sourceRunId": self.source.run,
            "atSequence": place,
            "divergenceKind": kind,
            "divergencePoint": told.type,
        }
        if place < len(self.source.events):
            payload["originalEventId"] = self.source.event_id(place)
        if "nodeId" in told.payload:
            payload["nodeId"] = told.payload["nodeId"]
        return payload

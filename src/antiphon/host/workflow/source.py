"""A replay fork's view of its source: the n-th outcome of each node, and where the two diverge (L4, L12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import orjson

from antiphon._diff import diff_values
from antiphon._recording.plain import dump
from antiphon.host.workflow.state import TERMINAL, WorkflowEvent

EnvelopeKind = Literal["valid", "refusal", "unknown"]
NOT_VERIFIED = "replay_not_verified"
"""Code of the event that reports that a replay could not ask a model again."""


def is_remark(event: WorkflowEvent) -> bool:
    """Whether an event is a remark of the replay itself, with no counterpart in its source."""
    return event.type.startswith("replay.") or (
        event.type == "log.appended" and event.payload.get("code") == NOT_VERIFIED
    )


class Recorded(NamedTuple):
    """How one execution of a node ended in the source, and the events it emitted."""

    node: str
    emitted: tuple[WorkflowEvent, ...]
    terminal: WorkflowEvent
    sequence: int
    """Number of the event that shows the kind of answer: the refusal, or else the terminal event."""
    started: int
    """Number of the event that started it."""
    request_digest: str
    """Digest of its external request; empty in recordings that do not have it."""
    rows: range
    """Its rows in the log."""

    @property
    def kind(self) -> EnvelopeKind:
        """Whether the model answered or refused."""
        if any(event.type == "envelope.refusal" for event in self.emitted):
            return "refusal"
        return "valid" if self.terminal.type == "node.completed" else "unknown"


class Source:
    """The log of the replayed run."""

    def __init__(self, run: str, events: Sequence[WorkflowEvent], rows: Sequence[int] = ()) -> None:
        self.run = run
        self.events = events
        self.rows = rows
        """The log row of each event, if known."""

    def outcome(self, node: str, nth: int) -> Recorded | None:
        """The outcome with the key (source run, node, *nth*), where *nth* counts from 0."""
        seen, open_here = 0, False
        emitted: list[WorkflowEvent] = []
        shown = begun = 0
        for sequence, event in enumerate(self.events):
            mine = event.payload.get("nodeId") == node
            if event.type == "node.started" and mine:
                open_here, emitted, shown, begun = True, [], 0, sequence
            elif event.type in ("node.completed", "node.failed") and mine:
                if seen == nth:
                    rows = range(self.rows[begun], self.rows[sequence]) if self.rows else range(0)
                    asked = self.events[begun].request_digest
                    return Recorded(node, tuple(emitted), event, shown or sequence, begun, asked, rows)
                seen, open_here = seen + 1, False
            elif open_here and mine and not is_remark(event):
                emitted.append(event)
                if event.type == "envelope.refusal":
                    shown = sequence
        return None


def event_id(run: str, sequence: int) -> str:
    """The id of an event, the same on every read."""
    return f"{run}.{sequence}"


class Comparison:
    """Compares the log of a replay fork with its source and reports each divergence once."""

    def __init__(self, source: Source, seen: int = 0) -> None:
        self.source = source
        self._recorded: list[tuple[int, WorkflowEvent]] = []
        self._read = 0
        self._place = seen
        self._lost = False
        """After an extra or missing event the rest cannot be compared by position."""
        self._reported: set[Any] = set()
        """Nodes whose divergence has been reported."""

    def see(self, event: WorkflowEvent) -> dict[str, Any] | None:
        """The payload of ``replay.diverged`` if *told* differs from the source at this position."""
        if event.type == "replay.divergedAtRefusal":
            self._lost = True  # the failure that follows has no counterpart in the source
        if self._lost or is_remark(event):
            return None
        place, self._place = self._place, self._place + 1
        for number in range(self._read, len(self.source.events)):  # the source may still be running
            if not is_remark(self.source.events[number]):
                self._recorded.append((number, self.source.events[number]))
        self._read = len(self.source.events)
        if place >= len(self._recorded):
            self._lost = True
            return self._diverged(len(self.source.events), "extra", event) if self._ended() else None
        sequence, recorded = self._recorded[place]
        if recorded.type == "run.cancelled":  # the source was cancelled, so its next events are unknown
            self._lost = True
            return None
        same_node = recorded.payload.get("nodeId") == event.payload.get("nodeId")
        if recorded.type != event.type or not same_node:
            self._lost = True
            early = event.type in TERMINAL and recorded.type not in TERMINAL
            return self._diverged(sequence, "missing" if early else "type-mismatch", event)
        if _equal(recorded.payload, event.payload):
            return None
        if event.type in TERMINAL and self._reported:
            return None  # a consequence of a divergence already reported
        return self._diverged(sequence, "output", event)

    def request(self, recorded: Recorded, event: WorkflowEvent) -> dict[str, Any] | None:
        """The payload of ``replay.diverged`` if a node's request differs from that in the source."""
        if not recorded.request_digest or not event.request_digest or recorded.request_digest == event.request_digest:
            return None
        return self._diverged(recorded.started, "output", event, differs="request")

    def unasked(self, recorded: Recorded, number: int) -> dict[str, Any] | None:
        """The same for calls that an agent made in the source and not in the replay."""
        event = WorkflowEvent("node.completed", {"nodeId": recorded.node})
        return self._diverged(recorded.started, "missing", event, differs="calls", missingCalls=number)

    def _ended(self) -> bool:
        return bool(self.source.events) and self.source.events[-1].type in TERMINAL

    def _diverged(self, place: int, kind: str, event: WorkflowEvent, **more: Any) -> dict[str, Any] | None:
        node = event.payload.get("nodeId")
        if node is not None and node in self._reported:
            return None
        self._reported.add(node)
        payload: dict[str, Any] = {
            "sourceRunId": self.source.run,
            "atSequence": place,
            "divergenceKind": kind,
            "divergencePoint": event.type,
            **more,
        }
        if place < len(self.source.events):
            payload["originalEventId"] = event_id(self.source.run, place)
        if "nodeId" in event.payload:
            payload["nodeId"] = event.payload["nodeId"]
        return payload


def _equal(recorded: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Whether two payloads are equal once encoded."""
    try:
        if recorded == live or not diff_values(dict(recorded), dict(live), limit=1):
            return True
    except RecursionError:
        pass
    return {name: dump(value) for name, value in recorded.items()} == {
        name: dump(orjson.loads(dump(value))) for name, value in live.items()
    }

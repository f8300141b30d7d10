"""Replay by content, whatever the order: of a recording that holds only calls seen from outside, or for such callers.

The proxy sees the calls of a program, but not its tasks and threads: two of its calls have no order that a replay could
compare. So each call is answered by an equal recorded one, and what was not called is reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from antiphon._diff import diff_values
from antiphon._replay.observe import CANDIDATES, Composed, DivergenceFound, Observer, Seen, miss_of, words_of
from antiphon._replay.recording import RecordedCall, Recording
from antiphon._scope import Site
from antiphon.llm.key import variant_digest
from antiphon.ports import Invocation


class AnswerShape(NamedTuple):
    """What distinguishes recorded calls with the same key."""

    streams: bool | None = None
    """Whether the request asked for a stream; ``None`` if unknown or not applicable."""
    variant: str | None = None


def _shape_of(recording: Recording, call: RecordedCall) -> AnswerShape:
    if call.kind != "llm":
        return AnswerShape()
    asked = recording.event(call.started)
    request = asked.payload.get("request")
    return AnswerShape(recording.streamed(asked), variant_digest(request) if isinstance(request, dict) else None)


def _fits(shape: AnswerShape, call: Invocation) -> bool:
    return shape.streams is None or shape.streams == call.stream


class ByContent:
    """The calls of a recording by content, whatever their position.

    The first equal request gets the first recorded answer, the second the second; none is used twice. A recorded stream
    only answers a request for a stream. Among calls that differ only in their variant, the same variant is preferred.
    """

    def __init__(self, recording: Recording, *, finished: bool = False) -> None:
        """With *finished*, only calls that have an outcome."""
        self._recording = recording
        self._calls: dict[tuple[str, str], list[RecordedCall]] = {}
        self._left: dict[tuple[str, str], dict[AnswerShape, deque[RecordedCall]]] = {}
        """The unused calls by shape, built on first use because the shape must be read from their events."""
        for call in sorted(recording.calls.values(), key=lambda found: found.started):
            if call.finished is not None or not finished:
                self._calls.setdefault((call.name, call.digest), []).append(call)

    def _equal(self, call: Invocation) -> dict[AnswerShape, deque[RecordedCall]]:
        key = (call.name, call.digest)
        if key not in self._calls:
            return {}
        if key not in self._left:
            left = self._left[key] = {}
            for found in self._calls[key]:
                left.setdefault(_shape_of(self._recording, found), deque()).append(found)
        for calls in self._left[key].values():
            while calls and calls[0].used:  # by a call whose arguments differ only under masks
                calls.popleft()
        return self._left[key]

    def take(self, call: Invocation) -> RecordedCall | None:
        """Take the next equal recorded call."""
        fitting = [(shape, left) for shape, left in self._equal(call).items() if left and _fits(shape, call)]
        if len(fitting) > 1:
            variant = variant_digest(call.arguments)
            fitting = [(shape, left) for shape, left in fitting if shape.variant == variant] or fitting
        if not fitting:
            return None
        _, left = min(fitting, key=lambda one: one[1][0].started)
        found = left[0]
        if self._recording.find(found.lane, found.name, found.digest, found.nth) is None:  # from another credential
            return None
        return left.popleft()

    def with_other_shape(self, call: Invocation) -> RecordedCall | None:
        """An equal recorded call whose answer has another shape."""
        return next((left[0] for shape, left in self._equal(call).items() if left and not _fits(shape, call)), None)

    def equal_to(self, call: Invocation) -> list[RecordedCall]:
        """The equal recorded calls."""
        return self._calls.get((call.name, call.digest), [])

    def unasked(self) -> list[RecordedCall]:
        """The recorded calls that were not requested, in recorded order."""
        left = (call for calls in self._calls.values() for call in calls if not call.used)
        return sorted(left, key=lambda call: call.started)


class ContentObserver(Observer):
    """Compares each call with the recorded one that answers it; what else the code does was not seen from outside."""

    def __init__(self, recording: Recording, present: Callable[[Any], Any], calls: ByContent) -> None:
        super().__init__(recording, present)
        self._calls = calls

    def add(self, found: DivergenceFound) -> DivergenceFound:
        """Add a difference; lanes would say nothing about it."""
        if self._first is None:
            self._first = found.nearest
        return super().add(found._replace(lane="0"))

    def begun(self, site: Site, found: RecordedCall) -> bool:
        return True

    def _in_order(self, row: Seen | Composed) -> None:
        call = None if row.site is None else self._answered.get(row.site.call)
        if call is None:
            return
        recorded = self.recording.event(call.started)
        payload = {**row.payload, "nth": recorded.payload.get("nth")}  # counted in lanes
        self._compare(
            Seen(row.type, row.site, payload, row.meta if isinstance(row, Seen) else {}), recorded, call.index
        )

    def missed(self, call: Invocation) -> DivergenceFound:
        other, equal = self._calls.with_other_shape(call), self._calls.equal_to(call)
        if other is not None:
            fields = tuple(diff_values({"stream": not call.stream}, {"stream": call.stream}))
            asked, kept = ("as a stream", "as a whole") if call.stream else ("as a whole", "as a stream")
            return self.add(miss_of(call, other, fields, f"asked {asked}, recorded only {kept}"))
        if equal and all(found.used for found in equal):
            times = "once" if len(equal) == 1 else f"{len(equal)} times"
            return self.add(miss_of(call, equal[-1], (), f"recorded {times}, and asked once more than that"))
        near, fields = self._nearest(call)
        note = self._why_not(call, near) if near is not None and not fields else ""
        return self.add(miss_of(call, near, fields, note))

    def _why_not(self, call: Invocation, near: RecordedCall) -> str:
        return super()._why_not(call, near) if near.digest != call.digest else "recorded with another credential"

    def _candidates(self, call: Invocation) -> list[RecordedCall]:
        return (self._named(call.name) or list(self.recording.calls.values()))[:CANDIDATES]

    def _not_reached(self) -> None:
        for call in self._calls.unasked():
            recorded = self.recording.event(call.started)
            words = words_of(recorded)
            if self.recording.may_be_left_out(call):
                continue
            if self._first is not None and call.started >= self._first:
                self.consequences.append(words)
            else:
                self.add(DivergenceFound("missing", call.lane, call.index, call.started, words))

    def late_left(self) -> list[tuple[int, DivergenceFound]]:
        return []

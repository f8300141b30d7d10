"""A recorded run as something that can be asked: who called what, where, and what came of it (D17).

The index holds places and digests; the payloads of small events are kept up to a budget, the others are read from the
log when they are needed. So opening is linear, an answer is a dictionary look-up, and memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from antiphon._drive import drive
from antiphon.contract.events import Event, RunManifest
from antiphon.errors import ArtifactError
from antiphon.ports import Answer, Journal

KEEP_EVENT_BYTES = 4_096
KEEP_TOTAL_BYTES = 32 * 1024 * 1024

OBSERVABLE = frozenset(
    {
        "run.started",
        "run.finished",
        "interaction.started",
        "interaction.finished",
        "call.started",
        "call.finished",
        "draw",
        "prompt",
    }
)


class Key(NamedTuple):
    """What a call is found by: never its position, never first come, first served."""

    lane: str
    name: str
    digest: str
    nth: int


class RecordedCall:
    """One call of the recording: its place, and where its events are."""

    __slots__ = (
        "_payload",
        "call",
        "chunks",
        "digest",
        "finished",
        "index",
        "kind",
        "lane",
        "name",
        "nth",
        "started",
        "used",
    )

    def __init__(self, event: Event) -> None:
        payload = event.payload
        self.call = event.call or ""
        self.lane = event.lane
        self.index = event.index
        self.kind = str(payload.get("kind", "tool"))
        self.name = full_name(payload)
        self.digest = str(payload.get("digest", ""))
        self.nth = int(payload.get("nth", 0))
        self.started = event.seq
        self.finished: int | None = None
        self.chunks: list[int] = []
        self.used = 0

    @property
    def key(self) -> Key:
        return Key(self.lane, self.name, self.digest, self.nth)


def full_name(payload: dict[str, Any]) -> str:
    """The boundary's name: ``namespace/name`` for tools."""
    name = str(payload.get("name", ""))
    namespace = payload.get("namespace")
    return f"{namespace}/{name}" if namespace else name


class Tape:
    """The recording of one run."""

    def __init__(self, manifest: RunManifest, journal: Journal, resolve: Any = None) -> None:
        self.manifest = manifest
        self._journal = journal
        self._resolve = resolve
        self.calls: dict[Key, RecordedCall] = {}
        self.by_name: dict[str, list[RecordedCall]] = {}
        self.draws: dict[tuple[str, str, int], Any] = {}
        self.lanes: dict[str, list[int]] = {}
        """Sequence numbers of the observable events of each lane, in the lane's own order."""
        self.length = 0
        self.prompts: list[dict[str, Any]] = []
        self.interactions: list[dict[str, Any]] = []
        self.first: Event | None = None
        self.last: Event | None = None
        self._kept: dict[int, Event] = {}
        self._kept_bytes = 0
        self._open: dict[str, RecordedCall] = {}

    @classmethod
    def load(cls, manifest: RunManifest, journal: Journal, resolve: Any = None) -> Tape:
        """Read the run once, in batches."""
        tape = cls(manifest, journal, resolve)
        for event in _all_events(journal, manifest.id):
            tape._add(event)
        tape._open.clear()
        if tape.first is None:
            raise ArtifactError(f"Run {manifest.id} has no events.")
        return tape

    def _add(self, event: Event) -> None:
        if event.seq != self.length:
            raise ArtifactError(f"Run {event.run} has a gap: event {self.length} is missing.")
        self.length += 1
        kind = event.type
        if kind == "run.started":
            self.first = self.first or event
        elif kind == "run.finished":
            self.last = event
        elif kind == "call.started":
            call = RecordedCall(event)
            if call.key not in self.calls:  # a resumed run makes its calls again; the first answer stands
                self.calls[call.key] = call
                self.by_name.setdefault(call.name, []).append(call)
            self._open[call.call] = call
        elif kind == "call.finished":
            found = self._open.get(event.call or "")
            if found is not None and (found.finished is None or event.payload.get("outcome") == "ok"):
                found.finished = event.seq
        elif kind == "call.chunk":
            found = self._open.get(event.call or "")
            if found is not None:
                found.chunks.append(event.seq)
        elif kind == "draw":
            place = (event.lane, str(event.payload.get("what")), int(event.payload.get("nth", 0)))
            self.draws.setdefault(place, event.payload.get("value"))
        elif kind == "prompt":
            self.prompts.append(event.payload)
        elif kind == "interaction.finished":
            self.interactions.append(event.payload)
        if kind in OBSERVABLE:
            self.lanes.setdefault(event.lane, []).append(event.seq)
        self._keep(event)

    def _keep(self, event: Event) -> None:
        size = _rough_size(event.payload, KEEP_EVENT_BYTES)
        if size <= KEEP_EVENT_BYTES and self._kept_bytes + size <= KEEP_TOTAL_BYTES:
            self._kept[event.seq] = event
            self._kept_bytes += size

    def event(self, seq: int) -> Event:
        """One event, from memory or from the log; spilled parts are brought back."""
        found = self._kept.get(seq)
        if found is None:
            rows = drive(self._journal.events(self.manifest.id, start=seq, stop=seq + 1))
            if not rows:
                raise ArtifactError(f"Event {seq} of run {self.manifest.id} cannot be read.")
            found = rows[0]
        return self._resolve(found) if self._resolve is not None else found

    def find(self, lane: str, name: str, digest: str, nth: int) -> RecordedCall | None:
        """The recorded call of exactly this place and content."""
        return self.calls.get(Key(lane, name, digest, nth))

    def answer(self, call: RecordedCall, *, source: str = "recording") -> Answer:
        """What the recording says came of *call*; recorded errors stay errors."""
        call.used += 1
        if call.finished is None:
            error = {"code": "outcome_unknown", "message": "The recording ends before this call was answered."}
            return Answer("error", error=error, source=source)
        payload = self.event(call.finished).payload
        chunks = [self.event(seq).payload.get("data") for seq in call.chunks] if call.chunks else None
        return Answer(
            str(payload.get("outcome", "ok")),
            payload.get("value"),
            payload.get("error"),
            chunks,
            source,
        )

    def arguments(self, call: RecordedCall) -> Any:
        """What the call was made with."""
        payload = self.event(call.started).payload
        return payload.get("arguments") if "arguments" in payload else payload.get("request")

    def output(self) -> Any:
        """The output of the run."""
        return None if self.last is None else self.event(self.last.seq).payload.get("output")


def _all_events(journal: Journal, run: str) -> Iterator[Event]:
    start = 0
    while batch := drive(journal.events(run, start=start, limit=500)):
        yield from batch
        start = batch[-1].seq + 1


def _rough_size(value: Any, limit: int) -> int:
    """About how many bytes a payload takes; stops counting beyond *limit*."""
    total = 0
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            total += len(item) + 50
        elif isinstance(item, dict):
            total += 100
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            total += 60
            stack.extend(item)
        else:
            total += 30
        if total > limit:
            return total
    return total


def unused(calls: Iterable[RecordedCall]) -> list[RecordedCall]:
    """Recorded calls that nobody asked for."""
    return [call for call in calls if not call.used]

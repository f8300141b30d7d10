"""A recorded run that can be queried: who called what, where, and with what outcome (D17).

The index holds places and digests; payloads of small events are cached up to a budget, the others are read from the log
on demand. So opening is linear, an answer is a dictionary lookup, and memory stays bounded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
import orjson

from antiphon._drive import AFTER, was_cancelled
from antiphon._replay.masks import MaskRules, NotCompared
from antiphon.canonical import canonical_digest, is_plain
from antiphon.contract.events import (
    AFTER_END,
    ASKS_STREAM,
    CALLS_ONLY,
    CLASSES,
    GIVEN,
    MASKS,
    PSEUDONYMS,
    RAW_DIGEST,
    Event,
    RunManifest,
    as_returned,
    spilled,
    sum_holds,
    type_not_kept,
)
from antiphon.errors import ArtifactError, CanonicalError, Divergence, InvalidInput, is_script_module
from antiphon.ports import AS_RECORDED, BEGUN, NOT_KEPT, Answer
from antiphon.redact import Mask
from antiphon.redact._pointers import masks_in, pseudonyms_of
from antiphon.redact._standins import is_credential

_COMES_IN = frozenset({"run.started", "interaction.started", "call.finished", "call.chunk", "draw"})
_UNDO_LANE = re.compile(r":~undo [0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}#")
"""Lanes in which an operator's ``runs undo`` makes its calls, never the code of the run."""
KEEP_EVENT_BYTES = 4_096
KEEP_TOTAL_BYTES = 32 * 1024 * 1024
READ_AHEAD = 32

_START = {"kind", "name", "namespace", "arguments", "digest", "nth"}
"""The fields of a tool call's start event that follow from its place, its name and its arguments."""
_OUTCOMES = frozenset({"ok", "error", "denied", "refusal"})
ORDERED = frozenset({"run.started", "interaction.started", "interaction.finished", "call.started", "draw", "prompt"})
"""Events whose order within a lane is compared. The end of a call is compared with the end of that very call: when it
comes depends on how fast a stream is read, not on what the code does.
"""


class Events(Protocol):
    """The part of a journal that a recording is read from."""

    def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> list[Event]: ...


class Key(NamedTuple):
    """The key of a call: never its position, never first come, first served."""

    lane: str
    name: str
    digest: str
    nth: int


@dataclass(slots=True, eq=False)
class RecordedCall:
    """One call of the recording: its place, and where its events are."""

    call: str
    lane: str
    index: int
    kind: str
    name: str
    digest: str
    nth: int
    started: int
    finished: int | None = None
    chunks: list[int] = field(default_factory=list)
    streamed: bool | None = None
    """Whether its answer was a stream; ``None`` if there is no answer, or an error instead."""
    used: int = 0
    written: int | None = None
    """A hash of a tool call's serialised arguments, if its start event has only the usual fields."""
    after_end: bool = False
    """Made after the end of the run, by work that the run had started."""
    has_saga: bool = False
    """Whether it was a write of a saga."""

    @classmethod
    def of(cls, event: Event) -> RecordedCall:
        """The call that *event* starts."""
        payload = event.payload
        kind, digest = str(payload.get("kind", "tool")), str(payload.get("digest", ""))
        nth = _count(payload.get("nth"))
        late = bool(event.meta.get(AFTER_END))
        place = (event.call or "", event.lane, event.index, kind, full_name(payload), digest, nth, event.seq)
        return cls(*place, after_end=late, has_saga="saga" in event.meta)

    @property
    def key(self) -> Key:
        return Key(self.lane, self.name, self.digest, self.nth)


def full_name(payload: Mapping[str, Any]) -> str:
    """The boundary's name: ``namespace/name`` for tools."""
    name = str(payload.get("name", ""))
    namespace = payload.get("namespace")
    return f"{namespace}/{name}" if namespace else name


def asks_stream(payload: Mapping[str, Any], meta: Mapping[str, Any]) -> bool | None:
    """Whether a model call requests a stream; ``None`` if neither its body nor its metadata tell."""
    sent = payload.get("providerRequest")
    if not isinstance(sent, Mapping) or payload.get("provider") == "gemini":
        return meta.get(ASKS_STREAM)
    return bool(sent.get("stream"))


class Recording:
    """The recording of one run."""

    def __init__(self, manifest: RunManifest, journal: Events, resolve: Any = None, opened: Any = None) -> None:
        self.manifest = manifest
        self._journal = journal
        self._resolve = resolve
        self._opened = opened
        """Restores the originals in an event."""
        self.masks: MaskRules = MaskRules()
        self.masks.has_key = opened is not None
        self.credentials: set[int] = set()
        """Starts of calls with masked credentials."""
        self.digests: dict[str, str] = {}
        """Digest of a call's original arguments -> the recorded one, computed from pseudonyms."""
        self.is_old: bool = bool(manifest.salt)
        """Made by release 0.1.0: it holds placeholders, and the originals are lost."""
        self.view: Callable[..., Any] = _as_it_is
        """Masks live and recorded values in reports."""
        self.calls: dict[tuple[str, str, str, int], RecordedCall] = {}
        self.by_name: dict[str, list[RecordedCall]] = {}
        self.draws: dict[tuple[str, str, int], Any] = {}
        self.lanes: dict[str, list[int]] = {}
        """Sequence numbers of the ordered events of each lane, in the lane's own order."""
        self.late: dict[str, dict[int, int]] = {}
        """Those after the end of the run, by lane, with the milliseconds after it."""
        self.altered: list[int] = []
        """Events that were altered after they were written."""
        self.plain: set[str] = set()
        """Digests of arguments without anything to redact: equal ones need not be checked again."""
        self.ambiguous: set[str] = set()
        """Lanes that only their order of arrival distinguishes, and that did different things."""
        self.script_vendor: str | None = None
        """The vendor name of a model whose class was in a script: its name at the time, in earlier recordings."""
        self.length: int = 0
        self.prompts: list[dict[str, Any]] = []
        self.interactions: list[dict[str, Any]] = []
        self.first: Event | None = None
        self.last: Event | None = None
        self._kept: dict[int, Event] = {}
        self._edited: dict[int, Event] = {}
        self._window: dict[int, Event] = {}
        self._kept_bytes = 0
        self._open: dict[str, RecordedCall] = {}
        self._by_id: dict[str, RecordedCall] = {}
        self._more: dict[tuple[str, str, str], int] = {}
        """The next free number of equal calls that were masked in another way before."""
        self._parents: dict[str, str] = {}
        self._requests: dict[tuple[Any, bytes | None], int] = {}
        self._arguments: dict[int, str] = {}
        """Digests of recorded arguments, by the hash of their serialised form."""

    @classmethod
    def load(
        cls,
        manifest: RunManifest,
        journal: Events,
        resolve: Any = None,
        opened: Any = None,
        seen: Callable[[Event], None] | None = None,
    ) -> Recording:
        """Read the run once, in batches."""
        recording = cls(manifest, journal, resolve, opened)
        for event in _all_events(journal, manifest.id):
            if seen is not None:
                seen(event)
            recording._add(event)
        recording._open.clear()
        if recording.first is None:
            raise ArtifactError(f"Run {manifest.id} has no events.")
        return recording

    def _add(self, event: Event) -> None:
        if event.seq != self.length:
            raise ArtifactError(f"Run {event.run} has a gap: event {self.length} is missing.")
        self.length += 1
        held = sum_holds(event)
        if held is False:
            self.altered.append(event.seq)
        if MASKS in event.meta or PSEUDONYMS in event.meta:
            event = self._add_masks(event)
        kind = event.type
        if kind == "run.started":
            if self.first is not None:  # resumed: the code started over, and finished calls were answered from records
                self._restart()
            self.first = event
        elif kind == "run.finished":
            self.last = event
        elif kind == "call.started":
            self._add_call(event, held is True)
        elif kind in ("call.finished", "call.chunk"):
            self._add_to_call(event)
        elif kind == "draw":
            place = (event.lane, str(event.payload.get("what")), _count(event.payload.get("nth")))
            self.draws.setdefault(place, self._whole(event).payload.get("value"))
        elif kind == "prompt":
            self.prompts.append(self._whole(event).payload)
        elif kind == "interaction.finished":
            self.interactions.append(self._whole(event).payload)
        elif kind == "decision" and event.payload.get("what") == "ambiguous":
            self.ambiguous.update(event.payload.get("detail", {}).get("lanes", ()))
        if kind in ORDERED:
            self._add_to_lane(event)
        self._keep(event)

    def _add_to_lane(self, event: Event) -> None:
        lane = event.lane
        if event.meta.get(AFTER_END):
            if _UNDO_LANE.search(lane):
                return
            end = event.at_ms if self.last is None else self.last.at_ms
            self.late.setdefault(lane, {})[event.seq] = event.at_ms - end
        self.lanes.setdefault(lane, []).append(event.seq)
        if event.parent is not None:
            self._parents[lane] = event.parent

    def _add_masks(self, event: Event) -> Event:
        masks = self.masks
        comes_in = event.type in _COMES_IN
        for text, kind in pseudonyms_of(self._whole(event) if spilled(event) else event):
            masks.note_pseudonym(text, kind, event.seq, comes_in=comes_in)
        if event.type == "call.started" and any(is_credential(mask.kind) for mask in self.masks_of(event)):
            self.credentials.add(event.seq)
        event = self._unsealed(event)
        raw, digest = event.meta.get(RAW_DIGEST), event.payload.get("digest")
        if isinstance(raw, str) and isinstance(digest, str) and raw not in self.plain:
            self.digests.setdefault(raw, digest)
        return event

    def masks_of(self, event: Event, *fields: str) -> list[Mask]:
        """The masks of the event; only below *fields* of its payload, if any are given."""
        found = list(masks_in(event.meta.get(MASKS)))
        return [m for m in found if not fields or m.pointer.split("/")[1] in fields]

    def match_ignoring_masks(
        self, lane: str | None, name: str, arguments: Any, digest: str
    ) -> tuple[RecordedCall, list[NotCompared]] | None:
        """The first unused call of that name, in the lane if one is given, that differs only under masks."""
        for call in self.by_name.get(name, ()):
            if call.used or lane not in (None, call.lane):
                continue
            event = self.event(call.started)
            masks = self.masks_of(event, "arguments", "request")
            if not masks:
                continue
            field = "arguments" if "arguments" in event.payload else "request"
            recorded, live = {field: event.payload.get(field)}, {field: arguments}
            own = live == recorded
            raw = event.meta.get(RAW_DIGEST)
            if own and raw is not None and digest not in (raw, call.digest):  # equal as JSON, but of other types
                continue
            agreed, left = self.masks.reconcile(recorded, live, masks, event, name)
            if agreed == recorded and not (own and not self.masks.same_credentials(event.payload, masks)):
                return call, left
        return None

    def _add_call(self, event: Event, sealed: bool) -> None:
        call = RecordedCall.of(event)
        first = self.digests.get(str(event.meta.get(RAW_DIGEST)), call.digest)
        if call.digest != first:  # its arguments were masked in another way before, when fewer secrets were known
            call.digest = first
            place = (call.lane, call.name, first)
            call.nth = self._more.get(place, call.nth)
            while call.key in self.calls:
                call.nth += 1
            self._more[place] = call.nth + 1
        if call.key not in self.calls:  # a retried tool repeats its inner calls: the first one counts
            self.calls[call.key] = call
            self.by_name.setdefault(call.name, []).append(call)
        self._open[call.call] = call
        self._by_id[call.call] = call
        payload = event.payload
        if "keyOf" in payload:
            return
        if sealed and call.kind == "tool" and payload.keys() == _START and type(payload["arguments"]) is dict:
            call.written = hash(orjson.dumps(payload["arguments"]))
            if self._is_digest(payload["arguments"], call.digest):
                self._arguments[call.written] = call.digest
        if "variant" in payload and self.script_vendor is None:
            vendor = payload["request"].get("provider") if type(payload.get("request")) is dict else None
            self.script_vendor = vendor if type(vendor) is str and is_script_module(vendor) else None
        if sealed and "variant" in payload:
            self._requests[(payload.get("provider"), _bytes(payload.get("providerRequest")))] = event.seq
        if self._opened is None or MASKS not in event.meta:
            self.plain.add(call.digest)

    def _is_digest(self, arguments: dict[str, Any], digest: str) -> bool:
        """Whether the call had exactly these arguments, and not others with the same JSON, such as ``{1: 2}``."""
        try:
            own = canonical_digest(arguments)
        except CanonicalError:
            return False
        return self.digests.get(own, own) == digest

    def _add_to_call(self, event: Event) -> None:
        found = self._open.get(event.call or "")
        if found is None:
            return
        if event.type == "call.chunk":
            if event.payload.get("n", len(found.chunks)) != len(found.chunks):
                raise ArtifactError(f"Event {event.seq} of run {event.run} is not the next chunk of its stream.")
            found.chunks.append(event.seq)
        elif found.finished is None or event.payload.get("outcome") == "ok":
            found.finished = event.seq
            if event.meta.get("stream") or event.payload.get("outcome") != "error":
                found.streamed = bool(event.meta.get("stream"))

    def _restart(self) -> None:
        for part in (
            self.calls,
            self.by_name,
            self.draws,
            self.lanes,
            self.late,
            self._open,
            self._by_id,
            self._more,
            self._parents,
        ):
            part.clear()
        self.prompts.clear()
        self.interactions.clear()
        self.last = None

    @property
    def calls_only(self) -> bool:
        """Whether it holds only calls seen from outside the code that made them: they have no order to compare."""
        return self.first is not None and self.first.payload.get(CALLS_ONLY) is True

    def may_be_left_out(self, call: RecordedCall) -> bool:
        """Whether it is not known that the code made this call: an MCP client lists tools by itself to check a result,
        which it does not get if the guard of its calls answers from the recording."""
        return self.calls_only and call.name == "tools/list"

    @property
    def answered(self) -> int:
        """How many calls it has answered."""
        return sum(call.used for call in self.calls.values())

    def rewind(self) -> None:
        """Forget which calls were requested."""
        self.masks.rewind()
        for call in self.calls.values():
            call.used = 0

    def top_calls(self) -> list[RecordedCall]:
        """The calls that the code itself made, without those of its tools, in the order they were started."""
        made = (call for call in self.calls.values() if call.lane not in self._parents and not call.after_end)
        return sorted(made, key=lambda call: call.started)

    def covered(self, lane: str) -> bool:
        """Whether the lane lies inside a call that was answered as a whole, so that its parts need not be requested."""
        parent = self._parents.get(lane)
        while parent is not None:
            call = self._by_id.get(parent)
            if call is None:
                return False
            if call.used:
                return True
            parent = self._parents.get(call.lane)
        return False

    def is_ambiguous(self, lane: str) -> bool:
        """Whether the lane, or one that contains it, was marked ambiguous when it was recorded."""
        return any(lane == path or lane.startswith((f"{path}/", f"{path}@")) for path in self.ambiguous)

    def _keep(self, event: Event) -> None:
        """Cache small events in memory; one with spilled parts is loaded on demand."""
        size = _rough_size(event.payload, KEEP_EVENT_BYTES)
        if spilled(event):
            return
        if size <= KEEP_EVENT_BYTES and self._kept_bytes + size <= KEEP_TOTAL_BYTES:
            self._kept[event.seq] = event
            self._kept_bytes += size

    def event(self, seq: int) -> Event:
        """One event, from memory or from the log, with its spilled parts."""
        found = self._kept.get(seq)
        if found is not None and not self._edited:
            return found
        found = self._edited.get(seq) or found
        if found is None:
            return self._whole(self._read(seq))
        return found

    def _read(self, seq: int) -> Event:
        """An event from the log, together with the following ones, which will be needed next."""
        if seq not in self._window:
            rows = self._journal.events(self.manifest.id, start=seq, stop=seq + READ_AHEAD)
            self._window = {event.seq: self._unsealed(event) for event in rows}
        try:
            return self._window[seq]
        except KeyError:
            raise ArtifactError(f"Event {seq} of run {self.manifest.id} cannot be read.") from None

    def _unsealed(self, event: Event) -> Event:
        return event if self._opened is None else self._opened(event)

    def _whole(self, event: Event) -> Event:
        return event if self._resolve is None else self._resolve(event)

    def edit(self, seq: int, path: str, value: Any) -> None:
        """Change a part of a recorded event for this replay: ``edit(12, "value.status", "lost")``."""
        if not 0 <= seq < self.length:
            raise InvalidInput(
                f"Run {self.manifest.id} has no event {seq} to edit.", hint=f"It has 0 to {self.length - 1}."
            )
        event = self.event(seq)
        payload = set_at(event.payload, path, value, f"event {seq}")
        self._edited[seq] = msgspec.structs.replace(event, payload=payload)

    def known_request(self, provider: str, body: Any) -> Mapping[str, Any] | None:
        """The recorded mapping of a provider's request body; only from unaltered events."""
        data = _bytes(body) if self._requests else None
        seq = None if data is None else self._requests.get((provider, data))
        return None if seq is None else self.event(seq).payload

    def known_arguments(self, arguments: dict[str, Any]) -> tuple[bytes, str] | None:
        """Plain arguments as JSON, and their digest, if the recording has arguments with the same JSON."""
        if not self._arguments or not is_plain(arguments):
            return None
        try:
            data = orjson.dumps(arguments)
        except TypeError:  # a number beyond 64 bits, a name that is not text
            return None
        digest = self._arguments.get(hash(data))
        return None if digest is None else (data, digest)

    def begins(self, call: RecordedCall, written: bytes | None) -> bool:
        """Whether a call with the same place, name and digest, and these serialised arguments, begins as recorded."""
        return written is not None and call.written == hash(written) and not self._edited

    def find(self, lane: str, name: str, digest: str, nth: int) -> RecordedCall | None:
        """The recorded call with exactly this place and content."""
        found = self.calls.get((lane, name, digest, nth))
        if found is not None and found.started in self.credentials:
            event = self.event(found.started)
            if not self.masks.same_credentials(event.payload, self.masks_of(event)):
                return None
        return found

    def answer(
        self, call: RecordedCall, *, source: str = "recording", realtime: bool = False, begun: bool = False
    ) -> Answer:
        """The recorded outcome of *call*; errors stay errors, *realtime* includes the pauses of a stream."""
        call.used += 1
        meta: dict[str, Any] = {BEGUN: True} if begun else {}
        if call.finished is None:
            error = {"code": "outcome_unknown", "message": "The recording ends before this call was answered."}
            return Answer("error", None, error, None, source, meta)
        finished = self.event(call.finished)
        payload, end_meta = finished.payload, finished.meta
        if call.has_saga:
            meta |= {"settled": finished.seq, "reused": "fromCache" in end_meta}
        outcome = payload.get("outcome", "ok")
        if outcome not in _OUTCOMES:
            raise ArtifactError(f"Event {finished.seq} of run {self.manifest.id} has the unknown outcome {outcome!r}.")
        chunks: list[Any] | None = None
        if call.chunks or end_meta.get("stream"):
            events = [self.event(seq) for seq in call.chunks]
            chunks = [event.payload.get("data") for event in events]
            if realtime:
                meta["gapsMs"] = [event.meta.get("gapMs", 0) for event in events]
        elif outcome == "ok" and len(payload) == 2 and "value" in payload:
            meta[AS_RECORDED] = True
        note = (end_meta.get("metadata") or {}).get("payload") if "fromCache" in end_meta else None
        if note is not None:
            meta[NOT_KEPT] = note
        if "error" in payload and was_cancelled(payload["error"]):
            meta[AFTER] = end_meta.get("durationMs")
        for name in ("httpStatus", "headers", "layout", CLASSES):
            if name in end_meta:
                meta[name] = end_meta[name]
        return Answer(outcome, payload.get("value"), payload.get("error"), chunks, source, meta)

    def streamed(self, asked: Event) -> bool | None:
        """Whether a model call was streamed: by its answer, else by its request. ``None`` if neither tells."""
        call = self._by_id.get(asked.call or "")
        if call is not None and call.chunks:
            return True
        if call is not None and call.streamed is not None:
            return call.streamed
        return asks_stream(asked.payload, asked.meta)

    def arguments(self, call: RecordedCall) -> Any:
        """The arguments of the call."""
        payload = self.event(call.started).payload
        return payload.get("arguments") if "arguments" in payload else payload.get("request")

    def input(self) -> Any:
        """The input of the run."""
        return None if self.first is None else self.event(self.first.seq).payload.get("input")

    def given(self) -> dict[str, Any] | None:
        """How the arguments of the input were recorded; ``None`` if all of them are unchanged."""
        return None if self.first is None else self.event(self.first.seq).meta.get(GIVEN)

    def output(self) -> Any:
        """The output of the run."""
        return None if self.last is None else as_returned(self.event(self.last.seq).payload.get("output"))


def _as_it_is(value: Any, field: str = "") -> Any:
    return value


def not_kept(answer: Answer) -> str | None:
    """Why a result cannot be returned again: it was recorded as the name of its type. ``None`` if it can."""
    found = type_not_kept(answer.value)
    if found is None and answer.chunks:
        found = next((kind for kind in map(type_not_kept, answer.chunks) if kind is not None), None)
    return None if found is None else f"it returned a {found}, which cannot be recorded"


def set_at(document: Any, path: str, value: Any, where: str) -> Any:
    """A copy of *document* with *value* at a dotted path (``value.items.0.price``); the last name may be new."""
    name, _, rest = path.partition(".")
    if isinstance(document, dict) and name and (not rest or name in document):
        return {**document, name: set_at(document[name], rest, value, where) if rest else value}
    if isinstance(document, list) and name.isdigit() and int(name) < len(document):
        place = int(name)
        inner = set_at(document[place], rest, value, where) if rest else value
        return [*document[:place], inner, *document[place + 1 :]]
    known = (
        ", ".join(document) if isinstance(document, dict) else f"0 to {len(document) - 1}" if document else "nothing"
    )
    raise InvalidInput(f"The {where} has no {name!r} there.", hint=f"There is: {known}.")


def _bytes(body: Any) -> bytes | None:
    """A request body as a key; ``None`` if it has no plain JSON form."""
    try:
        return hashlib.sha256(orjson.dumps(body)).digest()
    except TypeError:
        return None


def _count(value: Any) -> int:
    """A number from the recording; anything else (a damaged recording) matches nothing."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0 if value is None else -1


def _all_events(journal: Events, run: str) -> Iterator[Event]:
    start = 0
    while batch := journal.events(run, start=start, limit=500):
        yield from batch
        start = batch[-1].seq + 1


def _rough_size(value: Any, limit: int) -> int:
    """Roughly how many bytes a payload takes; stops counting beyond *limit*."""
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


REFUSAL_CODE = "replay_diverged_at_refusal"


class RefusalFound(NamedTuple):
    """The event to append to the replay's run, and the error that ends it."""

    payload: dict[str, Any]
    error: Divergence


def refusal_divergence(
    recording: Recording, call: RecordedCall, outcome: str, reason: str | None
) -> RefusalFound | None:
    """Compare the kind of a fresh answer with the recorded one; ``None`` if they agree or one is not an answer."""
    if call.finished is None or outcome not in ("ok", "refusal"):
        return None
    finished = recording.event(call.finished)
    before = str(finished.payload.get("outcome"))
    if before not in ("ok", "refusal") or before == outcome:
        return None
    kinds = {"ok": "valid", "refusal": "refusal"}
    run = recording.manifest.id
    said = reason if outcome == "refusal" else finished.meta.get("refusalReason")
    payload = {
        "sourceRunId": run,
        "atSequence": finished.seq,
        "originalEnvelopeKind": kinds[before],
        "replayEnvelopeKind": kinds[outcome],
        "originalEventId": f"{run}:{finished.seq}",
        "nodeId": call.call,
    }
    if said:
        payload["refusalReason"] = str(said)
    words = {"ok": "answered", "refusal": "refused"}
    message = f"The model {words[outcome]} where it had {words[before]} (event {finished.seq} of run {run})."
    error = Divergence(
        message, hint=f"Recorded: antiphon show {run} --event {finished.seq}", code=REFUSAL_CODE, **payload
    )
    return RefusalFound(payload, error)

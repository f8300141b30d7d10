"""Compares what a replay does with what the recording did, event by event in each lane (L5)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from antiphon._diff import FieldDiff, diff_values, nearest
from antiphon._replay.masks import NotCompared
from antiphon._replay.recording import ORDERED, RecordedCall, Recording, asks_stream, full_name
from antiphon._scope import ORPHAN_LANE, Site
from antiphon.contract.events import AFTER_END, TASKS, UNSERIALISABLE, Event
from antiphon.ports import STREAM_ABANDONED, Invocation

_DIGESTS = frozenset({"$.digest", "$.key", "$.variant"})
"""Differs only because something else does."""
_OF_MASKED = ("digest", "key", "variant", "nth")
"""Fields of a call that are derived from its arguments."""
NOTES_ONLY = frozenset({"providerRequest", "key", "unmapped"})
"""Fields of a model call whose differences are reported but are no divergence: the canonical request decides (D14)."""
_LEFT_OUT = NOTES_ONLY | {"keyOf"}
"""``keyOf`` is from release 0.1.0: the call's key was derived from placeholders."""
_DEPLOYMENT = re.compile(r"/openai/deployments/([^/?]+)")
"""Azure serves the model that this part of the URL names, whatever the body says."""
_ON_THE_WAY = frozenset({"miss", "changed", "type", "extra", "draw"})
_SHOWN = 50
CANDIDATES = 200
"""How many recorded calls a call without an answer is compared with."""
_AMBIGUOUS = "the recording marked this lane as ambiguous: name parallel work with antiphon.branch"


class Seen(NamedTuple):
    """An event of the replay, not yet serialised."""

    type: str
    site: Site | None
    payload: dict[str, Any]
    meta: dict[str, Any]


class Composed(NamedTuple):
    """An event of the replay whose payload is already serialised; parsed only if it differs from the recorded bytes."""

    type: str
    site: Site
    data: bytes
    meta: bytes

    @property
    def payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = orjson.loads(self.data)
        return payload


class DivergenceFound(NamedTuple):
    """One difference between recording and replay."""

    kind: str
    """``miss``, ``changed``, ``type``, ``extra``, ``missing``, ``output``, ``error``, ``draw``, ``altered``,
    ``refusal``, ``verify``, ``task``, ``escape``, ``late`` or ``uncompared``."""
    lane: str
    at: int
    """Position in the lane."""
    seq: int | None
    """The recorded event, if there is one."""
    what: str
    """The call or event, in words."""
    fields: tuple[FieldDiff, ...] = ()
    nearest: int | None = None
    """The recorded event closest to a call that was not recorded."""
    note: str = ""

    @property
    def where(self) -> str:
        """The place: the recorded event, or the closest one, and the lane unless it is the first."""
        if self.seq is not None:
            place = f"event {self.seq}"
        else:
            place = f"call {self.at + 1}" if self.nearest is None else f"nearest recorded: event {self.nearest}"
        return place if self.lane == "0" else f"{place}, lane {self.lane}"

    def message(self) -> str:
        """The difference in one sentence."""
        where = self.where
        head = {
            "miss": f"the recording has no answer for {self.what} ({where})",
            "missing": f"{self.what} did not happen ({where})",
            "extra": f"{self.what} is not in the recording ({where})",
            "escape": f"the code tried to bypass Antiphon: {self.what}",
            "late": f"after the end of the replay, work that it had started tried: {self.what}",
            "task": self.what,
            "uncompared": f"{self.what} cannot be compared with the recording ({where})",
        }.get(self.kind, f"{self.what} differs from the recording ({where})")
        details = "; ".join(str(diff) for diff in self.fields[:3])
        more = f" and {len(self.fields) - 3} more" if len(self.fields) > 3 else ""
        return head + (f": {details}{more}" if details else "") + (f" [{self.note}]" if self.note else "")

    def to_wire(self, run: str) -> dict[str, Any]:
        """The JSON form, with the command that shows the recorded side."""
        at = self.seq if self.seq is not None else self.nearest
        wire: dict[str, Any] = {
            "kind": self.kind,
            "lane": self.lane,
            "index": self.at,
            "what": self.what,
            "message": self.message(),
            "fields": [diff.to_wire() for diff in self.fields],
        }
        show = None if at is None else f"antiphon show {run} --event {at}"
        known = {"seq": self.seq, "nearest": self.nearest, "note": self.note or None, "show": show}
        return wire | {name: value for name, value in known.items() if value is not None}


def escape_of(what: str, *, late: bool = False) -> DivergenceFound:
    """What the code tried outside Antiphon, or after its end."""
    return DivergenceFound("late" if late else "escape", "0", 0, None, what, note="refused; see --no-sandbox")


class Observer:
    """Follows a replay lane by lane. Order matters within lanes, not between them."""

    def __init__(self, recording: Recording, present: Callable[[Any], Any]) -> None:
        self.recording = recording
        self._present = present
        self._at: dict[str, int] = {}
        self._answered: dict[str, RecordedCall] = {}
        self.divergences: list[DivergenceFound] = []
        self.total: int = 0
        self.late: Callable[[str], None] | None = None
        """After the verdict: receives what the code still does."""
        self.notes: list[FieldDiff] = []
        self.consequences: list[str] = []
        """What the recording did after the first divergence and the replay did not, in words."""
        self._first: int | None = None
        """The recorded event at which the replay first diverged."""
        self.not_compared: dict[tuple[int, str], NotCompared] = {}
        """Masked values that could not be compared without the key of the run."""
        self.moved: Callable[[str], None] | None = None
        """After the verdict: called when a lane with late events has advanced."""
        self._silent: set[str] = set()
        """Lanes that have diverged: what follows there is a consequence."""

    def presented(self, value: Any) -> Any:
        """A live value in its recorded form: plain JSON, without secrets."""
        return self._present(value)

    def add(self, found: DivergenceFound) -> DivergenceFound:
        """Add a difference; the returned one may be shown: masking also considers the names in its path."""
        found = found._replace(fields=tuple(diff.shown(self.recording.view) for diff in found.fields))
        if self.late is not None:
            self.late(found.message())
            return found
        self.total += 1
        if self._first is None and found.kind in _ON_THE_WAY:
            expected = self.recording.lanes.get(found.lane, ())
            place = expected[min(found.at, len(expected) - 1)] if expected else None
            self._first = place if found.seq is None else found.seq
        if len(self.divergences) < _SHOWN:
            if self.recording.is_ambiguous(found.lane):
                found = found._replace(note=f"{found.note}; {_AMBIGUOUS}".removeprefix("; "))
            self.divergences.append(found)
        return found

    def untouched(self) -> None:
        """Report what was changed in the recording after it was written."""
        for seq in self.recording.altered:
            event = self.recording.event(seq)
            note = "the recorded event was changed after it was written"
            self.add(DivergenceFound("altered", event.lane, event.index, seq, words_of(event), note=note))
        if self.recording.manifest.tags.get("altered") == "true":
            note = "the artifact was edited after it was exported"
            self.add(DivergenceFound("altered", "0", 0, None, "the recording", note=note))
        lost = self.recording.manifest.events - self.recording.length
        if lost > 0:
            note = f"{lost} events of the recording are missing at its end"
            self.add(DivergenceFound("altered", "0", self.recording.length, None, "the recording", note=note))

    # -- events --------------------------------------------------------------------------------------------------

    def escaped(self, tried: Sequence[str]) -> None:
        """Report what the code tried outside Antiphon: it was not recorded and cannot be answered."""
        for what in tried:
            self.add(escape_of(what))

    def loose_tasks(self, now: Mapping[str, Mapping[str, int]]) -> None:
        """Report coroutines that the recording awaited and the replay does not, and newly cancelled tasks."""
        last = self.recording.last
        recorded = None if last is None else last.meta.get(TASKS)
        if last is None or not isinstance(recorded, Mapping):  # recorded by a release that did not report this
            return
        words = {
            "notAwaited": "the task {} is not awaited any more",
            "cancelled": "the task {} is cancelled now",
            "neverRun": "the coroutine {} is never awaited now",
        }
        for name, counts in now.items():
            before = recorded.get(name) or {}
            for what, number in counts.items():
                if number > _count_of(before, what):
                    note = f"{number} now, {_count_of(before, what)} in the recording"
                    self.add(DivergenceFound("task", "0", 0, last.seq, words[what].format(name), note=note))

    def answered(self, site: Site, found: RecordedCall) -> None:
        """Remember which recorded call answers a call of the replay."""
        self._answered[site.call] = found

    def moves(self, lane: str) -> None:
        """A lane has advanced."""
        if self.moved is not None and lane in self.recording.late:
            self.moved(lane)

    def ended(self, site: Site) -> None:
        """A call ended as recorded."""
        self._answered.pop(site.call, None)

    def begun(self, site: Site, found: RecordedCall) -> bool:
        """Count a call that begins exactly like *found*, if its lane has reached it; else its events are compared."""
        lane = site.lane
        place = self._at.get(lane, 0)
        if lane != ORPHAN_LANE:
            expected = self.recording.lanes.get(lane, ())
            if place >= len(expected) or expected[place] != found.started:
                return False
        self._at[lane] = place + 1
        return True

    def see(self, rows: Sequence[Seen | Composed]) -> None:
        """The next events of the replay."""
        for row in rows:
            if row.type in ORDERED:
                self._in_order(row)
                self.moves("0" if row.site is None else row.site.lane)
            elif row.type == "call.finished" and row.site is not None:
                self._end_of_call(row, row.site)

    def _in_order(self, row: Seen | Composed) -> None:
        lane = row.site.lane if row.site is not None else "0"
        expected = self.recording.lanes.get(lane, ())
        place = self._at.get(lane, 0)
        self._at[lane] = place + 1
        if lane in self._silent:
            return
        if lane == ORPHAN_LANE:  # several threads, unordered
            call = None if row.site is None else self._answered.get(row.site.call)
            if call is not None:
                self._compare(row, self.recording.event(call.started), place)
            return
        if place >= len(expected):
            if row.type != "call.started":  # calls were reported as a miss
                self._silent.add(lane)
                self.add(DivergenceFound("extra", lane, place, None, words_of(row)))
            return
        recorded = self.recording.event(expected[place])
        if recorded.type != row.type:
            self._silent.add(lane)
            note = f"recorded {recorded.type}, now {row.type}"
            self.add(DivergenceFound("type", lane, place, recorded.seq, words_of(row), note=note))
            return
        self._compare(row, recorded, place)

    def _end_of_call(self, row: Seen | Composed, site: Site) -> None:
        call = self._answered.pop(site.call, None)
        if call is None or call.finished is None:
            return
        recorded = self.recording.event(call.finished)
        failure = row.payload.get("error") if isinstance(row, Seen) else None
        if (
            self.late is not None
            and failure
            and failure.get("code") == STREAM_ABANDONED
            and recorded.meta.get(AFTER_END)
        ):
            return  # nobody has read the rest of a stream that was open when the run ended
        self._compare(row, recorded, site.index)

    def _compare(self, row: Seen | Composed, recorded: Event, place: int) -> None:
        if row.__class__ is Composed:
            if row.data == orjson.dumps(recorded.payload):
                return
            row = Seen(row.type, row.site, row.payload, {})
        if isinstance(row, Seen) and row.type == "call.started":
            self._compare_wire(row, recorded, place)
        if row.type == "interaction.finished":
            self.output_is_known(row.payload, recorded.lane, place, recorded.seq, row.type)
        if row.type == "call.started" and row.payload == recorded.payload:
            return  # found by the digest of its arguments: this excludes True for 1
        if equal(row.payload, recorded.payload):
            return
        payload = self.agreed(recorded, self._present(row.payload), words_of(row))
        if equal(payload, recorded.payload):
            return
        differences = diff_values(_comparable(recorded.payload), _comparable(payload), limit=_SHOWN)
        if differences:
            kind = "draw" if row.type == "draw" else "changed"
            words = words_of(Seen(row.type, row.site, payload, {}))
            shown = [found for found in differences if found.path not in _DIGESTS] or differences
            self.add(DivergenceFound(kind, recorded.lane, place, recorded.seq, words, tuple(shown)))
        elif row.type == "call.started":
            left = {name: recorded.payload.get(name) for name in NOTES_ONLY}
            noted = diff_values(left, {name: payload.get(name) for name in NOTES_ONLY}, limit=5)
            self.notes += [diff.shown(self.recording.view) for diff in noted]

    def _compare_wire(self, row: Seen, recorded: Event, place: int) -> None:
        """Compare the parts of an HTTP request that affect the answer but are not in the canonical form."""
        if row.meta.get("transport") != "http" or recorded.meta.get("transport") != "http":
            return
        old = {**_wire(recorded.meta), "stream": self.recording.streamed(recorded)}
        new = {**_wire(row.meta), "stream": asks_stream(row.payload, row.meta)}
        for name in ("deployment", "stream"):  # not compared if only one side has it
            if (old[name] is None) != (new[name] is None):
                old[name] = new[name] = None
        if old != new:
            fields = diff_values(old, new, limit=_SHOWN)
            self.add(DivergenceFound("changed", recorded.lane, place, recorded.seq, words_of(row), tuple(fields)))

    def output_is_known(self, payload: Mapping[str, Any], lane: str, at: int, seq: int, what: str) -> None:
        """Report an output that may differ, because a part of it cannot be recorded."""
        found = _not_written("$.output", payload.get("output"))
        if found is not None:
            note = f"{found[0]} is a {found[1]}, which cannot be recorded: return text or plain data"
            self.add(DivergenceFound("uncompared", lane, at, seq, what, note=note))

    def agreed(self, recorded: Event, payload: dict[str, Any], what: str) -> dict[str, Any]:
        """The live *payload* with the recorded values where masks allow both to count as equal (D36)."""
        masks = self.recording.masks_of(recorded)
        if not masks:
            return payload
        payload, left = self.recording.masks.reconcile(recorded.payload, payload, masks, recorded, what)
        self.left_out(left)
        same = {name: recorded.payload[name] for name in _OF_MASKED if name in payload and name in recorded.payload}
        return {**payload, **same}

    def left_out(self, found: Sequence[NotCompared]) -> None:
        """Note what could not be compared, once per place."""
        for one in found:
            self.not_compared.setdefault((one.seq, one.path), one)

    def missed(self, call: Invocation) -> DivergenceFound:
        """The recording has no such call: report the closest one, and what differs."""
        near, fields = self._nearest(call)
        note = "after an earlier divergence in this lane" if call.site.lane in self._silent else ""
        if near is not None and not fields:
            note = self._why_not(call, near)
        self._silent.add(call.site.lane)
        return self.add(miss_of(call, near, fields, note))

    def _nearest(self, call: Invocation) -> tuple[RecordedCall | None, tuple[FieldDiff, ...]]:
        """The closest recorded call, and how the call differs from it."""
        candidates = self._candidates(call)
        best = nearest(call.name, call.arguments, [(c.name, self.recording.arguments(c)) for c in candidates])
        return (None, ()) if best is None else (candidates[best.place], tuple(best.diffs[:_SHOWN]))

    def _why_not(self, call: Invocation, near: RecordedCall) -> str:
        """Why a recorded call with the same arguments does not answer *call*."""
        if near.digest != call.digest:
            return "the arguments are equal as JSON, but not of the same types"
        asked = f"requested in lane {call.site.lane} as occurrence {call.site.nth + 1}"
        return f"recorded in lane {near.lane} as occurrence {near.nth + 1}, {asked}"

    def _candidates(self, call: Invocation) -> list[RecordedCall]:
        """Recorded calls to compare with: in the same lane first, then unused ones of that name, then any."""
        fresh = self._named(call.name)
        local = [found for found in fresh if found.lane == call.site.lane]
        return (local or fresh or list(self.recording.calls.values()))[:CANDIDATES]

    def _named(self, name: str) -> list[RecordedCall]:
        """Recorded calls of that name, only unused ones if there are any."""
        named = self.recording.by_name.get(name, [])
        return [found for found in named if not found.used] or named

    def finish(self) -> None:
        """Report what the recording did up to the end of the run and the replay did not."""
        self._not_reached()
        for call in self._answered.values():
            if call.finished is None or call.after_end or call.lane in self._silent:
                continue
            if not self.recording.event(call.finished).meta.get(AFTER_END):  # the run did not wait for an open stream
                note = "the call started but did not finish"
                words = f"call.finished {call.name}"
                self.add(DivergenceFound("missing", call.lane, call.index, call.finished, words, note=note))

    def _not_reached(self) -> None:
        """Report the recorded events that did not happen."""
        recording = self.recording
        for lane, expected in recording.lanes.items():
            left = self._left(lane)
            if not left or left[0] in recording.late.get(lane, ()):
                continue
            if self._first is not None and expected[0] > self._first:
                self.consequences.append(words_of(recording.event(left[0])))
            else:
                self.add(self._missing(left))

    def late_left(self) -> list[tuple[int, DivergenceFound]]:
        """What the recording did after the end of the run and the replay has not done yet: how many milliseconds after
        it, and what is missing then. After a divergence, late events are consequences.
        """
        lanes = self.recording.late.items() if self._first is None else ()
        found = [(late, self._left(lane)) for lane, late in lanes]
        return [(late[left[0]], self._missing(left)) for late, left in found if left and left[0] in late]

    def _left(self, lane: str) -> Sequence[int]:
        """The recorded events of a lane that the replay has not reached."""
        expected, place = self.recording.lanes[lane], self._at.get(lane, 0)
        if place >= len(expected) or lane in self._silent or self.recording.covered(lane):
            return ()
        if lane == ORPHAN_LANE:  # unordered: all calls that were not requested
            calls = self.recording.calls.values()
            return [call.started for call in calls if call.lane == lane and not call.used] or expected[place:]
        return expected[place:]

    def _missing(self, left: Sequence[int]) -> DivergenceFound:
        recorded = self.recording.event(left[0])
        lane, place = recorded.lane, self._at.get(recorded.lane, 0)
        number = len(self.recording.lanes[lane]) - place
        note = f"{number} recorded event{'s' if number > 1 else ''} of this lane did not happen"
        return DivergenceFound("missing", lane, place, recorded.seq, words_of(recorded), note=note)


def miss_of(
    call: Invocation, near: RecordedCall | None, fields: tuple[FieldDiff, ...], note: str = ""
) -> DivergenceFound:
    """A call that the recording does not have, with the closest one that it has."""
    what = "this model request" if call.kind == "llm" else f"{call.kind} {call.name}"
    at = None if near is None else near.started
    return DivergenceFound("miss", call.site.lane, call.site.index, None, what, fields, at, note)


def _not_written(path: str, value: Any) -> tuple[str, Any] | None:
    """The first part of an output recorded only as its type's name: its path, and that name."""
    parts: list[tuple[str, Any]] = [(path, value)]
    while parts:
        path, value = parts.pop()
        if type(value) is list:
            parts += [(f"{path}[{place}]", item) for place, item in enumerate(value)][::-1]
        elif type(value) is dict:
            if value.keys() == {UNSERIALISABLE}:
                return path, value[UNSERIALISABLE]
            inner = value["$literal"] if value.keys() == {"$literal"} else value  # a user's object
            parts += [(f"{path}.{name}", item) for name, item in inner.items()][::-1]
    return None


def _count_of(counts: Any, what: str) -> int:
    number = counts.get(what, 0) if isinstance(counts, Mapping) else 0
    return number if isinstance(number, int) else 0


def equal(left: Any, right: Any) -> bool:
    """Equality of JSON values in which ``True`` is not 1."""
    if left is right:
        return True
    if left != right:
        return False
    kind = type(left)
    if kind is str:
        return True
    if kind is dict:
        for name, value in left.items():
            if value is not right[name] and type(value) is not str:
                break
        else:
            return True
    try:
        return orjson.dumps(left, option=orjson.OPT_SORT_KEYS) == orjson.dumps(right, option=orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError):
        return False


def _comparable(payload: dict[str, Any]) -> dict[str, Any]:
    if not _LEFT_OUT.intersection(payload):
        return payload
    return {name: value for name, value in payload.items() if name not in _LEFT_OUT}


def _wire(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Headers that request a version or a feature, with their parts sorted, and the deployment."""
    headers = meta.get("requestHeaders") or {}
    features = {
        name: sorted(part.strip() for part in str(headers[name]).split(","))
        for name in sorted(headers)
        if name.endswith(("-beta", "-version"))
    }
    served = _DEPLOYMENT.search(str(meta.get("endpoint", "")))
    return {"headers": features, "deployment": served[1] if served else None}


def words_of(event: Event | Seen | Composed) -> str:
    """An event in words."""
    if event.type.startswith("call."):
        return f"{event.type} {full_name(event.payload)}".rstrip()
    if event.type == "draw":
        return f"draw {event.payload.get('what')}"
    return event.type

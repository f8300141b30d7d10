"""Compares what a replay does with what the recording did, event by event in each lane (L5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from antiphon._differ import FieldDiff, diff_values, nearest, same
from antiphon._replay.tape import OBSERVABLE, RecordedCall, Tape, full_name
from antiphon._scope import Site
from antiphon.ports import Invocation

NOTES_ONLY = frozenset({"providerRequest", "key", "unmapped"})
"""Fields of a model call whose difference is reported but is no divergence: the canonical request decides (D14)."""
_SHOWN = 50


class Seen(NamedTuple):
    """An event of the replay, not yet turned into bytes."""

    type: str
    site: Site | None
    payload: dict[str, Any]
    meta: dict[str, Any]


class DivergenceFound(NamedTuple):
    """One difference between recording and replay."""

    kind: str
    """``miss``, ``changed``, ``type``, ``extra``, ``missing``, ``output``, ``error`` or ``draw``."""
    lane: str
    at: int
    """Position in the lane."""
    seq: int | None
    """The recorded event, if there is one."""
    what: str
    """The call or event, in words."""
    fields: tuple[FieldDiff, ...] = ()
    nearest: int | None = None
    """The recorded event that comes nearest to a call nobody recorded."""
    note: str = ""

    def message(self) -> str:
        """The difference in one sentence."""
        where = f"lane {self.lane}, index {self.at}"
        head = {
            "miss": f"the recording has no answer for {self.what} ({where})",
            "missing": f"{self.what} did not happen ({where})",
            "extra": f"{self.what} is not in the recording ({where})",
        }.get(self.kind, f"{self.what} is not as recorded ({where})")
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
        if self.seq is not None:
            wire["seq"] = self.seq
        if self.nearest is not None:
            wire["nearest"] = self.nearest
        if self.note:
            wire["note"] = self.note
        if at is not None:
            wire["show"] = f"antiphon show {run} --event {at}"
        return wire


class Observer:
    """Follows a replay lane by lane. Order between lanes does not count, order within one does."""

    def __init__(self, tape: Tape, redact: Callable[[Any], Any]) -> None:
        self.tape = tape
        self._redact = redact
        self._at: dict[str, int] = {}
        self.divergences: list[DivergenceFound] = []
        self.total = 0
        self.notes: list[FieldDiff] = []
        self._silent: set[str] = set()
        """Lanes that have gone their own way: what follows there is a consequence."""

    def redacted(self, value: Any) -> Any:
        """A live value as the recording would show it."""
        return self._redact(value)

    def add(self, found: DivergenceFound) -> None:
        self.total += 1
        if len(self.divergences) < _SHOWN:
            self.divergences.append(found)

    # -- events --------------------------------------------------------------------------------------------------

    def see(self, rows: Sequence[Seen]) -> None:
        """The next events of the replay."""
        for row in rows:
            if row.type in OBSERVABLE:
                self._compare(row)

    def _compare(self, row: Seen) -> None:
        lane = row.site.lane if row.site is not None else "0"
        expected = self.tape.lanes.get(lane, ())
        place = self._at.get(lane, 0)
        self._at[lane] = place + 1
        if lane in self._silent:
            return
        if place >= len(expected):
            if row.type == "call.started" or row.type == "call.finished":
                return  # already reported as a miss
            self._silent.add(lane)
            self.add(DivergenceFound("extra", lane, place, None, _words(row.type, row.payload)))
            return
        recorded = self.tape.event(expected[place])
        if recorded.type != row.type:
            self._silent.add(lane)
            note = f"recorded {recorded.type}, now {row.type}"
            found = DivergenceFound("type", lane, place, recorded.seq, _words(row.type, row.payload), note=note)
            self.add(found)
            return
        if row.payload == recorded.payload and same(row.payload, recorded.payload):
            return
        payload = self._redact(row.payload)
        differences = diff_values(_comparable(recorded.payload), _comparable(payload), limit=_SHOWN)
        if differences:
            kind = "output" if row.type == "run.finished" else "draw" if row.type == "draw" else "changed"
            found = DivergenceFound(kind, lane, place, recorded.seq, _words(row.type, payload), tuple(differences))
            self.add(found)
        elif row.type == "call.started":
            left = {name: recorded.payload.get(name) for name in NOTES_ONLY}
            self.notes += diff_values(left, {name: payload.get(name) for name in NOTES_ONLY}, limit=5)

    def missed(self, call: Invocation) -> DivergenceFound:
        """The recording has no such call: say which one comes nearest, and what differs."""
        site: Site = call.site
        candidates = self._candidates(call)
        best = nearest(call.name, call.arguments, [(c.name, self.tape.arguments(c)) for c in candidates])
        near = candidates[best.place] if best is not None else None
        fields = tuple(best.diffs[:_SHOWN]) if best is not None else ()
        note = ""
        if near is not None and not fields:
            asked = f"asked for in lane {site.lane} as occurrence {site.nth + 1}"
            note = f"recorded in lane {near.lane} as occurrence {near.nth + 1}, {asked}"
        found = DivergenceFound(
            "miss",
            site.lane,
            site.index,
            None,
            f"{call.kind} {call.name}",
            fields,
            None if near is None else near.started,
            note,
        )
        self.add(found)
        self._silent.add(site.lane)
        return found

    def _candidates(self, call: Invocation) -> list[RecordedCall]:
        """Recorded calls worth comparing: the same lane first, then unused ones of that name, then any."""
        named = self.tape.by_name.get(call.name, [])
        fresh = [c for c in named if not c.used] or named
        local = [c for c in fresh if c.lane == call.site.lane]
        return (local or fresh or list(self.tape.calls.values()))[:200]

    def finish(self) -> None:
        """What the recording did and the replay did not."""
        for lane, expected in self.tape.lanes.items():
            place = self._at.get(lane, 0)
            if place >= len(expected) or lane in self._silent:
                continue
            recorded = self.tape.event(expected[place])
            if recorded.type == "run.finished":
                continue
            left = len(expected) - place
            note = f"{left} recorded event{'s' if left > 1 else ''} of this lane did not happen"
            found = DivergenceFound(
                "missing", lane, place, recorded.seq, _words(recorded.type, recorded.payload), note=note
            )
            self.add(found)


def _comparable(payload: dict[str, Any]) -> dict[str, Any]:
    if not NOTES_ONLY.intersection(payload):
        return payload
    return {name: value for name, value in payload.items() if name not in NOTES_ONLY}


def _words(kind: str, payload: dict[str, Any]) -> str:
    if kind.startswith("call."):
        return f"{kind} {full_name(payload)}".rstrip()
    if kind == "draw":
        return f"draw {payload.get('what')}"
    return kind

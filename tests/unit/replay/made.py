"""Recordings made by hand: a journal that is a list of events."""

from __future__ import annotations

from typing import Any

from antiphon._replay.recording import Recording
from antiphon._scope import Site
from antiphon.contract.events import Event, RunManifest, summed

RUN = "run-1"


class Log:
    """Events in memory, counted by how often they were asked for."""

    def __init__(self, events: list[Event]) -> None:
        self.kept = events
        self.asked: list[tuple[int, int | None]] = []

    def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> list[Event]:
        self.asked.append((start, stop))
        return self.kept[start:stop][:limit]


class Script:
    """Writes one event after the other."""

    def __init__(self, **started: Any) -> None:
        """*started* are further fields of the first event."""
        self.events: list[Event] = []
        self.add("run.started", {"name": "made", "input": {"question": 1}, **started})

    def add(self, kind: str, payload: dict[str, Any], *, sealed: bool = True, **more: Any) -> int:
        """The next event; its number."""
        place = {"lane": "0", "index": 0, "call": None, "parent": None, "meta": {}, **more}
        event = Event(run=RUN, seq=len(self.events), type=kind, at_ms=1, payload=payload, **place)
        self.events.append(summed(event) if sealed else event)
        return event.seq

    def call(self, name: str, arguments: Any = None, value: Any = None, *, lane: str = "0", **more: Any) -> str:
        """A tool call that returned; its id."""
        call = f"{lane}@{len(self.events)}"
        start: dict[str, Any] = {"kind": "tool", "name": name, "namespace": "tools", "arguments": arguments}
        start |= {"digest": more.pop("digest", f"{name}{arguments}"), "nth": more.pop("nth", 0)}
        place = {"lane": lane, "call": call, "parent": more.pop("parent", None), "index": more.pop("index", 0)}
        self.add("call.started", start, **place, meta=more.pop("meta", {}))
        end = more.pop("end", {"outcome": "ok", "value": value})
        if end is not None:
            self.add("call.finished", end, **place, meta=more.pop("end_meta", {}))
        return call

    def recording(self, **more: Any) -> Recording:
        manifest = RunManifest(id=RUN, name="made", status="completed", started_at_ms=1, **more.pop("manifest", {}))
        return Recording.load(manifest, Log(self.events), **more)


def site(call: str = "0@0", *, lane: str = "0", index: int = 0, nth: int = 0) -> Site:
    return Site(lane, index, nth, call, None)

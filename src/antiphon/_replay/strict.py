"""Strict replay: every call is answered from the recording, or the replay fails (D15).

The invoker is built without anything that could reach the world: that a strict replay has no side effect through
Antiphon is a fact of construction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphon._replay.observe import DivergenceFound, Observer
from antiphon._replay.tape import Tape
from antiphon.errors import ReplayMiss
from antiphon.ports import Answer, Invocation


class StrictInvoker:
    """Answers from the tape. Never returns ``None``: there is no live pipeline behind it."""

    def __init__(self, tape: Tape, observer: Observer, *, realtime: bool = False) -> None:
        self._tape = tape
        self._observer = observer
        self._realtime = realtime
        self.hits = 0

    async def answer(self, call: Invocation) -> Answer:
        site = call.site
        found = self._tape.find(site.lane, call.name, call.digest, site.nth)
        if found is None:
            raise self._miss(self._observer.missed(call))
        self.hits += 1
        self._observer.answered(site, found)
        return self._tape.answer(found, realtime=self._realtime)

    def draw(self, what: str, site: Any, fresh: Callable[[], Any]) -> Any:
        place = (site.lane, what, site.nth)
        if place in self._tape.draws:
            return self._tape.draws[place]
        note = "the recording has no such draw here"
        found = DivergenceFound("draw", site.lane, site.index, None, f"draw {what}", note=note)
        self._observer.add(found)
        raise self._miss(found)

    def _miss(self, found: DivergenceFound) -> ReplayMiss:
        run = self._tape.manifest.id
        lines = [f"The recording has no answer for {found.what} (lane {found.lane}, index {found.at})."]
        lines += [f"  {diff}" for diff in found.fields[:10]]
        if found.note:
            lines.append(f"  {found.note}")
        hint = f"Nearest: antiphon show {run} --event {found.nearest}" if found.nearest is not None else ""
        return ReplayMiss("\n".join(lines), hint=hint, divergence=found.to_wire(run))

"""What a run had drawn and its models had answered before it was interrupted, for the code that starts over (D2, D19).

The code of a resumed run starts from its beginning. Tools find their claims; but a claim is found by its arguments, and
those often come from a model or a drawn id. So both are returned again: otherwise the code would ask for other effects
than before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from antiphon.contract.events import CHUNKS, CLASSES, MASKS, RAW_DIGEST, SAME_AS, Event, is_masked
from antiphon.ports import Answer

log = logging.getLogger("antiphon.recording")
_Place = tuple[str, str]


class RecordedAnswer(NamedTuple):
    """A model's answer in the log; a streamed one with its chunks."""

    end: Event
    chunks: list[Event] | None


class _Places:
    """Where a run made equal calls of a tool, and which call of this attempt corresponds to which of them.

    Tasks and workers that start alike are told apart by order of arrival, which changes when their answers come at
    once. A call at a new place is matched with one that was made elsewhere, as long as there are any; whoever comes to
    that place later then gets what is left.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], None] = {}
        self._taken: dict[tuple[str, int], tuple[str, int]] = {}
        """Taken by which call of this attempt, identified by its own place."""

    def add(self, place: tuple[str, int]) -> None:
        self._made[place] = None

    def take(self, own: tuple[str, int]) -> tuple[str, int]:
        left = [place for place in self._made if place not in self._taken]
        found = own if own in left or not left else left[0]
        while found in self._taken:
            found = self._taken[found]
        self._taken[found] = own
        return found


class EarlierAttempt:
    """Sits in front of the model cache; failures and interrupted streams are asked for again."""

    def __init__(self, events: Iterable[Event], whole: Callable[[Event], Event], cache: Any = None) -> None:
        """*whole* restores an event; one that is still masked afterwards cannot be returned again."""
        self._cache = cache
        self._draws: dict[tuple[str, str, int], Any] = {}
        self._answers: dict[_Place, list[RecordedAnswer]] = {}
        self._places: dict[tuple[str, str], _Places] = {}
        self._whole = whole
        self._asked: dict[_Place, int] = {}
        self._lock = threading.Lock()
        self._read(events)

    def _read(self, events: Iterable[Event]) -> None:
        """Read attempt by attempt: a later attempt was given the answers of earlier ones."""
        attempt: dict[_Place, list[RecordedAnswer | None]] = {}
        calls: dict[str, tuple[_Place, int]] = {}
        chunks: dict[str, list[Event]] = {}
        for event in events:
            payload = event.payload
            if event.type == "run.started":
                self._merge(attempt)
                attempt, calls, chunks = {}, {}, {}
            elif event.type == "draw":
                drawn = (event.lane, str(payload.get("what")), payload.get("nth", 0))
                self._draws.setdefault(drawn, payload.get("value"))
            elif event.type == "call.started" and payload.get("kind") == "tool":
                self._made(event)
            elif event.type == "call.started" and "variant" in payload and "keyOf" not in payload:
                key = self._whole(event).meta.get(RAW_DIGEST) if MASKS in event.meta else payload.get("key")
                place = (str(key), str(payload.get("variant")))
                attempt.setdefault(place, []).append(None)
                calls[event.call or ""] = (place, len(attempt[place]) - 1)
            elif event.type == "call.chunk" and event.call in calls:
                chunks.setdefault(event.call, []).append(event)
            elif event.type == "call.finished" and event.call in calls:
                streamed = chunks.pop(event.call, []) if event.meta.get("stream") else None
                if payload.get("outcome") in ("ok", "refusal") and _complete(event, streamed):
                    place, nth = calls[event.call]
                    attempt[place][nth] = RecordedAnswer(event, streamed)
        self._merge(attempt)

    def _made(self, event: Event) -> None:
        """Note a call of a tool; those made by tools are not repeated once their tool is done."""
        payload = event.payload
        if event.parent is None:
            call = (f"{payload.get('namespace')}/{payload.get('name')}", str(payload.get("digest")))
            lane, nth = event.meta.get(SAME_AS) or (event.lane, payload.get("nth", 0))
            self._places.setdefault(call, _Places()).add((lane, nth))

    def place(self, name: str, digest: str, site: Any) -> tuple[str, int]:
        """The place that identifies a call of a tool: where it was first made."""
        own = (site.lane, site.nth)
        if site.parent is not None:
            return own
        with self._lock:
            return self._places.setdefault((name, digest), _Places()).take(own)

    def _merge(self, attempt: dict[_Place, list[RecordedAnswer | None]]) -> None:
        for place, found in attempt.items():
            known = self._answers.setdefault(place, [])
            for answer in found[len(known) :]:
                if answer is None:
                    break
                known.append(answer)

    def draw(self, what: str, site: Any, fresh: Callable[[], Any]) -> Any:
        """The value drawn at this place before, or a fresh one."""
        place = (site.lane, what, site.nth)
        return self._draws[place] if place in self._draws else fresh()

    async def find(self, key: str, variant: str, asynchronous: bool) -> Answer | None:
        """The model's earlier answer to this request: its first on the first request, its second on the second, etc."""
        answer = self.given(key, variant)
        if answer is not None or self._cache is None:
            return answer
        found: Answer | None = await self._cache.find(key, variant, asynchronous)
        return found

    def given(self, key: str, variant: str) -> Answer | None:
        """The same without the cache behind it, which holds no streams."""
        place = (key, variant)
        with self._lock:
            nth = self._asked[place] = self._asked.get(place, -1) + 1
        known = self._answers.get(place, ())
        if nth >= len(known):
            return None
        end, streamed = known[nth]
        brought = [self._whole(event) for event in (end, *(streamed or ()))]
        if any(is_masked(event) for event in brought):
            log.warning("calling the model again: the originals of event %d cannot be read", end.seq)
            return None
        payload = brought[0].payload
        chunks = None if streamed is None else [event.payload.get("data") for event in brought[1:]]
        outcome = str(payload["outcome"])
        meta = {"fromCache": True} | {name: end.meta[name] for name in (CLASSES,) if name in end.meta}
        return Answer(outcome, payload.get("value"), chunks=chunks, source="cache", meta=meta)

    async def keep(self, key: str, variant: str, asynchronous: bool, value: Any) -> None:
        """Pass on to the cache."""
        if self._cache is not None:
            await self._cache.keep(key, variant, asynchronous, value)


def _complete(end: Event, chunks: list[Event] | None) -> bool:
    """Whether all chunks of a stream are present; always true without a stream."""
    return chunks is None or end.meta.get(CHUNKS) == len(chunks)

"""The workflow events of a run, as rows of the run log and as protocol documents (L5)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import orjson

from antiphon._recording.recorder import Recorder, restore_blobs
from antiphon.contract.events import Event, is_masked, spilled
from antiphon.errors import AntiphonError, StoreUnavailable
from antiphon.host.wire import given_back, kept
from antiphon.host.workflow.source import event_id
from antiphon.host.workflow.state import TERMINAL, WorkflowEvent
from antiphon.ports import Blobs, Journal, Row
from antiphon.redact._pointers import viewed

log: logging.Logger = logging.getLogger("antiphon.host")

PLACE = "sequence"
"""Row metadata: the sequence number among the workflow events of the run."""
ASKED = "asked"
"""Row metadata: the digest of a node's external request."""
_BATCH = 1000
_LARGE_BYTES = 16_384
_LOOK_S = 0.25


class RunDamaged(AntiphonError):
    """The log of one run cannot be read; other runs are not affected."""

    code = "run_damaged"

    def __init__(self, run: str, place: str) -> None:
        super().__init__(
            f"The log of run {run} cannot be read {place}. Nothing was changed; other runs are not affected.",
            hint="The host's log names the cause.",
        )


def row_of(recorder: Recorder, event: WorkflowEvent, sequence: int) -> Row:
    """A workflow event as a row."""
    meta: dict[str, Any] = {PLACE: sequence, "workflow": True}
    if event.request_digest:
        meta[ASKED] = event.request_digest
    return recorder.encode(event.type, None, kept(dict(event.payload)), meta)


def is_large(payload: Mapping[str, Any]) -> bool:
    """Whether a payload takes too long to write on the event loop; one that is not plain JSON counts as large."""
    try:
        return len(orjson.dumps(payload)) > _LARGE_BYTES
    except TypeError:
        return True


class SequencedEvent(NamedTuple):
    """A workflow event with its sequence number."""

    sequence: int
    body: WorkflowEvent
    at_ms: int
    redacted: bool
    """Whether the logged payload was redacted."""
    row: int = 0
    """Its row in the log."""


def one_line(error: BaseException) -> str:
    """An exception as one log line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def document(run: str, event: SequencedEvent) -> dict[str, Any]:
    """The event as the protocol shows it; only ids and time depend on when and where it was written."""
    found: dict[str, Any] = {
        "eventId": event_id(run, event.sequence),
        "runId": run,
        "type": event.body.type,
        "payload": event.body.payload,
        "timestamp": iso(event.at_ms),
        "sequence": event.sequence,
    }
    node = event.body.payload.get("nodeId")
    if isinstance(node, str) and node:
        found["nodeId"] = node
    return found


def iso(ms: int) -> str:
    """A timestamp in wire format."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Reader(msgspec.Struct, eq=False):
    """Reads the workflow events of one run incrementally."""

    journal: Journal
    run: str
    blobs: Blobs | None
    tenant: str
    next: int = 0
    """The row to read next."""
    rows: list[Event] = []
    """The other rows read so far, as stored: calls and their outcomes."""
    unmask: Callable[[Event], Event] = viewed
    """Restores masked values for executing code; others see masks."""

    async def more(self, *, keep_rows: bool = False) -> list[SequencedEvent]:
        """The events since the last read."""
        found: list[SequencedEvent] = []
        while batch := await self._batch():
            for event in batch:
                if event.meta.get("workflow"):
                    found.append(await self._numbered(event))
                elif keep_rows:
                    self.rows.append(event)
            self.next = batch[-1].seq + 1
            if len(batch) < _BATCH:
                break
        return found

    async def _batch(self) -> list[Event]:
        try:
            return await self.journal.events(self.run, start=self.next, limit=_BATCH)
        except (StoreUnavailable, asyncio.CancelledError):
            raise
        except Exception as error:
            raise self._damaged(f"after event {self.next}", error) from error

    def _damaged(self, place: str, error: Exception) -> RunDamaged:
        log.error("run %s cannot be read %s: %s", self.run, place, one_line(error))
        return RunDamaged(self.run, place)

    async def opened(self, event: Event) -> Event:
        """The event with its spilled parts, unmasked."""
        if spilled(event):
            event = await asyncio.to_thread(restore_blobs, event, self.blobs, self.tenant)
        return self.unmask(event)

    async def _numbered(self, event: Event) -> SequencedEvent:
        try:
            event = await self.opened(event)
            body = WorkflowEvent(event.type, given_back(event.payload), str(event.meta.get(ASKED) or ""))
            return SequencedEvent(int(event.meta[PLACE]), body, event.at_ms, is_masked(event), event.seq)
        except StoreUnavailable:
            raise
        except Exception as error:
            raise self._damaged(f"at event {event.seq}", error) from error


class Signals:
    """Wakes waiters when a run of this process has new events."""

    def __init__(self) -> None:
        self._news: weakref.WeakValueDictionary[str, asyncio.Event] = weakref.WeakValueDictionary()

    def news_of(self, run: str) -> asyncio.Event:
        """The event that the next news of a run sets; get it before reading, so that nothing is missed."""
        found = self._news.get(run)
        if found is None or found.is_set():
            found = self._news[run] = asyncio.Event()
        return found

    def wake(self, run: str) -> None:
        waiting = self._news.get(run)
        if waiting is not None:
            waiting.set()


async def follow(
    reader: Reader, signals: Signals, run: str, *, is_local: Callable[[], bool], idle_s: float
) -> AsyncGenerator[list[SequencedEvent]]:
    """New events as they arrive, an empty list after *idle_s* of silence; ends after the last event of the run.

    A run in this process wakes its followers; a run in another process is polled four times a second.
    """
    silent = 0.0
    while True:
        news = signals.news_of(run)
        found = await reader.more()
        if found:
            silent = 0.0
            yield found
            if found[-1].body.type in TERMINAL:
                return
            continue
        pause = idle_s - silent if is_local() else min(_LOOK_S, idle_s - silent)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await news.wait()
        silent += pause
        if silent >= idle_s:
            silent = 0.0
            yield []

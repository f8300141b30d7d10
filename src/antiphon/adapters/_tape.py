"""The pieces of a live stream: passed on at once, written when the reader comes back for more (D18)."""

from __future__ import annotations

import time
from collections.abc import Mapping

from antiphon._drive import drive
from antiphon._recording import model
from antiphon._recording.boundary import Boundary, error_payload
from antiphon.adapters import _wire
from antiphon.llm.stream import assemble_response, assemble_stream, sse_events


class Tape:
    """Keeps what came. No piece waits for the store: :meth:`took` only notes it, :meth:`flush` writes."""

    def __init__(self, boundary: Boundary, call: _wire.ModelCall, headers: Mapping[str, str]) -> None:
        self._boundary = boundary
        self._meta = {**model.STREAM, **_wire.told_headers(headers)}
        self._provider = call.provider
        self._pieces: list[bytes] = []
        self._fresh: list[tuple[bytes, float]] = []
        self._last = time.monotonic()
        self._ended = False
        boundary.scope.streams[id(self)] = self._leave

    def _leave(self) -> None:
        """The run is over, and nobody has read on or closed the stream: some readers only drop it."""
        self._boundary.asynchronous = False
        drive(self.end(GeneratorExit()))

    def took(self, data: bytes) -> None:
        """A piece is on its way to the reader."""
        now = time.monotonic()
        self._fresh.append((data, (now - self._last) * 1000))
        self._pieces.append(data)
        self._last = now

    async def flush(self) -> None:
        """Write the pieces the reader has."""
        if not self._ended:
            await self._write()

    async def _write(self) -> None:
        fresh, self._fresh = self._fresh, []
        for data, gap in fresh:
            await self._boundary.pulled()
            self._boundary.chunk(_wire.piece_text(data), gap)

    async def end(self, error: BaseException | None) -> None:
        """The stream is over: read to its end, broken off by its reader (``GeneratorExit``), or failed."""
        if self._ended:
            return
        self._ended = True
        self._boundary.scope.streams.pop(id(self), None)
        await self._write()
        if error is not None and not isinstance(error, GeneratorExit):
            await self._boundary.finish("error", error=error_payload(error), meta=self._meta)
            return
        if error is not None and not self._answered():
            message = f"The stream was not read after piece {len(self._pieces)}."
            await self._boundary.finish(
                "error", error={"class": "", "code": model.BROKEN_OFF, "message": message}, meta=self._meta
            )
            return
        whole = assemble_response(sse_events(self._pieces), self._provider)
        outcome, meta = model.outcome_of(whole, self._provider)
        await self._boundary.finish(outcome, value=whole, meta={**meta, **self._meta})

    def _answered(self) -> bool:
        """Whether the model had said all it had to say: some readers do not wait for the words after its last one."""
        summary = assemble_stream(self._pieces, self._provider)
        return bool(summary["complete"] or summary["stopReason"])

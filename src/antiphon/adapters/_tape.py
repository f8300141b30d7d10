"""The pieces of a live stream: passed on at once, written when the reader comes back for more (D18)."""

from __future__ import annotations

import time

from antiphon._recording import model
from antiphon._recording.boundary import Boundary, error_payload
from antiphon.adapters import _wire
from antiphon.llm.stream import assemble_response, assemble_stream, sse_events


class Tape:
    """Keeps what came. No piece waits for the store: :meth:`took` only notes it, :meth:`flush` writes."""

    def __init__(self, boundary: Boundary, call: _wire.ModelCall) -> None:
        self._boundary = boundary
        self._provider = call.provider
        self._pieces: list[bytes] = []
        self._fresh: list[tuple[bytes, float]] = []
        self._last = time.monotonic()
        self._ended = False

    def took(self, data: bytes) -> None:
        """A piece is on its way to the reader."""
        now = time.monotonic()
        self._fresh.append((data, (now - self._last) * 1000))
        self._pieces.append(data)
        self._last = now

    async def flush(self) -> None:
        """Write the pieces the reader has."""
        for data, gap in self._fresh:
            await self._boundary.pulled()
            self._boundary.chunk(_wire.piece_text(data), gap)
        self._fresh.clear()

    async def end(self, error: BaseException | None) -> None:
        """The stream is over: read to its end, broken off by its reader (``GeneratorExit``), or failed."""
        if self._ended:
            return
        self._ended = True
        await self.flush()
        if error is not None and not isinstance(error, GeneratorExit):
            await self._boundary.finish("error", error=error_payload(error), meta=model.STREAM)
            return
        if error is not None and not assemble_stream(self._pieces, self._provider)["complete"]:
            message = f"The stream was not read after piece {len(self._pieces)}."
            await self._boundary.finish(
                "error", error={"class": "", "code": model.BROKEN_OFF, "message": message}, meta=model.STREAM
            )
            return
        whole = assemble_response(sse_events(self._pieces), self._provider)
        outcome, meta = model.outcome_of(whole, self._provider)
        await self._boundary.finish(outcome, value=whole, meta={**meta, **model.STREAM})

"""Streams of a framework's own pieces, recorded one by one, and given again."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from antiphon._drive import AFTER, drive, until_cancelled, was_given_up
from antiphon._recording import model
from antiphon._recording.boundary import Boundary
from antiphon._scope import RunScope
from antiphon.adapters._failures import failure_payload, raised_by_model
from antiphon.adapters._model import Asking, open_asking, outcome_of
from antiphon.adapters._seam import read_on, recorded_here
from antiphon.ports import Answer

Codec = tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[list[Any]], Any]]
"""A piece as data, data as a piece, all pieces as one response."""


class _Taken:
    """The pieces that went to the reader; they are written when it comes back for more."""

    def __init__(self, boundary: Boundary, asking: Asking, codec: Codec) -> None:
        self._boundary = boundary
        self._asking = asking
        self._codec = codec
        self._pieces: list[Any] = []
        self._last = time.monotonic()
        self._gap = 0.0
        self._ended = False
        boundary.scope.streams[id(self)] = self._leave

    def _leave(self) -> None:
        """The run is over, and the framework has neither read on nor closed its stream."""
        self._boundary.asynchronous = False
        drive(self.end(GeneratorExit()))

    def took(self, piece: Any) -> None:
        now = time.monotonic()
        self._gap, self._last = (now - self._last) * 1000, now
        self._pieces.append(piece)

    async def flush(self) -> None:
        if self._ended:
            return
        self._boundary.chunk(self._codec[0](self._pieces[-1]), self._gap)
        await self._boundary.pulled()

    async def end(self, error: BaseException | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._boundary.scope.streams.pop(id(self), None)
        if error is None:
            value = self._asking.pack(self._codec[2](self._pieces))
            outcome, meta = outcome_of(value, self._asking.dialect)
            await self._boundary.finish(outcome, value=value, meta={**meta, **model.STREAM})
            return
        failure = failure_payload(error)
        if isinstance(error, GeneratorExit):
            if self._pieces:
                self._boundary.chunk(self._codec[0](self._pieces[-1]), self._gap)
            message = f"The stream was not read after piece {len(self._pieces)}."
            failure = {"class": "", "code": model.BROKEN_OFF, "message": message}
        await self._boundary.finish("error", error=failure, meta=model.STREAM)


def stream(scope: RunScope, asking: Asking, send: Callable[[], Iterator[Any]], codec: Codec) -> Iterator[Any]:
    """A synchronous stream: answered by the replay, or read and recorded."""
    boundary = open_asking(scope, asking, asynchronous=False, stream=True)
    answer = drive(boundary.answer())
    boundary.start_now()
    if answer is not None:
        drive(_note(boundary, answer))
        yield from _pieces(answer, codec)
        _end(answer)
        return
    taken = _Taken(boundary, asking, codec)
    try:
        with recorded_here():
            source = iter(send())
        while True:
            with recorded_here():
                piece = next(source, _END)
            if piece is _END:
                break
            taken.took(piece)
            yield piece
            drive(taken.flush())
    except BaseException as error:
        drive(taken.end(error))
        raise
    drive(taken.end(None))


async def stream_async(
    scope: RunScope, asking: Asking, send: Callable[[], AsyncIterator[Any]], codec: Codec
) -> AsyncIterator[Any]:
    """An asynchronous stream."""
    boundary = open_asking(scope, asking, asynchronous=True, stream=True)
    answer = await boundary.answer()
    await boundary.start()
    if answer is not None:
        await _note(boundary, answer)
        for piece in _pieces(answer, codec):
            yield piece
        if was_given_up(answer.error):
            await until_cancelled("llm", answer.meta.get(AFTER))
        _end(answer)
        return
    taken = _Taken(boundary, asking, codec)
    try:
        source = aiter(send())
        while True:
            with recorded_here():
                piece = await anext(source, _END)
            if piece is _END:
                break
            taken.took(piece)
            yield piece
            await taken.flush()
    except BaseException as error:
        await taken.end(error)
        raise
    await taken.end(None)


_END: Any = object()


async def _note(boundary: Boundary, answer: Answer) -> None:
    error = None if answer.error is None else dict(answer.error)
    await boundary.finish(answer.outcome, value=answer.value, error=error, meta=dict(answer.meta))


def _pieces(answer: Answer, codec: Codec) -> Iterator[Any]:
    for data in answer.chunks or ():
        yield codec[1](data)


def _end(answer: Answer) -> None:
    """What ended the stream."""
    if (answer.error or {}).get("code") == model.BROKEN_OFF:
        raise read_on(len(answer.chunks or ()))
    if answer.outcome == "error":
        raise raised_by_model(answer)

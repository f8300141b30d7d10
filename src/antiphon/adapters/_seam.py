"""Several seams, one event: the outermost one that sees a model call records it, those inside stay quiet."""

from __future__ import annotations

from contextvars import ContextVar

from antiphon._scope import RunScope, current_scope
from antiphon.errors import ReplayMiss

inside: ContextVar[bool] = ContextVar("antiphon_inside_model_call", default=False)
"""Set around the live call of a seam that records it (see :class:`recorded_here`)."""


def recording_scope() -> RunScope | None:
    """The run that is to see this model call; ``None`` outside a run, and inside a call that is recorded already."""
    return None if inside.get() else current_scope()


def read_on(pieces: int) -> ReplayMiss:
    """What a replay raises where the recorded reader had left a stream: there is no more of it to give."""
    return ReplayMiss(f"The recorded reader left this stream after piece {pieces}; now it reads on.")


class recorded_here:  # noqa: N801 (used like a function)
    """Around the live call of a seam that records it."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = inside.set(True)

    def __exit__(self, *_: object) -> None:
        inside.reset(self._token)

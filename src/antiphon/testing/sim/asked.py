"""A call as its caller sees it, from the question to the answer."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from antiphon.contract._base import UNSET
from antiphon.contract.result import ToolDenied, ToolResultEnvelope

if TYPE_CHECKING:
    from antiphon.testing.sim.worker import Worker

Mode = Literal["on", "off", "shadow", "no keys"]
"""What the switches of a worker make of its calls."""


class Asked:
    """One call of one worker: what the store and the tool know of it."""

    def __init__(
        self, number: int, identity: str, intent: str, worker: Worker, at: float, *, claims: bool, untold: bool
    ) -> None:
        self.number = number
        self.identity = identity
        """What makes redeliveries; unique for a call that cannot be redelivered."""
        self.intent = intent
        self.worker = worker
        self.at = at
        self.claims = claims
        """Whether the caller wants a claim at all (``dedupeMode`` is not ``disabled``)."""
        self.untold = untold
        """Whether the answer comes without metadata (a decorated function)."""
        self._modes: frozenset[Mode] | None = None
        self.request: Any = None
        """What the store was asked for a claim with: the guarded call itself."""
        self.cut_off = False
        """A request to the store, or its answer, got lost."""
        self.unbound = False
        """It was dispatched without a claim."""
        self.dispatches: list[int] = []

    @property
    def fence(self) -> int:
        """The claim it knows it holds; 0: none."""
        return 0 if self.request is None else int(self.request.version)

    @property
    def modes(self) -> frozenset[Mode]:
        """The modes of its worker from the start of the call to its first claim or dispatch: one of them binds it."""
        if self._modes is None:
            self._modes = self.worker.modes_since(self.at)
        return self._modes


asking: ContextVar[Asked | None] = ContextVar("antiphon_sim_asking", default=None)
"""The call that is made in this context."""


class Answered(NamedTuple):
    """What the caller got, whichever way it asked."""

    code: str
    """Of the failure; empty for a success."""
    value: Any = None
    from_cache: bool = False
    metadata: dict[str, Any] = {}


def answer_of(result: Any) -> Answered:
    """An envelope, a denial, or what a decorated function returned."""
    if isinstance(result, ToolDenied):
        return Answered(result.code)
    if not isinstance(result, ToolResultEnvelope):
        return Answered("", result)
    if result.output is UNSET:
        return Answered(result.code, from_cache=result.from_cache)
    metadata = {} if result.output.metadata is UNSET else result.output.metadata
    return Answered("", result.output.content, result.from_cache, metadata)


def failure_of(error: Exception) -> Answered:
    """What a decorated function raised."""
    return Answered(getattr(error, "code", type(error).__name__))

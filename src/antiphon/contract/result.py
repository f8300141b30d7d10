"""The result envelope, and the denial that turn control answers with (R1, T5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from antiphon.contract._base import Value

Status = Literal["success", "error", "retriable_error", "retry_exhausted", "circuit_open", "timeout"]
BreakerStateName = Literal["CLOSED", "OPEN", "HALF_OPEN", "FORCED_OPEN"]
Count = Annotated[int, Meta(ge=0)]
Duration = Annotated[float, Meta(ge=0)]


class CacheInfo(Value, frozen=True):
    """Which earlier execution answered."""

    matched_on: Literal["inflight", "completed"]
    age_ms: Count
    key_fingerprint: str


class Output(Value, frozen=True, omit_defaults=True):
    """What the tool returned."""

    content: Any
    metadata: dict[str, Any] | None = None


class CallError(Value, frozen=True, omit_defaults=True):
    """Why there is no output; ``code`` is stable."""

    code: str
    message: str
    retriable: bool
    terminal: bool
    breaker_state: BreakerStateName | None = None
    approval_id: str | None = None
    """The approval that the call waits for."""


class Retried(Value, frozen=True):
    """One failed attempt that was tried again."""

    attempt: Count
    delay_ms: Duration
    reason_code: str
    latency_ms: Duration


class ToolResultEnvelope(Value, frozen=True, omit_defaults=True):
    """What came of one tool call. What it does not have is ``None`` in Python, absent on the wire."""

    request_id: str
    status: Status
    from_cache: bool
    tool_name: str
    duration_ms: Duration
    attempts: Count
    cache: CacheInfo | None = None
    output: Output | None = None
    error: CallError | None = None
    retried_by: list[Retried] | None = None

    def to_wire(self) -> dict[str, Any]:
        """The JSON form as plain Python data. Where the output has none, it is left out and the metadata say so."""
        try:
            wire: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_plain)
        except Exception as error:  # whatever the classes of the output raise
            if self.output is None:
                raise
            note = f"not serialisable ({type(self.output.content).__name__}: {error})"
            given = self.output.metadata or {}
            output = Output(content=None, metadata={"payload": note, **given})
            wire = msgspec.to_builtins(msgspec.structs.replace(self, output=output))
        return wire

    @property
    def ok(self) -> bool:
        """Whether the call has an output."""
        return self.status == "success"

    @property
    def content(self) -> Any:
        """The tool's return value, or ``None``."""
        return None if self.output is None else self.output.content

    @property
    def code(self) -> str:
        """The error code, or ``""``."""
        return "" if self.error is None else self.error.code


def _plain(value: Any) -> Any:
    """Models of other libraries, paths, and subclasses of JSON's own types as plain data."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    if hasattr(value, "__fspath__"):
        return str(value)
    for kind, make in _SIMPLER:
        if isinstance(value, kind):
            return make(value)
    raise TypeError(f"objects of type {type(value).__name__} have no JSON form")


_SIMPLER: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int),
    (float, float),
    (Mapping, dict),
    (Sequence, list),
)


class ToolDenied(msgspec.Struct, frozen=True):
    """Turn control's answer to a call that was already made in this turn (T5)."""

    call_id: str
    tool_name: str
    reason: str = "duplicate"
    details: str = ""

    ok: ClassVar[bool] = False
    status: ClassVar[Status] = "error"
    code: ClassVar[str] = "denied"
    from_cache: ClassVar[bool] = False
    attempts: ClassVar[int] = 0
    content: ClassVar[None] = None
    output: ClassVar[None] = None

    @property
    def error(self) -> CallError:
        """The denial as an error, so that every answer of a turn can be read in the same way."""
        message = self.details or f"{self.tool_name} was already called in this turn."
        return CallError(code=self.code, message=message, retriable=False, terminal=True)

    def to_wire(self) -> dict[str, Any]:
        """The JSON form a model can be given."""
        return {"callId": self.call_id, "toolName": self.tool_name, "reason": self.reason, "details": self.details}

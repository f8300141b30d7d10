"""The outcome of a call, as a value. It becomes an exception only where the caller is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from antiphon.contract._base import UNSET
from antiphon.contract.record import DedupeRecord
from antiphon.contract.result import Status
from antiphon.decide.breaker import THROTTLED_REASON, Refusal
from antiphon.errors import Paused, StoreError, ToolDeniedError

UNKNOWN_HINT = (
    "It is not known whether the call took effect. Verify the outcome (or ask a person) before anything else; "
    "do not make the same call again."
)


class Outcome(Struct, eq=False):
    """The status of a call, and its value or its failure."""

    status: Status
    value: Any = None
    attempts: int = 0
    code: str = ""
    message: str = ""
    retriable: bool = False
    terminal: bool = False
    reason: str = ""
    breaker: str | None = None
    payload: bytes | None = None
    """The value as it is stored."""
    exception: BaseException | None = None
    from_cache: bool = False
    matched_on: Literal["inflight", "completed"] = "completed"
    age_ms: int = 0
    metadata: dict[str, Any] | None = None
    unclassified: bool = False
    stream: Any = None
    notifications: Sequence[tuple[Any, float]] = ()
    """What a recording has before the outcome of a tool that is no stream, each with the pause before it in ms."""

    def note(self, **more: Any) -> None:
        """Add metadata, which is returned with the answer."""
        self.metadata = {**(self.metadata or {}), **more}


def failed(
    status: Status, code: str, message: str, *, retriable: bool = False, attempts: int = 0, reason: str = ""
) -> Outcome:
    """An outcome without a value."""
    return Outcome(status, None, attempts, code, message, retriable, not retriable, reason or code)


def restored_failure(record: DedupeRecord) -> Outcome:
    """The failure that a settled record holds."""
    error = record.error
    if error is UNSET:
        return failed("error", record.state, f"The earlier call ended as {record.state}.")
    attempts = 0 if record.execution is UNSET else record.execution.attempt_count
    if error.should_retriable:
        status: Status = "retry_exhausted" if attempts > 1 else "retriable_error"
        return failed(status, error.code, error.message, retriable=True)
    return failed("error", error.code, error.message)


# -- calls that are not made ---------------------------------------------------------------------------------------


def too_late() -> Outcome:
    return failed("retry_exhausted", "deadline_exceeded", "The deadline had passed before the call was made.")


def reentrant(tool: str) -> Outcome:
    message = f"{tool} called itself with equal arguments while its own call is still running."
    return failed("retriable_error", "in_flight", message, retriable=True, reason="reentrant")


def in_flight(tool: str, why: str, *, redelivered: bool) -> Outcome:
    """The call does not wait for the one in flight, of which it may be a redelivery."""
    message = f"An equal call of {tool} is in flight ({why}). This call was not made."
    if redelivered:
        message = (
            f"This call of {tool} was made before and is still in flight ({why}). It was not made a second time. "
            "Send it again later, with the same id or key, to get its result."
        )
    return failed("retriable_error", "in_flight", message, retriable=True, reason="in_flight")


def approval_required(tool: str, approval: str) -> Outcome:
    """A person has to decide first; *approval* names the question, if one could be asked."""
    if not approval:
        message = f"{tool} needs approval, and the gateway is switched off for it. The call was not made."
        return failed("error", "approval_required", message)
    message = (
        f"{tool} needs approval by a person. The call was not made. Approval {approval} is waiting: "
        f"antiphon approvals approve {approval}. Once it is decided, make the same call again "
        "(in a run: antiphon run … --resume RUN)."
    )
    return failed("error", "approval_required", message)


def approval_in(message: str) -> str:
    """The approval that a recorded call waited for, as :func:`approval_required` words it."""
    _, _, rest = message.partition(" Approval ")
    return rest.partition(" is waiting: ")[0]


def conflict(tool: str) -> Outcome:
    return failed(
        "error",
        "idempotency_conflict",
        f"The idempotency key was already used for {tool} with other parameters. Nothing ran: use a new key for "
        "a new intent, or repeat the parameters exactly.",
    )


def undone(tool: str) -> Outcome:
    message = (
        f"{tool} was called before with the same intent, and that call was undone: its result no longer holds. "
        'Nothing ran. Use a new key for a new intent, or declare after_undo="run" to let it run again.'
    )
    return failed("error", "undone", message)


def undoing(tool: str, saga: str, state: str) -> Outcome:
    message = f"The saga {saga!r} is {state}: it takes no further writes, and {tool} was not called."
    return failed("error", "saga_undoing", message)


def run_cancelled(tool: str) -> Outcome:
    return failed("error", "run_cancelled", f"The run of this call was cancelled: {tool} was not called.")


def contradicted(tool: str, times: int) -> Outcome:
    """The store contradicts itself: it offers a record for replacement, and refuses to replace it."""
    message = (
        f"The store of {tool} refused {times} times to change the record of this call, and says that it is unchanged. "
        "The call was not made."
    )
    outcome = failed("error", StoreError.code, message)
    outcome.exception = StoreError(
        message, hint="A store of your own: run antiphon.testing.journal_conformance on it. Otherwise please report it."
    )
    return outcome


def id_conflict(tool: str, call_id: str) -> Outcome:
    return failed(
        "error",
        "idempotency_conflict",
        f"The call id {call_id!r} was already used for {tool} with other parameters. Nothing ran: use a new id for "
        "a new call, or repeat the parameters exactly.",
    )


def still_unknown(tool: str, fingerprint: str | None) -> Outcome:
    """*fingerprint* is ``None`` where an operator's process would not know it."""
    which = "KEY (antiphon claims list --state unknown shows it)" if fingerprint is None else fingerprint
    message = (
        f"An earlier call of {tool} with these arguments was dispatched and its outcome was never seen. "
        f"{UNKNOWN_HINT} An operator can settle it: antiphon claims resolve {which}"
    )
    return failed("error", "outcome_unknown", message)


def not_made(error: StoreError) -> Outcome:
    """The store cannot be used, and the call must not run without it."""
    return failed("retriable_error", error.code, f"The call was not made: {error}", retriable=True, reason="store")


def circuit_open(tool: str, refusal: Refusal) -> Outcome:
    """An open breaker refused the call."""
    state, reason, retry_after_ms, _ = refusal
    wait = f" Try again in {retry_after_ms / 1000:.1f} s." if retry_after_ms else ""
    said = f" ({reason})" if reason else ""
    if reason == THROTTLED_REASON:
        what = f"{tool} is paused: it asked to wait (Retry-After)"
    elif state == "FORCED_OPEN":
        what = f"The circuit breaker of {tool} is open{said}: an operator or its settings forced it open"
    else:
        what = f"The circuit breaker of {tool} is open{said}: it failed too often"
    message = f"{what}. The call was not made.{wait}"
    outcome = failed("circuit_open", "circuit_open", message, retriable=True)
    outcome.breaker = state
    return outcome


def refused_by_hook(error: Exception) -> Outcome:
    """A before-hook stopped the call: ``ToolDeniedError`` denies it, anything else is a failure."""
    if isinstance(error, ToolDeniedError):
        return failed("error", "denied", error.message, reason="hook")
    outcome = failed("error", "hook_failed", f"A before-hook failed, so the call was not made: {error}", reason="hook")
    outcome.exception = error
    return outcome


# -- calls that did not end ----------------------------------------------------------------------------------------


def interruption(interrupt: BaseException) -> str:
    """Whether the tool suspended itself (it runs again when resumed) or its caller went away."""
    return Paused.code if isinstance(interrupt, Exception) else "cancelled"


def interrupted(tool: str, interrupt: BaseException, attempts: int) -> Outcome:
    """The caller was cancelled, or the process interrupted."""
    code = interruption(interrupt)
    if code == Paused.code:
        return failed("error", code, str(interrupt), attempts=attempts)
    return failed("error", code, f"{tool} was interrupted: {type(interrupt).__name__}.", attempts=attempts)


def left_open(tool: str, said: str, code: str, attempts: int) -> Outcome:
    """What the caller is told of a failure that leaves the outcome open; *said* is the message of the failure."""
    message = f"{tool}: {said.rstrip('.')}. {UNKNOWN_HINT}"
    return failed("error", "outcome_unknown", message, attempts=attempts, reason=code)


def said_in(message: str, tool: str) -> str | None:
    """The message of the failure in that of :func:`left_open`, without a full stop; ``None`` if it is none."""
    before, after = f"{tool}: ", f". {UNKNOWN_HINT}"
    return message[len(before) : -len(after)] if message.startswith(before) and message.endswith(after) else None

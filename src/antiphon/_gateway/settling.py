"""The end of a claim that is ours: what is written, and what happens when it cannot be written."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from antiphon._gateway import record
from antiphon._gateway.call import Call, Outcome
from antiphon.decide.claim import UNKNOWN_CODE
from antiphon.errors import StoreError, StoreUnavailable
from antiphon.ports import Final, Journal

if TYPE_CHECKING:
    from antiphon._gateway.core import Core

log = logging.getLogger("antiphon.gateway")

UNKNOWN_HINT = (
    "It is not known whether the call took effect. Verify the outcome (or ask a person) before anything else; "
    "do not make the same call again."
)
_TRIES = 4


def unknown_message(tool: str, said: str) -> str:
    """What the caller is told of a failure that leaves the outcome open; *said* are the words of the failure."""
    return f"{tool}: {said.rstrip('.')}. {UNKNOWN_HINT}"


def said_in(message: str, tool: str) -> str | None:
    """The words of the failure in an :func:`unknown_message`, without a full stop; ``None`` if it is none."""
    before, after = f"{tool}: ", f". {UNKNOWN_HINT}"
    return message[len(before) : -len(after)] if message.startswith(before) and message.endswith(after) else None


def unknown_final(call: Call, why: str) -> Final:
    """How a record says that nobody knows."""
    message = f"{call.tool.full_name} was dispatched, but {why}. {UNKNOWN_HINT}"
    error = (UNKNOWN_CODE, message, True, False)
    return Final("failed", _long(call), error=error, attempts=call.attempts, attempt_count=len(call.attempts) or 1)


def not_dispatched(call: Call) -> Final:
    """How a record says that nothing was sent: the next call may run."""
    return Final("cancelled", call.tool.ttl.failed_ms, attempts=call.attempts, dispatched=False)


def interrupted_final(call: Call, why: str) -> Final:
    """The caller went away. What was surely not sent may run again; the rest is unknown unless it may be repeated."""
    if not call.sent and not call.doubt:
        return not_dispatched(call)
    if call.tool.spec.idempotent:
        count = len(call.attempts)
        return Final("cancelled", call.tool.ttl.failed_ms, attempts=call.attempts, attempt_count=count)
    return unknown_final(call, why)


def _long(call: Call) -> int:
    return max(call.tool.ttl.done_ms, call.tool.ttl.failed_ms)


async def settle(core: Core, call: Call, outcome: Outcome) -> None:
    """Write the outcome and its events. The effect has happened: a store that fails is retried, then reported."""
    if outcome.status == "success":
        final = core.keeper.small_success(call, outcome) or await core.keeper.final_success(
            call, outcome.value, core.asynchronous, outcome
        )
    elif outcome.attempts == 0:
        final = not_dispatched(call)
    else:
        error = (outcome.code, core.keeper.clean(outcome.message), outcome.terminal, outcome.retriable)
        ttl = _long(call) if outcome.code == UNKNOWN_CODE else call.tool.ttl.failed_ms
        final = Final("failed", ttl, error=error, attempts=call.attempts, attempt_count=outcome.attempts)
    await write(core, call, final, outcome)


async def write(
    core: Core, call: Call, final: Final, outcome: Outcome | None, *, journal: Journal | None = None
) -> None:
    """Settle with a few tries; ``notRecorded`` in the answer's metadata says when none got through.

    With a *journal* of its own (another thread than the caller's) there is one try.
    """
    events = record.finish_rows(core, call, outcome) if outcome is not None and call.site is not None else ()
    tries = _TRIES if journal is None else 1
    for attempt in range(tries):
        try:
            version = await (journal or core.journal()).settle(call.key, call.version, final, events)
        except StoreError as error:
            if attempt + 1 < tries and isinstance(error, StoreUnavailable):
                await core.clock.sleep(0.05 * 2**attempt)
                continue
            core.telemetry.outage(call, error, False)
            log.warning("the outcome of %s was not recorded: %s", call.tool.full_name, error)
            if outcome is not None:
                outcome.metadata = {**(outcome.metadata or {}), "notRecorded": error.code}
            return
        if events:
            call.rows = call.site = None
        if version is None:
            core.telemetry.fenced(call)
            if outcome is not None:
                outcome.metadata = {**(outcome.metadata or {}), "fenced": True}
        else:
            call.version = version
        return

"""Results of synchronous tools that were given up on: they settle the record the call left behind (R8)."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from antiphon._drive import drive
from antiphon._gateway.call import Call
from antiphon._gateway.threads import Late
from antiphon.decide.claim import is_unknown
from antiphon.decide.classify import classify
from antiphon.ports import Final, Journal

if TYPE_CHECKING:
    from antiphon._gateway.core import Core

log = logging.getLogger("antiphon.gateway")

_PATIENCE_S = 60.0


def settle_late(core: Core, call: Call) -> Late | None:
    """What to do with a result nobody waits for any more; ``None`` for a call without a claim."""
    fence = call.version
    if not fence:
        return None
    if call.gate is None:
        call.gate = threading.Event()
    gate = call.gate

    def settle(value: Any, error: BaseException | None) -> None:
        gate.wait(_PATIENCE_S)  # the call writes its own end first
        try:
            journal = core.store.open_sync()
            try:
                settled = drive(_settle(core, call, fence, journal, value, error))
            finally:
                drive(journal.close())
        except Exception:
            log.exception("the late result of %s could not be recorded", call.tool.full_name)
        else:
            core.telemetry.late(call, settled)

    return settle


async def _settle(
    core: Core, call: Call, fence: int, journal: Journal, value: Any, error: BaseException | None
) -> bool:
    """Whether the record was still waiting for this result."""
    found = await journal.read(call.key, call.identity)
    record = None if found is None else found.own
    if record is None or record.fence != fence or record.state in ("done", "inflight"):
        return False
    if error is None:
        final = await core.keeper.final_success(call, value, False)
    else:
        failure = classify(error, call.tool.listed)
        if failure.may_have_happened or not is_unknown(record):
            return False
        message = core.keeper.clean(failure.message)
        cause = (failure.code, message, not failure.retriable, failure.retriable)
        final = Final("failed", call.tool.ttl.failed_ms, error=cause, attempts=call.attempts, attempt_count=1)
    return await journal.settle(call.key, record.version, final) is not None

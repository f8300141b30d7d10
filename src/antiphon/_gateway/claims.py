"""Acts on what ``decide.claim`` says: claim, wait, reuse, take over, or stay away from an unknown outcome."""

from __future__ import annotations

import inspect
import logging
import sys
from typing import TYPE_CHECKING, Any, assert_never

from antiphon._gateway import record
from antiphon._gateway.attempts import UNKNOWN_HINT
from antiphon._gateway.call import Call, Outcome, failed
from antiphon._gateway.owner import certainly_dead, owner_token
from antiphon.contract._base import UNSET
from antiphon.contract.record import DedupeRecord, RecordedRequest
from antiphon.contract.spec import DidNotHappen, Happened
from antiphon.decide import claim as rules
from antiphon.errors import StoreError, StoreUnavailable
from antiphon.ports import Ask, Claimed, Existing, Final

if TYPE_CHECKING:
    from antiphon._gateway.core import Core

log = logging.getLogger("antiphon.gateway")

_FIRST_WAIT_S = 1.0
_SETTLE_TRIES = 4


def _ask(core: Core, call: Call, key: str) -> Ask:
    tool = call.tool
    return Ask(
        key,
        call.identity,
        tool.full_name,
        call.idem_key,
        RecordedRequest(
            session_key=call.session,
            actor_id=call.actor,
            request_id=call.request_id,
            params_digest=call.digest,
            identity=call.identity,
            params_digest_exact=call.exact,
            tool_call_id=call.call_id or UNSET,
        ),
        tool.ttl.done_ms,
        tool.ttl.lease_ms,
        owner_token(),
        core.settings.tenant,
        call.workspace or core.settings.workspace,
        core.settings.wait_replicas if call.safety else 0,
    )


def _claimant(call: Call) -> rules.Claimant:
    spec = call.tool.spec
    return rules.Claimant(
        call.identity,
        call.digest,
        spec.idempotent,
        call.given_key is not None,
        call.mode == "bestEffort",
        call.reuse,
        spec.on_conflict,
        call.waited,
    )


async def claim(core: Core, call: Call) -> Outcome | None:
    """``None`` when the claim is ours, else the answer somebody else's execution gives."""
    journal = core.journal()
    ask = _ask(core, call, call.key)
    events = record.start_rows(core, call) if call.scope is not None else ()
    got = await journal.begin(ask, events)
    pause = _FIRST_WAIT_S
    while not isinstance(got, Claimed):
        decision = rules.decide(got, _claimant(call))
        if isinstance(decision, (rules.Wait, rules.Busy)) and certainly_dead(got.current.owner):
            decision = rules.decide(got, _claimant(call)._replace(owner_gone=True))
        match decision:
            case rules.Run(version):
                got = await journal.take(ask, version, events)
            case rules.Reuse(found, matched_on, shared):
                return await _reuse(core, call, found, matched_on, shared, got.now_ms)
            case rules.Wait(version, left_ms):
                if not core.asynchronous and _in_event_loop():
                    return _in_flight(call, "a synchronous gateway does not wait inside an event loop")
                call.waited = call.waited or version
                left = left_ms / 1000
                if call.deadline is not None:
                    left = min(left, call.deadline - core.clock.monotonic())
                    if left <= 0:
                        return _in_flight(call, "the deadline came first")
                await journal.wait(call.key, version, min(left, pause))
                pause *= 2
                got = await journal.read(call.key, call.identity) or await journal.begin(ask, events)
            case rules.Busy():
                return _in_flight(call, "the call asked not to wait")
            case rules.Conflict(found):
                if call.tool.spec.on_conflict != "independent":
                    return _conflict(core, call, found)
                ask = ask._replace(key=f"{call.key}.{call.digest[:32]}")
                call.key = ask.key
                got = await journal.begin(ask, events)
            case rules.Unknown(found, mark):
                settled = await _unknown(core, call, found, mark)
                if isinstance(settled, Outcome):
                    return settled
                got = await journal.take(ask, settled, events)
            case _:
                assert_never(decision)
    call.version = got.version
    if events:
        call.recorded = True
    return None


def _in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def _in_flight(call: Call, why: str) -> Outcome:
    message = f"An equal call of {call.tool.full_name} is running and this one did not wait for it: {why}."
    return failed("retriable_error", "in_flight", message, retriable=True)


def _conflict(core: Core, call: Call, found: DedupeRecord) -> Outcome:
    core.telemetry.conflict(call)
    return failed(
        "error",
        "idempotency_conflict",
        f"The idempotency key was used for {found.tool} with other parameters. Nothing was run: use a new key for "
        "a new intent, or repeat the parameters exactly.",
    )


# -- answers from a record ---------------------------------------------------------------------------------------


async def answer_if_done(core: Core, call: Call) -> Outcome | None:
    """What a settled record can answer while the breaker is open; the store is only read."""
    try:
        got = await core.journal().read(call.key, call.identity)
    except StoreError:
        return None
    if got is None:
        return None
    decision = rules.decide(got, _claimant(call))
    if isinstance(decision, rules.Reuse):
        return await _reuse(core, call, decision.record, decision.matched_on, decision.shared, got.now_ms)
    return None


async def _reuse(core: Core, call: Call, found: DedupeRecord, matched_on: Any, shared: bool, now_ms: int) -> Outcome:
    outcome = await core.keeper.restore(call, found)
    outcome.from_cache = True
    outcome.matched_on = matched_on
    outcome.age_ms = now_ms - found.updated_at_ms
    if shared:
        label = {"reused": True, "from": "an equal call", "matchedOn": matched_on, "ageMs": max(0, outcome.age_ms)}
        outcome.metadata = {**(outcome.metadata or {}), **label}
        if not call.tool.spec.idempotent and found.state == "done":
            await core.journal().alias(call.key, call.identity, found.version)
    if call.scope is not None:
        record.decision(call, "reused", {"state": found.state}, {"matchedOn": matched_on, "ageMs": outcome.age_ms})
    core.telemetry.hit(call, "inflight" if matched_on == "inflight" else found.state)
    return outcome


# -- unknown outcomes --------------------------------------------------------------------------------------------


async def _unknown(core: Core, call: Call, found: DedupeRecord, mark: bool) -> Outcome | int:
    """An earlier dispatch may have happened. The version to take over if it certainly did not."""
    version = found.version
    journal = core.journal()
    if mark:
        marked = await journal.settle(call.key, version, unknown_final(call, "its worker was lost", found))
        if marked is None:
            return _still_unknown(call)
        version = marked
    if call.tool.spec.reconcile is not None:
        verdict = await _reconcile(core, call)
        if isinstance(verdict, DidNotHappen):
            return version
        if isinstance(verdict, Happened):
            final = await core.keeper.final_success(core, call, verdict.value)
            settled = await journal.settle(call.key, version, final)
            if settled is not None:
                outcome = Outcome("success", verdict.value)
                outcome.from_cache = True
                outcome.metadata = {"reconciled": True}
                return outcome
    return _still_unknown(call)


async def _reconcile(core: Core, call: Call) -> Happened | DidNotHappen | None:
    """Ask the tool's own read-back; an error there leaves the outcome unknown."""
    function = call.tool.spec.reconcile
    assert function is not None
    try:
        answer = function(dict(call.params))
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception:
        log.exception("reconcile of %s failed; the outcome stays unknown", call.tool.full_name)
        return None
    if answer is None or isinstance(answer, (Happened, DidNotHappen)):
        return answer
    if answer is False:
        return DidNotHappen()
    return Happened(None if answer is True else answer)


def _still_unknown(call: Call) -> Outcome:
    message = (
        f"An earlier call of {call.tool.full_name} with these arguments was dispatched and its outcome was never seen. "
        f"{UNKNOWN_HINT} An operator can settle it: antiphon claims resolve {call.fingerprint}"
    )
    return failed("error", "outcome_unknown", message)


def unknown_final(call: Call, why: str, found: DedupeRecord | None = None) -> Final:
    """How a record says that nobody knows."""
    message = f"{call.tool.full_name} was dispatched, but {why}. {UNKNOWN_HINT}"
    ttl = max(call.tool.ttl.done_ms, call.tool.ttl.failed_ms)
    count = len(call.attempts) if found is None else 1
    return Final(
        "failed", ttl, error=(rules.UNKNOWN_CODE, message, True, False), attempts=call.attempts, attempt_count=count
    )


# -- the end of our own claim ------------------------------------------------------------------------------------


async def settle(core: Core, call: Call, outcome: Outcome) -> None:
    """Write the outcome and its events. The effect has happened: a store that fails is retried, then reported."""
    if outcome.attempts == 0:
        final = Final("cancelled", call.tool.ttl.failed_ms, dispatched=False)
    elif outcome.status == "success":
        final = core.keeper.small_success(call, outcome) or await core.keeper.final_success(
            core, call, outcome.value, outcome
        )
    else:
        error = (outcome.code, core.keeper.clean(outcome.message), outcome.terminal, outcome.retriable)
        unknown = outcome.code == rules.UNKNOWN_CODE
        ttl = max(call.tool.ttl.done_ms, call.tool.ttl.failed_ms) if unknown else call.tool.ttl.failed_ms
        final = Final("failed", ttl, error=error, attempts=call.attempts, attempt_count=outcome.attempts)
    await write(core, call, final, outcome)


async def write(core: Core, call: Call, final: Final, outcome: Outcome | None) -> None:
    """Settle with a few tries; ``notRecorded`` in the answer's metadata says when none got through."""
    events = record.finish_rows(core, call, outcome) if outcome is not None and call.site is not None else ()
    for attempt in range(_SETTLE_TRIES):
        try:
            version = await core.journal().settle(call.key, call.version, final, events)
        except StoreUnavailable as error:
            if attempt + 1 < _SETTLE_TRIES:
                await core.clock.sleep(0.05 * 2**attempt)
                continue
            core.telemetry.outage(call, error, False)
            if outcome is not None:
                note = {"notRecorded": error.code}
                outcome.metadata = {**(outcome.metadata or {}), **note}
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


async def interrupted(core: Core, call: Call, interrupt: BaseException) -> None:
    """The caller was cancelled or the process interrupted while the tool ran."""
    if call.tool.spec.idempotent:
        final = Final("cancelled", call.tool.ttl.failed_ms, attempts=call.attempts, attempt_count=1, dispatched=True)
    else:
        final = unknown_final(call, f"the caller was interrupted ({type(interrupt).__name__})")
    outcome = failed(
        "error", "cancelled", f"{call.tool.full_name} was interrupted: {type(interrupt).__name__}.", attempts=1
    )
    try:
        if core.asynchronous:
            import asyncio

            await asyncio.shield(asyncio.ensure_future(write(core, call, final, outcome)))
        else:
            await write(core, call, final, outcome)
    except StoreError:
        log.warning("an interrupted call of %s could not be settled; its lease will run out", call.tool.full_name)


async def shadow(core: Core, call: Call) -> str | None:
    """What the claim would have said, under keys of its own; never waits, blocks or retries."""
    journal = core.journal()
    key = f"shadow.{call.key}"
    try:
        got = await journal.begin(_ask(core, call, key))
        if isinstance(got, Claimed):
            await journal.settle(key, got.version, Final("done", call.tool.ttl.done_ms, attempt_count=1))
            return None
        assert isinstance(got, Existing)
        return type(rules.decide(got, _claimant(call))).__name__.lower()
    except StoreError as error:
        return error.code

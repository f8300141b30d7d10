"""Acts on what ``decide.claim`` says: claim, wait, reuse, take over, or stay away from an unknown outcome."""

from __future__ import annotations

import inspect
import logging
import sys
from typing import TYPE_CHECKING, Any, assert_never

from antiphon._gateway import record, settling
from antiphon._gateway.call import Call, Outcome, failed
from antiphon._gateway.context import CallContext
from antiphon._gateway.owner import certainly_dead, owner_token
from antiphon.contract._base import UNSET
from antiphon.contract.record import DedupeRecord, RecordedRequest
from antiphon.contract.spec import DidNotHappen, Happened
from antiphon.decide import claim as rules
from antiphon.errors import StoreError
from antiphon.ports import Ask, Claimed

if TYPE_CHECKING:
    from antiphon._gateway.core import Core

log = logging.getLogger("antiphon.gateway")

_FIRST_LOOK_S, _LONGEST_LOOK_S = 1.0, 5.0
"""A waiter is woken by the store; beside that it looks by itself whether the holder's process still exists."""


def ask_of(core: Core, call: Call, key: str) -> Ask:
    """The request for the claim on *key*."""
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


def claimant_of(call: Call) -> rules.Claimant:
    """What the rules need to know of the call."""
    return rules.Claimant(
        call.identity,
        call.digest,
        call.tool.spec.idempotent,
        call.given_key is not None,
        call.mode == "bestEffort",
        call.reuse,
        call.waited,
    )


async def claim(core: Core, call: Call) -> Outcome | None:
    """``None`` when the claim is ours, else the answer somebody else's execution gives."""
    journal = core.journal()
    ask = ask_of(core, call, call.key)
    events = record.start_rows(core, call) if call.scope is not None and not call.recorded else ()
    got, call.first = call.first, None
    if got is None:
        got = await journal.begin(ask, events)
    elif isinstance(got, StoreError):
        raise got
    look = _FIRST_LOOK_S
    while not isinstance(got, Claimed):
        decision = rules.decide(got, claimant_of(call))
        if isinstance(decision, (rules.Wait, rules.Busy)) and certainly_dead(got.current.owner):
            decision = rules.decide(got, claimant_of(call)._replace(owner_gone=True))
        answer: Outcome | None = None
        match decision:
            case rules.Run(version):
                got = await journal.take(ask, version, events)
                continue
            case rules.Reuse(found, matched_on, shared):
                answer = await _reuse(core, call, found, matched_on, shared, got.now_ms)
            case rules.Wait(version, left_ms):
                answer = await _wait(core, call, version, min(left_ms / 1000, look))
                look = min(look * 2, _LONGEST_LOOK_S)
            case rules.Busy():
                answer = _in_flight(call, "the call asked not to wait")
            case rules.Conflict(found) if call.tool.spec.on_conflict != "independent":
                answer = _conflict(core, call, found)
            case rules.Conflict():
                call.key = f"{call.key}.{call.digest[:32]}"
                ask = ask._replace(key=call.key)
            case rules.Unknown(found, mark):
                call.waited = call.waited or found.version  # what it turns out to be is this call's answer, too
                current = found.version == got.current.version
                answer = await _unknown(core, call, found, mark) if current else _still_unknown(call)
            case _:
                assert_never(decision)
        if answer is not None:
            return answer
        got = await journal.read(call.key, call.identity) or await journal.begin(ask, events)
    call.version = got.version
    if events:
        call.recorded = True
    return None


async def _wait(core: Core, call: Call, version: int, seconds: float) -> Outcome | None:
    """Wait for *version* to settle; an answer if this call may not wait (any longer)."""
    if not core.asynchronous and _in_event_loop():
        return _in_flight(call, "a synchronous gateway does not wait inside an event loop")
    call.waited = call.waited or version
    if call.deadline is not None:
        seconds = min(seconds, call.deadline - core.clock.monotonic())
        if seconds <= 0:
            return _in_flight(call, "the deadline came first")
    await core.journal().wait(call.key, version, seconds)
    return None


def _in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def _in_flight(call: Call, why: str) -> Outcome:
    message = f"An equal call of {call.tool.full_name} is in flight ({why}). This one was not made."
    return failed("retriable_error", "in_flight", message, retriable=True, reason="in_flight")


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
    decision = rules.decide(got, claimant_of(call))
    if isinstance(decision, rules.Reuse):
        return await _reused(core, call, decision.record, decision.matched_on, decision.shared, got.now_ms)
    return None


async def _reuse(
    core: Core, call: Call, found: DedupeRecord, matched_on: Any, shared: bool, now_ms: int
) -> Outcome | None:
    """The answer of *found*. ``None``: this call has got a record of its own meanwhile, look again."""
    remembers = shared and found.state == "done" and (matched_on == "inflight" or call.reuse != "session")
    if remembers and not await _remember(core, call, found.version):
        return None
    return await _reused(core, call, found, matched_on, shared, now_ms)


async def _reused(core: Core, call: Call, found: DedupeRecord, matched_on: Any, shared: bool, now_ms: int) -> Outcome:
    outcome = await core.keeper.restore(call, found, core.asynchronous)
    outcome.from_cache = True
    outcome.matched_on = matched_on
    outcome.age_ms = now_ms - found.updated_at_ms
    if shared:
        label = {"reused": True, "from": "an equal call", "matchedOn": matched_on, "ageMs": max(0, outcome.age_ms)}
        outcome.metadata = {**(outcome.metadata or {}), **label}
    if call.scope is not None:
        record.decision(call, "reused", {"state": found.state}, {"matchedOn": matched_on, "ageMs": outcome.age_ms})
    core.telemetry.hit(call, "inflight" if matched_on == "inflight" else found.state)
    return outcome


async def _remember(core: Core, call: Call, version: int) -> bool:
    """Let a redelivery of this very call find the answer it was given (D2), whatever runs in between.

    Not if another delivery of it was faster, and runs or was given something else: then that is its answer.
    """
    journal = core.journal()
    try:
        if await journal.alias(call.key, call.identity, version):
            return True
        got = await journal.read(call.key, call.identity)
        return got is None or got.own is None or got.own.version == version
    except StoreError as error:  # the answer stands; only its redelivery may be answered anew
        log.warning("the shared answer of %s was not remembered: %s", call.tool.full_name, error)
        return True


# -- unknown outcomes --------------------------------------------------------------------------------------------


async def _unknown(core: Core, call: Call, found: DedupeRecord, mark: bool) -> Outcome | None:
    """An earlier dispatch may have happened: settle what can be settled. ``None``: look at the record again."""
    version = found.version
    journal = core.journal()
    if mark:
        final = settling.unknown_final(call, "its worker was lost")
        await journal.settle(call.key, version, final._replace(attempts=(), attempt_count=1))
        return None  # and look: the store may have found the outcome in its log
    if call.tool.spec.reconcile is None:
        return _still_unknown(call)
    verdict = await _reconcile(core, call, found)
    if verdict is None:
        return _still_unknown(call)
    if isinstance(verdict, DidNotHappen):
        not_dispatched = settling.not_dispatched(call)
        await journal.settle(call.key, version, not_dispatched)
        return None
    final = await core.keeper.final_success(call, verdict.value, core.asynchronous)
    settled = await journal.settle(call.key, version, final._replace(attempts=(), attempt_count=1))
    if settled is None:
        return None
    if found.request.identity != call.identity and not await _remember(core, call, settled):
        return None
    outcome = Outcome("success", verdict.value)
    outcome.from_cache = True
    outcome.metadata = {"reconciled": True}
    return outcome


async def _reconcile(core: Core, call: Call, found: DedupeRecord) -> Happened | DidNotHappen | None:
    """Ask the tool's own read-back; an error there leaves the outcome unknown."""
    function = call.tool.spec.reconcile
    assert function is not None
    arguments: tuple[Any, ...] = (dict(call.params),)
    if call.tool.reconcile_wants_context:
        context = CallContext(
            call.tool.full_name,
            found.idempotency_key,
            found.fence,
            None,
            0,
            found.request.request_id,
            None if found.request.tool_call_id is UNSET else found.request.tool_call_id,
            found.request.session_key,
            found.request.actor_id,
        )
        arguments = (*arguments, context)
    try:
        if core.asynchronous and not inspect.iscoroutinefunction(function):
            answer = await core.attempts.threads.run_async(lambda: function(*arguments), None, None)
        else:
            answer = function(*arguments)
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
        f"{settling.UNKNOWN_HINT} An operator can settle it: antiphon claims resolve {call.fingerprint}"
    )
    return failed("error", "outcome_unknown", message)

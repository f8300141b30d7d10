"""Shadow mode: what the gateway would have done is found out beside the call, which is made as if there were none.

The twin of a call goes the way of every call, with claims and breakers of its own; only the tool is not called. It
stops where the tool would be, and goes on when the call has ended, with what came of that.
"""

from __future__ import annotations

from copy import copy

from antiphon._gateway.attempt import raised, returned
from antiphon._gateway.call import Extras, GuardedCall
from antiphon._gateway.claim import start_unclaimed
from antiphon._gateway.context import running
from antiphon._gateway.plan import Plan, Policy
from antiphon._gateway.settlement import settle_interrupted
from antiphon._gateway.steps import BEGIN, Step


def watch(call: GuardedCall, shadow: Plan, verdict: str) -> Step:
    """Make *call* as if there were no gateway, and have its twin say what would have been done; or say *verdict*."""
    asked, watcher = call.policy, shadow.plans.watcher
    call.plan, call.policy = shadow, shadow.bare
    if not verdict and not watcher.takes():
        verdict = "store_unavailable"
    if verdict:
        shadow.reporter.shadow(call, verdict)
        return start_unclaimed(call)
    twin = _twin(call, shadow, asked)
    watcher.do(lambda: watcher.drive(twin, start_unclaimed(twin) if twin.policy.unclaimed else BEGIN))
    call.off_path().ended = lambda of: watcher.do(lambda: _end(twin, of))
    return start_unclaimed(call)


def _twin(call: GuardedCall, shadow: Plan, asked: Policy) -> GuardedCall:
    twin = copy(call)
    twin.extras = extras = Extras()
    extras.watching = True
    extras.outer_running = running.get()
    twin.policy = policy = Policy(shadow, call.options)
    policy.given_key, policy.unclaimed, policy.retry_safe = asked.given_key, asked.unclaimed, asked.retry_safe
    twin.run = twin.turn = twin.guard = None
    return twin


def _end(twin: GuardedCall, call: GuardedCall) -> None:
    """Settle the twin as the call ended."""
    outcome, interrupt = call.outcome, call.extras.interrupt
    error = interrupt if interrupt is not None or outcome is None else outcome.exception
    if error is not None:
        twin.entered = twin.number
        step = raised(twin, error)
    elif outcome is None or outcome.status == "success":
        twin.value = None
        step = returned(twin)
    else:
        twin.off_path().dispatched = True
        step = settle_interrupted(twin, None, outcome.message)
    try:
        twin.plan.plans.watcher.drive(twin, step)
    except BaseException as passed:
        if passed is not error:  # else the caller has it
            raise

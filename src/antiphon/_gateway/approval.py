"""Asks a person before a call is dispatched, and spends the approval, which is kept in the call's claim record."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from antiphon._gateway import outcome as outcomes
from antiphon._gateway.approval_rule import ApprovalState
from antiphon._gateway.outcome import Outcome
from antiphon.contract.approval import DENIED, GRANTED, REQUIRED, WITHDRAWN, Approval, spent_by, written
from antiphon.contract.events import RunManifest, audit_manifest
from antiphon.contract.record import DedupeRecord
from antiphon.decide.claim import UNKNOWN_CODE, ApprovalRequirement, may_spend
from antiphon.ports import Row, Settlement

if TYPE_CHECKING:
    from antiphon._gateway.call import GuardedCall
    from antiphon._gateway.plan import Plan, Verdict

log = logging.getLogger("antiphon.gateway")

KEPT_MS = 86_400_000
"""How long an approval can be viewed after it has ended."""
MESSAGES = {
    GRANTED: "A person approved this call; the next delivery of it runs.",
    DENIED: "A person denied this call. It was not made. Do not make it again; say so, or suggest something else.",
    WITHDRAWN: "The approval of this call was withdrawn. It was not made. Do not make it again.",
}


def needed(plan: Plan, arguments: dict[str, Any]) -> bool:
    """Whether a person must approve a call with these arguments."""
    return plan.approval_rule is not None and plan.approval_rule.needs(arguments)


def consider(call: GuardedCall) -> None:
    """Find out whether a person must approve the call, and note it in the run."""
    found = approval_state_of(call)
    if found is None:
        return
    if call.run is not None:
        call.run.approval = found.requirement.policy
    call.off_path().approval_state = found


def approval_state_of(call: GuardedCall) -> ApprovalState | None:
    """What the approval of the call must be bound to; ``None``: it needs none."""
    approval_rule = call.plan.approval_rule
    assert approval_rule is not None
    if not approval_rule.needs(call.arguments):
        return None
    anonymous = call.token == call.identity
    requirement = ApprovalRequirement(
        approval_rule.policy, approval_rule.version, _digests(call), approval_rule.bind == "intent", anonymous
    )
    return ApprovalState(requirement)


def _digests(call: GuardedCall) -> tuple[str, ...]:
    approval_rule = call.plan.approval_rule
    assert approval_rule is not None
    return call.plan.plans.fingerprints.bindings(approval_rule.bound_to(call.key, call.arguments))


def is_good(call: GuardedCall, state: ApprovalState, now_ms: int) -> bool:
    """Whether the claim just won may be dispatched: the approval it replaced is valid for it, at the store's time.

    The digest is computed again from the current arguments. A worker that stalled for longer than its lease may have
    replaced what followed that approval; it asks again.
    """
    approval = state.spending
    if approval is None or now_ms - state.seen_ms > call.plan.lease_ms:
        return False
    return may_spend(approval, state.requirement._replace(digests=_digests(call)), now_ms)


def new_request(call: GuardedCall, now_ms: int) -> tuple[Approval, Settlement]:
    """A new pending approval, and the settlement that records it."""
    plan, state = call.plan, call.extras.approval_state
    assert plan.approval_rule is not None and state is not None
    ttl_ms = plan.approval_rule.ttl_ms
    approval = Approval(
        id=secrets.token_hex(8),
        digest=_digests(call)[0],
        policy=state.requirement.policy,
        policy_version=state.requirement.version,
        asker=call.place[1],
        asked_at_ms=now_ms,
        expires_at_ms=now_ms + ttl_ms,
        arguments=plan.results.for_approval(call.key, plan.approval_rule.shown(call.arguments)),
        shown_in=call.options.shown_in,
    )
    return approval, _record(approval, REQUIRED, outcomes.approval_required(plan.name, approval.id).message, ttl_ms)


def _record(approval: Approval, code: str, said: str, left_ms: int) -> Settlement:
    """The settlement that keeps an approval in the record of its call."""
    ttl_ms, error = max(0, left_ms) + KEPT_MS, (code, said, True, False)
    return Settlement("failed", ttl_ms, payload=written(approval), error=error, dispatched=False)


def decided(approval: Approval, code: str, *, by: str, at_ms: int, where: str, reason: str = "") -> Settlement:
    """The settlement that records a decision on an approval."""
    made = msgspec.structs.replace(approval, decided_by=by, decided_at_ms=at_ms, decided_from=where, reason=reason)
    said = f"{MESSAGES[code]} Reason: {reason}" if reason and code != GRANTED else MESSAGES[code]
    return _record(made, code, said, approval.expires_at_ms - at_ms)


def applies(verdict: Verdict, state: ApprovalState, found: Approval) -> bool:
    """Whether a decision made in a framework applies to this approval.

    Either it names the approval; or it is about the one that the framework has shown, and then this delivery cannot
    have asked. The asker decides nothing.
    """
    if verdict.by.strip().casefold() == found.asker.strip().casefold():
        log.error("%s made this call and cannot decide on it", verdict.by)
        return False
    if verdict.approval:
        return verdict.approval == found.id
    return bool(found.shown_in) and found.shown_in == verdict.where and not state.is_new


def audited(call: GuardedCall, found: Approval, code: str, verdict: Verdict, at_ms: int) -> tuple[RunManifest, Row]:
    """The audit log entry for a decision made in the process of the call."""
    plan = call.plan
    manifest = audit_manifest(plan.results.tenant, plan.plans.settings.workspace, at_ms)
    about = {"approval": found.id, "key": call.key, "tool": plan.name, "asker": found.asker, "from": verdict.where}
    if verdict.reason:
        about["reason"] = verdict.reason
    redactor = plan.results.run_redactor
    clean = about if redactor is None else orjson.loads(redactor.redact_bytes(orjson.dumps(about))[0])
    said = {"act": "approve" if code == GRANTED else "deny", **clean, "by": verdict.by}
    return manifest, Row(manifest.id, "admin.act", at_ms, orjson.dumps({"payload": said, "meta": {}, "v": 1}))


def is_granted(found: Approval) -> Outcome:
    """The answer to a call that only asks, once somebody has approved it."""
    outcome = outcomes.failed("error", GRANTED, MESSAGES[GRANTED])
    outcome.note(approvalId=found.id, approvalExpiresAtMs=found.expires_at_ms)
    return outcome


def given_back(approval: Approval) -> Settlement:
    """The call certainly had no effect: its approval can be spent again."""
    return _record(approval, GRANTED, MESSAGES[GRANTED], approval.expires_at_ms - approval.asked_at_ms)


def settles(call: GuardedCall, settlement: Settlement) -> Settlement:
    """How a call that has spent an approval ends: if it certainly had no effect, it gives the approval back."""
    state = call.extras.approval_state
    if state is None or state.spent is None:
        return settlement
    if settlement.error is not None and settlement.error[0] == UNKNOWN_CODE:
        return settlement._replace(payload=written(state.spent))
    nothing = settlement.state == "cancelled" and not settlement.dispatched
    if nothing or (settlement.state == "failed" and not call.extras.may_have_applied):
        return given_back(state.spent)._replace(attempts=settlement.attempts, attempt_count=settlement.attempt_count)
    return settlement


def recovered(call: GuardedCall, version: int, now_ms: int) -> None:
    """A claim request that broke off has replaced the approval if the claim is the call's own (0: it is another's)."""
    state = call.extras.approval_state
    if state is not None and state.spending is not None:
        if version and now_ms - state.seen_ms <= call.plan.lease_ms:
            state.spent = state.spending
        state.spending = None


def kept_by(found: DedupeRecord, settlement: Settlement) -> Settlement:
    """The same for the record of another call, whose worker is lost or whose outcome was read back."""
    approval = spent_by(found)
    if approval is None or settlement.state == "done":
        return settlement
    if settlement.error is not None and settlement.error[0] == UNKNOWN_CODE:
        return settlement._replace(payload=written(approval))
    return given_back(approval)


def required(call: GuardedCall, approval: Approval) -> Outcome:
    """The answer to a call that waits for a person."""
    outcome = outcomes.approval_required(call.plan.name, approval.id)
    outcome.note(approvalId=approval.id, approvalExpiresAtMs=approval.expires_at_ms)
    return outcome


def view(call: GuardedCall, approval: Approval) -> dict[str, Any]:
    """What an approver function and listeners receive; the arguments are masked."""
    plan = call.plan
    assert plan.approval_rule is not None
    return {
        "approvalId": approval.id,
        "tool": plan.name,
        "description": plan.tool.spec.description,
        "arguments": plan.results.for_listeners(plan.approval_rule.shown(call.arguments)),
        "asker": approval.asker,
        "session": call.place[0],
        "policy": approval.policy,
        "policyVersion": approval.policy_version,
        "expiresAtMs": approval.expires_at_ms,
    }

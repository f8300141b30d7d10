"""The claim table where a person must approve the call, and where an execution was undone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.contract.approval import ASKING, DENIED, GRANTED, REQUIRED, WITHDRAWN, Approval, written
from antiphon.contract.record import DedupeRecord, RecordedError
from antiphon.decide.claim import (
    UNDONE,
    ApprovalRequirement,
    Ask,
    Claimant,
    Conflict,
    Decision,
    Pending,
    Replaced,
    Reuse,
    Run,
    Spend,
    Undone,
    decide,
    is_undone,
    may_spend,
)
from antiphon.ports import Existing
from tests.unit.decide.test_claim import NOW, record

APPROVAL = Approval(
    id="a1",
    digest="exact",
    policy="money",
    policy_version="2",
    asker="me",
    asked_at_ms=NOW - 10,
    expires_at_ms=NOW + 10,
)
NEED = ApprovalRequirement("money", "2", ("exact", "under an older key"))
CALL = Claimant("me", "digest", False, False, False, "never", requirement=NEED)


def failed(code: str, identity: str = "me", version: int = 7, **fields: Any) -> DedupeRecord:
    """A record that failed with a code."""
    error = RecordedError(code=code, message="m", terminal=True, should_retriable=False)
    return msgspec.structs.replace(record("failed", identity, version), error=error, **fields)


def asked(code: str, approval: Approval = APPROVAL, identity: str = "me", version: int = 7) -> DedupeRecord:
    """A record that keeps an approval."""
    return failed(code, identity, version, payload=written(approval), dispatched=False)


def decided(current: DedupeRecord, call: Claimant = CALL, own: DedupeRecord | None = None) -> Decision:
    return decide(Existing(current, own, NOW), call)


@pytest.mark.parametrize(
    ("changed", "good"),
    [
        ({}, True),
        ({"digest": "under an older key"}, True),
        ({"digest": "other"}, False),
        ({"policy": "travel"}, False),
        ({"policy_version": "1"}, False),
        ({"policy": "travel", "policy_version": "1"}, False),
        ({"expires_at_ms": NOW + 1}, True),
        ({"expires_at_ms": NOW}, False),
    ],
)
def test_an_approval_is_good_for_its_arguments_and_policy_until_it_expires(changed: dict[str, Any], good: bool) -> None:
    approval = msgspec.structs.replace(APPROVAL, **changed)
    assert may_spend(approval, NEED, NOW) is good
    found = decided(asked(GRANTED, approval))
    assert found == (Spend(7, approval) if good else Ask(7, "its approval is over, or for another call"))


@pytest.mark.parametrize("key_given", [False, True])
def test_what_was_decided_is_what_happens(key_given: bool) -> None:
    call = replace(CALL, given_key=key_given)
    assert decided(asked(GRANTED), call) == Spend(7, APPROVAL)
    assert decided(asked(REQUIRED), call) == Pending(7, APPROVAL)
    for code in (DENIED, WITHDRAWN):
        assert decided(asked(code), call) == Reuse(asked(code), "completed", shared=False)


@pytest.mark.parametrize("code", [DENIED, WITHDRAWN])
def test_a_refusal_is_for_what_the_call_was_then(code: str) -> None:
    other = msgspec.structs.replace(APPROVAL, digest="other")
    assert decided(asked(code, other)) == Ask(7, "its approval is over, or for another call")
    assert decided(asked(code), replace(CALL, requirement=None)) == Reuse(asked(code), "completed", shared=False)


@pytest.mark.parametrize("code", [DENIED, WITHDRAWN])
@pytest.mark.parametrize("changed", [{"expires_at_ms": NOW}, {"policy": "travel"}, {"policy_version": "1"}])
def test_a_refusal_holds_as_long_as_an_approval_would(code: str, changed: dict[str, Any]) -> None:
    over = msgspec.structs.replace(APPROVAL, **changed)
    for call in (CALL, replace(CALL, given_key=True), replace(CALL, waits_for_person=True)):
        assert decided(asked(code, over), call) == Ask(7, "its approval is over, or for another call")
    assert decided(record("cancelled", "somebody", 7), CALL, asked(code, over, version=5)) == Ask(7, "after cancelled")
    assert decided(asked(code, over), replace(CALL, requirement=None)) == Reuse(
        asked(code, over), "completed", shared=False
    )


@pytest.mark.parametrize("code", [DENIED, WITHDRAWN])
def test_a_refusal_is_the_answer_also_for_other_calls_if_the_policy_says_so(code: str) -> None:
    refused = asked(code, identity="somebody")
    for call in (replace(CALL, requirement=NEED._replace(any_identity=True)), replace(CALL, given_key=True)):
        assert decided(refused, call) == Reuse(refused, "completed", shared=False)


@pytest.mark.parametrize("code", [REQUIRED, GRANTED])
def test_a_question_is_open_where_nobody_has_to_be_asked_any_more(code: str) -> None:
    assert decided(asked(code), replace(CALL, requirement=None)) == Run(7, "failed")


@pytest.mark.parametrize("code", [REQUIRED, GRANTED, DENIED, WITHDRAWN])
def test_another_calls_approval_is_not_good_unless_the_policy_says_so(code: str) -> None:
    others = asked(code, identity="somebody")
    assert decided(others) == Ask(7, "after failed")
    answer = {GRANTED: Spend(7, APPROVAL), REQUIRED: Pending(7, APPROVAL)}.get(code, Reuse(others, "completed", False))
    assert decided(others, replace(CALL, requirement=NEED._replace(any_identity=True))) == answer


@pytest.mark.parametrize("code", [REQUIRED, GRANTED, DENIED, WITHDRAWN])
def test_a_waiting_call_replaces_another_calls_question_only_when_that_is_over(code: str) -> None:
    waiting = replace(CALL, waits_for_person=True)
    others, over = asked(code, identity="somebody"), msgspec.structs.replace(APPROVAL, expires_at_ms=NOW)
    other = msgspec.structs.replace(APPROVAL, digest="other")
    changed = asked(code, other)
    is_live = code in (REQUIRED, GRANTED)
    assert decided(others, waiting) == (Replaced(7, APPROVAL) if is_live else Ask(7, "after failed"))
    why = "its approval is over, or for another call"
    assert decided(changed, waiting) == (Replaced(7, other) if is_live else Ask(7, why))
    assert decided(asked(code, over, "somebody"), waiting) == Ask(7, "after failed")
    assert decided(asked(code), waiting) == decided(asked(code))


def test_an_anonymous_call_takes_the_approval_of_an_anonymous_one() -> None:
    anonymous = replace(CALL, requirement=NEED._replace(anonymous=True))
    theirs = asked(GRANTED, identity="r1")
    named = msgspec.structs.replace(theirs, owner="process/1")
    nameless = msgspec.structs.replace(theirs, owner="r1/process/1")
    assert decided(nameless, anonymous) == Spend(7, APPROVAL)
    assert decided(named, anonymous) == Ask(7, "after failed")
    assert decided(nameless) == Ask(7, "after failed")


def test_what_would_not_run_does_not_ask() -> None:
    done = record("done", "me", 7)
    assert decided(done) == Reuse(done, "completed", shared=False)
    assert decided(record("done", "somebody", 7)) == Ask(7, "new call")
    assert decided(record("done", "somebody", 7), replace(CALL, requirement=None)) == Run(7, "new call")


def test_a_claim_that_only_asks_is_taken_over() -> None:
    asking = msgspec.structs.replace(record("inflight", "somebody", 7, lease="over"), arguments=ASKING)
    assert decided(asking) == Ask(7, "takeover")
    assert decided(asking, replace(CALL, requirement=None)) == Run(7, "takeover")


@pytest.mark.parametrize("code", [REQUIRED, GRANTED, DENIED, WITHDRAWN])
def test_a_key_that_only_asked_is_free_for_other_arguments(code: str) -> None:
    call = replace(CALL, given_key=True, params_digest="other")
    assert decided(asked(code), replace(call, requirement=None)) == Run(7, "the key is free")
    assert isinstance(decided(record("done", "me", 7), call), Conflict)


@pytest.mark.parametrize(
    ("code", "requirement", "answer"),
    [
        (REQUIRED, NEED, None),
        (GRANTED, NEED, None),
        (DENIED, NEED, 5),
        (WITHDRAWN, NEED, 5),
        (REQUIRED, None, None),
        (GRANTED, None, None),
        (DENIED, None, 5),
    ],
)
def test_an_earlier_question_of_the_call_answers_only_if_it_was_refused(
    code: str, requirement: ApprovalRequirement | None, answer: int | None
) -> None:
    own = asked(code, version=5)
    found = decided(record("cancelled", "somebody", 7), replace(CALL, requirement=requirement), own)
    if answer is None:
        assert found == (Run(7, "after cancelled") if requirement is None else Ask(7, "after cancelled"))
    else:
        assert found == Reuse(own, "completed", shared=False)


def test_an_execution_that_was_undone_answers_nobody() -> None:
    code = UNDONE[0]
    plain, key = replace(CALL, requirement=None), replace(CALL, requirement=None, given_key=True)
    undone = failed(code)
    assert is_undone(undone)
    for call in (plain, key, replace(key, params_digest="other")):
        assert decided(undone, call) == Undone(undone)
        assert decided(undone, replace(call, runs_after_undo=True)) == Run(7, "after undo")
    earlier = failed(code, version=5)
    for current in (record("done", "somebody", 7), record("inflight", "somebody", 7, lease="alive")):
        assert decided(current, plain, earlier) == Undone(earlier)
        assert decided(current, replace(plain, runs_after_undo=True), earlier) == Run(7, "after undo")
    assert decided(failed(code, "somebody"), plain) == Run(7, "after failed")


def test_what_was_undone_is_told_from_other_records() -> None:
    assert not is_undone(failed("http_400"))
    assert not is_undone(record("done", "me", 7))
    assert not is_undone(msgspec.structs.replace(failed(UNDONE[0]), state="cancelled"))
    assert not is_undone(msgspec.structs.replace(record("done", "me", 7), state="failed"))

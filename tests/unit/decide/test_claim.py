"""The claim table, enumerated: every combination of what the store may show and what a call may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.contract._base import UNSET
from antiphon.contract.record import ClaimState, DedupeRecord, RecordedError, RecordedRequest
from antiphon.decide import claim
from antiphon.decide.claim import Busy, Claimant, Conflict, Decision, Reuse, ReuseRule, Run, Unknown, Wait, decide
from antiphon.ports import Existing

NOW = 1_000_000
SETTLED = NOW - 5_000
"""When the settled records of the table were settled."""


class Case(NamedTuple):
    """One combination. ``current`` is what is there; ``own`` an earlier execution of the asking identity."""

    current: str
    lease: str
    same: bool
    own: str
    idempotent: bool
    given_key: bool
    digest_equal: bool
    best_effort: bool
    reuse: ReuseRule
    waited: bool


STATES = ("inflight", "done", "failed", "retriable", "unknown", "cancelled", "cancelled_after")
REUSES: tuple[ReuseRule, ...] = ("turn", "session", "never", 10.0, 2.0)


def cases() -> Iterator[Case]:
    for current, same, own, idempotent, given, equal, best_effort, reuse, waited in product(
        STATES,
        (True, False),
        ("", *STATES),
        (True, False),
        (True, False),
        (True, False),
        (True, False),
        REUSES,
        (True, False),
    ):
        if given and not same:
            continue  # with a given key the key alone is the identity
        if (same or given) and own:
            continue  # the current execution is its own
        if not given and not equal:
            continue  # a computed key holds the digest
        for lease in ("alive", "over", "owner gone") if current == "inflight" else ("",):
            yield Case(current, lease, same, own, idempotent, given, equal, best_effort, reuse, waited)


def record(kind: str, identity: str, version: int, digest: str = "digest", lease: str = "over") -> DedupeRecord:
    error = {
        "failed": RecordedError(code="http_400", message="no", terminal=True, should_retriable=False),
        "retriable": RecordedError(code="http_503", message="no", terminal=False, should_retriable=True),
        "unknown": RecordedError(code="outcome_unknown", message="?", terminal=True, should_retriable=False),
    }.get(kind, UNSET)
    state: dict[str, ClaimState] = {
        "retriable": "failed",
        "unknown": "failed",
        "cancelled_after": "cancelled",
    }
    return DedupeRecord(
        key="k",
        tool="tools/t",
        idempotency_key="i",
        state=state.get(kind, kind),  # type: ignore[arg-type]
        created_at_ms=SETTLED,
        updated_at_ms=SETTLED,
        expires_at_ms=NOW + 1_000,
        ttl_ms=1_000,
        request=RecordedRequest(session_key="s", actor_id="a", request_id="r", params_digest=digest, identity=identity),
        version=version,
        fence=version,
        dispatched=kind != "cancelled",
        error=error,
        lock_until_ms=UNSET if kind != "inflight" else NOW + (-1 if lease == "over" else 500),
    )


def ask(case: Case) -> tuple[Existing, Claimant]:
    identity = "k" if case.given_key else "me"
    digest = "digest" if case.digest_equal else "other"
    current = record(case.current, identity if case.same else "somebody", 7, digest, case.lease)
    own = current if case.same else record(case.own, "me", 5) if case.own else None
    asks = Claimant(
        identity,
        "digest",
        case.idempotent,
        case.given_key,
        case.best_effort,
        case.reuse,
        6 if case.waited else 0,
        case.lease == "owner gone",
    )
    return Existing(current, own, NOW), asks


# -- the table, written a second time ----------------------------------------------------------------------------
# Each row: requirement, when it applies, what must come of it. The first row that applies decides.


class Row(NamedTuple):
    """One line of the requirements."""

    ids: str
    when: Callable[[Case], bool]
    expect: Callable[[Case, Decision], bool]


def is_run(case: Case, found: Decision) -> bool:
    return isinstance(found, Run) and found.version == 7


def reuse_current(matched: str, *, shared: bool) -> Callable[[Case, Decision], bool]:
    def check(case: Case, found: Decision) -> bool:
        return (
            isinstance(found, Reuse)
            and found.record.version == 7
            and found.matched_on == matched
            and found.shared is shared
        )

    return check


def reuse_own(case: Case, found: Decision) -> bool:
    expected = "inflight" if case.waited else "completed"
    return isinstance(found, Reuse) and found.record.version == 7 and found.matched_on == expected and not found.shared


def reuse_earlier(case: Case, found: Decision) -> bool:
    return isinstance(found, Reuse) and found.record.version == 5 and found.matched_on == "completed"


def unknown_of(version: int, *, mark: bool) -> Callable[[Case, Decision], bool]:
    def check(case: Case, found: Decision) -> bool:
        return isinstance(found, Unknown) and found.record.version == version and found.mark is mark

    return check


def fresh(case: Case) -> bool:
    """Whether the per-tool reuse rule covers a record of five seconds ago."""
    return case.reuse == "session" or case.reuse == 10.0


OPEN_ENDED = ("unknown", "cancelled_after")

TABLE = [
    # nothing was sent under the key: it is free, also for other arguments (D40)
    Row("D40", lambda c: c.given_key and not c.digest_equal and c.current == "cancelled", is_run),
    Row("TR-4 D9", lambda c: c.given_key and not c.digest_equal, lambda c, d: isinstance(d, Conflict)),
    # a redelivery of a call that others have followed (D2): its own execution answers
    Row("D2", lambda c: c.own == "done", reuse_earlier),
    Row("D2 D3", lambda c: c.own in OPEN_ENDED and not c.idempotent, unknown_of(5, mark=False)),
    Row("D6 R5", lambda c: c.own == "failed", reuse_earlier),
    Row("D3", lambda c: c.own == "unknown", reuse_earlier),
    Row("D6 R5", lambda c: c.own == "retriable" and not c.best_effort, reuse_earlier),
    # in flight: the gate is the intent's (D2)
    Row(
        "R5",
        lambda c: c.current == "inflight" and c.lease == "alive" and c.best_effort,
        lambda c, d: isinstance(d, Busy) and d.version == 7,
    ),
    Row(
        "R5 D2",
        lambda c: c.current == "inflight" and c.lease == "alive",
        lambda c, d: isinstance(d, Wait) and d.version == 7 and d.lease_left_ms == 500,
    ),
    Row("D3", lambda c: c.current == "inflight" and c.idempotent, is_run),
    Row("D3", lambda c: c.current == "inflight", unknown_of(7, mark=True)),
    # unknown outcomes block a tool that may not be repeated, whoever asks (D2, D3)
    Row("D2 D3 R5", lambda c: c.current in OPEN_ENDED and not c.idempotent, unknown_of(7, mark=False)),
    # the same call identity (R5)
    Row("R5", lambda c: c.same and c.current == "done", reuse_own),
    Row("R5", lambda c: c.same and c.current in ("cancelled", "cancelled_after"), is_run),
    Row("R5", lambda c: c.same and c.current == "retriable" and c.best_effort, is_run),
    Row("R5 D6", lambda c: c.same, reuse_own),
    # a new call identity
    Row("D2", lambda c: c.current == "done" and c.waited, reuse_current("inflight", shared=True)),
    Row(
        "D3",  # the takeover's result stands for the call that was taken over
        lambda c: c.current == "done" and c.idempotent and c.own == "inflight",
        reuse_current("completed", shared=True),
    ),
    Row(
        "D35",
        lambda c: c.current == "done" and c.idempotent and fresh(c),
        reuse_current("completed", shared=True),
    ),
    Row("D2 D35", lambda c: c.current == "done", is_run),
    Row("D6", lambda c: c.current in ("failed", "retriable", "unknown"), is_run),
    Row("R5", lambda c: c.current in ("cancelled", "cancelled_after"), is_run),
]


def row_of(case: Case) -> Row:
    return next(row for row in TABLE if row.when(case))


def mistakes() -> list[str]:
    return [
        f"{row_of(case).ids}: {case} -> {decide(*ask(case))}"
        for case in cases()
        if not row_of(case).expect(case, decide(*ask(case)))
    ]


def test_every_combination_is_decided_as_the_requirements_say() -> None:
    assert sum(1 for _ in cases()) > 2_000
    assert mistakes() == []


def test_every_row_of_the_table_is_used() -> None:
    used = {id(row_of(case)) for case in cases()}
    assert [row.ids for row in TABLE if id(row) not in used] == []


def test_a_tool_that_may_not_be_repeated_never_runs_while_an_outcome_is_open() -> None:
    for case in cases():
        if not case.idempotent and case.digest_equal and case.current in ("inflight", *OPEN_ENDED):
            assert not isinstance(decide(*ask(case)), Run), case


def test_the_same_identity_never_runs_again_after_done() -> None:
    for case in cases():
        if case.digest_equal and ((case.same and case.current == "done") or case.own == "done"):
            assert isinstance(decide(*ask(case)), Reuse), case


def test_an_alias_is_labelled_as_shared() -> None:
    current, other = record("done", "somebody", 7), record("done", "leader", 5)
    found = decide(Existing(current, other, NOW), Claimant("me", "digest", False, False, False, "turn"))
    assert isinstance(found, Reuse)
    assert found.record is other
    assert found.shared


@pytest.mark.parametrize(("gate_ms", "is_over"), [(0, False), (5_001, False), (5_000, True), (1, True)])
def test_an_unknown_outcome_ends_for_new_identities_with_the_gate_and_for_its_own_never(
    gate_ms: int, is_over: bool
) -> None:
    for case in cases():
        if case.current not in OPEN_ENDED or case.idempotent or case.given_key:
            continue
        existing, asks = ask(case)
        found, ungated = decide(existing, replace(asks, gate_ms=gate_ms)), decide(existing, asks)
        new = not case.same and isinstance(ungated, Unknown) and ungated.record.version == 7
        if new and is_over:  # D41
            assert is_run(case, found), case
        else:
            assert found == ungated, case


@pytest.mark.parametrize(("age_ms", "runs"), [(9_999, False), (10_000, True)])
def test_reuse_for_a_number_of_seconds_ends_with_them(age_ms: int, runs: bool) -> None:
    existing = Existing(record("done", "somebody", 7), None, SETTLED + age_ms)
    found = decide(existing, Claimant("me", "digest", True, False, False, 10.0))
    assert isinstance(found, Run) is runs


@pytest.mark.parametrize(("left_ms", "waits"), [(1, True), (0, False)])
def test_a_lease_is_over_at_its_last_millisecond(left_ms: int, waits: bool) -> None:
    current = record("inflight", "somebody", 7, lease="alive")
    assert current.lock_until_ms is not UNSET
    found = decide(
        Existing(current, None, current.lock_until_ms - left_ms), Claimant("me", "digest", True, False, False, "never")
    )
    assert found == (Wait(7, 1) if waits else Run(7, "takeover"))


def test_a_record_of_the_asking_identity_is_its_own_also_if_the_store_does_not_say_so() -> None:
    asks = Claimant("me", "digest", False, False, False, "never")
    current = record("done", "me", 7)
    assert decide(Existing(current, None, NOW), asks) == Reuse(current, "completed", shared=False)
    assert decide(Existing(record("cancelled", "me", 7), None, NOW), asks) == Run(7, "cancelled")


def test_an_earlier_failure_of_the_same_call_is_not_shared() -> None:
    own = record("failed", "me", 5)
    found = decide(
        Existing(record("done", "somebody", 7), own, NOW), Claimant("me", "digest", False, False, False, "never")
    )
    assert found == Reuse(own, "completed", shared=False)


def test_what_an_operator_settled_is_told_from_other_failures() -> None:
    code, message, terminal, retriable = claim.RESOLVED
    settled = RecordedError(code=code, message=message, terminal=terminal, should_retriable=retriable)
    assert claim.is_resolution(msgspec.structs.replace(record("failed", "me", 7), error=settled))
    assert not claim.is_resolution(record("failed", "me", 7))
    assert not claim.is_resolution(record("done", "me", 7))


# -- planted bugs ------------------------------------------------------------------------------------------------


def _always_own(existing: Existing, asks: Claimant) -> Decision:
    """A redelivery answered from whatever ran last."""
    return REAL(existing._replace(own=existing.current), asks)


def _takes_over_everything(current: DedupeRecord, now: int, asks: Claimant) -> Decision:
    return Run(current.version, "takeover") if asks.owner_gone else REAL_IN_FLIGHT(current, now, asks)


REAL, REAL_IN_FLIGHT = claim.decide, claim._in_flight
PLANTED: dict[str, tuple[str, Callable[..., object]]] = {
    "unknown counts as failed": ("is_unknown", lambda found: False),
    "takes over calls that may not be repeated": ("_in_flight", _takes_over_everything),
    "an earlier execution is forgotten": ("_earlier_execution", lambda own, now, asks: None),
    "reuse for ever": ("_may_reuse", lambda current, now, rule: True),
    "best effort repeats what is unknown": ("_runs_again", lambda own, asks: asks.best_effort),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_the_table_notices(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, planted = PLANTED[bug]
    monkeypatch.setattr(claim, name, planted)
    assert mistakes()


def test_the_table_notices_that_the_identity_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "decide", _always_own)
    assert mistakes()

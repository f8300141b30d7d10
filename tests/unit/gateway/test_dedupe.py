"""R5, D2, D6, D35: what a duplicate gets, by state, mode and call identity."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.contract.spec import Ttls
from tests.unit.gateway.kit import NEVER_TRIPS, Hold, HttpError, Rig, eventually, in_thread

MODES = ("enforced", "bestEffort")


# -- done --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("idempotent", [True, False])
def test_the_same_identity_is_answered_from_its_record(mode: str, idempotent: bool) -> None:
    rig = Rig()
    script = rig.tool("first", idempotent=idempotent)
    rig.execute(call_id="c1", mode=mode)
    rig.clock.advance(3)
    again = rig.execute(call_id="c1", mode=mode).to_wire()
    assert (again["status"], again["fromCache"], again["attempts"]) == ("success", True, 0)
    assert again["output"]["content"] == "first"
    assert again["cache"]["matchedOn"] == "completed"
    assert again["cache"]["ageMs"] == 3_000
    assert len(again["cache"]["keyFingerprint"]) == 16
    assert len(script) == 1


def test_without_a_call_id_the_request_id_is_the_identity() -> None:
    rig = Rig()
    script = rig.tool()
    rig.execute(request_id="r1")
    assert rig.execute(request_id="r1").from_cache
    assert not rig.execute(request_id="r2").from_cache
    assert len(script) == 2


def test_c1_c2_then_c1_again_is_answered_from_its_own_execution() -> None:
    rig = Rig()
    script = rig.tool("one", "two", "three")
    assert rig.execute(call_id="c1").content == "one"
    assert rig.execute(call_id="c2").content == "two"
    assert rig.execute(call_id="c1").content == "one"
    assert rig.execute(call_id="c2").content == "two"
    assert len(script) == 2


def test_every_identity_is_remembered_however_many_there_are() -> None:
    rig = Rig()
    script = rig.tool()
    for number in range(60):
        rig.execute(call_id=f"c{number}")
    assert [rig.execute(call_id=f"c{number}").content for number in range(60)] == list(range(1, 61))
    assert len(script) == 60


@pytest.mark.parametrize(
    ("spec", "after_s", "reused"),
    [
        ({}, 0, True),
        ({"effect": "read"}, 3_600, True),
        ({"effect": "write"}, 0, False),
        ({"reuse": "never"}, 0, False),
        ({"reuse": "turn"}, 0, False),
        ({"reuse": "session"}, 86_000, True),
        ({"reuse": 10.0}, 9, True),
        ({"reuse": 10.0}, 10, False),
        ({"effect": "write", "reuse": "session"}, 0, True),
        ({"ttl": Ttls(done_ms=5_000)}, 6, False),
    ],
)
def test_reuse_by_a_new_identity_follows_the_tools_rule(spec: dict[str, Any], after_s: float, reused: bool) -> None:
    rig = Rig()
    script = rig.tool(idempotent=True, **spec)
    rig.execute(call_id="c1")
    rig.clock.advance(after_s)
    result = rig.execute(call_id="c2")
    assert result.from_cache is reused
    assert len(script) == (1 if reused else 2)
    if reused:
        assert result.output.metadata["reused"] is True


def test_whoever_was_given_a_shared_answer_gets_it_again() -> None:
    rig = Rig()
    script = rig.tool(idempotent=True, reuse=10.0)
    rig.execute(call_id="c1")
    assert rig.execute(call_id="c2").content == 1
    rig.clock.advance(60)
    assert rig.execute(call_id="c3").content == 2
    again = rig.execute(call_id="c2")
    assert (again.content, again.from_cache) == (1, True)
    assert len(script) == 2


def test_a_given_key_alone_is_the_intent() -> None:
    rig = Rig()
    script = rig.tool("sent")
    rig.execute(call_id="c1", key="order-7")
    again = rig.execute(call_id="c2", key="order-7")
    assert (again.content, again.from_cache) == ("sent", True)
    assert len(script) == 1


def test_sessions_and_actors_do_not_share_keys() -> None:
    rig = Rig()
    script = rig.tool(idempotent=True)
    rig.execute(key="k")
    rig.execute(key="k", session="s2")
    rig.execute(key="k", actor="a2")
    rig.execute(key="k", workspaceId="w2")
    rig.execute(key="k", tenantId="t2")
    assert len(script) == 5


def test_a_global_tool_shares_across_sessions() -> None:
    rig = Rig()
    script = rig.tool(idempotent=True, effect="read", scope="global")
    rig.execute()
    assert rig.execute(session="s2", actor="a2").from_cache
    assert len(script) == 1


# -- failed ------------------------------------------------------------------------------------------------------


def test_a_cached_failure_answers_the_same_identity_only() -> None:
    rig = Rig()
    script = rig.tool(HttpError(400), "fine")
    first = rig.execute(call_id="c1")
    again = rig.execute(call_id="c1")
    assert (first.code, first.from_cache) == ("http_400", False)
    assert (again.code, again.from_cache, again.error.terminal) == ("http_400", True, True)
    assert rig.execute(call_id="c2").content == "fine"
    assert len(script) == 2


def test_best_effort_runs_again_after_a_retriable_failure() -> None:
    rig = Rig()
    script = rig.tool(HttpError(503), "fine", idempotent=True, breaker=NEVER_TRIPS)
    assert rig.execute(call_id="c1", attempts=1).status == "retriable_error"
    kept = rig.execute(call_id="c1", attempts=1)
    assert (kept.status, kept.from_cache) == ("retriable_error", True)
    assert rig.execute(call_id="c1", mode="bestEffort").content == "fine"
    assert len(script) == 2


def test_best_effort_does_not_run_again_after_a_terminal_failure() -> None:
    rig = Rig()
    script = rig.tool(HttpError(422), "fine", idempotent=True)
    rig.execute(call_id="c1")
    assert rig.execute(call_id="c1", mode="bestEffort").from_cache
    assert len(script) == 1


def test_best_effort_never_repeats_an_unknown_outcome() -> None:
    rig = Rig()
    script = rig.tool(TimeoutError(), "fine")
    assert rig.execute(call_id="c1").code == "outcome_unknown"
    for call_id in ("c1", "c2"):
        assert rig.execute(call_id=call_id, mode="bestEffort").code == "outcome_unknown"
    assert len(script) == 1


def test_a_failure_is_forgotten_after_its_time() -> None:
    rig = Rig()
    script = rig.tool(HttpError(400), "fine")
    rig.execute(call_id="c1")
    rig.clock.advance(301)
    assert rig.execute(call_id="c1").content == "fine"
    assert len(script) == 2


# -- in flight ---------------------------------------------------------------------------------------------------


def _waiting(rig: Rig) -> bool:
    return bool(rig.store._journal.waiters)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_new_identity_waits_and_shares_the_labelled_result(idempotent: bool) -> None:
    rig = Rig()
    hold = Hold()
    script = rig.tool(hold.then("sent"), idempotent=idempotent)
    leader = in_thread(lambda: rig.execute(call_id="c1"))
    hold.until_reached()
    waiter = in_thread(lambda: rig.execute(call_id="c2"))
    eventually(lambda: _waiting(rig), "the duplicate does not wait")
    hold.go.set()
    assert leader.result().content == "sent"
    shared = waiter.result()
    assert (shared.content, shared.from_cache, shared.cache.matched_on) == ("sent", True, "inflight")
    assert shared.output.metadata["reused"] is True
    assert rig.execute(call_id="c2").content == "sent"  # its redelivery finds the shared answer
    assert len(script) == 1


def test_the_same_identity_in_flight_is_matched_on_inflight() -> None:
    rig = Rig()
    hold = Hold()
    rig.tool(hold.then("sent"))
    leader = in_thread(lambda: rig.execute(key="k"))
    hold.until_reached()
    waiter = in_thread(lambda: rig.execute(key="k"))
    eventually(lambda: _waiting(rig), "the duplicate does not wait")
    hold.go.set()
    leader.result()
    assert waiter.result().cache.matched_on == "inflight"


def test_best_effort_does_not_wait() -> None:
    rig = Rig()
    hold = Hold()
    script = rig.tool(hold.then("sent"))
    leader = in_thread(lambda: rig.execute(call_id="c1"))
    hold.until_reached()
    busy = rig.execute(call_id="c2", mode="bestEffort")
    assert (busy.status, busy.code, busy.attempts, busy.error.retriable) == ("retriable_error", "in_flight", 0, True)
    assert busy.error.message.endswith("This call was not made.")
    hold.go.set()
    leader.result()
    assert len(script) == 1


@pytest.mark.parametrize("named", [{"call_id": "c1"}, {"key": "k"}])
@pytest.mark.parametrize("patience", ["none", "deadline"])
def test_a_redelivery_of_a_running_call_is_told_that_the_call_was_made(named: Any, patience: str) -> None:
    rig = Rig()
    hold = Hold()
    script = rig.tool(hold.then("sent"))
    leader = in_thread(lambda: rig.execute(**named))
    hold.until_reached()
    deadline = {"deadline_at_ms": rig.clock.now_ms() + 5_000}
    changes: dict[str, Any] = deadline if patience == "deadline" else {"mode": "bestEffort"}
    again = in_thread(lambda: rig.execute(**named, **changes))
    if patience == "deadline":
        eventually(lambda: _waiting(rig), "the duplicate does not wait")
        rig.clock.advance(6)
    result = again.result()
    assert (result.code, result.error.retriable) == ("in_flight", True)
    assert "was made before and is still in flight" in result.error.message
    assert "not made a second time" in result.error.message
    hold.go.set()
    leader.result()
    assert rig.execute(**named).content == "sent"
    assert len(script) == 1


def test_an_enforced_wait_ends_at_the_waiters_deadline() -> None:
    rig = Rig()
    hold = Hold()
    rig.tool(hold.then("sent"))
    leader = in_thread(lambda: rig.execute(call_id="c1"))
    hold.until_reached()
    waiter = in_thread(lambda: rig.execute(call_id="c2", deadline_at_ms=rig.clock.now_ms() + 5_000))
    eventually(lambda: _waiting(rig), "the duplicate does not wait")
    rig.clock.advance(6)
    result = waiter.result()
    assert (result.status, result.code) == ("retriable_error", "in_flight")
    assert "deadline" in result.error.message
    hold.go.set()
    leader.result()


def test_a_long_wait_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    hold = Hold()
    rig.tool(hold.then("sent"), ttl=Ttls(lease_ms=3_000))
    leader = in_thread(lambda: rig.execute(call_id="c1"))
    hold.until_reached()
    (record,) = rig.records()
    since, told = rig.clock.seconds, []

    def wait(key: str, version: int, seconds: float) -> None:
        rig.clock.advance(seconds)
        rig.leases.look()
        told.append((rig.clock.seconds - since, len(caplog.records)))
        if len(told) == 6:
            hold.go.set()
            leader.result()

    rig.store.open_sync().wait = wait  # type: ignore[method-assign]
    assert rig.execute(call_id="c2").content == "sent"
    assert told[0][0] == 1.0
    assert [number for _, number in told] == [0, 0, 1, 1, 1, 1], "after the three seconds of a lease"
    (said,) = (record.getMessage() for record in caplog.records)
    assert "a call of tools/send has waited for more than 3 s" in said
    assert record.owner in said
    assert "antiphon claims list" in said


async def test_a_synchronous_gateway_never_waits_inside_an_event_loop() -> None:
    rig = Rig()
    hold = Hold()
    rig.tool(hold.then("sent"))
    leader = in_thread(lambda: rig.execute(call_id="c1"))
    hold.until_reached()
    assert rig.execute(call_id="c2").code == "in_flight"
    hold.go.set()
    leader.result()


# -- disabled and switched off -----------------------------------------------------------------------------------


def test_disabled_makes_no_claim_and_no_record() -> None:
    rig = Rig()
    script = rig.tool()
    for _ in range(3):
        assert not rig.execute(call_id="c1", mode="disabled").from_cache
    assert len(script) == 3
    assert rig.records() == []


def test_derive_keys_off_leaves_only_given_keys() -> None:
    rig = Rig(derive_keys=False)
    script = rig.tool()
    rig.execute(call_id="c1")
    rig.execute(call_id="c1")
    assert rig.records() == []
    rig.execute(call_id="c1", key="k")
    assert rig.execute(call_id="c1", key="k").from_cache
    assert len(script) == 3


# -- conflicts ---------------------------------------------------------------------------------------------------


def test_a_key_with_other_params_is_a_conflict_and_runs_nothing() -> None:
    rig = Rig()
    script = rig.tool()
    rig.execute(key="k", params={"to": "ada"})
    result = rig.execute(key="k", params={"to": "bob"})
    assert (result.status, result.code, result.error.terminal) == ("error", "idempotency_conflict", True)
    assert len(script) == 1
    assert rig.execute(key="k", params={"to": "ada"}).from_cache


def test_independent_conflicts_are_calls_of_their_own() -> None:
    rig = Rig()
    script = rig.tool(on_conflict="independent")
    rig.execute(key="k", params={"to": "ada"})
    assert rig.execute(key="k", params={"to": "bob"}).content == 2
    assert rig.execute(key="k", params={"to": "bob"}).from_cache
    assert rig.execute(key="k", params={"to": "ada"}).content == 1
    assert len(script) == 2


# -- cancelled ---------------------------------------------------------------------------------------------------


def test_a_call_that_was_never_dispatched_leaves_nothing_in_the_way() -> None:
    rig = Rig()
    script = rig.tool("fine", breaker=NEVER_TRIPS)

    world = rig.gateway._runtime
    real = world.journal.begin

    def opened_meanwhile(*arguments: Any) -> Any:
        rig.breaker().force_open(rig.clock.seconds, "just now")
        return real(*arguments)

    world.begin = opened_meanwhile
    refused = rig.execute(call_id="c1")
    world.begin = real
    assert (refused.status, refused.attempts) == ("circuit_open", 0)
    rig.breaker().reset(rig.clock.seconds)
    assert rig.execute(call_id="c1").content == "fine"
    assert len(script) == 1


def test_a_cleared_record_is_a_new_beginning() -> None:
    rig = Rig()
    script = rig.tool(TimeoutError(), "fine")
    rig.execute(call_id="c1")
    rig.store.open_sync().clear(rig.records()[0].key)
    assert rig.execute(call_id="c1").content == "fine"
    assert len(script) == 2


def test_white_space_matters_unless_the_tool_only_reads() -> None:
    rig = Rig()
    write = rig.tool(name="write", idempotent=True)
    read = rig.tool(name="read", idempotent=True, effect="read")
    for name in ("write", "read"):
        rig.execute(tool=name, params={"text": "a  b"})
        rig.execute(tool=name, params={"text": "a b "})
    assert (len(write), len(read)) == (2, 1)


def test_volatile_parameters_do_not_make_another_intent() -> None:
    rig = Rig()
    calls = []

    @rig.gateway.tool(idempotent=True)
    def look(q: str, retryCount: int = 0) -> str:
        calls.append(q)
        return q

    rig.execute(tool="look", params={"q": "x", "retryCount": 0})
    assert rig.execute(tool="look", params={"q": "x", "retryCount": 3}).from_cache
    assert calls == ["x"]


def test_best_effort_that_shares_an_answer_after_its_own_failure_gets_it_again() -> None:
    rig = Rig()
    script = rig.tool(HttpError(503), "fine", idempotent=True, reuse="session")
    assert rig.execute(call_id="c1", attempts=1).code == "http_503"
    assert rig.execute(call_id="c2").content == "fine"
    assert rig.execute(call_id="c1", mode="bestEffort").content == "fine"
    again = rig.execute(call_id="c1")
    assert (again.content, again.from_cache) == ("fine", True)
    assert len(script) == 2

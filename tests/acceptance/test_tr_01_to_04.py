"""TR-1 … TR-4: contract and idempotency, each with its non-regression column."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson
import pytest

from tests.acceptance.tr_kit import Bench, Hold, eventually, in_thread

# -- TR-1 ---------------------------------------------------------------------------------------------------------

MALFORMED: list[tuple[str, Any]] = [
    ("toolName", None),
    ("toolName", ""),
    ("contractVersion", "1.0"),
    ("contractVersion", None),
    ("requestId", None),
    ("requestId", "x" * 257),
    ("target", None),
    ("target.sessionKey", None),
    ("target.actorId", ""),
    ("payload.params", None),
    ("payload.params", [1, 2]),
    ("payload.version", "2.0"),
    ("transport.dedupeMode", "enabled"),
    ("transport.retryBudget.maxAttempts", 0),
    ("transport.retryBudget.maxElapsedMs", "soon"),
    ("control", None),
    ("trace", None),
    ("surprise", True),
]


def damaged(wire: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    node = wire
    *parents, last = path.split(".")
    for parent in parents:
        node = node[parent]
    if value is None:
        node.pop(last, None)
    else:
        node[last] = value
    return wire


@pytest.mark.parametrize(("path", "value"), MALFORMED, ids=lambda value: str(value)[:20])
def test_TR_1_a_malformed_envelope_is_one_terminal_validation_error(bench: Bench, path: str, value: Any) -> None:
    script = bench.tool("ran")
    wire = damaged(bench.envelope(request_id="r1"), path, value)
    result = bench.gateway.execute(wire).to_wire()
    assert (result["status"], result["attempts"], result["fromCache"]) == ("error", 0, False)
    error = result["error"]
    assert (error["code"], error["terminal"], error["retriable"]) == ("validation_error", True, False)
    assert path.rpartition(".")[2] in error["message"], "the error names the field"
    assert result["requestId"] == ("" if path == "requestId" and value is None else wire["requestId"])
    assert result["toolName"] == (wire.get("toolName") or "")
    assert len(script) == 0
    assert bench.records() == []


def test_TR_1_non_regression_a_valid_call_still_executes(bench: Bench) -> None:
    script = bench.tool("ran")
    assert bench.execute()["output"] == {"content": "ran"}
    assert len(script) == 1


# -- TR-2 ---------------------------------------------------------------------------------------------------------


def _in_flight(bench: Bench, hold: Hold, **changes: Any) -> Any:
    first = in_thread(lambda: bench.execute(key="k", **changes))
    hold.until_reached()
    return first


def test_TR_2_a_duplicate_in_flight_waits_and_shares(bench: Bench) -> None:
    hold = Hold()
    script = bench.tool(hold.then("slow answer"))
    first = _in_flight(bench, hold)
    second = in_thread(lambda: bench.execute(key="k"))
    eventually(lambda: second.is_alive(), "the second call has started")
    hold.go.set()
    assert first.result()["output"] == {"content": "slow answer"}
    answer = second.result()
    assert (answer["status"], answer["output"], answer["fromCache"]) == ("success", {"content": "slow answer"}, True)
    assert answer["cache"]["matchedOn"] in ("inflight", "completed")
    assert answer["attempts"] == 0
    assert len(script) == 1


def test_TR_2_best_effort_gets_the_in_flight_marker_at_once(bench: Bench) -> None:
    hold = Hold()
    script = bench.tool(hold.then("slow answer"))
    first = _in_flight(bench, hold)
    marker = bench.execute(key="k", mode="bestEffort")
    assert (marker["status"], marker["error"]["code"], marker["attempts"]) == ("retriable_error", "in_flight", 0)
    assert marker["error"]["retriable"] is True
    hold.go.set()
    first.result()
    assert len(script) == 1


def test_TR_2_a_new_call_with_equal_arguments_is_no_second_dispatch(bench: Bench) -> None:
    hold = Hold()
    script = bench.tool(hold.then("sent"))
    first = in_thread(lambda: bench.execute(call_id="c1"))
    hold.until_reached()
    marker = bench.execute(call_id="c2", mode="bestEffort")
    assert marker["error"]["code"] == "in_flight"
    hold.go.set()
    first.result()
    assert len(script) == 1


def test_TR_2_non_regression_disabled_duplicates_do_not_block(bench: Bench) -> None:
    hold = Hold()
    script = bench.tool(hold.then("slow"), "quick")
    first = _in_flight(bench, hold, mode="disabled")
    second = bench.execute(key="k", mode="disabled")
    assert second["output"] == {"content": "quick"}
    hold.go.set()
    assert first.result()["output"] == {"content": "slow"}
    assert len(script) == 2
    assert bench.records() == []


# -- TR-3 ---------------------------------------------------------------------------------------------------------

ANSWER = {"id": 7, "items": ["a", {"b": 1.5}], "text": "grüße\n"}


@pytest.mark.parametrize(
    ("idempotent", "key"), [(True, None), (False, "order-7"), (True, "order-7")], ids=["computed", "given", "both"]
)
def test_TR_3_a_duplicate_after_completion_gets_the_kept_result(bench: Bench, idempotent: bool, key: Any) -> None:
    script = bench.tool(ANSWER, idempotent=idempotent)
    first = bench.execute(key=key, call_id="c1")
    second = bench.execute(key=key, call_id="c2")
    assert (first["fromCache"], second["fromCache"]) == (False, True)
    assert second["cache"]["matchedOn"] == "completed"
    assert second["cache"]["ageMs"] >= 0
    assert len(second["cache"]["keyFingerprint"]) == 16
    assert (key or "order") not in second["cache"]["keyFingerprint"]
    assert second["attempts"] == 0
    assert len(script) == 1


def test_TR_3_the_same_call_of_a_tool_that_may_not_be_repeated(bench: Bench) -> None:
    script = bench.tool(ANSWER)
    bench.execute(call_id="c1")
    assert bench.execute(call_id="c1")["fromCache"] is True
    assert bench.execute(call_id="c2")["fromCache"] is False  # a new call of the model is a new send (D2)
    assert bench.execute(call_id="c1")["fromCache"] is True
    assert len(script) == 2


def test_TR_3_it_survives_a_restart_where_the_store_does(bench: Bench) -> None:
    script = bench.tool(ANSWER)
    bench.execute(key="k")
    bench.gateway = bench.another()
    again = bench.tool(ANSWER)
    assert bench.execute(key="k")["fromCache"] is True
    assert (len(script), len(again)) == (1, 0)


def test_TR_3_another_session_does_not_share(bench: Bench) -> None:
    script = bench.tool(ANSWER, idempotent=True)
    bench.execute(key="k", session="s1")
    assert bench.execute(key="k", session="s2")["fromCache"] is False
    assert len(script) == 2


def digest_of(answer: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(answer["output"]["content"], option=orjson.OPT_SORT_KEYS)).hexdigest()


def test_TR_3_non_regression_the_payload_digest_is_unchanged(bench: Bench) -> None:
    bench.tool(ANSWER, idempotent=True)
    first = bench.execute()
    [before] = bench.records()
    assert {digest_of(first)} == {digest_of(bench.execute()) for _ in range(3)}
    [after] = bench.records()
    assert (after.request.params_digest, after.payload) == (before.request.params_digest, before.payload)
    assert after.version == before.version


# -- TR-4 ---------------------------------------------------------------------------------------------------------


def test_TR_4_the_same_key_with_other_params_is_a_conflict(bench: Bench) -> None:
    script = bench.tool("for ada", "for bob")
    bench.execute(key="k", params={"to": "ada"})
    conflict = bench.execute(key="k", params={"to": "bob"})
    assert (conflict["status"], conflict["attempts"]) == ("error", 0)
    assert conflict["error"]["code"] == "idempotency_conflict"
    assert conflict["error"]["terminal"] is True
    assert "output" not in conflict
    assert len(script) == 1


def test_TR_4_by_policy_it_is_a_call_of_its_own(bench: Bench) -> None:
    script = bench.tool("for ada", "for bob", on_conflict="independent")
    bench.execute(key="k", params={"to": "ada"})
    assert bench.execute(key="k", params={"to": "bob"})["output"] == {"content": "for bob"}
    assert bench.execute(key="k", params={"to": "bob"})["fromCache"] is True
    assert len(script) == 2


def test_TR_4_non_regression_no_unexpected_collisions(bench: Bench) -> None:
    script = bench.tool("for ada", idempotent=True)
    bench.execute(key="k", params={"to": "ada", "text": "x"})
    bench.execute(key="k", params={"to": "bob"})
    again = bench.execute(key="k", params={"text": "x", "to": "ada"})  # the order of parameters does not matter
    assert (again["output"], again["fromCache"]) == ({"content": "for ada"}, True)
    for changes in ({"session": "s::1"}, {"actor": "a::1"}, {"workspaceId": "w"}, {"tool": "other"}):
        bench.tool("other", name="other", idempotent=True)
        assert bench.execute(key="k", params={"to": "ada", "text": "x"}, **changes)["fromCache"] is False
    assert len(script) >= 4

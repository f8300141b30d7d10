"""R1: the six statuses, and which situation gives which."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.contract.envelope import ToolCallEnvelope
from antiphon.contract.spec import RetryPolicy
from tests.unit.gateway.kit import NEVER_TRIPS, HttpError, Rig, envelope

ONE = {"attempts": 1}


def test_success() -> None:
    rig = Rig()
    rig.tool({"sent": True})
    wire = rig.execute(request_id="r1").to_wire()
    assert wire.pop("durationMs") >= 0
    assert wire == {
        "requestId": "r1",
        "status": "success",
        "fromCache": False,
        "toolName": "send",
        "attempts": 1,
        "output": {"content": {"sent": True}},
    }


@pytest.mark.parametrize(
    ("failure", "idempotent", "options", "status", "code", "terminal"),
    [
        (HttpError(400), True, {}, "error", "http_400", True),
        (HttpError(404), False, {}, "error", "http_404", True),
        (HttpError(503), True, ONE, "retriable_error", "http_503", False),
        (HttpError(503), True, {}, "retry_exhausted", "http_503", False),
        (TimeoutError(), True, ONE, "timeout", "ETIMEDOUT", False),
        (TimeoutError(), True, {}, "retry_exhausted", "ETIMEDOUT", False),
        (TimeoutError(), False, {}, "error", "outcome_unknown", True),
        (HttpError(503), False, {}, "error", "outcome_unknown", True),
        (ConnectionRefusedError(111, "refused"), False, {}, "retry_exhausted", "ECONNREFUSED", False),
        (ConnectionRefusedError(111, "refused"), False, ONE, "retriable_error", "ECONNREFUSED", False),
        (RuntimeError("what?"), True, {}, "error", "unclassified", True),
        (RuntimeError("what?"), False, {}, "error", "outcome_unknown", True),
    ],
)
def test_failures(
    failure: Exception, idempotent: bool, options: dict[str, Any], status: str, code: str, terminal: bool
) -> None:
    rig = Rig()
    rig.tool(failure, idempotent=idempotent, breaker=NEVER_TRIPS)
    wire = rig.execute(**options).to_wire()
    assert (wire["status"], wire["error"]["code"]) == (status, code)
    assert wire["error"]["terminal"] is terminal
    assert wire["error"]["retriable"] is not terminal
    assert "output" not in wire


def test_retried_attempts_are_listed() -> None:
    rig = Rig()
    rig.tool(HttpError(503), HttpError(500), "fine", idempotent=True)
    wire = rig.execute().to_wire()
    assert wire["status"] == "success"
    assert wire["attempts"] == 3
    assert [(r["attempt"], r["reasonCode"]) for r in wire["retriedBy"]] == [(1, "http_503"), (2, "http_500")]
    assert [r["delayMs"] for r in wire["retriedBy"]] == [100.0, 200.0]
    assert all(r["latencyMs"] >= 0 for r in wire["retriedBy"])


def test_the_budget_is_the_smaller_of_envelope_and_tool() -> None:
    rig = Rig()
    script = rig.tool(HttpError(503), idempotent=True, retry=RetryPolicy(max_attempts=3), breaker=NEVER_TRIPS)
    assert rig.execute(attempts=10).attempts == 3
    assert rig.execute(attempts=2, params={"to": "bob"}).attempts == 2
    assert len(script) == 5


def test_max_elapsed_only_forbids_another_attempt() -> None:
    rig = Rig(chance=1.0)
    rig.tool(HttpError(503), idempotent=True, breaker=NEVER_TRIPS)
    result = rig.execute(elapsed_ms=500)
    assert (result.status, result.attempts) == ("retry_exhausted", 2)  # 0 + 200 ms, then 400 ms would be too late


def test_a_deadline_that_has_passed_means_no_attempt() -> None:
    rig = Rig()
    script = rig.tool("fine")
    result = rig.execute(deadline_at_ms=rig.clock.now_ms() - 1)
    assert (result.status, result.code, result.attempts) == ("retry_exhausted", "deadline_exceeded", 0)
    assert len(script) == 0
    assert rig.records() == []


def test_no_sleep_past_the_deadline() -> None:
    rig = Rig(chance=1.0)
    rig.tool(HttpError(503), idempotent=True, breaker=NEVER_TRIPS)
    result = rig.execute(deadline_at_ms=rig.clock.now_ms() + 350)
    assert (result.status, result.attempts) == ("retry_exhausted", 2)
    assert rig.clock.slept == [0.2]


@pytest.mark.parametrize("tool_call", ["toolCallId", "requestId"])
def test_any_id_up_to_256_characters_is_taken(tool_call: str) -> None:
    rig = Rig()
    rig.tool()
    wire = envelope()
    wire[tool_call] = "x" * 256
    assert rig.gateway.execute(wire).ok
    wire[tool_call] = "x" * 257
    refused = rig.gateway.execute(wire)
    assert (refused.code, refused.error.terminal) == ("validation_error", True)  # type: ignore[union-attr]
    assert tool_call in refused.error.message  # type: ignore[union-attr]


def test_an_envelope_object_is_checked_like_a_document() -> None:
    rig = Rig()
    script = rig.tool()
    good = ToolCallEnvelope.from_wire(envelope())
    assert rig.gateway.execute(good).ok
    bad = ToolCallEnvelope(**{name: getattr(good, name) for name in good.__struct_fields__} | {"tool_name": ""})
    assert rig.gateway.execute(bad).code == "validation_error"
    assert len(script) == 1


@pytest.mark.parametrize("document", ["{", b"\xff", "[]", "3", "", b'{"requestId": 7}'])
def test_documents_that_are_no_envelope(document: str | bytes) -> None:
    result = Rig().gateway.execute(document)
    assert (result.status, result.code, result.request_id, result.attempts) == ("error", "validation_error", "", 0)


def test_ids_of_a_malformed_document_are_kept() -> None:
    result = Rig().gateway.execute('{"requestId": "r7", "toolName": "send"}')
    assert (result.request_id, result.tool_name, result.code) == ("r7", "send", "validation_error")


def test_an_unknown_tool_is_named_with_those_that_exist() -> None:
    rig = Rig()
    rig.tool()
    result = rig.execute(tool="sent")
    assert result.code == "unknown_tool"
    assert "tools/send" in result.error.message


@pytest.mark.parametrize(("params", "field"), [({"whom": "ada"}, "whom"), ({"ctx": {}}, "ctx")])
def test_arguments_the_tool_cannot_take_are_no_outcome_of_it(params: dict[str, Any], field: str) -> None:
    rig = Rig()
    script = rig.tool()
    result = rig.execute(params=params)
    assert result.code == "validation_error"
    assert f"$.payload.params.{field}" in result.error.message
    assert len(script) == 0
    assert rig.records() == []


def test_an_unclassified_failure_is_logged_as_such() -> None:
    rig = Rig()
    rig.tool(RuntimeError("what?"), idempotent=True)
    rig.execute()
    assert rig.ears.of("tool_call_end")[0]["unclassified"] is True

"""R11, R14, TR-15: structured logs with the documented fields and without secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.redact import Redactor
from antiphon.telemetry import listeners
from antiphon.telemetry.logs import JsonLogListener, json_logs
from tests.unit.redact.corpus import Forge, in_text, personal, tokens

FIELDS: dict[str, Any] = {
    "requestId": "01890a5d-ac96-774b-bcce-b302099a8057",
    "toolName": "send_email",
    "toolNamespace": "tools",
    "toolCallId": "toolu_01A09q90qw90lq917835lq9",
    "sessionKey": "session-1",
    "idempotencyKeyHash": "9f86d081884c7d65",
    "correlationId": "c-1",
    "state": "success",
    "attempt": 1,
    "elapsedMs": 12.5,
    "fromCache": False,
    "errorCode": "",
    "retriable": False,
    "breakerState": "CLOSED",
}


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    logger = logging.getLogger("antiphon")
    before = (logger.level, logger.propagate)
    written = io.StringIO()
    handler = json_logs(logging.DEBUG, written)
    yield written
    logger.removeHandler(handler)
    logger.level, logger.propagate = before


def listener() -> JsonLogListener:
    return JsonLogListener(Redactor(salt="unit"), now_ms=lambda: 1_700_000_000_000)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_object_per_line_with_the_documented_fields(stream: io.StringIO) -> None:
    for event in (
        "tool_call_start",
        "tool_call_end",
        "tool_call_blocked",
        "tool_call_retry",
        "tool_call_circuit_state",
    ):
        listener().emit(event, FIELDS)
    written = lines(stream)
    assert len(written) == 5
    assert written[1] == {
        "event": "tool_call_end",
        "timeMs": 1_700_000_000_000,
        **{name: value for name, value in FIELDS.items() if value != ""},
    }


def test_nothing_is_built_when_nobody_listens() -> None:
    logger = logging.getLogger("antiphon.quiet")
    logger.setLevel(logging.ERROR)
    quiet = JsonLogListener(Redactor(salt="unit"), logger="antiphon.quiet")

    class Untouchable(dict[str, Any]):
        def items(self) -> Any:
            raise AssertionError("the fields were read")

    quiet.emit("tool_call_end", Untouchable())
    assert not quiet.wants("tool_call_end")
    assert not quiet.wants("tool_call_retry")


def test_levels_follow_what_happened() -> None:
    logger = logging.getLogger("antiphon.levels")
    logger.setLevel(logging.INFO)
    some = JsonLogListener(Redactor(salt="unit"), logger="antiphon.levels")
    assert not some.wants("tool_call_start")
    assert some.wants("tool_call_end")
    assert some.wants("tool_store_outage")


def test_no_secret_and_no_personal_data_reaches_a_line(stream: io.StringIO) -> None:
    planted = tokens(Forge(51)) + in_text(Forge(52)) + personal(Forge(53))
    for one in planted:
        listener().emit(
            "tool_call_end",
            {**FIELDS, "errorMessage": f"failed: {one.text}", "baggage": {"note": one.text}, "requestTags": [one.text]},
        )
    text = json.dumps(lines(stream), ensure_ascii=False)
    assert [one.kind for one in planted if len(one.secret) > 5 and one.secret in text] == []
    assert text.count(FIELDS["requestId"]) == len(planted)
    assert text.count(FIELDS["toolCallId"]) == len(planted)


def test_a_session_key_that_is_an_address_is_personal_data(stream: io.StringIO) -> None:
    listener().emit("tool_call_end", {**FIELDS, "sessionKey": "ada@example.org"})
    assert "ada@" not in stream.getvalue()
    assert lines(stream)[0]["sessionKey"].startswith("[email:")


def test_values_that_are_not_json_are_written_as_text(stream: io.StringIO) -> None:
    listener().emit("tool_call_end", {"error": ValueError("no"), 1: {2, 3}})  # type: ignore[dict-item]
    assert lines(stream)[0]["error"] == "no"


def test_a_line_break_in_a_value_does_not_break_the_line(stream: io.StringIO) -> None:
    listener().emit("tool_call_end", {"errorMessage": "one\ntwo"})
    assert len(lines(stream)) == 1


def test_the_library_does_not_write_to_the_screen_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    JsonLogListener(Redactor(salt="unit")).emit("tool_call_retry", FIELDS)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_the_factory_gives_what_is_configured() -> None:
    assert [type(one).__name__ for one in listeners()] == ["JsonLogListener"]
    assert [type(one).__name__ for one in listeners(logs=False, otel=True)] == ["OtelListener"]
    assert listeners(logs=False) == ()

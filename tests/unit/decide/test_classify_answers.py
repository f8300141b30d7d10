"""R7, D8, D22, D23: statuses, vendor codes, Retry-After."""

from __future__ import annotations

import openai
import pytest

from antiphon.decide.classify import classify
from tests.unit.decide import lookalikes as like
from tests.unit.decide.makers import (
    REQUEST,
    STATUS_SOURCES,
    Code,
    anthropic_error,
    code_of,
    gemini_error,
    http_error,
    name_of,
    openai_error,
)

TIMEOUT: Code = ("ETIMEDOUT", "timeout", True, "sent")
THROTTLED: Code = ("rate_limited", "throttle", True, "answered")
QUOTA: Code = ("quota_exhausted", "quota", False, "answered")
REFUSAL: Code = ("refusal", "refusal", False, "answered")


@pytest.mark.parametrize("source", STATUS_SOURCES)
@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
def test_r7_retriable_statuses(source: str, status: int) -> None:
    failure = classify(STATUS_SOURCES[source](status))
    assert code_of(failure) == (f"http_{status}", "answer", True, "answered")
    assert failure.status == status
    assert failure.breaker_vote == "failure"
    assert failure.may_have_applied, "D3: a 5xx or 408 leaves open whether it happened"


@pytest.mark.parametrize("source", STATUS_SOURCES)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_r7_terminal_statuses(source: str, status: int) -> None:
    failure = classify(STATUS_SOURCES[source](status))
    assert code_of(failure) == (f"http_{status}", "answer", False, "answered")
    assert not failure.unclassified
    assert failure.breaker_vote == "success", "D8: a definite answer is a sign of health, never a failure"
    assert failure.definite
    assert not failure.may_have_applied


@pytest.mark.parametrize("status", [402, 405, 409, 410, 418, 451])
def test_r7_other_4xx_is_terminal_and_definite(status: int) -> None:
    failure = classify(http_error(status))
    assert not failure.retriable
    assert failure.definite
    assert failure.unclassified == (status != 402)


@pytest.mark.parametrize("status", [499, 501, 505, 520, 529])
def test_r7_other_5xx_is_terminal_unclassified_and_open(status: int) -> None:
    failure = classify(http_error(status))
    assert (failure.retriable, failure.kind, failure.unclassified) == (False, "unclassified", True)
    assert failure.may_have_applied
    assert failure.breaker_vote == "none"


@pytest.mark.parametrize("source", STATUS_SOURCES)
def test_d22_429_to_wait_for(source: str) -> None:
    failure = classify(STATUS_SOURCES[source](429, retry_after="7"))
    assert code_of(failure) == THROTTLED
    assert failure.retry_after_ms == 7_000
    assert failure.certainly_no_effect
    assert failure.breaker_vote == "rate_only"


QUOTA_GONE: list[BaseException] = [
    openai_error(429, {"code": "insufficient_quota", "type": "insufficient_quota"}),
    http_error(429, {"error": {"code": "insufficient_quota"}}),
    http_error(429, {"error": "quota_exceeded"}),
    anthropic_error(402, {"type": "error", "error": {"type": "billing_error", "message": "pay"}}),
    gemini_error(
        429,
        [
            {
                "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                "violations": [{"quotaId": "GenerateRequestsPerDayPerProject"}],
            }
        ],
    ),
    like.client_error("ServiceQuotaExceededException", 402),
]


@pytest.mark.parametrize("exc", QUOTA_GONE, ids=name_of)
def test_d22_quota_gone_is_terminal(exc: BaseException) -> None:
    failure = classify(exc)
    assert code_of(failure) == QUOTA
    assert failure.breaker_vote == "success"


def test_d22_credit_balance_message_is_quota() -> None:
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
    error = anthropic_error(400, body)
    error.args = ("Your credit balance is too low to access the API.",)
    assert classify(error).kind == "quota"


def test_d22_gemini_per_minute_quota_is_waited_for() -> None:
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
    failure = classify(gemini_error(429, [delay]))
    assert code_of(failure) == THROTTLED
    assert failure.retry_after_ms == 34_500


@pytest.mark.parametrize("code", ["ThrottlingException", "Throttling", "SlowDown", "TooManyRequestsException"])
def test_r7_adapter_throttles(code: str) -> None:
    failure = classify(like.client_error(code, 400))
    assert code_of(failure) == THROTTLED
    assert failure.certainly_no_effect
    assert failure.breaker_vote == "rate_only"


def test_overload_is_retriable_but_not_certain() -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    for status in (529, 200):  # 200: an error event inside a stream
        failure = classify(anthropic_error(status, body))
        assert code_of(failure) == ("overloaded", "throttle", True, "answered")
        assert failure.may_have_applied
        assert failure.breaker_vote == "failure"


def test_error_event_inside_a_stream() -> None:
    error = openai.APIError("The server had an error", REQUEST, body={"type": "server_error", "code": None})
    failure = classify(error)
    assert (failure.code, failure.retriable, failure.may_have_applied) == ("server_error", True, True)


REFUSALS: list[BaseException] = [
    openai_error(400, {"code": "content_filter", "message": "no"}),
    openai_error(400, {"code": "content_policy_violation"}),
    openai.ContentFilterFinishReasonError(),
    like.lookalike("agents.exceptions", "ModelRefusalError")("no"),
    like.lookalike("pydantic_ai.exceptions", "ContentFilterError", RuntimeError)("no"),
]


@pytest.mark.parametrize("exc", REFUSALS, ids=name_of)
def test_d23_refusal_is_terminal_and_of_its_own_kind(exc: BaseException) -> None:
    failure = classify(exc)
    assert code_of(failure) == REFUSAL
    assert failure.breaker_vote in ("success", "none")
    assert not failure.may_have_applied


# -- Retry-After and x-should-retry ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry_after": "3"}, 3_000),
        ({"retry_after": "0.25"}, 250),
        ({"retry_after_ms": "1234", "retry_after": "9"}, 1_234),
        ({"retry_after": "-5"}, 0),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "nan"}, None),
        ({"retry_after": "inf"}, None),
        ({"retry_after": "Wed, 01 May 2024 10:00:30 GMT", "date": "Wed, 01 May 2024 10:00:00 GMT"}, 30_000),
        ({"retry_after": "Wed, 01 May 2024 09:59:00 GMT", "date": "Wed, 01 May 2024 10:00:00 GMT"}, 0),
        ({}, None),
    ],
)
@pytest.mark.parametrize("source", STATUS_SOURCES)
def test_r8_retry_after(source: str, headers: dict[str, str], expected: int | None) -> None:
    assert classify(STATUS_SOURCES[source](503, **headers)).retry_after_ms == expected


def test_r8_retry_after_date_without_date_header_needs_the_wall_clock() -> None:
    error = http_error(503, retry_after="Wed, 01 May 2024 10:00:30 GMT")
    assert classify(error).retry_after_ms is None
    assert classify(error, wall_ms=1_714_557_600_000).retry_after_ms == 30_000


def test_r8_retry_after_attribute_of_own_exceptions() -> None:
    class Busy(Exception):
        status_code = 429
        retry_after = 2.5

    assert classify(Busy()).retry_after_ms == 2_500


def test_x_should_retry_has_the_servers_word() -> None:
    assert not classify(openai_error(500, x_should_retry="false")).retriable
    assert classify(openai_error(409, x_should_retry="true")).retriable
    assert classify(openai_error(500, x_should_retry="maybe")).retriable


@pytest.mark.parametrize(("name", "code"), [("ModelQuotaExceededError", QUOTA), ("ContentFilterError", REFUSAL)])
@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_d22_a_quota_or_a_refusal_is_one_whatever_the_status_says(name: str, code: Code, status: int) -> None:
    error = like.lookalike("pydantic_ai.exceptions", name, status_code=status)("no")
    assert code_of(classify(error)) == code

"""R7, R8, D22: where exceptions keep the status, the vendor's code and the time to wait, and what is not one."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.contract.spec import RetryPolicy, ToolSpec
from antiphon.decide.classify import classify

LISTS = ToolSpec(name="t", idempotent=False, retry=RetryPolicy(retriable_codes=("E_BUSY",)))


def odd(text: str = "no", **attributes: Any) -> Exception:
    """An exception of a package that nobody knows."""
    error: Exception = type("Odd", (Exception,), attributes)(text)
    return error


def response(**attributes: Any) -> SimpleNamespace:
    return SimpleNamespace(**attributes)


def answer(content: Any) -> SimpleNamespace:
    return response(_content=content)


# -- the status ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "exc",
    [
        odd(status_code=422),
        odd(status=422),
        odd(http_status=422),
        odd(code=422),
        odd(status_code=None, status="busy", code=422),
        odd(status_code=422, status=503),
        odd(response=response(status_code=422)),
        odd(response=response(status=422)),
        odd(response=response(status_code=422, status=503)),
        odd(response=response(status_code="busy", status=422)),
        odd(response={"ResponseMetadata": {"HTTPStatusCode": 422}}),
    ],
)
def test_where_a_status_is(exc: BaseException) -> None:
    assert classify(exc).status == 422


@pytest.mark.parametrize(
    "exc",
    [
        odd(status_code=True),
        odd(status_code="422"),
        odd(status_code=422.0),
        odd(status_code=99),
        odd(status_code=600),
        odd(code=1006),
        odd(response=None),
        odd(response={}),
        odd(response={"ResponseMetadata": 422}),
        odd(response={"ResponseMetadata": {"HTTPStatusCode": "422"}}),
        odd(response={"status_code": 422}),
        odd(response=response(status_code=True)),
    ],
)
def test_what_is_no_status(exc: BaseException) -> None:
    failure = classify(exc)
    assert (failure.status, failure.code) == (None, "unclassified")


@pytest.mark.parametrize(("status", "code"), [(599, "http_599"), (400, "http_400"), (100, "unclassified")])
def test_the_first_and_the_last_status(status: int, code: str) -> None:
    assert classify(odd(status_code=status)).code == code


# -- the vendor's code ---------------------------------------------------------------------------------------------

BODY = {"error": {"code": "E_BUSY"}}


@pytest.mark.parametrize(
    "exc",
    [
        *(odd(**{name: "E_BUSY"}) for name in ("code", "type", "status", "error_code")),
        *(odd(body={"error": {name: "E_BUSY"}}) for name in ("code", "Code", "type", "status")),
        odd(body={"error": "E_BUSY"}),
        odd(body={"Error": {"Code": "E_BUSY"}}),
        odd(body={"code": "E_BUSY"}),
        odd(body={"error": {"code": "other", "type": "E_BUSY"}}),
        odd(body={"error": {"code": 7, "innererror": {"code": "E_BUSY"}}}),
        odd(details=BODY),
        odd(body={"error": {"code": "other"}}, details=BODY),
        odd(body="text", details=BODY),
        odd(response=BODY),
        odd(response=answer(json.dumps(BODY).encode())),
        odd(response=answer(json.dumps([BODY]).encode())),
        odd(response=answer(json.dumps(BODY).encode().ljust(65_536))),
        odd(response=answer(b'{"error":"E_BUSY"}')),
    ],
)
def test_where_a_code_is(exc: BaseException) -> None:
    failure = classify(exc, LISTS)
    assert (failure.retriable, failure.unclassified) == (True, False)


@pytest.mark.parametrize(
    "exc",
    [
        odd(),
        odd(code=""),
        odd(code="e_busy"),
        odd(name="E_BUSY"),
        odd(code=["E_BUSY"]),
        odd(body=["E_BUSY"]),
        odd(body={"error": ["E_BUSY"]}),
        odd(body={"error": {"message": "E_BUSY"}}),
        odd(body={"error": {"innererror": "E_BUSY"}}),
        odd(body={"innererror": {"type": "E_BUSY"}}),
        odd(body={"error": {"code": "other"}, "code": "E_BUSY"}),
        odd(response=answer(b"")),
        odd(response=answer(b"E_BUSY")),
        odd(response=answer(b'"E_BUSY"')),
        odd(response=answer(b"\xff\xfe")),
        odd(response=answer(json.dumps(BODY))),
        odd(response=answer(json.dumps([BODY, BODY]).encode())),
        odd(response=answer(json.dumps(BODY).encode().ljust(65_537))),
        odd(response=answer(b"[" * 60_000)),
        odd(response=response(content=json.dumps(BODY).encode())),
    ],
)
def test_what_is_no_code(exc: BaseException) -> None:
    failure = classify(exc, LISTS)
    assert (failure.retriable, failure.code) == (False, "unclassified")


# -- the quota -----------------------------------------------------------------------------------------------------

PER_DAY = {"@type": "google.rpc.QuotaFailure", "violations": [7, {"quotaId": "x"}, {"quotaId": "RequestsPerDay"}]}
NO_MONEY = "Your CREDIT balance is too low."


@pytest.mark.parametrize(
    ("exc", "quota"),
    [
        (odd(code="insufficient_quota"), True),
        (odd(code="Insufficient_Quota"), True),
        (odd(status_code=402), True),
        *((odd(NO_MONEY, status_code=status), True) for status in (400, 403, 429)),
        *((odd(NO_MONEY, status_code=status), False) for status in (401, 404, 500)),
        (odd(NO_MONEY), False),
        (odd(status_code=429), False),
        (odd(status_code=429, details={"error": {"details": [PER_DAY]}}), True),
        (odd(status_code=429, details={"details": [PER_DAY]}), True),
        (odd(status_code=429, details={"error": {"details": ["x", {}, PER_DAY]}}), True),
        (odd(status_code=404, details={"error": {"details": [PER_DAY]}}), False),
        (odd(status_code=429, details={"error": {"details": [{**PER_DAY, "@type": "Other"}]}}), False),
        (odd(status_code=429, details={"error": {"details": [{"@type": "google.rpc.QuotaFailure"}]}}), False),
        (odd(status_code=429, details={"error": {"details": PER_DAY}}), False),
        (odd(status_code=429, details={"error": "PerDay"}), False),
        (
            odd(
                status_code=429,
                details={"error": {"details": [{**PER_DAY, "violations": [{"quotaId": "PerMinute"}, {}]}]}},
            ),
            False,
        ),
    ],
)
def test_whether_the_quota_is_gone(exc: BaseException, quota: bool) -> None:
    assert (classify(exc).kind == "quota") is quota


# -- the time to wait ----------------------------------------------------------------------------------------------


class Picky(dict[str, Any]):
    """Headers that raise for a name they do not have."""

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]


DATE = "Wed, 01 May 2024 10:00:30 GMT"
SENT = "Wed, 01 May 2024 10:00:00 GMT"
WALL_MS = 1_714_557_600_000


def told(*, wall_ms: int | None = None, **attributes: Any) -> int | None:
    return classify(odd(**{"status_code": 503, **attributes}), wall_ms=wall_ms).retry_after_ms


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "3"}, 3_000),
        ({"Retry-After": " 3 "}, 3_000),
        ({"RETRY-AFTER": "3"}, None),
        (Picky({"Retry-After": "3"}), 3_000),
        ({"retry-after": b"3"}, 3_000),
        ({"retry-after": 3}, 3_000),
        ({"retry-after": 0.5}, 500),
        ({"retry-after": True}, None),
        ({"retry-after": ["3"]}, None),
        ({"retry-after": "0.0001"}, 1),
        ({"retry-after-ms": "0.1"}, 1),
        ({"retry-after-ms": "-1", "retry-after": "3"}, 0),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3_000),
        ({"retry-after": "1e400"}, None),
        ({"retry-after": DATE, "date": SENT}, 30_000),
        ({"retry-after": SENT, "date": DATE}, 0),
        ({"retry-after": DATE, "date": "yesterday"}, None),
        ([("retry-after", "3")], None),
        (None, None),
    ],
)
def test_where_headers_are(headers: Any, expected: int | None) -> None:
    assert told(headers=headers) == expected
    assert told(response=response(headers=headers)) == expected
    assert told(response={"ResponseMetadata": {"HTTPHeaders": headers}}) == expected


def test_headers_of_the_response_come_first() -> None:
    assert told(headers={"retry-after": "1"}, response=response(headers={"retry-after": "2"})) == 2_000
    assert told(headers={"retry-after": "1"}, response=response(headers={})) is None
    assert told(headers={"retry-after": "1"}, response=response(headers=None)) == 1_000
    assert told(headers={"retry-after": "1"}, response={"ResponseMetadata": "x"}) is None


def test_a_date_against_the_clock_of_this_machine() -> None:
    assert told(headers={"retry-after": DATE}, wall_ms=WALL_MS) == 30_000
    assert told(headers={"retry-after": DATE, "date": "yesterday"}, wall_ms=WALL_MS) == 30_000
    assert told(headers={"retry-after": DATE, "date": SENT}, wall_ms=0) == 30_000
    assert told(headers={"retry-after": SENT}, wall_ms=WALL_MS + 1) == 0
    assert told(headers={"retry-after": "yesterday"}, wall_ms=WALL_MS) is None


@pytest.mark.parametrize(
    ("delay", "expected"),
    [("34.5s", 34_500), ("34", 34_000), (" 1 s ", 1_000), (2, 2_000), ("0.0001s", 1), ("soon", None), ("1m", None)],
)
def test_the_delay_that_google_asks_for(delay: Any, expected: int | None) -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
    assert told(details={"error": {"details": [{"@type": "x", "retryDelay": "9s"}, info]}}) == expected
    assert told(details={"error": {"details": [info]}}, headers={"retry-after": "5"}) == 5_000


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (2, 2_000),
        (0.0001, 1),
        ("2", 2_000),
        (timedelta(seconds=2), 2_000),
        (-1, 0),
        (True, None),
        (None, None),
        ([2], None),
        (10**400, None),
    ],
)
def test_the_delay_that_an_exception_has(own: Any, expected: int | None) -> None:
    assert told(retry_after=own) == expected


def test_only_an_answer_says_how_long_to_wait() -> None:
    assert classify(odd(retry_after=2)).retry_after_ms is None


# -- what the server says of a repetition ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "said", "retriable"),
    [
        (503, "false", False),
        (503, "FALSE", False),
        (503, "no", True),
        (422, "true", True),
        (422, "TRUE", True),
        (422, "yes", False),
        (429, "false", False),
    ],
)
def test_whether_the_server_wants_a_repetition(status: int, said: str, retriable: bool) -> None:
    assert classify(odd(status_code=status, headers={"x-should-retry": said})).retriable is retriable

"""R7, D5: certainty, the tool's own lists, control flow and hostile exceptions."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import httpx
import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import errors
from antiphon.contract.spec import RetryPolicy, ToolSpec
from antiphon.decide import classify as module
from antiphon.decide.classify import classify, is_control_flow, timed_out
from tests.unit.decide import lookalikes as like
from tests.unit.decide.makers import (
    REFUSED,
    REQUEST,
    UNKNOWN_HOST,
    Code,
    caused,
    h2,
    http_error,
    name_of,
)

TIMEOUT: Code = ("ETIMEDOUT", "timeout", True, "sent")
THROTTLED: Code = ("rate_limited", "throttle", True, "answered")
QUOTA: Code = ("quota_exhausted", "quota", False, "answered")
REFUSAL: Code = ("refusal", "refusal", False, "answered")


# -- D5: what certainly had no effect --------------------------------------------------------------


CERTAIN: list[BaseException] = [
    REFUSED,
    httpx.ConnectError("refused"),
    UNKNOWN_HOST,
    socket.gaierror(socket.EAI_AGAIN, "again"),
    httpx2.PoolTimeout("pool"),
    http_error(429),
    http_error(503, retry_after="1"),
]
OPEN: list[BaseException] = [
    httpx.ConnectTimeout("slow"),
    httpx.ReadTimeout("slow"),
    httpx.RemoteProtocolError("closed"),
    ConnectionResetError(104, "reset"),
    TimeoutError("slow"),
    http_error(500),
    http_error(502),
    http_error(503),
    http_error(504, retry_after="1"),
    http_error(408),
    ValueError("?"),
    openai.APIConnectionError(request=REQUEST),
    openai.APIResponseValidationError(h2(200), None),
]


@pytest.mark.parametrize("exc", CERTAIN, ids=name_of)
def test_d5_certainly_no_effect(exc: BaseException) -> None:
    failure = classify(exc)
    assert failure.certainly_no_effect
    assert not failure.may_have_applied


@pytest.mark.parametrize("exc", OPEN, ids=name_of)
def test_d5_everything_else_is_open(exc: BaseException) -> None:
    failure = classify(exc)
    assert not failure.certainly_no_effect
    assert failure.may_have_applied


def test_d5_own_exception_raised_from_a_listed_one_keeps_the_class_but_no_certainty() -> None:
    class SendFailed(Exception):
        pass

    failure = classify(caused(SendFailed("smtp"), REFUSED))
    assert (failure.code, failure.retriable, failure.phase) == ("ECONNREFUSED", True, "sent")
    assert failure.message == "smtp"
    assert failure.may_have_applied, "the tool may have done something before"
    definite = classify(caused(SendFailed("smtp"), http_error(422)))
    assert definite.definite
    assert not definite.retriable


def test_group_is_as_bad_as_its_worst_member() -> None:
    assert classify(ExceptionGroup("task group", [httpx.ReadTimeout("slow")])).code == "ETIMEDOUT"
    group = ExceptionGroup("many", [REFUSED, http_error(422), ConnectionResetError(104, "reset")])
    assert classify(group).code == "ECONNRESET"
    assert classify(ExceptionGroup("many", [REFUSED, ValueError("?")])).code == "unclassified"
    assert classify(ExceptionGroup("many", [REFUSED, ExceptionGroup("in", [REFUSED])])).certainly_no_effect


# -- the tool's own lists --------------------------------------------------------------------------


def spec(retriable: tuple[str, ...] = (), terminal: tuple[str, ...] = ()) -> ToolSpec:
    policy = RetryPolicy(retriable_codes=retriable, terminal_codes=terminal)
    return ToolSpec(name="t", idempotent=False, retry=policy)


@pytest.mark.parametrize("listed", ["ValueError", "Exception"])
def test_r7_tool_makes_an_unknown_exception_retriable(listed: str) -> None:
    failure = classify(ValueError("?"), spec(retriable=(listed,)))
    assert (failure.code, failure.retriable, failure.unclassified) == ("ValueError", True, False)
    assert failure.may_have_applied, "retriable does not mean without effect"


def test_r7_tool_makes_an_unknown_exception_a_definite_answer() -> None:
    failure = classify(ValueError("bad address"), spec(terminal=("ValueError",)))
    assert (failure.code, failure.kind, failure.retriable) == ("ValueError", "answer", False)
    assert not failure.may_have_applied


@pytest.mark.parametrize("listed", ["409", "http_409"])
def test_r7_tool_lists_a_status(listed: str) -> None:
    assert classify(http_error(409), spec(retriable=(listed,))).retriable


def test_r7_terminal_list_wins_and_a_5xx_stays_open() -> None:
    failure = classify(http_error(503), spec(retriable=("503",), terminal=("http_503",)))
    assert not failure.retriable
    assert failure.may_have_applied
    assert failure.breaker_vote == "failure"


@pytest.mark.parametrize(
    ("exc", "listed"),
    [
        (like.client_error("ConditionalCheckFailedException", 400), "ConditionalCheckFailedException"),
        (OSError(errno.EAGAIN, "again"), "EAGAIN"),
        (socket.gaierror(socket.EAI_AGAIN, "again"), "dns"),
        (like.AioResponseError("x"), "aiohttp.client_exceptions.ClientError"),
    ],
)
def test_r7_tool_lists_vendor_codes_errnos_and_classes(exc: BaseException, listed: str) -> None:
    assert classify(exc, spec(retriable=(listed,))).retriable
    assert not classify(exc, spec(terminal=(listed,))).retriable


# -- errors of our own, control flow, hostile exceptions -------------------------------------------


def test_guarded_calls_inside_a_tool() -> None:
    assert classify(errors.InvalidInput("bad")).code == "validation_error"
    refused = classify(errors.CircuitOpen("fenced off"))
    assert (refused.code, refused.retriable, refused.breaker_vote) == ("circuit_open", False, "none")
    assert not refused.may_have_applied
    exhausted = classify(errors.RetryExhausted("tried"))
    assert not exhausted.retriable, "B2: one retry owner"
    assert exhausted.may_have_applied
    assert classify(errors.OutcomeUnknown("?")).code == "outcome_unknown"


@pytest.mark.parametrize(
    "exc",
    [
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        SystemExit(1),
        GeneratorExit(),
        BaseExceptionGroup("tasks", [asyncio.CancelledError(), ValueError("x")]),
        like.lookalike("langgraph.errors", "GraphInterrupt", like.lookalike("langgraph.errors", "GraphBubbleUp"))(),
        like.lookalike("pydantic_ai.exceptions", "ApprovalRequired")(),
    ],
    ids=name_of,
)
def test_control_flow_is_never_classified(exc: BaseException) -> None:
    assert is_control_flow(exc)
    with pytest.raises(TypeError, match="control flow"):
        classify(exc)


@pytest.mark.parametrize("exc", [ValueError(), TimeoutError(), ExceptionGroup("g", [ValueError()])])
def test_failures_are_no_control_flow(exc: BaseException) -> None:
    assert not is_control_flow(exc)


def test_planted_bug_swallowing_cancellation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_control_flow", lambda exc: isinstance(exc, KeyboardInterrupt))
    with pytest.raises(pytest.fail.Exception), pytest.raises(TypeError):
        classify(asyncio.CancelledError())


def test_hostile_exceptions_do_not_break_the_classifier() -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

        @property
        def response(self) -> Any:
            raise RuntimeError("no response")

        @property
        def status_code(self) -> Any:
            raise RuntimeError("no status")

    failure = classify(Hostile())
    assert (failure.code, failure.message) == ("unclassified", "Hostile")

    class Odd(Exception):
        status_code = True
        code = 1006
        status = "busy"
        body = ["not", "a", "mapping"]
        headers = 7

    assert classify(Odd()).code == "unclassified"


def test_cause_cycles_end() -> None:
    first, second = openai.APIConnectionError(request=REQUEST), openai.APIConnectionError(request=REQUEST)
    first.__cause__, second.__cause__ = second, first
    assert classify(first).code == "connection_error"
    one, two = ValueError("1"), ValueError("2")
    one.__cause__, two.__cause__ = two, one
    assert classify(one).code == "unclassified"


def test_long_messages_are_cut() -> None:
    assert len(classify(ValueError("x" * 100_000)).message) == 2_000


def test_own_timeout() -> None:
    failure = timed_out(1.5, still_running=True)
    assert (failure.code, failure.kind, failure.retriable, failure.phase) == TIMEOUT
    assert failure.still_running
    assert "1.5 s" in failure.message


@given(
    status=st.one_of(st.none(), st.integers(-10, 700)),
    retry_after=st.one_of(st.none(), st.text(max_size=8), st.integers(-5, 10**9).map(str)),
    code=st.one_of(st.none(), st.text(max_size=12), st.integers(-40000, 40000)),
    cause=st.sampled_from([None, REFUSED, TimeoutError("slow"), http_error(503)]),
)
def test_any_exception_gives_one_consistent_failure(
    status: int | None, retry_after: str | None, code: Any, cause: BaseException | None
) -> None:
    class Odd(Exception):
        pass

    error: Any = Odd("x")
    error.status_code, error.code = status, code
    error.headers = {} if retry_after is None else {"retry-after": retry_after}
    error.__cause__ = cause
    failure = classify(error)
    assert [failure.certainly_no_effect, failure.definite].count(True) <= 1 or failure.status == 429
    assert failure.may_have_applied == (not failure.certainly_no_effect and not failure.definite)
    assert failure.retry_after_ms is None or failure.retry_after_ms >= 0
    assert failure.breaker_vote in ("failure", "rate_only", "success", "none")

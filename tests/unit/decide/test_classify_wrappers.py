"""R7: what lies inside an exception, how deep it is looked for, and by which names a tool may list a failure."""

from __future__ import annotations

import errno
import socket
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import http_exceptions

from antiphon.contract.spec import RetryPolicy, ToolSpec
from antiphon.decide.classify import classify, is_control_flow
from antiphon.errors import CircuitOpen, StoreUnavailable
from tests.unit.decide import lookalikes as like
from tests.unit.decide.makers import REFUSED, REQUEST, caused, http_error, wrap


def wrapper(**attributes: Any) -> Exception:
    error = openai.APIConnectionError(request=REQUEST)
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def with_args(*args: Any) -> Exception:
    error = openai.APIConnectionError(request=REQUEST)
    error.args = args
    return error


def chain(length: int, innermost: BaseException) -> BaseException:
    """Wrappers in wrappers."""
    for _ in range(length):
        innermost = caused(wrapper(), innermost)
    return innermost


def unknowns(length: int, innermost: BaseException) -> BaseException:
    """Exceptions that nobody knows, each raised from the next."""
    for _ in range(length):
        innermost = caused(ValueError("?"), innermost)
    return innermost


# -- where it lies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "exc",
    [
        caused(wrapper(), REFUSED),
        wrap(wrapper(), REFUSED),
        wrapper(reason=REFUSED),
        wrapper(os_error=REFUSED),
        wrapper(orig=REFUSED),
        with_args(REFUSED),
        wrapper(reason="text", os_error=7, orig=REFUSED),
        wrapper(reason=ValueError("?"), orig=REFUSED),
        caused(wrapper(), caused(ValueError("?"), REFUSED)),
        wrapper(reason=wrapper(reason=REFUSED)),
    ],
)
def test_a_wrapper_is_opened(exc: BaseException) -> None:
    failure = classify(exc)
    assert (failure.code, failure.phase) == ("ECONNREFUSED", "not_sent")
    assert failure.message == str(exc)
    assert failure.exception == "openai.APIConnectionError"


@pytest.mark.parametrize(
    "exc",
    [
        wrapper(),
        wrapper(cause=REFUSED),
        with_args("text", REFUSED),
        with_args(),
        wrapper(reason=ValueError("?")),
        caused(wrapper(), ValueError("?")),
        wrap(caused(wrapper(), ValueError("?")), REFUSED),
    ],
)
def test_a_wrapper_with_nothing_that_is_known(exc: BaseException) -> None:
    assert classify(exc).code == "connection_error"


def test_a_wrapper_that_contains_itself() -> None:
    error = wrapper()
    error.reason = error  # type: ignore[attr-defined]
    assert classify(error).code == "connection_error"


def test_the_cause_comes_before_what_else_lies_inside() -> None:
    reset = ConnectionResetError(104, "reset")
    assert classify(wrap(caused(wrapper(orig=reset), REFUSED), reset)).code == "ECONNREFUSED"
    assert classify(wrapper(reason=REFUSED, orig=reset)).code == "ECONNREFUSED"


@pytest.mark.parametrize(("length", "code"), [(1, "ECONNREFUSED"), (8, "ECONNREFUSED"), (9, "connection_error")])
def test_how_deep_wrappers_are_opened(length: int, code: str) -> None:
    assert classify(chain(length, REFUSED)).code == code


@pytest.mark.parametrize(("length", "code"), [(1, "ECONNREFUSED"), (8, "ECONNREFUSED"), (9, "unclassified")])
def test_how_far_causes_are_followed(length: int, code: str) -> None:
    failure = classify(unknowns(length, REFUSED))
    assert (failure.code, failure.phase, failure.message) == (code, "sent", "?")
    assert failure.exception == "ValueError"


def test_only_what_was_raised_from_it_counts_for_an_unknown_exception() -> None:
    assert classify(wrap(ValueError("?"), REFUSED)).code == "unclassified"
    assert classify(unknowns(3, ValueError("!"))).code == "unclassified"


# -- groups --------------------------------------------------------------------------------------------------------


def nested(length: int) -> Exception:
    group: Exception = REFUSED
    for _ in range(length):
        group = ExceptionGroup("g", [group])
    return group


@pytest.mark.parametrize(("length", "code"), [(8, "ECONNREFUSED"), (9, "unclassified")])
def test_how_deep_groups_are_opened(length: int, code: str) -> None:
    assert classify(nested(length)).code == code


def test_the_worst_of_a_group() -> None:
    certain, definite, lost = REFUSED, http_error(422), ConnectionResetError(104, "reset")
    assert classify(ExceptionGroup("g", [certain, definite])).code == "http_422"
    assert classify(ExceptionGroup("g", [definite, certain])).code == "http_422"
    assert classify(ExceptionGroup("g", [definite, lost])).code == "ECONNRESET"
    assert classify(ExceptionGroup("g", [lost, ValueError("?")])).code == "unclassified"


def test_control_flow_in_a_group() -> None:
    assert is_control_flow(BaseExceptionGroup("g", [ValueError(), BaseExceptionGroup("g", [KeyboardInterrupt()])]))
    assert not is_control_flow(BaseExceptionGroup("g", [ValueError(), TimeoutError()]))


# -- databases, MCP and gRPC ---------------------------------------------------------------------------------------


def odd(**attributes: Any) -> Exception:
    error: Exception = type("Odd", (Exception,), attributes)("no")
    return error


@pytest.mark.parametrize(
    ("exc", "code"),
    [
        (odd(sqlstate="40001"), "serialization_failure"),
        (odd(pgcode="40P01"), "deadlock"),
        (odd(sqlstate="40001", pgcode="40P01"), "serialization_failure"),
        (odd(sqlstate="23999"), "constraint_violation"),
        (odd(sqlstate="2399"), "unclassified"),
        (odd(sqlstate="239999"), "unclassified"),
        (odd(sqlstate=23999), "unclassified"),
        (odd(sqlstate="ZZ999"), "unclassified"),
    ],
)
def test_states_of_databases(exc: BaseException, code: str) -> None:
    assert classify(exc).code == code


def test_codes_of_mcp_and_grpc_count_for_their_own_exceptions() -> None:
    class Error:
        code = -32601

    assert classify(odd(error=Error())).code == "unclassified"
    assert classify(like.lookalike("mcp.shared", "McpError", error=Error())("no")).code == "method_not_found"
    named = type("Named", (), {"code": "text"})()
    assert classify(like.lookalike("mcp.shared", "McpError", error=named)("no")).code == "unclassified"
    assert classify(odd(code=lambda self: like._Code("UNAVAILABLE"))).code == "unclassified"
    assert classify(like.rpc_error("NO_SUCH_CODE")).code == "unclassified"
    broken = like.lookalike("grpc", "RpcError", code=lambda self: 1 / 0)("no")
    assert classify(broken).code == "unclassified"
    assert classify(like.lookalike("grpc", "RpcError", code=7)("no")).code == "unclassified"


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EPIPE, "EPIPE"), (errno.ENOENT, "unclassified"), (None, "unclassified")]
)
def test_numbers_of_the_operating_system(number: int | None, code: str) -> None:
    assert classify(OSError(number, "no") if number is not None else OSError("no")).code == code
    assert classify(odd(errno=errno.EPIPE)).code == "unclassified"


def test_names_that_do_not_resolve() -> None:
    assert classify(socket.gaierror(socket.EAI_AGAIN, "again")).code == "EAI_AGAIN"
    assert classify(socket.gaierror(socket.EAI_NONAME, "no")).code == "dns"
    assert classify(socket.gaierror()).code == "dns"
    assert classify(like.lookalike("socket", "herror", OSError)(socket.EAI_AGAIN, "x")).code != "EAI_AGAIN"


# -- streams -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "attributes", "code"),
    [
        ("openai", {"code": "server_error"}, "server_error"),
        ("anthropic", {"code": "server_error", "status_code": 200}, "server_error"),
        ("openai", {"code": "server_error", "status_code": 399}, "server_error"),
        ("openai", {"code": "server_error", "status_code": 400}, "http_400"),
        ("openai", {"code": "other"}, "unclassified"),
        ("vendor", {"code": "server_error"}, "unclassified"),
    ],
)
def test_an_error_in_a_stream(module: str, attributes: dict[str, Any], code: str) -> None:
    failure = classify(like.lookalike(module, "Broken", **attributes)("no"))
    assert failure.code == code
    assert failure.status == (400 if code == "http_400" else None)


# -- the tool's own lists ------------------------------------------------------------------------------------------


def listed(exc: BaseException, *, retriable: tuple[str, ...] = (), terminal: tuple[str, ...] = ()) -> Any:
    policy = RetryPolicy(retriable_codes=retriable, terminal_codes=terminal)
    return classify(exc, ToolSpec(name="t", idempotent=False, retry=policy))


def test_what_a_tool_does_not_list_stays() -> None:
    assert listed(ValueError("?")) == classify(ValueError("?"))
    assert listed(ValueError("?"), retriable=("KeyError",)) == classify(ValueError("?"))
    assert listed(ValueError("?"), terminal=("KeyError",)) == classify(ValueError("?"))
    assert classify(REFUSED, ToolSpec(name="t", idempotent=False)) == classify(REFUSED)


def test_a_listed_failure_keeps_its_code() -> None:
    failure = listed(http_error(418), retriable=("418",))
    assert (failure.code, failure.retriable, failure.unclassified) == ("http_418", True, False)
    failure = listed(http_error(501), terminal=("501",))
    assert (failure.code, failure.kind, failure.retriable) == ("http_501", "unclassified", False)
    assert failure.may_have_applied
    failure = listed(REFUSED, terminal=("ECONNREFUSED",))
    assert (failure.code, failure.kind, failure.retriable) == ("ECONNREFUSED", "transport", False)


def test_names_of_classes_and_numbers() -> None:
    again = socket.gaierror(socket.EAI_AGAIN, "again")
    for exc, names in (
        (again, ("dns", "EAI_AGAIN", "gaierror", "socket.gaierror", "OSError")),
        (OSError(errno.ENOENT, "no"), ("ENOENT", "FileNotFoundError", "OSError", "Exception")),
        (http_error(418), ("418", "http_418", "httpx.HTTPStatusError", "HTTPStatusError")),
    ):
        for name in names:
            assert listed(exc, retriable=(name,)).unclassified is False
            assert listed(exc, retriable=(name,)).retriable
    assert not listed(OSError("no"), retriable=("ENOENT", "")).retriable
    assert not listed(OSError(99_999, "no"), retriable=("ENOENT",)).retriable
    assert listed(REFUSED, terminal=("dns",)) != listed(REFUSED, terminal=("ECONNREFUSED",))


# -- messages ------------------------------------------------------------------------------------------------------


def test_what_a_failure_says() -> None:
    assert classify(ValueError()).message == "ValueError"
    assert classify(ValueError("x" * 2_001)).message == "x" * 2_000
    assert classify(ValueError("a")).exception == "ValueError"
    assert classify(http_error(503)).exception == "httpx.HTTPStatusError"


def test_errors_of_calls_that_a_tool_made() -> None:
    refused = classify(CircuitOpen("The dependency failed too often."))
    assert refused[2:5] == ("answer", False, "not_sent")
    failed = classify(StoreUnavailable("The store is away."))
    assert failed[2:5] == ("unclassified", False, "sent")


@pytest.mark.parametrize(
    "inner", [http_exceptions.ContentLengthError("Not enough data"), http_exceptions.BadStatusLine()]
)
def test_an_answer_that_aiohttp_cannot_read_is_no_answer(inner: Exception) -> None:
    """It carries 400, the status that a server would give to such a message."""
    info: Any = None
    outer = (
        aiohttp.ClientPayloadError("Response payload is not completed"),
        aiohttp.ClientResponseError(info, (), status=400),
        RuntimeError("charge failed"),
    )
    for error in (inner, *(caused(one, inner) for one in outer)):
        failure = classify(error)
        assert (failure.kind, failure.phase, failure.status) == ("transport", "sent", None)
        assert not failure.certainly_no_effect
    assert classify(aiohttp.ClientResponseError(info, (), status=400)).code == "http_400"

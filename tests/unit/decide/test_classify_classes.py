"""R7: what an exception means by its class, for the packages people use."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import socket
import ssl
import urllib.error
from typing import Any

import anthropic
import httpx
import httpx2
import jsonschema
import mcp
import openai
import psycopg
import psycopg_pool
import pytest
import redis.exceptions
import requests
import urllib3.exceptions

from antiphon import errors
from antiphon.decide.classify import classify
from tests.unit.decide import lookalikes as like
from tests.unit.decide.makers import (
    REFUSED,
    REQUEST,
    UNKNOWN_HOST,
    Code,
    caused,
    code_of,
    h2,
    msgspec_error,
    name_of,
    pydantic_error,
    wrap,
)

CERTIFICATE = ssl.SSLCertVerificationError(1, "certificate verify failed")
POOL: Any = urllib3.connectionpool.HTTPConnectionPool("vendor.test")

NOT_SENT_REFUSED: Code = ("ECONNREFUSED", "transport", True, "not_sent")
RESET: Code = ("ECONNRESET", "transport", True, "sent")
TIMEOUT: Code = ("ETIMEDOUT", "timeout", True, "sent")
CONNECT_TIMEOUT: Code = ("ETIMEDOUT", "timeout", True, "not_sent")
DNS: Code = ("dns", "transport", True, "not_sent")
POOL_TIMEOUT: Code = ("pool_timeout", "timeout", True, "not_sent")
TLS_CERT: Code = ("tls_certificate", "transport", False, "not_sent")
INVALID: Code = ("validation_error", "validation", False, "answered")
UNAUTHORIZED: Code = ("unauthorized", "answer", False, "answered")
NO_CREDENTIALS: Code = ("unauthorized", "answer", False, "not_sent")
UNREADABLE: Code = ("response_invalid", "unclassified", False, "answered")
UNKNOWN: Code = ("unclassified", "unclassified", False, "sent")
THROTTLED: Code = ("rate_limited", "throttle", True, "answered")
QUOTA: Code = ("quota_exhausted", "quota", False, "answered")
REFUSAL: Code = ("refusal", "refusal", False, "answered")

STANDARD_LIBRARY: list[tuple[BaseException, Code]] = [
    (REFUSED, NOT_SENT_REFUSED),
    (OSError(errno.ECONNREFUSED, "refused"), NOT_SENT_REFUSED),
    (ConnectionResetError(104, "reset"), RESET),
    (http.client.RemoteDisconnected("closed"), RESET),
    (BrokenPipeError(32, "pipe"), ("EPIPE", "transport", True, "sent")),
    (ConnectionAbortedError(103, "aborted"), ("ECONNABORTED", "transport", True, "sent")),
    (ConnectionError("somehow"), ("connection_error", "transport", True, "sent")),
    (TimeoutError("slow"), TIMEOUT),
    (OSError(errno.ETIMEDOUT, "slow"), TIMEOUT),
    (OSError(errno.EHOSTUNREACH, "no route"), ("EHOSTUNREACH", "transport", True, "sent")),
    (UNKNOWN_HOST, DNS),
    (socket.gaierror(socket.EAI_AGAIN, "again"), ("EAI_AGAIN", "transport", True, "not_sent")),
    (CERTIFICATE, TLS_CERT),
    (ssl.SSLEOFError(8, "eof"), RESET),
    (ssl.SSLError(1, "bad record mac"), ("tls_error", "unclassified", False, "sent")),
    (http.client.IncompleteRead(b"half"), RESET),
    (http.client.InvalidURL("bad"), ("invalid_url", "validation", False, "not_sent")),
    (asyncio.IncompleteReadError(b"", 4), RESET),
    (urllib.error.URLError(REFUSED), NOT_SENT_REFUSED),
    (urllib.error.URLError(UNKNOWN_HOST), DNS),
    (urllib.error.URLError(TimeoutError("slow")), TIMEOUT),
    (urllib.error.URLError("unknown url type"), ("connection_error", "transport", True, "sent")),
]
NOT_LISTED: list[tuple[BaseException, Code]] = [
    (ValueError("bad address"), UNKNOWN),
    (KeyError("x"), UNKNOWN),
    (FileNotFoundError(2, "no file"), UNKNOWN),
    (PermissionError(13, "denied"), UNKNOWN),
    (OSError(errno.ENOSPC, "disk full"), UNKNOWN),
    (json.JSONDecodeError("no json", "x", 0), UNKNOWN),
    (wrap(ValueError("later"), REFUSED), UNKNOWN),
]
HTTPX: list[tuple[str, Code]] = [
    ("PoolTimeout", POOL_TIMEOUT),
    ("ConnectTimeout", CONNECT_TIMEOUT),
    ("ReadTimeout", TIMEOUT),
    ("WriteTimeout", TIMEOUT),
    ("ConnectError", NOT_SENT_REFUSED),
    ("ReadError", RESET),
    ("WriteError", RESET),
    ("CloseError", RESET),
    ("RemoteProtocolError", RESET),
    ("ProxyError", ("proxy_error", "transport", True, "not_sent")),
    ("UnsupportedProtocol", ("invalid_url", "validation", False, "not_sent")),
    ("InvalidURL", ("invalid_url", "validation", False, "not_sent")),
    ("DecodingError", UNREADABLE),
    ("TooManyRedirects", UNKNOWN),
    ("LocalProtocolError", ("protocol_error", "unclassified", False, "sent")),
]
CLIENTS: list[tuple[BaseException, Code]] = [
    (wrap(httpx.ConnectError("dns"), UNKNOWN_HOST), DNS),
    (wrap(httpx.ConnectError("tls"), CERTIFICATE), TLS_CERT),
    (
        wrap(httpx.ConnectError("tls"), ConnectionResetError(104, "reset")),
        ("ECONNRESET", "transport", True, "not_sent"),
    ),
    (wrap(httpx.ReadError("read"), REFUSED), ("ECONNREFUSED", "transport", True, "sent")),
    (httpx2.SSEError("no event stream", request=REQUEST), UNREADABLE),
    (requests.ConnectTimeout(), CONNECT_TIMEOUT),
    (requests.ReadTimeout(), TIMEOUT),
    (requests.ConnectionError("somehow"), ("connection_error", "transport", True, "sent")),
    (
        requests.ConnectionError(
            urllib3.exceptions.MaxRetryError(POOL, "/", urllib3.exceptions.NewConnectionError(POOL, "refused"))
        ),
        NOT_SENT_REFUSED,
    ),
    (
        requests.ConnectionError(
            urllib3.exceptions.MaxRetryError(
                POOL, "/", urllib3.exceptions.NameResolutionError("vendor.test", POOL, UNKNOWN_HOST)
            )
        ),
        DNS,
    ),
    (requests.ConnectionError(urllib3.exceptions.ProtocolError("aborted", ConnectionResetError(104, "reset"))), RESET),
    (
        requests.exceptions.SSLError(
            urllib3.exceptions.MaxRetryError(POOL, "/", caused(urllib3.exceptions.SSLError("tls"), CERTIFICATE))  # type: ignore[arg-type]
        ),
        ("tls_certificate", "transport", False, "sent"),
    ),
    (requests.exceptions.JSONDecodeError("no json", "x", 0), UNREADABLE),
    (requests.exceptions.MissingSchema("url"), ("invalid_url", "validation", False, "not_sent")),
    (urllib3.exceptions.EmptyPoolError(POOL, "empty"), POOL_TIMEOUT),
    (urllib3.exceptions.ReadTimeoutError(POOL, "/", "slow"), TIMEOUT),
    (like.AioConnectorError(111, "refused"), NOT_SENT_REFUSED),
    (like.AioDNSError(-2, "dns"), DNS),
    (like.AioCertificateError(1, "certificate"), TLS_CERT),
    (like.AioServerDisconnected(), RESET),
    (like.AioServerTimeout(), TIMEOUT),
    (like.AioConnectTimeout(), CONNECT_TIMEOUT),
    (like.AioOSError(104, "reset"), RESET),
    (like.AioPayloadError("short"), RESET),
    (like.aio_response_error(200, like.AioContentTypeError), UNREADABLE),
    (like.EndpointConnectionError("could not connect"), NOT_SENT_REFUSED),
    (like.BotoConnectTimeout("slow"), CONNECT_TIMEOUT),
    (like.BotoReadTimeout("slow"), TIMEOUT),
    (like.BotoConnectionClosed("closed"), RESET),
    (like.ParamValidationError("bad"), INVALID),
    (like.NoCredentialsError("none"), NO_CREDENTIALS),
]
SDKS: list[tuple[BaseException, Code]] = [
    (openai.APIConnectionError(request=REQUEST), ("connection_error", "transport", True, "sent")),
    (
        caused(openai.APIConnectionError(request=REQUEST), wrap(httpx2.ConnectError("refused"), REFUSED)),
        NOT_SENT_REFUSED,
    ),
    (caused(openai.APIConnectionError(request=REQUEST), httpx2.RemoteProtocolError("closed")), RESET),
    (openai.APITimeoutError(request=REQUEST), TIMEOUT),
    (caused(openai.APITimeoutError(request=REQUEST), httpx2.PoolTimeout("pool")), POOL_TIMEOUT),
    (caused(anthropic.APITimeoutError(request=REQUEST), httpx2.ConnectTimeout("slow")), CONNECT_TIMEOUT),
    (caused(anthropic.APITimeoutError(request=REQUEST), httpx2.ReadTimeout("slow")), TIMEOUT),
    (openai.APIResponseValidationError(h2(200), None), UNREADABLE),
    (anthropic.CredentialsError("no key"), NO_CREDENTIALS),
    (openai.ContentFilterFinishReasonError(), REFUSAL),
    (mcp.MCPError(-32001, "timed out"), TIMEOUT),
    (mcp.MCPError(-32000, "Connection closed"), RESET),
    (mcp.MCPError(-32602, "bad params"), INVALID),
    (mcp.MCPError(-32601, "no such method"), ("method_not_found", "answer", False, "answered")),
    (mcp.MCPError(-32603, "boom"), ("internal_error", "unclassified", False, "answered")),
    (mcp.MCPError(-32099, "own"), ("jsonrpc_-32099", "unclassified", False, "answered")),
    (like.rpc_error("UNAVAILABLE"), ("UNAVAILABLE", "transport", True, "sent")),
    (like.rpc_error("DEADLINE_EXCEEDED"), TIMEOUT),
    (like.rpc_error("RESOURCE_EXHAUSTED"), THROTTLED),
    (like.rpc_error("INVALID_ARGUMENT"), INVALID),
    (like.rpc_error("DATA_LOSS"), UNKNOWN),
]
DATA: list[tuple[BaseException, Code]] = [
    (pydantic_error(), INVALID),
    (msgspec_error(), INVALID),
    (jsonschema.ValidationError("bad"), INVALID),
    (jsonschema.SchemaError("bad"), ("schema_error", "validation", False, "answered")),
    (errors.ContractError("bad"), INVALID),
    (redis.exceptions.ConnectionError("closed"), ("connection_error", "transport", True, "sent")),
    (wrap(redis.exceptions.ConnectionError("Error 111"), REFUSED), NOT_SENT_REFUSED),
    (redis.exceptions.TimeoutError("slow"), TIMEOUT),
    (redis.exceptions.AuthenticationError("no"), UNAUTHORIZED),
    (redis.exceptions.MaxConnectionsError("full"), POOL_TIMEOUT),
    (redis.exceptions.BusyLoadingError("loading"), ("unavailable", "transport", True, "answered")),
    (redis.exceptions.ResponseError("wrong type"), UNKNOWN),
    (psycopg.OperationalError("server closed the connection"), ("connection_error", "transport", True, "sent")),
    (psycopg.errors.ConnectionTimeout("slow"), CONNECT_TIMEOUT),
    (psycopg.errors.UniqueViolation("dup"), ("constraint_violation", "answer", False, "answered")),
    (psycopg.errors.InvalidTextRepresentation("bad"), INVALID),
    (psycopg.errors.InsufficientPrivilege("no"), UNAUTHORIZED),
    (psycopg.errors.SerializationFailure("again"), ("serialization_failure", "answer", True, "answered")),
    (psycopg.errors.DeadlockDetected("again"), ("deadlock", "answer", True, "answered")),
    (psycopg.errors.QueryCanceled("slow"), TIMEOUT),
    (psycopg.errors.AdminShutdown("bye"), ("unavailable", "transport", True, "answered")),
    (psycopg_pool.PoolTimeout("slow"), POOL_TIMEOUT),
]


@pytest.mark.parametrize(("exc", "expected"), STANDARD_LIBRARY + NOT_LISTED + CLIENTS + SDKS + DATA, ids=name_of)
def test_r7_exception_by_class(exc: BaseException, expected: Code) -> None:
    failure = classify(exc)
    assert code_of(failure) == expected
    assert failure.unclassified == (failure.kind == "unclassified")
    assert failure.exception.endswith(type(exc).__name__)
    assert failure.message


@pytest.mark.parametrize("package", [httpx, httpx2], ids=["httpx", "httpx2"])
@pytest.mark.parametrize(("name", "expected"), HTTPX, ids=[name for name, _ in HTTPX])
def test_r7_httpx_and_httpx2_alike(package: Any, name: str, expected: Code) -> None:
    assert code_of(classify(getattr(package, name)("it happened"))) == expected


@pytest.mark.parametrize(
    ("exc", "vote"),
    [
        (mcp.MCPError(-32601, "no such method"), "success"),
        (psycopg.errors.UniqueViolation("dup"), "success"),
        (psycopg.errors.DeadlockDetected("again"), "success"),
        (like.rpc_error("NOT_FOUND"), "success"),
        (anthropic.CredentialsError("no key"), "none"),
        (pydantic_error(), "none"),
        (ValueError("?"), "none"),
        (httpx.PoolTimeout("ours"), "none"),
        (wrap(httpx.ConnectError("tls"), CERTIFICATE), "none"),
        (httpx.ConnectTimeout("slow"), "failure"),
        (httpx.ReadTimeout("slow"), "failure"),
        (mcp.MCPError(-32001, "timed out"), "failure"),
        (REFUSED, "failure"),
        (UNKNOWN_HOST, "failure"),
    ],
    ids=name_of,
)
def test_d8_who_is_to_blame(exc: BaseException, vote: str) -> None:
    """A completed round trip is health, a broken one sickness, and what stays at home says nothing."""
    assert classify(exc).breaker_vote == vote

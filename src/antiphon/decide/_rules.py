"""What an exception's class, errno, SQLSTATE or JSON-RPC code means, as tables (R7).

Classes are named by (top-level package, class name), so that nothing has to be installed or imported.
"""

from __future__ import annotations

import errno
from typing import Literal, NamedTuple

from antiphon.decide.failure import Kind, Phase


class Rule(NamedTuple):
    """The meaning of one class of exceptions."""

    code: str
    kind: Kind
    retriable: bool
    phase: Phase
    look: Literal["", "code", "all"] = ""
    """``code``: what lies inside names the cause, the phase stays; ``all``: the class is only a wrapper."""


RESET = Rule("ECONNRESET", "transport", True, "sent", "code")
NOT_CONNECTED = Rule("ECONNREFUSED", "transport", True, "not_sent", "code")
CONNECTION = Rule("connection_error", "transport", True, "sent", "all")
CONNECT_TIMEOUT = Rule("ETIMEDOUT", "timeout", True, "not_sent")
TIMEOUT = Rule("ETIMEDOUT", "timeout", True, "sent")
WRAPPED_TIMEOUT = Rule("ETIMEDOUT", "timeout", True, "sent", "all")
POOL = Rule("pool_timeout", "timeout", True, "not_sent")
DNS = Rule("dns", "transport", True, "not_sent")
PROXY = Rule("proxy_error", "transport", True, "not_sent", "code")
CERTIFICATE = Rule("tls_certificate", "transport", False, "not_sent")
TLS = Rule("tls_error", "unclassified", False, "sent", "code")
BAD_URL = Rule("invalid_url", "validation", False, "not_sent")
INVALID = Rule("validation_error", "validation", False, "answered")
SCHEMA = Rule("schema_error", "validation", False, "answered")
UNAUTHORIZED = Rule("unauthorized", "answer", False, "answered")
NO_CREDENTIALS = Rule("unauthorized", "answer", False, "not_sent")
UNAVAILABLE = Rule("unavailable", "transport", True, "answered")
REFUSAL = Rule("refusal", "refusal", False, "answered")
QUOTA = Rule("quota_exhausted", "quota", False, "answered")
BAD_RESPONSE = Rule("response_invalid", "unclassified", False, "answered")
"""An answer came but cannot be read: what was asked for may well have been done."""
THROTTLED = Rule("rate_limited", "throttle", True, "answered")
OVERLOADED = Rule("overloaded", "throttle", True, "answered")
SERVER_ERROR = Rule("server_error", "transport", True, "answered")
UNKNOWN = Rule("unclassified", "unclassified", False, "sent")

OWN_WORD = frozenset((REFUSAL, QUOTA))
"""Rules that beat the status the same exception carries."""

_HTTPX: dict[str, Rule] = {
    "PoolTimeout": POOL,
    "ConnectTimeout": CONNECT_TIMEOUT,
    "TimeoutException": TIMEOUT,
    "ConnectError": NOT_CONNECTED,
    "NetworkError": RESET,
    "RemoteProtocolError": RESET,
    "ProxyError": PROXY,
    "LocalProtocolError": Rule("protocol_error", "unclassified", False, "sent"),
    "UnsupportedProtocol": BAD_URL,
    "InvalidURL": BAD_URL,
    "DecodingError": BAD_RESPONSE,
    "SSEError": BAD_RESPONSE,
    "TransportError": CONNECTION,
}

_SDK: dict[str, Rule] = {
    "APITimeoutError": WRAPPED_TIMEOUT,
    "APIConnectionError": CONNECTION,
    "APIResponseValidationError": BAD_RESPONSE,
    "ContentFilterFinishReasonError": REFUSAL,
    "WebSocketConnectionClosedError": RESET,
    "RetryableError": CONNECTION,
    "CredentialsError": NO_CREDENTIALS,
    "EnforcedSpendLimitReachedError": QUOTA,
}

_BY_PACKAGE: dict[str, dict[str, Rule]] = {
    "builtins": {
        "ConnectionRefusedError": Rule("ECONNREFUSED", "transport", True, "not_sent"),
        "ConnectionResetError": Rule("ECONNRESET", "transport", True, "sent"),
        "ConnectionAbortedError": Rule("ECONNABORTED", "transport", True, "sent"),
        "BrokenPipeError": Rule("EPIPE", "transport", True, "sent"),
        "ConnectionError": Rule("connection_error", "transport", True, "sent"),
        "TimeoutError": TIMEOUT,
    },
    "socket": {"gaierror": DNS, "herror": DNS},
    "ssl": {
        "SSLCertVerificationError": CERTIFICATE,
        "SSLEOFError": RESET,
        "SSLZeroReturnError": RESET,
        "SSLError": TLS,
    },
    "asyncio": {"IncompleteReadError": RESET},
    "http": {"InvalidURL": BAD_URL, "IncompleteRead": RESET, "BadStatusLine": RESET},
    "urllib": {"URLError": CONNECTION, "ContentTooShortError": RESET},
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "httpcore": _HTTPX,
    "httpcore2": _HTTPX,
    "requests": {
        "ConnectTimeout": CONNECT_TIMEOUT,
        "Timeout": TIMEOUT,
        "SSLError": TLS,
        "ProxyError": PROXY,
        "ConnectionError": CONNECTION,
        "ChunkedEncodingError": RESET,
        "ContentDecodingError": BAD_RESPONSE,
        "InvalidJSONError": BAD_RESPONSE,
        "InvalidURL": BAD_URL,
        "InvalidSchema": BAD_URL,
        "MissingSchema": BAD_URL,
    },
    "urllib3": {
        "NameResolutionError": DNS,
        "NewConnectionError": NOT_CONNECTED,
        "ConnectTimeoutError": CONNECT_TIMEOUT,
        "ReadTimeoutError": TIMEOUT,
        "EmptyPoolError": POOL,
        "MaxRetryError": CONNECTION,
        "ProtocolError": RESET,
        "IncompleteRead": RESET,
        "SSLError": TLS,
        "ProxyError": PROXY,
        "LocationValueError": BAD_URL,
    },
    "aiohttp": {
        "ClientConnectorDNSError": DNS,
        "ClientConnectorCertificateError": CERTIFICATE,
        "ClientConnectorSSLError": Rule("tls_error", "unclassified", False, "not_sent", "code"),
        "ClientConnectorError": NOT_CONNECTED,
        "ConnectionTimeoutError": CONNECT_TIMEOUT,
        "ServerTimeoutError": TIMEOUT,
        "ServerDisconnectedError": RESET,
        "ClientOSError": RESET,
        "ClientPayloadError": RESET,
        "ClientConnectionError": CONNECTION,
        "ContentTypeError": BAD_RESPONSE,
        "InvalidURL": BAD_URL,
    },
    "anyio": {"BrokenResourceError": RESET, "ClosedResourceError": RESET, "EndOfStream": RESET},
    "websockets": {"ConnectionClosed": RESET, "InvalidURI": BAD_URL},
    "openai": _SDK,
    "anthropic": _SDK,
    "botocore": {
        "EndpointConnectionError": NOT_CONNECTED,
        "ConnectTimeoutError": CONNECT_TIMEOUT,
        "ReadTimeoutError": TIMEOUT,
        "ConnectionClosedError": RESET,
        "ProxyConnectionError": PROXY,
        "SSLError": TLS,
        "HTTPClientError": CONNECTION,
        "ParamValidationError": INVALID,
        "NoCredentialsError": NO_CREDENTIALS,
        "PartialCredentialsError": NO_CREDENTIALS,
    },
    "redis": {
        "AuthenticationError": UNAUTHORIZED,
        "AuthorizationError": UNAUTHORIZED,
        "NoPermissionError": UNAUTHORIZED,
        "MaxConnectionsError": POOL,
        "BusyLoadingError": UNAVAILABLE,
        "TryAgainError": UNAVAILABLE,
        "ClusterDownError": UNAVAILABLE,
        "DataError": INVALID,
        "TimeoutError": WRAPPED_TIMEOUT,
        "ConnectionError": CONNECTION,
    },
    "psycopg_pool": {"PoolTimeout": POOL, "TooManyRequests": POOL},
    "psycopg": {"ConnectionTimeout": CONNECT_TIMEOUT, "OperationalError": CONNECTION},
    "pydantic_core": {"ValidationError": INVALID},
    "pydantic": {"ValidationError": INVALID},
    "msgspec": {"ValidationError": INVALID},
    "jsonschema": {"ValidationError": INVALID, "SchemaError": SCHEMA},
    "pydantic_ai": {"ContentFilterError": REFUSAL, "ModelQuotaExceededError": QUOTA, "ModelTimeoutError": TIMEOUT},
    "agents": {"ModelRefusalError": REFUSAL, "ModelTimeoutError": TIMEOUT, "ToolTimeoutError": TIMEOUT},
    "langchain_openai": {"OpenAIRefusalError": REFUSAL},
    "sqlalchemy": {"DBAPIError": Rule("unclassified", "unclassified", False, "sent", "all")},
}

BY_CLASS: dict[tuple[str, str], Rule] = {
    (package, name): rule for package, rules in _BY_PACKAGE.items() for name, rule in rules.items()
}

BY_ERRNO: dict[int, Rule] = {
    errno.ECONNREFUSED: Rule("ECONNREFUSED", "transport", True, "not_sent"),
    errno.ECONNRESET: Rule("ECONNRESET", "transport", True, "sent"),
    errno.ECONNABORTED: Rule("ECONNABORTED", "transport", True, "sent"),
    errno.EPIPE: Rule("EPIPE", "transport", True, "sent"),
    errno.ETIMEDOUT: TIMEOUT,
    errno.ENETUNREACH: Rule("ENETUNREACH", "transport", True, "sent"),
    errno.EHOSTUNREACH: Rule("EHOSTUNREACH", "transport", True, "sent"),
    errno.ENETDOWN: Rule("ENETDOWN", "transport", True, "sent"),
    errno.ENETRESET: Rule("ENETRESET", "transport", True, "sent"),
}

BY_JSONRPC: dict[int, Rule] = {
    -32000: Rule("ECONNRESET", "transport", True, "sent"),
    -32001: TIMEOUT,
    -32600: Rule("invalid_request", "validation", False, "answered"),
    -32601: Rule("method_not_found", "answer", False, "answered"),
    -32602: INVALID,
    -32603: Rule("internal_error", "unclassified", False, "answered"),
    -32700: Rule("parse_error", "validation", False, "answered"),
    -32042: Rule("elicitation_required", "answer", False, "answered"),
}

BY_GRPC: dict[str, Rule] = {
    "UNAVAILABLE": Rule("UNAVAILABLE", "transport", True, "sent"),
    "DEADLINE_EXCEEDED": TIMEOUT,
    "RESOURCE_EXHAUSTED": THROTTLED,
    "INVALID_ARGUMENT": INVALID,
    "OUT_OF_RANGE": INVALID,
    "FAILED_PRECONDITION": Rule("failed_precondition", "answer", False, "answered"),
    "NOT_FOUND": Rule("not_found", "answer", False, "answered"),
    "ALREADY_EXISTS": Rule("already_exists", "answer", False, "answered"),
    "UNIMPLEMENTED": Rule("method_not_found", "answer", False, "answered"),
    "UNAUTHENTICATED": UNAUTHORIZED,
    "PERMISSION_DENIED": UNAUTHORIZED,
}

BY_SQLSTATE: dict[str, Rule] = {
    "08": RESET,
    "22": INVALID,
    "23": Rule("constraint_violation", "answer", False, "answered"),
    "28": UNAUTHORIZED,
    "42501": UNAUTHORIZED,
    "42": Rule("sql_error", "answer", False, "answered"),
    "40001": Rule("serialization_failure", "answer", True, "answered"),
    "40P01": Rule("deadlock", "answer", True, "answered"),
    "53": UNAVAILABLE,
    "57014": TIMEOUT,
    "57": UNAVAILABLE,
}
"""By the whole SQLSTATE first, then by its class (psycopg, psycopg2, asyncpg)."""

CONTROL_FLOW = frozenset(
    (
        ("antiphon", "Paused"),
        ("langgraph", "GraphBubbleUp"),
        ("pydantic_ai", "CallDeferred"),
        ("pydantic_ai", "ApprovalRequired"),
        ("pydantic_ai", "SkipToolExecution"),
    )
)
"""Exceptions by which a framework suspends or hands over: they are no failures and must pass through."""

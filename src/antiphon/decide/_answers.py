"""What an exception tells about the response that caused it: status, the vendor's error code, Retry-After."""

from __future__ import annotations

import errno
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pkgutil import get_data
from typing import Any, Final, Literal, NamedTuple

import msgspec

from antiphon.decide.failure import Kind, Phase


class Rule(NamedTuple):
    """The meaning of one class of exceptions."""

    code: str
    kind: Kind
    retriable: bool
    phase: Phase
    look: Literal["", "code", "all"] = ""
    """``code``: the exception inside names the cause, the phase stays; ``all``: the class is only a wrapper."""


# The meaning of an exception's class, errno, SQLSTATE or JSON-RPC code. The tables are loaded with this module: at the
# first failure there may be no file descriptor left to read them.
_GIVEN: Final[dict[str, Any]] = tomllib.loads((get_data("antiphon.decide", "failures.toml") or b"").decode())
RULES: Final = {name: Rule(*fields) for name, fields in _GIVEN["rules"].items()}


def _table(entries: Mapping[str, str]) -> dict[str, Rule]:
    return {name: RULES[rule] for name, rule in entries.items()}


BY_CLASS: Final = {
    (package, name): rule
    for packages, entries in _GIVEN["classes"].items()
    for package in packages.split()
    for name, rule in _table(entries).items()
}
BY_ERRNO: Final = {getattr(errno, name): rule for name, rule in _table(_GIVEN["errno"]).items()}
BY_JSONRPC: Final = _table(_GIVEN["jsonrpc"])
BY_GRPC: Final = _table(_GIVEN["grpc"])
BY_SQLSTATE: Final = _table(_GIVEN["sqlstate"])
CODES: Final = {name: frozenset(codes.split()) for name, codes in _GIVEN["codes"].items()}
CONTROL_FLOW: Final = {(package, name) for package, names in _GIVEN["control_flow"].items() for name in names.split()}


_NO_MONEY = "credit balance is too low"
_SECONDS = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*s?\s*$")
_BODY_LIMIT = 65_536


def attribute(thing: object, name: str) -> Any:
    """The attribute, or ``None`` if there is none or reading it fails."""
    with suppress(Exception):
        return getattr(thing, name, None)
    return None


def status_of(exc: BaseException) -> int | None:
    """The HTTP status, wherever a library keeps it."""
    if _is_unreadable(exc) or (type(exc).__module__.startswith("aiohttp.") and _is_unreadable(exc.__cause__)):
        return None
    for name in ("status_code", "status", "http_status", "code"):
        found = _status(attribute(exc, name))
        if found is not None:
            return found
    response = attribute(exc, "response")
    if isinstance(response, Mapping):
        metadata = response.get("ResponseMetadata")
        return _status(metadata.get("HTTPStatusCode")) if isinstance(metadata, Mapping) else None
    if response is not None:
        return _status(attribute(response, "status_code")) or _status(attribute(response, "status"))
    return None


def _is_unreadable(exc: BaseException | None) -> bool:
    """Whether aiohttp could not parse a message: the status is what a server would respond with, and none did."""
    return any(cls.__module__ == "aiohttp.http_exceptions" for cls in type(exc).__mro__)


def _status(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
        return int(value)
    return None


def vendor_codes(exc: BaseException) -> frozenset[str]:
    """Every error code the vendor gave, in lower case."""
    return frozenset(code.lower() for code in raw_codes(exc))


def raw_codes(exc: BaseException) -> list[str]:
    """Every error code the vendor gave, as given."""
    return [code for code in _codes(exc) if isinstance(code, str) and code]


def _codes(exc: BaseException) -> Iterator[object]:
    for name in ("code", "type", "status", "error_code"):
        yield attribute(exc, name)
    for body in _bodies(exc):
        error = body.get("error", body.get("Error", body))
        if isinstance(error, str):
            yield error
        elif isinstance(error, Mapping):
            for name in ("code", "Code", "type", "status"):
                yield error.get(name)
            inner = error.get("innererror")
            if isinstance(inner, Mapping):
                yield inner.get("code")


def _bodies(exc: BaseException) -> Iterator[Mapping[str, Any]]:
    for name in ("body", "details"):
        value = attribute(exc, name)
        if isinstance(value, Mapping):
            yield value
    response = attribute(exc, "response")
    if isinstance(response, Mapping):
        yield response
        return
    # Only a body that has been read already: a classification must not touch the network.
    content = attribute(response, "_content")
    if isinstance(content, bytes) and 0 < len(content) <= _BODY_LIMIT:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = msgspec.json.decode(content)
            if isinstance(value, list) and len(value) == 1:
                value = value[0]
            if isinstance(value, Mapping):
                yield value


def quota_gone(exc: BaseException, status: int | None, codes: frozenset[str], message: str) -> bool:
    """Whether a 429 (or what some vendors send instead) means that waiting does not help (D22)."""
    if codes & CODES["quota"]:
        return True
    if status not in (400, 403, 429):
        return False
    if _NO_MONEY in message.lower():
        return True
    return any(
        "perday" in str(violation.get("quotaId", "")).lower()
        for detail in _google_details(exc, "QuotaFailure")
        for violation in detail.get("violations") or ()
        if isinstance(violation, Mapping)
    )


def _google_details(exc: BaseException, kind: str) -> Iterator[Mapping[str, Any]]:
    for body in _bodies(exc):
        error = body.get("error", body)
        details = error.get("details") if isinstance(error, Mapping) else None
        if isinstance(details, list):
            for detail in details:
                if isinstance(detail, Mapping) and str(detail.get("@type", "")).endswith(kind):
                    yield detail


def _headers(exc: BaseException) -> Any:
    response = attribute(exc, "response")
    if isinstance(response, Mapping):
        metadata = response.get("ResponseMetadata")
        return metadata.get("HTTPHeaders") if isinstance(metadata, Mapping) else None
    found = attribute(response, "headers")
    return found if found is not None else attribute(exc, "headers")


def header(exc: BaseException, name: str) -> str | None:
    """A response header by its lower-case *name*."""
    headers = _headers(exc)
    get = attribute(headers, "get")
    if not callable(get):
        return None
    for spelling in (name, name.title()):
        with suppress(Exception):
            value = get(spelling)
            if isinstance(value, bytes):
                value = value.decode("latin-1")
            if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                return str(value).strip()
    return None


def retry_after_ms(exc: BaseException, wall_ms: int | None) -> int | None:
    """How long the server asks us to wait. A date is read against its ``Date`` header, or else *wall_ms*."""
    exact = _number(header(exc, "retry-after-ms"))
    if exact is not None:
        return math.ceil(exact)
    value = header(exc, "retry-after")
    if value is not None:
        seconds = _number(value)
        if seconds is not None:
            return math.ceil(seconds * 1000)
        return _until(value, header(exc, "date"), wall_ms)
    for detail in _google_details(exc, "RetryInfo"):
        found = _SECONDS.match(str(detail.get("retryDelay", "")))
        if found:
            return math.ceil(float(found[1]) * 1000)
    own = attribute(exc, "retry_after")
    total = attribute(own, "total_seconds")
    seconds = _number(total() if callable(total) else own)
    return None if seconds is None else math.ceil(seconds * 1000)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    with suppress(ValueError, OverflowError):
        number = float(value)
        if math.isfinite(number):
            return max(number, 0.0)
    return None


def _until(date: str, sent: str | None, wall_ms: int | None) -> int | None:
    from email.utils import parsedate_to_datetime

    with suppress(ValueError, TypeError, OverflowError):
        target = parsedate_to_datetime(date).timestamp() * 1000
        if sent is not None:
            with suppress(ValueError, TypeError, OverflowError):
                return max(0, math.ceil(target - parsedate_to_datetime(sent).timestamp() * 1000))
        if wall_ms is not None:
            return max(0, math.ceil(target - wall_ms))
    return None

"""Outcomes with everything taken out that differs from call to call without meaning anything (D25)."""

from __future__ import annotations

import re
from hashlib import blake2b

_STRING_OR_NUMBER = rb'(?:"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*)'

# Separate patterns, each with a fixed first character or character class: the engine can skip to it.
_NOISE = (
    # JSON fields that are named after a time, a duration or the id of this one answer
    re.compile(
        rb'"(?:timestamp|time|ts|date|now|elapsed|duration|latency|took|uptime|expires|nonce|trace|span|request|event)'
        rb'(?:[_-]?(?:s|ms|us|ns|at|in|id|Id|time|seconds|millis))*"\s*:\s*' + _STRING_OR_NUMBER
    ),
    re.compile(rb'(?:_at|At)"\s*:\s*' + _STRING_OR_NUMBER),
    # UUIDs, digests of 128 bits, addresses
    re.compile(rb"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"),
    re.compile(rb"0x[0-9a-fA-F]{6,}"),
    re.compile(rb"[0-9a-f]{32}(?![0-9a-f])"),
    # dates, times of day, seconds (or finer) since 1970, durations with a unit
    re.compile(
        rb"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:\s?(?:Z|UTC|[+-]\d\d:?\d\d))?"
        rb"|\d{1,2}:\d\d:\d\d(?:[.,]\d+)?"
        rb"|1[5-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?(?!\d)"
        rb"|\d+(?:\.\d+)?\s?(?:ns|us|\xc2\xb5s|\xce\xbcs|ms|s|secs?|seconds?|milliseconds?|minutes?|mins?|hours?)\b"
    ),
)


def normalise(outcome: bytes | str) -> bytes:
    """*outcome* without times, durations, UUIDs, trace ids and addresses, and with white space collapsed.

    >>> normalise('{"state": "busy", "seen": "2024-05-01T10:00:00Z"}')
    b'{"state": "busy", "seen": "~"}'
    """
    raw = outcome.encode("utf-8", "surrogatepass") if isinstance(outcome, str) else outcome
    for pattern in _NOISE:
        raw = pattern.sub(b"~", raw)
    return b" ".join(raw.split())


def outcome_digest(outcome: bytes | str) -> bytes:
    """Equal for outcomes that say the same."""
    return blake2b(normalise(outcome), digest_size=16).digest()

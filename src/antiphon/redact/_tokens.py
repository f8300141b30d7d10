"""Text that is a secret by its looks: tokens of providers, the shapes that everybody uses, and random-looking runs.

A random token changes between small letters, capitals and digits about every second character; names, paths and
version strings do so every third at most. Shapes that are ids everywhere are left alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from antiphon.redact._rules import LISTS

RUN_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-"
"""What tokens are made of; a run of at least :data:`MIN_RUN` of them is looked at more closely."""

MIN_RUN = 20

LONGEST = 200
"""Longer runs are data (images, ciphertext)."""
_SHORTEST = 24
_SHORTEST_ONE_CASE = 32
_LONGEST_PART_MEAN = 3.0
_LONGEST_NAME_PART = 12


def deferred(source: str) -> Callable[[], re.Pattern[str]]:
    """``pattern()`` is the compiled *source*, compiled at first need: most processes never see a secret."""
    return functools.cache(functools.partial(re.compile, source))


TOKENS = deferred(
    "(?<![A-Za-z0-9])(?:" + "|".join(f"(?P<{kind}>{pattern})" for kind, pattern in LISTS["tokens"].items()) + ")"
)
"""All providers in one pattern; ``match.lastgroup`` is the kind."""
TOKEN_STARTS = deferred(LISTS["starts"]["any"])
PRIVATE_KEY = deferred(
    r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?!-----BEGIN)[\s\S])*?(?:-----END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----|\Z)"
)
"""A private key in PEM armour; one that was cut off counts to the end of the text."""

URL_PASSWORD = deferred(r"[A-Za-z][A-Za-z0-9+.-]{1,30}://[^\s/?#:@\"'<>\[\]]{0,256}:(?P<secret>[^\s/?#\"'<>]{1,256})@")
"""``scheme://user:password@host``, the database kind included."""

URL_TOKEN = deferred(r"[A-Za-z][A-Za-z0-9+.-]{1,30}://(?P<secret>[A-Za-z0-9_.~%-]{16,256})@")
"""``https://token@host``."""

HEADER = deferred(
    r"(?i)\b(?:proxy-)?authori[sz]ation\\*[\"'`]?[ \t]*[:=,][ \t]*\\*[\"'`]?[ \t]*"
    r"(?:(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey)[ \t]+)?(?P<secret>[^\s\"'`\\,;]{3,})"
)
"""An Authorization header written out in text; the scheme is kept."""

COOKIE = deferred(r"(?i)\b(?:set-)?cookies?:[ \t]*(?P<secret>[A-Za-z0-9_.$-]+=[^\r\n\"'`\\]+)")

SESSION_COOKIE = deferred(
    r"(?i)(?<![A-Za-z0-9])(?:j?sess(?:ion)?_?id|phpsessid|asp\.net_sessionid)[ \t]*=[ \t]*(?P<secret>[^\s;,&\"'`]{8,})"
)

BEARER = deferred(r"\b[Bb]earer (?P<secret>[A-Za-z0-9_+/=-]{20,}[A-Za-z0-9._~+/=-]*)")
BASIC = deferred(r"\b[Bb]asic (?P<secret>[A-Za-z0-9+/]{20,}={0,2})(?![A-Za-z0-9+/=])")

CURL_USER = deferred(r"(?:\s-u|--user|--proxy-user)[ =]?[\"']?[^\s\"':]{1,128}:(?P<secret>[^\s\"']{1,256})")

NETRC = deferred(r"\blogin\s+[^\s\"']{1,128}\s+password\s+(?P<secret>[^\s\"'\\]{3,256})")
"""``login NAME password …``, as in a ``.netrc`` file."""

RUN = deferred(rf"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{{{_SHORTEST},{LONGEST}}}(?![A-Za-z0-9+/=_-])")
"""A maximal run of token characters that is worth a look."""
_ID = deferred(
    r"[0-9a-fA-F-]+"  # UUIDs, digests, commits, trace contexts
    r"|0x[0-9a-fA-F]+"
    r"|[0-9T:Z+.-]+"  # numbers and times
    r"|[0-7][0-9A-HJKMNP-TV-Z]{25}"  # ULID
    rf"|(?:{'|'.join(LISTS['words']['id_prefixes'].split())})(?:[_-](?:live|test|tool|[0-9]{{2}}))?[_-][A-Za-z0-9_-]+"
    r"|sha(?:1|256|384|512)[-_:=][A-Za-z0-9+/=_-]+"  # integrity hashes
    r"|[A-Za-z_]+=[A-Za-z_]+"
)
_PARTS = deferred(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_SEPARATORS = deferred(r"[-_/=+]+")
_WORD = deferred(r"[A-Za-z]?[a-z]{2,}|v[0-9]+|[A-Z][a-z]+[A-Za-z]*|[A-Z]{3,}")


def looks_random(token: str) -> bool:
    """Whether a run of token characters is more likely a key than an id, a name or a path."""
    token = token.strip("-_/")
    if len(token) < _SHORTEST or _ID().fullmatch(token):
        return False
    if "/" in token:
        parts = [part for part in token.split("/") if part]
        if "=" not in token.rstrip("=") and not any(_WORD().fullmatch(part) for part in parts):
            return _random(token)
        return any(len(part) >= _SHORTEST and not _ID().fullmatch(part) and _random(part) for part in parts)
    sides = token.rstrip("=").split("=")
    return any(len(side) >= _SHORTEST and not _ID().fullmatch(side) and _random(side) for side in sides)


def _random(token: str) -> bool:
    digits = sum(map(str.isdigit, token))
    if digits < 2 or max(map(len, _SEPARATORS().split(token))) < _LONGEST_NAME_PART:
        return False
    lower, upper = token != token.upper(), token != token.lower()
    if not (lower and upper):
        one_part = _SEPARATORS().search(token.rstrip("=")) is None
        if not one_part or len(token) < _SHORTEST_ONE_CASE or digits < 4:
            return False
    parts = _PARTS().findall(token)
    return sum(map(len, parts)) / len(parts) <= _LONGEST_PART_MEAN

"""Random-looking text that no other rule knows: tell a key from an id, a name and a path.

A random token changes between small letters, capitals and digits about every second character; names, paths and
version strings do so every third at most. Shapes that are ids everywhere are left alone.
"""

from __future__ import annotations

from antiphon.redact._deferred import deferred

RUN = deferred(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{24,200}(?![A-Za-z0-9+/=_-])")
"""A maximal run of token characters that is worth a look; longer ones are data (images, ciphertext)."""

_SHORTEST = 24
LONGEST = 200
_SHORTEST_ONE_CASE = 32
_LONGEST_PIECE_MEAN = 3.0
_LONGEST_NAME_PART = 12

_ID_PREFIXES = (
    "toolu srvtoolu call fc ctc msg resp req request run lc_run step thread asst assistant file batch msgbatch vs"
    " rs ws ig ci item conv conversation chatcmpl cmpl gen evt event cus pi ch py in inv ii sub si prod price acct"
    " seti pm src card ba po tr txn re dp cs user usr org proj project team task job trace span lane turn node skill"
    " container model embd modr ft ftjob ftckpt snap img image doc chunk page block comment issue pr rev build dpl"
    " app artifact checkpoint dataset example experiment feedback session"
).split()

_ID = deferred(
    r"[0-9a-fA-F-]+"  # UUIDs, digests, commits, trace contexts
    r"|0x[0-9a-fA-F]+"
    r"|[0-9T:Z+.-]+"  # numbers and times
    r"|[0-7][0-9A-HJKMNP-TV-Z]{25}"  # ULID
    rf"|(?:{'|'.join(_ID_PREFIXES)})(?:[_-](?:live|test|tool|[0-9]{{2}}))?[_-][A-Za-z0-9_-]+"
    r"|sha(?:1|256|384|512)[-_:=][A-Za-z0-9+/=_-]+"  # integrity hashes
    r"|[A-Za-z_]+=[A-Za-z_]+"
)
_PIECES = deferred(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
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
        one_piece = _SEPARATORS().search(token.rstrip("=")) is None
        if not one_piece or len(token) < _SHORTEST_ONE_CASE or digits < 4:
            return False
    pieces = _PIECES().findall(token)
    return sum(map(len, pieces)) / len(pieces) <= _LONGEST_PIECE_MEAN

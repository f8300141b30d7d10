"""Text that is a secret by its format: providers' tokens, common formats, and random-looking runs.

A random token switches between lower case, upper case and digits about every second character; names, paths and version
strings at most every third. Formats that are always ids are left alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from antiphon.redact._rules import LISTS

RUN_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-"
"""The characters of tokens; a run of at least :data:`MIN_RUN` of them is examined more closely."""

MIN_RUN = 20

LONGEST = 200
"""Longer runs are data (images, ciphertext)."""
_SHORTEST = 24
_SHORTEST_ONE_CASE = 32
_LONGEST_PART_MEAN = 3.0
_LONGEST_NAME_PART = 12


_compiled = functools.cache(re.compile)


def lazy_pattern(source: str) -> Callable[[], re.Pattern[str]]:
    """``pattern()`` is the compiled *source*, compiled on first use: most processes never see a secret."""
    return functools.cache(functools.partial(re.compile, source))


TOKENS = lazy_pattern(
    "(?<![A-Za-z0-9])(?:" + "|".join(f"(?P<{kind}>{pattern})" for kind, pattern in LISTS["tokens"].items()) + ")"
)
"""All providers in one pattern; ``match.lastgroup`` is the kind."""
TOKEN_TEXT = lazy_pattern(rf"[A-Za-z0-9+/=_.~:%-]{{{MIN_RUN},}}")
"""Where one of them may be: they consist of these characters and are at least this long. Most text is skipped."""
_START = lazy_pattern(LISTS["starts"]["any"])
_LATER_START = lazy_pattern(f"[^A-Za-z0-9](?:{LISTS['starts']['any']})")
_BEFORE_ONE = tuple(LISTS["starts"]["before"].split())
PRIVATE_KEY = lazy_pattern(
    r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?!-----BEGIN)[\s\S])*?(?:-----END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----|\Z)"
)
"""A private key in PEM armour; one that was cut off extends to the end of the text."""

URL_PASSWORD = lazy_pattern(
    r"[A-Za-z][A-Za-z0-9+.-]{1,30}://[^\s/?#:@\"'<>\[\]]{0,256}:(?P<secret>[^\s/?#\"'<>]{1,256})@"
)
"""``scheme://user:password@host``, including database URLs."""

URL_TOKEN = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]{1,30}://(?P<secret>[A-Za-z0-9_.~%-]{16,256})@")
"""``https://token@host``."""

HEADER = lazy_pattern(
    r"(?i)\b(?:proxy-)?authori[sz]ation\\*[\"'`]?[ \t]*[:=,][ \t]*\\*[\"'`]?[ \t]*"
    r"(?:(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey)[ \t]+)?(?P<secret>[^\s\"'`\\,;]{3,})"
)
"""An Authorization header in text; the scheme is kept."""

COOKIE = lazy_pattern(r"(?i)\b(?:set-)?cookies?:[ \t]*(?P<secret>[A-Za-z0-9_.$-]+=[^\r\n\"'`\\]+)")

SESSION_COOKIE = lazy_pattern(
    r"(?i)(?<![A-Za-z0-9])(?:j?sess(?:ion)?_?id|phpsessid|asp\.net_sessionid)[ \t]*=[ \t]*(?P<secret>[^\s;,&\"'`]{8,})"
)

BEARER = lazy_pattern(r"\b[Bb]earer (?P<secret>[A-Za-z0-9_+/=-]{20,}[A-Za-z0-9._~+/=-]*)")
BASIC = lazy_pattern(r"\b[Bb]asic (?P<secret>[A-Za-z0-9+/]{20,}={0,2})(?![A-Za-z0-9+/=])")

COMMA = r"\\*[\"']\s*,\s*"
"""Between two arguments in a serialised list (JSON, the ``repr`` of a command); a quote follows."""
_ARGUMENT = r"(?:(?!\\*[\"'])\S)"
"""A character of an argument without blanks and quotes; a backslash before a quote does not count."""

CURL_USER = lazy_pattern(
    rf"(?:[\s\"']-u|--user|--proxy-user)(?:[ =]?|{COMMA}\\*)[\"']?[^\s\"':]{{1,128}}:(?P<secret>{_ARGUMENT}{{1,256}})"
)

NETRC = lazy_pattern(r"\blogin\s+[^\s\"']{1,128}\s+password\s+(?P<secret>[^\s\"'\\]{3,256})")
"""``login NAME password …``, as in a ``.netrc`` file."""

RUN = lazy_pattern(rf"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{{{_SHORTEST},{LONGEST}}}(?![A-Za-z0-9+/=_-])")
"""A maximal run of token characters that is worth examining."""
_ID = lazy_pattern(
    r"[0-9a-fA-F-]+"  # UUIDs, digests, commits, trace contexts
    r"|0x[0-9a-fA-F]+"
    r"|[0-9T:Z+.-]+"  # numbers and times
    r"|[0-7][0-9A-HJKMNP-TV-Z]{25}"  # ULID
    rf"|(?:{'|'.join(LISTS['words']['id_prefixes'].split())})(?:[_-](?:live|test|tool|[0-9]{{2}}))?[_-][A-Za-z0-9_-]+"
    r"|sha(?:1|256|384|512)[-_:=][A-Za-z0-9+/=_-]+"  # integrity hashes
    r"|[A-Za-z_]+=[A-Za-z_]+"
)
_PARTS = lazy_pattern(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_SEPARATORS = lazy_pattern(r"[-_/=+]+")
_WORD = lazy_pattern(r"[A-Za-z]?[a-z]{2,}|v[0-9]+|[A-Z][a-z]+[A-Za-z]*|[A-Z]{3,}")


def may_hold_token(run: str, *, beside: bool) -> bool:
    """Whether a run of token characters may contain a provider's token: at its start or after a punctuation character.

    With other secrets *beside* it, a token may begin anywhere, because the text before it may be gone by the time it is
    looked for. A pattern that begins with a character set is matched many times faster than one that begins with an
    alternation.
    """
    if any(word in run for word in _BEFORE_ONE):
        return True
    if beside:
        return _START().search(run) is not None
    return _START().match(run) is not None or _LATER_START().search(run) is not None


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


# -- forms in which secrets are written: files, commands, statements, tables, sentences in several languages ----------
# Each form has words without one of which it cannot occur; they are searched for before any pattern.

_NOT_A_WORD = r"(?=\S*[^\sA-Za-z.,;:!?)\"']|\S*[a-z]\S*[A-Z])"
"""In a sentence, something is a secret only if it is not a plain word."""
_WORDS = (
    "passwort|kennwort|contraseña|contrasena|clave|mot de passe|senha|palavra-passe|wachtwoord|hasło|lösenord|"
    "пароль|密码|密碼|パスワード|비밀번호"
)
PASSWORDS = tuple(_WORDS.split("|"))
"""The word for a password in other languages."""
_NAMES = r"(?:db_?|user_?|api_?)?(?:password|passwd|pwd|passphrase|secret|token|api_?key)"


class SecretPattern(NamedTuple):
    """A pattern whose group ``secret`` is a secret of *kind*; compiled on first use."""

    words: tuple[str, ...]
    source: str
    kind: str
    personal: bool = False


SECRET_PATTERNS = (
    SecretPattern(
        ("mysql",),
        r"\bmysql[a-z]*\b[^\n]{0,200}?[\s\"']-p(?P<secret>[^\s'\"-](?:(?!\\*[\"']\s*[],])\S){2,})",
        "password",
    ),
    SecretPattern(
        ("sshpass",),
        rf"\bsshpass(?:\s+|{COMMA}\\*[\"'])-p(?:\s*|{COMMA}\\*)['\"]?(?P<secret>{_ARGUMENT}{{3,}})",
        "password",
    ),
    SecretPattern((":",), r"(?m)^[\w.*-]+:(?:[0-9]{2,5}|\*):[\w.*-]+:[\w.*-]+:(?P<secret>[^\s:]{4,})$", "password"),
    SecretPattern(
        ("pass", "secret", "token", "key"),
        rf"(?im)^[ \t-]*{_NAMES}[ \t]*:[ \t]*(?:[|>][+-]?)?[ \t]*\n[ \t]+(?P<secret>[^\s:#-][^\s:]{{3,}})[ \t]*$",
        "password",
    ),
    SecretPattern(
        ("<",),
        rf"(?i)<(?P<tag>[\w.:-]*{_NAMES})(?:\s[^<>]*)?>(?P<secret>[^<>\s][^<>]{{2,200}}?)</(?P=tag)>",
        "password",
    ),
    SecretPattern(
        ("value=",),
        rf"(?i)\b(?:key|name)=[\"'][\w.:-]*{_NAMES}[\"']\s+value=[\"'](?P<secret>[^\"']{{3,}})[\"']",
        "api_key",
    ),
    SecretPattern(
        PASSWORDS,
        rf"(?i)(?:{_WORDS})[\"']?\s*(?:[:=：]|\b(?:ist|es|est|lautet)\b)\s*[\"']?(?P<secret>[^\s\"',;]{{3,}})",
        "password",
    ),
    SecretPattern(
        ("jdbc:oracle",), r"(?i)jdbc:oracle:[a-z]+:[^\s/@:]{1,64}/(?P<secret>[^\s@]{1,128})@", "url_password"
    ),
    SecretPattern(("code=",), r"[?&]code=(?P<secret>[A-Za-z0-9._~%/+-]{10,512})", "oauth_code"),
    SecretPattern(
        ("password", "passcode", "passphrase"),
        r"(?i)\b(?:password|passcode|passphrase)\s+(?:is|was|to|will be)\s+[\"'`]?"
        + _NOT_A_WORD
        + r"(?P<secret>[^\s\"'`,]{4,}[^\s\"'`,.;!?)])",
        "password",
    ),
    SecretPattern(
        ("password", "identified"),
        r"(?i)\b(?:with\s+(?:encrypted\s+)?password|identified\s+by|set\s+password(?:\s+for\s+\S+)?\s*=)\s+"
        r"'(?P<secret>[^'\n]{1,200})'",
        "password",
    ),
    SecretPattern(
        ("passport", "reisepass", "pasaporte", "passeport"),
        r"(?i:passport|reisepass|pasaporte|passeport)(?i:\s*(?:no|nr|number|num|nummer|número))?[.:#]?\s*(?i:is\s+)?"
        r"(?P<secret>[A-Z]{0,2}[0-9]{6,9}|[A-Z][0-9A-Z]{8})(?![A-Za-z0-9])",
        "passport",
        True,
    ),
    SecretPattern(
        ("-",), r"(?<![0-9-])(?P<secret>(?!000|666|9)[0-9]{3}-(?!00)[0-9]{2}-(?!0000)[0-9]{4})(?![0-9-])", "ssn", True
    ),
)
QUICK = (
    *("mysql", "sshpass", "</", "value=", "jdbc:oracle", "code=", "identified by", "insert into"),
    *("kennwort", "contrase", "clave", "mot de passe", "senha", "wachtwoord", "palavra-passe"),
)
"""Words that none of the other causes covers; a document in other scripts is always checked for these."""
QUICK_ELSEWHERE = tuple(
    pattern.encode() for word in PASSWORDS if not word.isascii() for pattern in (word, word.capitalize(), word.upper())
)
PGPASS = re.compile(rb":[0-9*]{1,5}:[^\s:]+:[^\s:]+:")
_NAMED_COLUMN = re.compile(rf"(?i)\A[\s\"'`]*{_NAMES}[\s\"'`]*\Z")
_INSERT = lazy_pattern(r"(?is)\binsert\s+into\s+[^\s(]+\s*\((?P<names>[^()]{1,500})\)\s*values\s*(?P<rows>\(.{1,4000})")
_SQL_VALUE = lazy_pattern(r"'(?:[^']|'')*'|[^,()']+")


def find(text: str, *, secrets: bool, personal: bool) -> Iterator[tuple[int, int, str]]:
    """(start, end, kind) of what the forms match."""
    lowered = text.lower()
    for pattern in SECRET_PATTERNS:
        if (personal if pattern.personal else secrets) and any(word in lowered for word in pattern.words):
            for match in _compiled(pattern.source).finditer(text):
                yield *match.span("secret"), pattern.kind
    if secrets:
        if "\n" in text and ("pass" in lowered or "secret" in lowered or "token" in lowered or "key" in lowered):
            yield from _columns(text)
        if "insert into" in lowered:
            yield from _inserted(text)


def _columns(text: str) -> Iterator[tuple[int, int, str]]:
    """Values below a table heading: comma-separated, or Markdown."""
    lines = list(_lines(text))
    for number, (_, head) in enumerate(lines):
        mark = "|" if head.lstrip().startswith("|") else "," if "," in head else "\t" if "\t" in head else ""
        places = [at for at, cell in enumerate(head.split(mark)) if _NAMED_COLUMN.match(cell)] if mark else []
        if not places:
            continue
        width = head.count(mark)
        for start, line in lines[number + 1 :]:
            if line.count(mark) != width:
                break
            cells = line.split(mark)
            for place in places:
                cell = cells[place]
                value = cell.strip(" \t\r\"'`")
                if len(value) >= 3 and set(value) - set("-: "):
                    begin = start + len(mark.join(cells[:place])) + (1 if place else 0) + cell.index(value)
                    yield begin, begin + len(value), "password"


def _lines(text: str) -> Iterable[tuple[int, str]]:
    position = 0
    for line in text.split("\n"):
        yield position, line
        position += len(line) + 1


def _inserted(text: str) -> Iterator[tuple[int, int, str]]:
    """Values of an SQL ``INSERT`` whose column is named as a secret."""
    for match in _INSERT().finditer(text):
        names = match["names"].split(",")
        places = {at for at, name in enumerate(names) if _NAMED_COLUMN.match(name)}
        if not places:
            continue
        base = match.start("rows")
        found = [part for part in _SQL_VALUE().finditer(match["rows"]) if part[0].strip()]
        for number, part in enumerate(found):
            if number % len(names) in places and part[0].startswith("'") and len(part[0]) > 3:
                yield base + part.start() + 1, base + part.end() - 1, "password"

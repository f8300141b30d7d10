"""Forms that secrets are written in: files, commands, statements, tables and sentences of several languages.

Each form has words without one of which it cannot occur; they are looked for before any pattern is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from antiphon.redact._tokens import deferred

_NOT_A_WORD = r"(?=\S*[^\sA-Za-z.,;:!?)\"']|\S*[a-z]\S*[A-Z])"
"""What stands in a sentence is a secret only if it is no plain word."""
_WORDS = (
    "passwort|kennwort|contraseña|contrasena|clave|mot de passe|senha|palavra-passe|wachtwoord|hasło|lösenord|"
    "пароль|密码|密碼|パスワード|비밀번호"
)
_NAMES = r"(?:db_?|user_?|api_?)?(?:password|passwd|pwd|passphrase|secret|token|api_?key)"


class Form(NamedTuple):
    """A pattern whose group ``secret`` is a secret of *kind*."""

    words: tuple[str, ...]
    pattern: Callable[[], re.Pattern[str]]
    kind: str
    personal: bool = False


FORMS = (
    Form(("mysql",), deferred(r"\bmysql[a-z]*\b[^\n]{0,200}?\s-p(?P<secret>[^\s'\"-]\S{2,})"), "password"),
    Form(("sshpass",), deferred(r"\bsshpass\s+-p\s*['\"]?(?P<secret>[^\s'\"]{3,})"), "password"),
    Form(
        (":",),
        deferred(r"(?m)^[\w.*-]+:(?:[0-9]{2,5}|\*):[\w.*-]+:[\w.*-]+:(?P<secret>[^\s:]{4,})$"),
        "password",
    ),
    Form(
        ("pass", "secret", "token", "key"),
        deferred(
            rf"(?im)^[ \t-]*{_NAMES}[ \t]*:[ \t]*(?:[|>][+-]?)?[ \t]*\n[ \t]+(?P<secret>[^\s:#-][^\s:]{{3,}})[ \t]*$"
        ),
        "password",
    ),
    Form(
        ("<",),
        deferred(rf"(?i)<(?P<tag>[\w.:-]*{_NAMES})(?:\s[^<>]*)?>(?P<secret>[^<>\s][^<>]{{2,200}}?)</(?P=tag)>"),
        "password",
    ),
    Form(
        ("value=",),
        deferred(rf"(?i)\b(?:key|name)=[\"'][\w.:-]*{_NAMES}[\"']\s+value=[\"'](?P<secret>[^\"']{{3,}})[\"']"),
        "api_key",
    ),
    Form(
        tuple(_WORDS.split("|")),
        deferred(
            rf"(?i)(?:{_WORDS})[\"']?\s*(?:[:=：]|\b(?:ist|es|est|lautet)\b)\s*[\"']?(?P<secret>[^\s\"',;]{{3,}})"
        ),
        "password",
    ),
    Form(
        ("jdbc:oracle",), deferred(r"(?i)jdbc:oracle:[a-z]+:[^\s/@:]{1,64}/(?P<secret>[^\s@]{1,128})@"), "url_password"
    ),
    Form(("code=",), deferred(r"[?&]code=(?P<secret>[A-Za-z0-9._~%/+-]{10,512})"), "oauth_code"),
    Form(
        ("password", "passcode", "passphrase"),
        deferred(
            r"(?i)\b(?:password|passcode|passphrase)\s+(?:is|was|to|will be)\s+[\"'`]?"
            + _NOT_A_WORD
            + r"(?P<secret>[^\s\"'`,]{4,}[^\s\"'`,.;!?)])"
        ),
        "password",
    ),
    Form(
        ("password", "identified"),
        deferred(
            r"(?i)\b(?:with\s+(?:encrypted\s+)?password|identified\s+by|set\s+password(?:\s+for\s+\S+)?\s*=)\s+"
            r"'(?P<secret>[^'\n]{1,200})'"
        ),
        "password",
    ),
    Form(
        ("passport", "reisepass", "pasaporte", "passeport"),
        deferred(
            r"(?i:passport|reisepass|pasaporte|passeport)(?i:\s*(?:no|nr|number|num|nummer|número))?[.:#]?\s*(?i:is\s+)?"
            r"(?P<secret>[A-Z]{0,2}[0-9]{6,9}|[A-Z][0-9A-Z]{8})(?![A-Za-z0-9])"
        ),
        "passport",
        True,
    ),
    Form(
        ("-",),
        deferred(r"(?<![0-9-])(?P<secret>(?!000|666|9)[0-9]{3}-(?!00)[0-9]{2}-(?!0000)[0-9]{4})(?![0-9-])"),
        "ssn",
        True,
    ),
)
QUICK = (
    *("mysql", "sshpass", "</", "value=", "jdbc:oracle", "code=", "identified by", "insert into"),
    *("kennwort", "contrase", "clave", "mot de passe", "senha", "wachtwoord", "palavra-passe"),
)
"""Words that none of the other causes of a look covers; a document in other scripts is always looked at for these."""
QUICK_ELSEWHERE = tuple(word.encode() for word in _WORDS.split("|") if not word.isascii())
PGPASS = re.compile(rb":[0-9*]{1,5}:[^\s:]+:[^\s:]+:")
_NAMED_COLUMN = re.compile(rf"(?i)\A[\s\"'`]*{_NAMES}[\s\"'`]*\Z")
_INSERT = deferred(r"(?is)\binsert\s+into\s+[^\s(]+\s*\((?P<names>[^()]{1,500})\)\s*values\s*(?P<rows>\(.{1,4000})")
_SQL_VALUE = deferred(r"'(?:[^']|'')*'|[^,()']+")


def find(text: str, *, secrets: bool, personal: bool) -> Iterator[tuple[int, int, str]]:
    """(start, end, kind) of what the forms show."""
    lowered = text.lower()
    for form in FORMS:
        if (personal if form.personal else secrets) and any(word in lowered for word in form.words):
            for match in form.pattern().finditer(text):
                yield *match.span("secret"), form.kind
    if secrets:
        if "\n" in text and ("pass" in lowered or "secret" in lowered or "token" in lowered or "key" in lowered):
            yield from _columns(text)
        if "insert into" in lowered:
            yield from _inserted(text)


def _columns(text: str) -> Iterator[tuple[int, int, str]]:
    """Values below a heading of a table: comma-separated, or of Markdown."""
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

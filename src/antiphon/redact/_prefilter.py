"""Say quickly that a document has no secret: most have none, and each is looked at once per call.

It may be wrong in one direction only: what it lets pass, the rules would not have changed either (by test). The
standard library's regular expressions are fast when a pattern begins with a fixed text and slow when it begins with
a choice. So all letters that are rare in prose and typical of our words (k, v, p, j) are folded into one mark, and
one search for that mark covers ``password``, ``token``, ``api_key``, ``cookie``, ``pin`` … at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from antiphon.redact._entropy import looks_random
from antiphon.redact._fields import KEY_OF, words
from antiphon.redact._kinds import MIN_RUN, RUN_CHARS, TOKEN_STARTS
from antiphon.redact._rules import Rules

Search = Callable[[bytes], object]

_MARKED = "kvpj"
_MARK = "\x01"
_BLANKS = "-_.$ \t"


def _folding() -> bytes:
    table = bytearray(range(256))
    for code in range(128):
        char = chr(code).lower()
        if char in _MARKED:
            char = _MARK
        elif char in _BLANKS:
            char = " "
        elif char.isdigit():
            char = "0"
        table[code] = ord(char)
    return bytes(table)


_FOLD = _folding()


def _ending(word: str) -> str:
    """The last four characters of *word* in the folded alphabet; a shorter word is filled with anything."""
    folded = word.encode().translate(_FOLD).decode()[-4:]
    return "." * (4 - len(folded)) + folded


_M = _MARK
_KEYS = "|".join(sorted({_ending(word) for word in KEY_OF}))
_NAMED = r" *[\"'`:=\\]"
"""What follows a short word that is used as a name."""

_SECRET_WORDS = (
    # Each way on begins with a character, so that a mark costs a glance and not a look back.
    f"{_M}(?:"
    f"en(?<=to{_M}en)"  # token
    f"|ie(?<=oo{_M}ie)"  # cookie
    f"|ey(?:(?<=(?:{_KEYS}){_M}ey)|(?<=(?:{_KEYS}) {_M}ey)|(?<=(?:{_KEYS})  {_M}ey))"  # api_key …
    f"|ass(?:[w{_M}]|code|{_NAMED}|(?<=  {_M}ass) )"  # password, passphrase, passcode, pass, --pass
    f"|w(?:[dt]|{_NAMED}|(?<=  {_M}w) )"  # pwd, jwt, pw, --pw
    f"|[{_M}c](?<=c{_M}.)"  # cvv, cvc
    f"|in(?:(?: ?(?:code|number))?{_NAMED}|(?<=  {_M}in) )"  # pin, --pin
    f"|[ \"'`:=\\\\c](?<=ot{_M}.)"  # otp
    f"|hone"  # phone
    f")",
    r"cre(?:t(?<=secret)(?<!\[secret)|d(?!it))",  # secret, credential
    r"u(?:th(?<=auth)(?:ori[sz]a|[^a-z])|rl (?<=curl ))",
    r"ss(?:n(?![a-z])|(?:ion)? ?id *=)",  # ssn, session cookies
)
_PERSONAL_WORDS = (r"0000(?:(?<=000 0000)|000000)", f"{_M}hone")
_USER_AT = re.compile(rb"@(?<=[^\s\"]@)")
_AZURE = re.compile(rb"~(?<=[0-9]Q~)")
_DIALLED = re.compile(rb"\+[0-9]")

_RUNS = bytes(ord("x") if chr(code) in RUN_CHARS + "%" else ord(" ") for code in range(256))
_LONG_RUN = b"x" * MIN_RUN
_RUN = re.compile(_LONG_RUN + b"x*")
_DOT_TOKEN = re.compile(rb"\.[A-Za-z0-9_-]")
_SCHEMES = (b"earer ", b"asic ", b"\\")


class Prefilter:
    """``may_hold(document)`` is false only for documents that the rules leave as they are."""

    __slots__ = ("_folded", "_marked", "_runs", "_user_texts")

    def __init__(self, rules: Rules) -> None:
        patterns: list[str] = []
        if rules.secrets:
            patterns += _SECRET_WORDS
        if rules.personal:
            patterns += _PERSONAL_WORDS[:1] if rules.secrets else _PERSONAL_WORDS
        user = [rule for rule in rules.user if rules.personal or not rule.personal]
        patterns += [
            r" {0,2}".join(word.encode().translate(_FOLD).decode() for word in words(rule.field))
            for rule in user
            if rule.field
        ]
        self._folded: tuple[Search, ...] = tuple(re.compile(p.encode(), re.DOTALL).search for p in patterns)
        marked: list[tuple[bytes, Search]] = []
        if rules.secrets or rules.personal:
            marked.append((b"@", _USER_AT.search))
        if rules.secrets:
            marked.append((b"~", _AZURE.search))
        if rules.personal:
            marked.append((b"+", _DIALLED.search))
        self._marked = tuple(marked)
        self._runs = rules.secrets or rules.entropy
        self._user_texts = tuple(rule.compile().search for rule in user if rule.pattern)

    def may_hold(self, document: bytes) -> bool:
        """Whether *document* (JSON or text, UTF-8) has to be looked at by the rules."""
        folded = document.translate(_FOLD)
        for search in self._folded:
            if search(folded) is not None:
                return True
        for mark, search in self._marked:
            if mark in document and search(document) is not None:
                return True
        if self._runs:
            runs = document.translate(_RUNS)
            if _LONG_RUN in runs and _suspicious(document, runs):
                return True
        if b"\\" in document and (self._user_texts or b"\\u" in document):
            return True
        if self._user_texts:
            text = document.decode("utf-8", "replace")
            return any(search(text) is not None for search in self._user_texts)
        return False


def _suspicious(document: bytes, runs: bytes) -> bool:
    """Whether one of the long runs of token characters is more than an id, a name or a path."""
    for match in _RUN.finditer(runs):
        start, end = match.span()
        if document[max(0, start - 6) : start].endswith(_SCHEMES) or document[max(0, start - 1) : start] == b".":
            return True
        if _DOT_TOKEN.match(document, end):
            return True
        token = document[start:end].decode()
        if "%" in token or TOKEN_STARTS().search(token) or looks_random(token):
            return True
    return False

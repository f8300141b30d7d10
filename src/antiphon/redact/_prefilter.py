"""Decide quickly that a document has no secret: most have none, and each is checked once per call.

False positives are allowed, false negatives are not: whatever it passes, the rules would not have changed either
(tested). The standard library's regular expressions are fast if a pattern begins with a literal and slow if it begins
with an alternation. So all letters that are rare in prose and typical of our words (k, v, p, j) are folded into one
mark, and one search for that mark covers ``password``, ``token``, ``api_key``, ``cookie``, ``pin`` … at once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from antiphon.redact._names import KEY_OF, TOKENS_OF, words
from antiphon.redact._rules import Rules
from antiphon.redact._tokens import (
    LONGEST,
    MIN_RUN,
    PGPASS,
    QUICK,
    QUICK_ELSEWHERE,
    RUN_CHARS,
    looks_random,
    may_hold_token,
)

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


def _after(owners: frozenset[str], word: str) -> str:
    """A lookbehind from the end of *word*: one of *owners* precedes it, with up to three blanks between.

    Four characters of an owner are enough; each length has its own lookbehind, because those have a fixed width.
    """
    endings = {owner.encode().translate(_FOLD).decode()[-4:] for owner in owners}
    looks = [
        f"(?<=(?:{'|'.join(sorted(end for end in endings if len(end) == size))}){' ' * blanks}{word})"
        for size in sorted({len(end) for end in endings})
        for blanks in range(4)
    ]
    return f"(?:{'|'.join(looks)})"


_M = _MARK
_NAMED = rf"[^a-z{_M}\"'`:=\\]{{0,16}}(?:[\"'`:=\\]|(?<=%0)[ad])"
"""What follows a short word at the end of a name: perhaps a number or bracket, then a quote or a value's separator."""

_SECRET_WORDS = (
    # Each alternative begins with a character, so that a mark costs one comparison and no lookbehind.
    f"{_M}(?:"
    f"en(?<=to{_M}en)(?:(?!s(?!tring)|i[sz])"  # token, but not the tokens of a model
    f"|s{_after(TOKENS_OF, f'to{_M}ens')})"  # access_tokens
    f"|ie(?<=oo{_M}ie)"  # cookie
    f"|ey{_after(KEY_OF, f'{_M}ey')}"  # api_key …
    f"|ass(?:[w{_M}]|code|{_NAMED})"  # password, passphrase, passcode, pass
    f"|w(?:[dt]|{_NAMED})"  # pwd, jwt, pw
    f"|[{_M}c](?<=c{_M}.)(?:(?![a-z{_M}])|code|number)"  # cvv, cvc
    f"|in(?: {{0,3}}(?:code|number))?{_NAMED}"  # pin
    f"|[^abd-mo-z{_M}](?<=ot{_M}.)"  # otp, otpCode, otpNumber
    f"|hone"  # phone
    f")",
    r"cre(?:t(?<=secret)(?<!\[secret)|d(?!it))",  # secret, credential
    r"u(?:th(?<=auth)(?:ori[sz]a|[^a-z])|rl(?<=curl))",
    r"ss(?:n(?![a-z])|(?:ion)? ?id *=)",  # ssn, session cookies
)
_FORM_WORDS = tuple(word.encode().translate(_FOLD).decode("latin-1") for word in QUICK)
_FLAG = re.compile(
    rb"--(?:[a-z][a-z0-9-]{0,38}[0-9-])?(?:pass|pw|pin|otp)(?:[0-9-]{0,3}(?:code|number))?[0-9-]*(?:[ \t]|\\t)"
)
"""``--db-pass VALUE``: these words are short, so they only count as flags."""
_BRACKETED = re.compile(rb"\[(?!secret:[a-z0-9_]{1,40}(?::[0-9a-f]{16})?\])(?i:secret)")
"""``config[secret]``, but not a placeholder."""
_NUMBERS = re.compile(rb"0000(?:(?<=000 0000)|000000)")
_GROUPED = re.compile(rb"000 0000(?:(?<=000 000 0000)|(?<=0000 0000)|(?<=\) 000 0000)|(?<=\)000 0000))")
_LONG_NUMBER = re.compile(rb"0000000000" + rb"0*")
_ACCOUNT = re.compile(rb"[A-Z]{2}[0-9]{2}[A-Z0-9]{11}")
_NOT_BEFORE_CARD = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz.+_/-"
_LOOKS_AROUND = re.compile(r"[\^$]|\\[AZ]|\(\?(?:[=!]|<[=!])")
"""Context assertions in a user's pattern: in the whole document the context is different."""
_USER_AT = re.compile(rb"@(?<=[^\s\"]@)")
_AZURE = re.compile(rb"~(?<=[0-9]Q~)")
_DIALLED = re.compile(rb"\+[0-9]")

_RUNS = bytes(ord("x") if chr(code) in RUN_CHARS + "%" else ord(" ") for code in range(256))
_LONG_RUN = "x" * MIN_RUN
_RUN = re.compile(_LONG_RUN.encode() + b"x*")
_DOT_TOKEN = re.compile(rb"\.[A-Za-z0-9_-]")
_HEX = re.compile(r"[0-9a-f-]+")
_SCHEMES = (b"earer ", b"asic ", b"\\")


WORDS, AT, TILDE, NUMBERS, RUNS, USER, KNOWN = 1, 2, 4, 8, 16, 32, 64
ALL = WORDS | AT | TILDE | NUMBERS | RUNS | USER | KNOWN
"""Why a document must be checked: each detector names the causes it needs to find anything; known values of a run are
looked up by its redactor.
"""

_LARGE_BYTES = 8_192
_ANSWERS = 512


class Prefilter:
    """``causes(document)`` is 0 only for documents that the rules leave unchanged."""

    def __init__(self, rules: Rules) -> None:
        patterns = _SECRET_WORDS if rules.secrets else (f"{_M}hone",) if rules.personal else ()
        user = [rule for rule in rules.user if rules.personal or not rule.personal]
        self._words = tuple(_search(pattern) for pattern in patterns)
        self._user_fields = tuple(_search(_name_pattern(rule.field)) for rule in user if rule.field)
        self._user_texts = tuple(rule.compile().search for rule in user if rule.pattern)
        self.has_users = bool(user)
        self._user_anywhere = any(_LOOKS_AROUND.search(rule.pattern) for rule in user if rule.pattern)
        self._secrets = rules.secrets
        self._answers: dict[tuple[bytes, int], int] = {}
        """Cached answers for large documents, by digest: the same rules give the same answer."""
        self._asked = WORDS | (USER if user else 0) | (RUNS if rules.entropy else 0)
        self._asked |= (AT | TILDE | RUNS if rules.secrets else 0) | (AT | NUMBERS if rules.personal else 0)

    def causes(self, document: bytes, within: int = ALL) -> int:
        """Why *document* (JSON or text, UTF-8) must be checked by the rules, restricted to *within*.

        A large document is checked once: it recurs as a result, in an event, in a fork and as a separate text.
        """
        if len(document) < _LARGE_BYTES:
            return self._causes(document, within)
        key = hashlib.sha256(document).digest(), within
        found = self._answers.get(key)
        if found is None:
            found = self._causes(document, within)
            if len(self._answers) >= _ANSWERS:
                self._answers.clear()
            self._answers[key] = found
        return found

    def _causes(self, document: bytes, within: int) -> int:
        folded = document.translate(_FOLD)
        text = folded.decode("latin-1")  # searching text takes a third of the time of searching bytes
        if "\\" in text and (self._user_texts or "\\u" in text or "\\/" in text):
            return ALL
        found = 0
        within &= self._asked
        if within & WORDS and self._has_words(text, folded, document):
            found = WORDS
        if within & USER and self._has_users(document, folded):
            found |= USER
        if "@" in text and within & AT and _USER_AT.search(document):
            found |= AT
        if "~" in text and within & TILDE and _AZURE.search(document):
            found |= TILDE
        if within & RUNS:
            runs = document.translate(_RUNS)
            if _LONG_RUN in runs.decode("latin-1") and _suspicious(document, runs, beside=found != 0):
                found |= RUNS
        if within & NUMBERS and ("0000" in text or "+" in text):
            if _has_number(document, folded, beside=found != 0):
                found |= NUMBERS | (within & RUNS)  # the rest of a run may look random once a number is removed
        return found

    def _has_words(self, text: str, folded: bytes, document: bytes) -> bool:
        for search in self._words:
            if search(folded) is not None:
                return True
        if "  " in text and b"--" in document and self._secrets and _FLAG.search(document) is not None:
            return True
        if any(map(text.__contains__, _FORM_WORDS)):
            return True
        if ":0" in text and PGPASS.search(document) is not None:
            return True
        if not document.isascii() and any(word in document for word in QUICK_ELSEWHERE):
            return True
        return "[secret" in text and self._secrets and _BRACKETED.search(document) is not None

    def _has_users(self, document: bytes, folded: bytes) -> bool:
        if self._user_anywhere or any(search(folded) is not None for search in self._user_fields):
            return True
        text = document.decode("utf-8", "replace")
        return any(search(text) is not None for search in self._user_texts)


def _search(pattern: str) -> Search:
    return re.compile(pattern.encode(), re.DOTALL).search


def _name_pattern(field: str) -> str:
    if not field.isascii():  # letters of other scripts have case too: any of them matches
        return r"[\x80-\xff]"
    return r"[ _.$-]{0,3}".join(word.encode().translate(_FOLD).decode() for word in words(field))


def _has_number(document: bytes, folded: bytes, *, beside: bool) -> bool:
    """Whether there may be a telephone number, a card, a bank account or a social security number.

    If there are other secrets *beside* it, the text before a card may be gone by the time the card is looked for.
    """
    if b"+" in document and _DIALLED.search(document) is not None:
        return True
    if b"000 00 0000" in folded:
        return True
    if _NUMBERS.search(folded) is None:
        return False
    if _GROUPED.search(folded) is not None:
        return True
    for match in _LONG_NUMBER.finditer(folded):
        start, end = match.span()
        if beside and end - start >= 14:
            return True
        before = document[start - 1 : start] if start else b" "
        if document[start - 2 : start - 1] == b"\\":  # an escaped line break or tab, not a letter
            before = b" "
        if 14 <= end - start <= 16 and before not in _NOT_BEFORE_CARD:
            return True  # a card in one piece; times in milliseconds are shorter
        if before.isalpha() and _ACCOUNT.search(document, max(0, start - 12), end + 24) is not None:
            return True
    return False


def _suspicious(document: bytes, runs: bytes, *, beside: bool) -> bool:
    """Whether one of the long runs of token characters is more than an id, a name or a path.

    If there are other secrets *beside* it, part of it may be gone by the time the rest is checked (``…==password=…``).
    """
    for match in _RUN.finditer(runs):
        start, end = match.span()
        if document[max(0, start - 6) : start].endswith(_SCHEMES) or document[max(0, start - 1) : start] == b".":
            return True
        if _DOT_TOKEN.match(document, end):
            return True
        raw = document[start:end]
        if beside and (end - start > LONGEST or b"=" in raw):
            return True
        token = raw.decode()
        if _HEX.fullmatch(token):
            continue
        if "%" in token or may_hold_token(token, beside=beside):
            return True
        if end - start <= LONGEST and looks_random(token):
            return True
    return False

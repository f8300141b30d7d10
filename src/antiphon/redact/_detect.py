"""Find secrets in text. Rules apply in order; what one has matched is closed to the next.

A text is split at the masks it already has, and each part is searched separately until nothing is found in any. That
makes redaction idempotent.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from antiphon.redact import _prefilter as quick
from antiphon.redact import _tokens as tokens
from antiphon.redact._names import Field, Names
from antiphon.redact._rules import LISTS, MASK, Rules
from antiphon.redact._tokens import lazy_pattern, looks_random

_ESCAPES = re.compile(r"\\[nrt]")
_PAIR = lazy_pattern(
    r"(?:(?<![A-Za-z0-9_.$-])|(?<=%(?:26|3F|3f)))(?:--|-)?"
    r"(?P<name>[A-Za-z_$][A-Za-z0-9_.$-]{1,63}+(?: (?:[Kk]ey|[Tt]oken|[Ss]ecret|[Cc]ode))?)"
    r"(?P<close>\\*[\"'`])?\]?(?:\*{1,2}(?=:))?[ \t]*(?P<sep>=>|:=|={1,2}|:|%3[DdAa])"
    r"(?:(?<=:)(?:\*{1,2}|__)(?=[ \t]))?[ \t]*"  # the end of **name:**
    r"|(?<![A-Za-z0-9_.$-])--(?P<flag>[a-z][a-z0-9-]{1,40}+)"
    rf"(?:[ \t]+(?=[^\s-])|{tokens.COMMA}(?=\\*[\"'][^-]))"
)
_QUOTE = lazy_pattern(r"\\*[\"'`]")
_NEXT = r"[A-Za-z_$][A-Za-z0-9_.$\[\]%-]{0,63}"
_PLAIN = r"[^\s;&,\"'`\\]"
_BARE = lazy_pattern(rf"{_PLAIN}+(?:&(?!(?:amp;)?{_NEXT}=)(?:amp;)?{_PLAIN}*)*")
"""An unquoted value. It ends at ``&`` only if ``name=`` follows: a password may contain one."""
_ENCODED = lazy_pattern(rf"(?:(?!%(?:26{_NEXT}%3[Dd]|20|0[AaDd]|3[Bb])){_PLAIN})+")
"""The same for a URL-encoded value."""
_LONGEST_QUOTED = 4096

TRIVIAL = lazy_pattern(
    r"(?i:\*+|[|>][+-]?|x{3,}|\.{3,}|-+|true|false|yes|no|on|off|none|null|nil|undefined|required|optional|string|str|bytes"
    r"|int|bool|any|text|self|redacted|hidden|masked|include|omit|same-origin|bearer|basic|digest|oauth2?|api_?key"
    r"|<[^<>]*>|\[[a-z ]*\]|\(.*\)|\{\{.*\}\}|%[a-z_0-9]+%)|env:[A-Z0-9_]+"
    r"|(?:(?:Bearer|Basic|Token) )?(?:\$[A-Z_][A-Z0-9_]*|\$\{[^}]*\})"
)
"""Looks like a value but is no secret: masks, variables, type names, words such as ``required``."""

_CODE = lazy_pattern(
    r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*[(\[]|[a-z_]+(?:\.[A-Za-z_]+)+$|await$|new$|lambda$"
)
_PLAIN_WORD = lazy_pattern(r"[A-Za-z][a-z]*[.!?)]*")
_PROSE = lazy_pattern(r"[ \t]+[A-Za-z(]")
_SHAPES = {
    "pin": lazy_pattern(r"[0-9]{3,12}"),
    "cvv": lazy_pattern(r"[0-9]{3,4}"),
    "ssn": lazy_pattern(r"[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}|[0-9]{6}[- ]?[0-9]{4,5}"),
    "otp": lazy_pattern(r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{4,12}"),
    "phone": lazy_pattern(r"\+?[0-9][0-9 ().-]{3,22}[0-9]"),
    "card": lazy_pattern(r"[0-9]{14,16}|[0-9]{4}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{1,7}"),
}
"""The format of a value whose field name calls it a code or a number."""
_LETTER = r"A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0370-\u03ff\u0400-\u052f"
"""Latin, Greek and Cyrillic: scripts that put spaces around an address. Others may be adjacent to one."""
_EMAIL = lazy_pattern(
    rf"(?<![{_LETTER}0-9._%+@-])(?<!//)(?!git@)[{_LETTER}0-9][{_LETTER}0-9._%+'-]{{0,63}}(?<!')"
    rf"@(?:[{_LETTER}0-9-]{{1,63}}\.){{1,8}}[{_LETTER}]{{2,24}}(?![{_LETTER}0-9-])"
)
_PHONE = lazy_pattern(
    r"(?<![A-Za-z0-9+.=/-])(?:"
    r"\+[0-9](?:[ ().-]{0,2}[0-9]){6,14}"
    r"|(?:\([0-9]{3}\) ?|[0-9]{3}[-. ])[0-9]{3}[-. ][0-9]{4}"
    r")(?![A-Za-z0-9-]|\.[0-9])"
)
_CARD = lazy_pattern(
    r"(?<![A-Za-z0-9.+_/-])"
    r"(?:[0-9]{14,16}|[0-9]{4}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{2,4}|3[0-9]{3}([ -])[0-9]{6}\2[0-9]{4,5})"
    r"(?![A-Za-z0-9_/-]|\.[0-9])"
)
_CARD_START = lazy_pattern(r"4|5[1-5]|2[2-7]|3[0-9]|6(?:011|4|5|2)")
_IBAN = lazy_pattern(r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?(?![A-Za-z0-9])")

_TOKEN_KINDS = frozenset(LISTS["tokens"])
Classify = Callable[[str], Field | None]


class Span(NamedTuple):
    """``text[start:end]`` is a secret of *kind*."""

    start: int
    end: int
    kind: str


Detector = Callable[[str], Iterable[Span]]


class TextRules:
    """The detectors that a set of rules enables, each with the causes it needs to find anything."""

    __slots__ = ("_detectors", "_entropy", "_personal", "_secrets", "names")

    def __init__(self, rules: Rules) -> None:
        self.names = Names(rules)
        self._detectors: list[tuple[int, Detector]] = [
            (quick.USER, _detector(rule.name, rule.compile()))
            for rule in rules.user
            if rule.pattern and (rules.personal or not rule.personal)
        ]
        if rules.secrets:
            self._detectors += [
                (quick.WORDS, _private_keys),
                (quick.RUNS | quick.TILDE, _tokens),
                (quick.AT, _urls),
                (quick.WORDS, _headers),
                (quick.RUNS, _schemes),
            ]
        self._secrets, self._personal = rules.secrets, rules.personal
        if rules.secrets or rules.personal:
            self._detectors.append((quick.WORDS | quick.NUMBERS, self._patterns))
        self._detectors.append((quick.WORDS | quick.NUMBERS | quick.USER, self._pairs))
        if rules.personal:
            self._detectors += [(quick.AT, emails), (quick.NUMBERS, numbers)]
        self._entropy: Detector | None = _random_runs if rules.entropy else None

    def _patterns(self, text: str) -> Iterator[Span]:
        for start, end, kind in tokens.find(text, secrets=self._secrets, personal=self._personal):
            if not TRIVIAL().fullmatch(text[start:end]):
                yield Span(start, end, kind)

    def _pairs(self, text: str) -> Iterator[Span]:
        return pair_spans(text, self.names.__getitem__)

    def spans(
        self, text: str, causes: int = quick.ALL, *, entropy: bool = True, closed: Iterable[tuple[int, int]] = ()
    ) -> list[Span]:
        """All secrets in *text*, in order; they overlap neither each other nor what is *closed*."""
        detectors = [detect for needed, detect in self._detectors if needed & causes]
        if entropy and self._entropy is not None and causes & quick.RUNS:
            detectors.append(self._entropy)
        found: list[Span] = []
        plain = without_escapes(text)
        todo = _open_parts(text, closed)
        while todo:
            start, end = todo.pop()
            spans = _first(text[start:end], detectors)
            if not spans and plain is not text:
                spans = _first(plain[start:end], detectors)
            position = start
            for span in spans:
                begin, stop = start + span.start, start + span.end
                found.append(Span(begin, stop, span.kind))
                todo.append((position, begin))
                position = stop
            if spans:
                todo.append((position, end))
        found.sort()
        return found


def without_escapes(text: str) -> str:
    """*text* with escaped line breaks and tabs (in a ``repr``, for example) replaced by blanks, in place.

    The letter of such an escape is not part of the word that follows: ``\\nsk-…`` begins with ``sk``.
    """
    return _ESCAPES.sub("  ", text) if "\\" in text else text


def _open_parts(text: str, closed: Iterable[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """The parts of *text* between masks and other closed ranges."""
    parts: list[tuple[int, int]] = []
    position = 0
    for start, end in sorted([*closed, *(match.span() for match in MASK.finditer(text))]):
        if start >= position:
            parts.append((position, start))
        position = max(position, end)
    parts.append((position, len(text)))
    return parts


def _first(part: str, detectors: list[Detector]) -> list[Span]:
    """The findings of the first detector that has any, in order and without overlaps."""
    if not part:
        return []
    for detect in detectors:
        chosen: list[Span] = []
        end = 0
        for span in sorted(detect(part)):
            if span.start >= end and span.end > span.start:
                chosen.append(span)
                end = span.end
        if chosen:
            return chosen
    return []


def _found(text: str, pattern: re.Pattern[str], kind: str, *, trivial: bool = True) -> Iterator[Span]:
    """Matches of *pattern* or its group ``secret``; unless *trivial*, without words that merely stand for a secret."""
    group = "secret" if "secret" in pattern.groupindex else 0
    for match in pattern.finditer(text):
        if trivial or not TRIVIAL().fullmatch(match[group]):
            yield Span(*match.span(group), kind)


def _detector(kind: str, pattern: re.Pattern[str]) -> Detector:
    return lambda text: _found(text, pattern, kind)


def _private_keys(text: str) -> Iterable[Span]:
    return _found(text, tokens.PRIVATE_KEY(), "private_key") if "PRIVATE KEY" in text else ()


def _tokens(text: str) -> Iterator[Span]:
    for part in tokens.TOKEN_TEXT().finditer(text):
        for match in tokens.TOKENS().finditer(text, *part.span()):
            yield Span(match.start(), match.end(), match.lastgroup or "")


def _urls(text: str) -> Iterator[Span]:
    if "@" in text:
        yield from _found(text, tokens.URL_PASSWORD(), "url_password", trivial=False)
        yield from _found(text, tokens.URL_TOKEN(), "url_token", trivial=False)


def _headers(text: str) -> Iterator[Span]:
    lower = text.lower()
    for word, pattern, kind in (
        ("authori", tokens.HEADER, "authorization"),
        ("cookie", tokens.COOKIE, "cookie"),
        ("sess", tokens.SESSION_COOKIE, "cookie"),
        ("curl", tokens.CURL_USER, "password"),
        ("login", tokens.NETRC, "password"),
    ):
        if word in lower:
            yield from _found(text, pattern(), kind, trivial=False)


def _schemes(text: str) -> Iterator[Span]:
    if "earer " in text:
        yield from _found(text, tokens.BEARER(), "bearer")
    if "asic " in text:
        for match in tokens.BASIC().finditer(text):
            if _is_basic(match["secret"]):
                yield Span(*match.span("secret"), "basic")


def _is_basic(text: str) -> bool:
    """Whether *text* is base64 of ``user:password``, and not the word that follows "basic"."""
    try:
        return b":" in base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False


def _random_runs(text: str) -> Iterator[Span]:
    for match in tokens.RUN().finditer(text):
        if looks_random(match[0]):
            yield Span(match.start(), match.end(), "high_entropy")


# -- name = value in running text: assignments, headers, connection strings, query strings, command-line flags ---------


def pair_spans(text: str, classify: Classify) -> Iterator[Span]:
    """The values next to a name that calls them secret."""
    position = 0
    while match := _PAIR().search(text, position):
        position = match.end()
        flag = match["flag"]
        field = classify(flag or match["name"])
        if field is None or field.mode == "keep":
            # What was matched as a value may be the next name.
            continue
        sep = match["sep"]
        bare = _ENCODED if sep is not None and sep[0] == "%" else _BARE
        found = _value(text, position, bare(), certain=flag is not None or sep != ":" or match["close"] is not None)
        if found is None:
            continue
        start, end = found
        if _counts(text[start:end], field, classify):
            yield Span(start, end, field.kind)
            position = end


def _value(text: str, position: int, unquoted: re.Pattern[str], *, certain: bool) -> tuple[int, int] | None:
    """The range of the value that begins at *position*, without its quotes."""
    quote = _QUOTE().match(text, position)
    if quote is not None:
        start = quote.end()
        end = _closing(text, start, quote[0])
        return (start, end) if end > start else None
    bare = unquoted.match(text, position)
    if bare is None or _CODE().match(bare[0]) or TRIVIAL().fullmatch(bare[0]):
        return None
    value = bare[0].rstrip(")]}>.")
    if not value:
        return None
    if not certain and _PLAIN_WORD().fullmatch(bare[0]) and _PROSE().match(text, bare.end()):
        # "Password: must be at least …" is prose; "password: swordfish" at the end of a line is not.
        return None
    return position, position + len(value)


def _closing(text: str, start: int, quote: str) -> int:
    """Where the quoted value ends: at the same quote, else at the end of the line."""
    position = start
    limit = min(len(text), start + _LONGEST_QUOTED)
    while position < limit:
        if text.startswith(quote, position):
            return position
        if text[position] == "\\" and len(quote) == 1:
            position += 1
        elif text[position] == "\n":
            return position
        position += 1
    return limit


def _counts(value: str, field: Field, classify: Classify) -> bool:
    if field.mode != "secret":
        return fits(field, value)
    if TRIVIAL().fullmatch(value):
        return False
    named = classify(value) if value.isidentifier() else None
    return named is None or named.mode == "keep"


def fits(field: Field, value: str) -> bool:
    """Whether *value* has the format that the field's name promises: ``pin: "D13"`` is a connector pin."""
    shape = _SHAPES.get(field.kind) if field.mode in ("digits", "personal") else None
    return shape is not None and shape().fullmatch(value.strip()) is not None


# -- personal data -----------------------------------------------------------------------------------------------------


def luhn(digits: str) -> bool:
    """The check digit of payment cards."""
    total = 0
    for position, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + position % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def iban_valid(text: str) -> bool:
    """The check digits of an international bank account number (mod 97)."""
    compact = text.replace(" ", "")
    if not 15 <= len(compact) <= 34:
        return False
    rearranged = compact[4:] + compact[:4]
    return int("".join(str(int(c, 36)) for c in rearranged)) % 97 == 1


def _is_card(text: str) -> bool:
    digits = text.replace(" ", "").replace("-", "")
    return 14 <= len(digits) <= 16 and _CARD_START().match(digits) is not None and luhn(digits)


def emails(text: str) -> Iterator[Span]:
    """E-mail addresses in *text*."""
    return _found(text, _EMAIL(), "email")


def numbers(text: str) -> Iterator[Span]:
    """Bank accounts, cards and telephone numbers in *text*."""
    for match in _IBAN().finditer(text):
        found = match[0]
        while found and not iban_valid(found):
            # The last group may belong to the next word: shorten by whole groups.
            found = found.rpartition(" ")[0]
        if found:
            yield Span(match.start(), match.start() + len(found), "iban")
    for match in _CARD().finditer(text):
        if _is_card(match[0]):
            yield Span(match.start(), match.end(), "card")
    yield from _found(text, _PHONE(), "phone")


def detected(kind: str, text: str) -> bool:
    """Whether a detector matches all of *text* as *kind*, as far as that can be decided without its context."""
    if kind in _TOKEN_KINDS:
        match = tokens.TOKENS().fullmatch(text)
        return match is not None and match.lastgroup == kind
    if kind == "email":
        return _EMAIL().fullmatch(text) is not None
    if kind == "card":
        return _CARD().fullmatch(text) is not None and _is_card(text)
    if kind == "iban":
        return iban_valid(text)
    if kind == "phone":
        return _PHONE().fullmatch(text) is not None
    if kind == "high_entropy":
        return looks_random(text)
    shape = _SHAPES.get(kind)
    if shape is not None and shape().fullmatch(text) is None:
        return False
    return TRIVIAL().fullmatch(text) is None

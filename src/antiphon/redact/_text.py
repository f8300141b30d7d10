"""Find secrets in text. Rules come in order; what one has taken is closed to the next.

A text is cut at the placeholders it already has, and each piece is searched alone until nothing is found in any.
That is why redacting twice is redacting once.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator

from antiphon.redact import _kinds as kinds
from antiphon.redact import _prefilter as quick
from antiphon.redact._entropy import RUN, looks_random
from antiphon.redact._names import Names
from antiphon.redact._pairs import TRIVIAL, pair_spans
from antiphon.redact._personal import emails, numbers
from antiphon.redact._placeholder import PLACEHOLDER
from antiphon.redact._rules import Rules
from antiphon.redact._spans import Span

_ESCAPES = re.compile(r"\\[nrt]")

Detector = Callable[[str], Iterable[Span]]


class TextRules:
    """The detectors that a set of rules switches on, each with the causes without which it finds nothing."""

    __slots__ = ("_detectors", "_entropy", "names")

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
        self._detectors.append((quick.WORDS | quick.NUMBERS | quick.USER, self._pairs))
        if rules.personal:
            self._detectors += [(quick.AT, emails), (quick.NUMBERS, numbers)]
        self._entropy: Detector | None = _random_runs if rules.entropy else None

    def _pairs(self, text: str) -> Iterator[Span]:
        return pair_spans(text, self.names.__getitem__)

    def spans(self, text: str, causes: int = quick.ALL, *, entropy: bool = True) -> list[Span]:
        """All secrets of *text* in order; they do not overlap."""
        detectors = [detect for needed, detect in self._detectors if needed & causes]
        if entropy and self._entropy is not None and causes & quick.RUNS:
            detectors.append(self._entropy)
        found: list[Span] = []
        plain = without_escapes(text)
        todo = _between_placeholders(text)
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
    """*text* with blanks for line breaks and tabs that are written out (in a ``repr``, say), each in its place.

    The letter of such an escape is no part of the word behind it: ``\\nsk-…`` begins with ``sk``.
    """
    return _ESCAPES.sub("  ", text) if "\\" in text else text


def _between_placeholders(text: str) -> list[tuple[int, int]]:
    pieces: list[tuple[int, int]] = []
    position = 0
    for match in PLACEHOLDER.finditer(text):
        pieces.append((position, match.start()))
        position = match.end()
    pieces.append((position, len(text)))
    return pieces


def _first(piece: str, detectors: list[Detector]) -> list[Span]:
    """What the first detector that finds anything finds, in order and without overlaps."""
    if not piece:
        return []
    for detect in detectors:
        chosen: list[Span] = []
        end = 0
        for span in sorted(detect(piece)):
            if span.start >= end and span.end > span.start:
                chosen.append(span)
                end = span.end
        if chosen:
            return chosen
    return []


def _detector(kind: str, pattern: re.Pattern[str]) -> Detector:
    group = "secret" if "secret" in pattern.groupindex else 0

    def detect(text: str) -> Iterator[Span]:
        for match in pattern.finditer(text):
            yield Span(*match.span(group), kind)

    return detect


def _private_keys(text: str) -> Iterator[Span]:
    if "PRIVATE KEY" not in text:
        return
    for match in kinds.PRIVATE_KEY().finditer(text):
        yield Span(match.start(), match.end(), "private_key")


def _tokens(text: str) -> Iterator[Span]:
    for match in kinds.TOKENS().finditer(text):
        yield Span(match.start(), match.end(), kinds.TOKEN_KINDS[match.lastgroup or ""])


def _urls(text: str) -> Iterator[Span]:
    if "@" in text:
        for pattern, kind in ((kinds.URL_PASSWORD, "url_password"), (kinds.URL_TOKEN, "url_token")):
            for match in pattern().finditer(text):
                if not TRIVIAL().fullmatch(match["secret"]):
                    yield Span(*match.span("secret"), kind)


def _headers(text: str) -> Iterator[Span]:
    lower = text.lower()
    for word, pattern, kind in (
        ("authori", kinds.HEADER, "authorization"),
        ("cookie", kinds.COOKIE, "cookie"),
        ("sess", kinds.SESSION_COOKIE, "cookie"),
        ("curl ", kinds.CURL_USER, "password"),
        ("login", kinds.NETRC, "password"),
    ):
        if word in lower:
            for match in pattern().finditer(text):
                if not TRIVIAL().fullmatch(match["secret"]):
                    yield Span(*match.span("secret"), kind)


def _schemes(text: str) -> Iterator[Span]:
    for match in kinds.BEARER().finditer(text):
        yield Span(*match.span("secret"), "bearer")
    for match in kinds.BASIC().finditer(text):
        if _is_basic(match["secret"]):
            yield Span(*match.span("secret"), "basic")


def _is_basic(text: str) -> bool:
    """Whether *text* is ``user:password`` in base64, and not the word that follows "basic"."""
    try:
        return b":" in base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False


def _random_runs(text: str) -> Iterator[Span]:
    for match in RUN().finditer(text):
        if looks_random(match[0]):
            yield Span(match.start(), match.end(), "high_entropy")

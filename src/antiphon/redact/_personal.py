"""Personal data in text: e-mail addresses, telephone numbers, payment cards, bank accounts (R14)."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.redact._deferred import deferred
from antiphon.redact._spans import Span

_EMAIL = deferred(
    r"(?<![A-Za-z0-9._%+@-])(?<!//)(?!git@)[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}"
    r"(?![A-Za-z0-9-])"
)
_PHONE = deferred(
    r"(?<![A-Za-z0-9+.=/-])(?:"
    r"\+[0-9](?:[ ().-]{0,2}[0-9]){6,14}"
    r"|(?:\([0-9]{3}\) ?|[0-9]{3}[-. ])[0-9]{3}[-. ][0-9]{4}"
    r")(?![A-Za-z0-9-]|\.[0-9])"
)
_CARD = deferred(
    r"(?<![A-Za-z0-9.+_/-])"
    r"(?:[0-9]{14,16}|[0-9]{4}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{2,4}|3[0-9]{3}([ -])[0-9]{6}\2[0-9]{4,5})"
    r"(?![A-Za-z0-9_/-]|\.[0-9])"
)
_CARD_START = deferred(r"4|5[1-5]|2[2-7]|3[0-9]|6(?:011|4|5|2)")
_IBAN = deferred(r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?(?![A-Za-z0-9])")


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
    """Where e-mail addresses stand in *text*."""
    for match in _EMAIL().finditer(text):
        yield Span(match.start(), match.end(), "email")


def numbers(text: str) -> Iterator[Span]:
    """Where bank accounts, cards and telephone numbers stand in *text*."""
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
    for match in _PHONE().finditer(text):
        yield Span(match.start(), match.end(), "phone")

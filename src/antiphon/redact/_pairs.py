"""``name = value`` in running text: assignments, headers, connection strings, query strings, command-line flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from antiphon.redact._deferred import deferred
from antiphon.redact._fields import Field
from antiphon.redact._spans import Span

_PAIR = deferred(
    r"(?:(?<![A-Za-z0-9_.$-])|(?<=%(?:26|3F|3f)))(?:--|-)?"
    r"(?P<name>[A-Za-z_$][A-Za-z0-9_.$-]{1,63}(?: (?:[Kk]ey|[Tt]oken|[Ss]ecret|[Cc]ode))?)"
    r"(?P<close>\\*[\"'`])?\]?[ \t]*(?P<sep>=>|:=|={1,2}|:|%3[DdAa])[ \t]*"
    r"|(?<![A-Za-z0-9_.$-])--(?P<flag>[a-z][a-z0-9-]{1,40})[ \t]+(?=[^\s-])"
)
_QUOTE = deferred(r"\\*[\"'`]")
_BARE = deferred(r"[^\s;&,\"'`\\]+")
_ENCODED_END = deferred(r"%(?:26|20|0[AaDd]|3[Bb])")
"""Where a value ends that is encoded for an address."""
_LONGEST_QUOTED = 4096

TRIVIAL = deferred(
    r"(?i:\*+|x{3,}|\.{3,}|-+|true|false|yes|no|on|off|none|null|nil|undefined|required|optional|string|str|bytes"
    r"|int|bool|any|text|self|redacted|hidden|masked|include|omit|same-origin|bearer|basic|digest|oauth2?|api_?key"
    r"|<[^<>]*>|\[[a-z ]*\]|\(.*\)|\{\{.*\}\}|%[a-z_0-9]+%)|\$[A-Z_][A-Z0-9_]*|\$\{[^}]*\}|env:[A-Z0-9_]+"
)
"""Stands for a secret and is none: masks, variables, type names, words such as ``required``."""

_CODE = deferred(
    r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*[(\[]|[a-z_]+(?:\.[A-Za-z_]+)+$|await$|new$|lambda$"
)
_PLAIN_WORD = deferred(r"[A-Za-z][a-z]*[.!?)]*")
_PROSE = deferred(r"[ \t]+[A-Za-z(]")

Classify = Callable[[str], Field | None]


def pair_spans(text: str, classify: Classify) -> Iterator[Span]:
    """The values that stand beside a name that calls them secret."""
    position = 0
    while match := _PAIR().search(text, position):
        position = match.end()
        flag = match["flag"]
        field = classify(flag or match["name"])
        if field is None or field.mode == "keep":
            # What was taken for a value may be the next name.
            continue
        sep = match["sep"]
        found = _value(text, position, certain=flag is not None or sep != ":" or match["close"] is not None)
        if found is None:
            continue
        start, end = found
        if sep is not None and sep[0] == "%":
            end = start + len(_ENCODED_END().split(text[start:end], maxsplit=1)[0])
        if _counts(text[start:end], field, classify):
            yield Span(start, end, field.kind)
            position = end


def _value(text: str, position: int, *, certain: bool) -> tuple[int, int] | None:
    """Where the value that begins at *position* stands, without its quotes."""
    quote = _QUOTE().match(text, position)
    if quote is not None:
        start = quote.end()
        end = _closing(text, start, quote[0])
        return (start, end) if end > start else None
    bare = _BARE().match(text, position)
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
    if field.mode == "digits":
        return is_code(field.kind, value)
    if field.mode == "personal":
        return is_number(field.kind, value)
    if TRIVIAL().fullmatch(value):
        return False
    named = classify(value) if value.isidentifier() else None
    return named is None or named.mode == "keep"


_CODE_SHAPES = {
    "pin": deferred(r"[0-9]{3,12}"),
    "cvv": deferred(r"[0-9]{3,4}"),
    "ssn": deferred(r"[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}|[0-9]{6}[- ]?[0-9]{4,5}"),
    "otp": deferred(r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{4,12}"),
}


def is_code(kind: str, value: str) -> bool:
    """Whether *value* can be a PIN, a check value or a one-time code; ``pin: "D13"`` is a plug."""
    return _CODE_SHAPES[kind]().fullmatch(value.strip()) is not None


_NUMBER = deferred(r"\+?[0-9][0-9 ().-]{3,22}[0-9]")
_LONG_NUMBER = deferred(r"[0-9]{14,16}|[0-9]{4}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{1,7}")


def is_number(kind: str, value: str) -> bool:
    """Whether the value of a field that is called a telephone or card number is one."""
    shape = _LONG_NUMBER if kind == "card" else _NUMBER
    return shape().fullmatch(value.strip()) is not None

"""Extract what must agree between two texts: numbers, days, months, currencies, negations, opposites, names.

The words are data (``words.toml``), for six languages at once; a text is read without knowing its language.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple
from unicodedata import category, normalize, numeric

_IDEOGRAPH = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_LETTER = rf"(?:(?![{_IDEOGRAPH}])\w)"
_TOKEN = re.compile(
    rf"(?P<flag>(?<!\S)--?[A-Za-z][\w-]*)"
    rf"|(?P<figure>(?<!\w)-?\d{{1,3}}(?:[ ']\d{{3}})+(?!{_LETTER})"
    rf"|(?:(?<!\w)-)?{_LETTER}*\d{_LETTER}*(?:[-.,:/_]{_LETTER}*\d{_LETTER}*)*%?)"
    rf"|(?P<word>{_LETTER}+)|(?P<ideograph>[{_IDEOGRAPH}])|(?P<sign>[^\w\s.,;:!?\"'()\[\]…“”‘«»–—\-。、，！？「」・¿¡])"
)
_ROMAN = re.compile(r"(?=[IVX]{2,}$)(X{0,3})(IX|IV|V?I{0,3})$")
_ONES = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
_GROUPED = re.compile(r"-?\d{1,3}([ ',.]\d{3})+(?:[.,]\d{1,2})?$")
_SIGNED = re.compile(r"(?<!\w)([-+])([$€£¥])(?=\d)")
_CLOCK = re.compile(r"\b0?(\d{1,2})(:\d\d)?\s?([ap])\.?m\b\.?", re.IGNORECASE)
_SCALED = re.compile(
    r"(?<![\w.,])(\d{1,3}(?:[.,]\d{1,2})?)\s?(?:(k|thousand|tausend|mille)"
    r"|(m|mn|mio|millions?|millionen|millones|millón)|(bn?|billions?|mrd|milliarden?|milliards?))\b",
    re.IGNORECASE,
)
_SPELLING = str.maketrans({"’": "'", "−": "-", "\ufe0f": None})
STEM = 4
"""The number of letters that the forms of a word share in most languages."""
_SWAPPED = 2
_SHORT = 3
_MAX_CHARACTERS = 20_000
_LONGEST_PREFIX = 32
"""No word prefix in the lists is longer; a word may be as long as a text."""


class Mark(NamedTuple):
    """A word with a known meaning: two texts disagree if they have different values in one group."""

    kind: str
    group: str
    value: str
    text: str


class Reading(NamedTuple):
    """A text, analysed."""

    tokens: tuple[str, ...]
    """Everything but soft punctuation, in lower case."""
    words: tuple[str, ...]
    """Content words: no fillers, no plurals."""
    figures: tuple[str, ...]
    """Tokens with a digit, and signs, in order and as written."""
    marks: tuple[Mark, ...]
    names: frozenset[str]
    """Capitalised words inside a sentence."""

    def values(self, kind: str) -> Counter[str]:
        """The values of one kind in the text."""
        return Counter(mark.value for mark in self.marks if mark.kind == kind)


class Lexicon(NamedTuple):
    """The word lists, indexed by the tokens of their entries."""

    entries: dict[tuple[str, ...], list[Mark]]
    prefixes: dict[str, list[Mark]]
    longest: dict[str, int]
    """First token -> the number of tokens of the longest entry that starts with it."""
    lists: dict[str, Any]

    def at(self, raw: list[str], low: list[str], place: int) -> tuple[int, list[Mark]]:
        """The longest entry that starts at *place*: its number of tokens and its meanings."""
        for tokens in (raw, low):
            for length in range(self.longest.get(tokens[place], 0), 0, -1):
                found = self.entries.get(tuple(tokens[place : place + length]))
                if found is not None:
                    return length, found
        word = singular(low[place])
        if (word,) in self.entries:
            return 1, self.entries[(word,)]
        for end in range(min(len(word), _LONGEST_PREFIX), 2, -1):
            if word[:end] in self.prefixes:
                return 1, self.prefixes[word[:end]]
        return 1, []


@cache
def lexicon() -> Lexicon:
    """The words of all languages."""
    import tomllib
    from importlib.resources import files

    lists = tomllib.loads((files("antiphon.similarity") / "words.toml").read_text(encoding="utf-8"))
    made = Lexicon({}, {}, {}, lists)
    for mark in _marks(lists):
        star = mark.text.endswith("*")
        tokens = tuple(found.group() for found in _TOKEN.finditer(plain(mark.text.rstrip("*").replace("_", " "))))
        tokens = tokens if mark.text != mark.text.lower() else tuple(token.casefold() for token in tokens)
        known = made.prefixes.setdefault(tokens[0], []) if star else made.entries.setdefault(tokens, [])
        if not any(mark[:3] == other[:3] for other in known):  # a word in two languages counts once
            known.append(mark)
        if not star:
            made.longest[tokens[0]] = max(len(tokens), made.longest.get(tokens[0], 0))
    return made


def _marks(lists: dict[str, Any]) -> Iterator[Mark]:
    for kind in ("negation", "neutral", "filler", "opener"):
        yield from (Mark(kind, kind, kind, word) for word in lists[kind].split())
    for kind, lines in lists["values"].items():
        for number, line in enumerate(lines.strip().splitlines()):
            yield from (Mark(kind, kind, str(number), word) for word in line.split())
    for kind, lines in lists["opposites"].items():
        for number, line in enumerate(lines.strip().splitlines()):
            for side, words in enumerate(line.split("/")):
                yield from (Mark(kind, f"{kind} {number}", str(side), word) for word in words.split())


def plain(text: str) -> str:
    """*text* normalised: compatible characters unified, numerals of all kinds as digits, *n't* as *not*.

    >>> plain("Ⅳ plan, don’t"), plain("１２")
    ('4 plan, do not', '12')
    """
    digits = "".join(f"{numeric(c):g}" if category(c) in ("Nl", "No") else c for c in text)
    text = normalize("NFKC", digits).translate(_SPELLING)
    text = _SIGNED.sub(r"\2\1", _SCALED.sub(_scaled, _CLOCK.sub(_clock, text)))
    return re.sub(r"\b(ca|wo|sha)?n't\b|n't\b", lambda m: {"ca": "can", "wo": "will"}.get(m[1], "") + " not", text)


def _clock(found: re.Match[str]) -> str:
    """*3 pm* as 15:00."""
    hour = int(found[1]) % 12 + 12 * (found[3].lower() == "p")
    return f"{hour}{found[2] or ':00'}"


def _scaled(found: re.Match[str]) -> str:
    """*1.5 million* as 1500000."""
    zeros = 3 if found[2] else 6 if found[3] else 9
    whole, _, part = found[1].replace(",", ".").partition(".")
    return (whole + part.ljust(zeros, "0")).lstrip("0") or "0"


@lru_cache(maxsize=8192)
def read(text: str) -> Reading:
    """Analyse *text*; the part beyond 20,000 characters counts as one token."""
    known, spelled = lexicon(), plain(text[:_MAX_CHARACTERS])
    found = list(_TOKEN.finditer(spelled))
    raw = [token.group() for token in found] + [text[_MAX_CHARACTERS:]] * (len(text) > _MAX_CHARACTERS)
    low = ["usa" if part == "US" else part.casefold() for part in raw]
    marks: list[Mark] = []
    words: list[str] = []
    place = 0
    while place < len(low):
        length, said = known.at(raw, low, place)
        written = " ".join(low[place : place + length])
        marks += [mark._replace(text=written) for mark in said]
        number = None if said else _number(raw[place])
        if number is not None:
            marks.append(Mark("number", "number", number, written))
        if not any(mark.kind == "filler" or (mark.kind == "opener" and not words) for mark in said):
            words += map(singular, low[place : place + length])
        place += length
    figures = (part for token, part in zip(found, raw, strict=False) if token.lastgroup in ("figure", "sign", "flag"))
    return Reading(tuple(low), tuple(words), tuple(map(_figure, figures)), tuple(marks), _names(found, low, spelled))


def _figure(part: str) -> str:
    """As written, if its capitals may matter (*aB3x*); without grouping commas."""
    matter = part[1:] != part[1:].lower() and not part.isupper()
    return part if matter else re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", part.casefold())


def _names(found: list[re.Match[str]], low: list[str], text: str) -> frozenset[str]:
    """Acronyms, and capitalised words that do not start a sentence."""
    words = [(token, name) for token, name in zip(found, low, strict=False) if token.lastgroup == "word"]
    large = [(token, name) for token, name in words if token.group()[0].isupper() and token.group() != "I"]
    if len(large) < len(words):
        first = {"", ".", "!", "?"}
        large = [
            (token, name)
            for token, name in large
            if text[: token.start()].rstrip()[-1:] not in first or (len(name) > 1 and token.group().isupper())
        ]
    return frozenset() if text.isupper() else frozenset(name for _, name in large)


def singular(word: str) -> str:
    """A word without its plural *s*: crude, but the same for both texts."""
    if len(word) <= _SHORT or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    return word[:-3] + "y" if word.endswith("ies") else word[:-1]


def _number(token: str) -> str | None:
    """A number without grouping and trailing zeros, a Roman numeral in digits, any other word with a digit."""
    roman = _ROMAN.match(token)
    if roman:
        return str(10 * len(roman[1]) + _ONES.index(roman[2]))
    if not any(c.isdigit() for c in token):
        return None
    if _GROUPED.match(token):
        token = re.sub(r"[ ',.](?=\d{3}(?!\d))", "", token)
    return re.sub(r"(?<=\d)[.,]0+(?=%?$)|(?<=[.,]\d)0+(?=%?$)", "", token).casefold()


def clashes(a: Reading, b: Reading, *kinds: str) -> Iterator[tuple[str, str]]:
    """The conflicting words of each side, within one group; or pairs such as *valid* and *invalid*."""
    ours, theirs = ({(mark.group, mark.value) for mark in side.marks if mark.kind in kinds} for side in (a, b))
    for one in a.marks:
        for other in b.marks if (one.group, one.value) in ours - theirs else ():
            if one.group == other.group and (other.group, other.value) in theirs - ours:
                yield one.text, other.text
    prefixes = lexicon().lists["negating_prefixes"].split()
    for left in sorted({*a.words} - {*b.words}):
        for right in sorted({*b.words} - {*a.words}):
            short, long = sorted((left, right), key=len)
            if len(short) > _SHORT and long.endswith(short) and long[: -len(short)] in prefixes:
                yield left, right


def swapped(a: Reading, b: Reading) -> bool:
    """Whether two words changed places: *Ann paid Bob*, *Bob paid Ann*; not around an *and*, and not dates or times."""
    if len(a.tokens) != len(b.tokens):
        return False
    differ = [place for place, pair in enumerate(zip(a.tokens, b.tokens, strict=True)) if pair[0] != pair[1]]
    if len(differ) != _SWAPPED or [a.tokens[n] for n in differ] != [b.tokens[n] for n in reversed(differ)]:
        return False
    times = {mark.text for mark in a.marks if mark.kind in ("day", "month", "time", "number")}
    return "and" not in a.tokens[differ[0] + 1 : differ[1]] and not times & {a.tokens[n] for n in differ}

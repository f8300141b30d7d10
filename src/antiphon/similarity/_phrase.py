"""Read a short text into what must agree and what may differ: numbers, signs, negations, content words.

The word lists of ``words/`` are read when the first two texts are compared, then kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

_TOKEN = re.compile(
    r"""
      (?P<hard>
          [A-Za-z][A-Za-z0-9+.-]{0,20}://\S+ | www\.\S+             # addresses
        | [^\s@]{1,64}@[^\s@]{1,255}
        | (?<![\w.])(?:~|\.{0,2})/[\w.~/-]+ | [A-Za-z]:\\\S*           # paths
        | \w+(?:/\w+)+                                                 # a/b
        | (?<![\w-])--?[A-Za-z][\w-]*                                  # -flag, --flag
        | [A-Za-z]+(?:\+\+|\#)                                         # C++, C#
      )
    | (?P<initials>(?:[A-Za-z]\.){2,})
    | (?P<joined>\w+(?:[-.:_]\w+)+)
    | (?P<number>(?<![\w)])-?\d+(?:,\d{3})*(?:\.\d+)?(?!\w))
    | (?P<word>\w+(?:['’]\w+)*)
    | (?P<space>\s+)
    | (?P<soft>[.,;:!?"'()\[\]…“”‘’«»–—-])
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_GROUPED = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d+)?")
_LETTERS = re.compile(r"[^\W\d_]+")
_HYPHENATED = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)+")
_TAIL = re.compile(r"['’](?:s|d|m|re|ve|ll)$", re.IGNORECASE)
_MAX_CHARACTERS = 20_000


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The words of one language; its file says what each list is for."""

    negations: frozenset[str]
    negating_prefixes: frozenset[str]
    fillers: frozenset[str]
    past: frozenset[str]
    auxiliaries: frozenset[str]
    courtesies: frozenset[str]
    pronouns: frozenset[str]
    lettered: frozenset[str]
    openers: frozenset[str]
    asking: frozenset[str]
    company: frozenset[str]
    about: frozenset[str]
    nowadays: frozenset[str]
    links: frozenset[str]
    roles: frozenset[str]
    anywhere: frozenset[str]
    heads: frozenset[str]
    weak_opposites: frozenset[str]
    exact_keys: frozenset[str]
    data_keys: frozenset[str]
    ambiguous_places: frozenset[str]
    countries: frozenset[str]
    regions: frozenset[str]
    """Countries and states."""
    states: Mapping[str, str]
    numbers: Mapping[str, int]
    currencies: Mapping[str, str]
    aliases: tuple[tuple[tuple[str, ...], str], ...]
    opposites: Mapping[str, frozenset[str]]
    """Word to its opposites."""
    classes: frozenset[str]
    """The members of all closed classes."""
    synonyms: Mapping[str, str]
    """Word to the word that stands for its group."""
    homes: Mapping[str, frozenset[str]]


@cache
def lexicon() -> Lexicon:
    """The English words."""
    import tomllib
    from importlib.resources import files

    text = (files("antiphon.similarity") / "words" / "english.toml").read_text(encoding="utf-8")
    lists: dict[str, Any] = tomllib.loads(text)
    groups = {
        name: [line.split() for line in lists.pop(name).splitlines()]
        for name in ("opposites", "classes", "synonyms", "homes")
    }
    aliases = tuple((tuple(words.split()), short) for words, short in lists.pop("aliases").items())
    tables = {name: lists.pop(name) for name in ("states", "numbers", "currencies")}
    plain: dict[str, Any] = {name: frozenset(words.split()) for name, words in lists.items()}
    return Lexicon(
        **plain,
        **tables,
        aliases=aliases,
        regions=plain["countries"].union(tables["states"].values()),
        opposites=_opposites(groups["opposites"]),
        classes=frozenset(word for group in groups["classes"] for word in group),
        synonyms={word: group[0] for group in reversed(groups["synonyms"]) for word in group},
        homes={city: frozenset(regions) for city, *regions in groups["homes"]},
    )


def _opposites(groups: list[list[str]]) -> dict[str, frozenset[str]]:
    """The first word of each group against every other, both ways."""
    found: dict[str, set[str]] = {}
    for first, *others in groups:
        for other in others:
            found.setdefault(first, set()).add(other)
            found.setdefault(other, set()).add(first)
    return {word: frozenset(others) for word, others in found.items()}


def opposite(left: str, right: str) -> bool:
    """Whether two lower-case words are opposites, by the list or by a negating prefix.

    >>> opposite("approved", "denied"), opposite("active", "inactive"), opposite("car", "card")
    (True, True, False)
    """
    known = lexicon()
    if right in known.opposites.get(left, ()):
        return True
    short, long = sorted((left, right), key=len)
    return len(short) >= 4 and long.endswith(short) and long[: -len(short)] in known.negating_prefixes


class Word(NamedTuple):
    """One content word in its place."""

    text: str
    """As written, lower case."""
    canon: str
    """Stem, or the word that stands for its synonyms."""
    rigid: bool
    """A number, a name, an identifier or a member of a closed class: only itself will do."""
    preposition: str
    """What stands before it: a link, a role word, or nothing."""
    segment: int
    """How many links came before it."""
    upper: bool
    """Written in capitals, such as an acronym."""


class Phrase(NamedTuple):
    """A text taken apart."""

    plain: tuple[str, ...]
    """All tokens in lower case without soft punctuation: what equal spelling means."""
    words: tuple[Word, ...]
    canons: frozenset[str]
    figures: tuple[str, ...]
    """Numbers and signs in their order: *$5* and *3* are not *5* and *$3*."""
    signs: tuple[str, ...]
    negated: tuple[str, ...]
    """The word after each negation, sorted."""
    regions: tuple[tuple[str, str], ...]
    """(place, region) of each ", Region" behind a place."""
    fillers: int
    past: bool
    """Whether a filler speaks of the past: *who was*, not *who is*."""


class _Token(NamedTuple):
    kind: str
    text: str
    low: str
    """The text in lower case, except for identifiers whose capitals may matter."""
    comma: bool
    """A comma is before it."""
    starts: bool
    """A sentence starts with it."""


def plain_number(text: str) -> str:
    """A number without grouping commas. Zeros stay: version 3.10 is not version 3.1."""
    return text.replace(",", "") if _GROUPED.fullmatch(text) else text


def stem(word: str) -> str:
    """The singular of regular plurals; everything else stays."""
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is", "news")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    return word[:-1]


def canonical_word(word: str) -> str:
    """The stem, or the representative of its synonyms."""
    known = lexicon()
    found = known.synonyms.get(word)
    if found is not None:
        return found
    bare = stem(word)
    return known.synonyms.get(bare, bare)


def _scan(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    comma, starts = False, True
    for found in _TOKEN.finditer(text):
        kind, part = str(found.lastgroup), found.group()
        if kind == "soft":
            comma = comma or part == ","
            starts = starts or part in ".!?"
        elif kind != "space":
            for each_kind, each in _split(kind, part):
                tokens.append(_Token(each_kind, each, _fold(each_kind, each), comma, starts))
                comma = starts = False
    return tokens


def _split(kind: str, text: str) -> list[tuple[str, str]]:
    if kind == "initials":
        return [("word", text.replace(".", ""))]
    if kind == "joined":
        if _HYPHENATED.fullmatch(text):
            head, *rest = text.split("-")
            if len(head) == 1 and len(rest) == 1:
                return [("word", head + rest[0])]
            return [("word", part) for part in (head, *rest)]
        return [("hard", text)]
    if kind == "word":
        if text.isdigit():
            return [("number", text)]
        bare = _TAIL.sub("", text).replace("'", "").replace("’", "")
        return [("word" if _LETTERS.fullmatch(bare) else "hard", bare)] if bare else []
    return [(kind, text)]


def _capitals_matter(text: str) -> bool:
    """Whether an identifier mixes capitals and small letters (*aB3x*), more than a name does (*Covid-19*)."""
    return not (text.isupper() or text[1:] == text[1:].lower())


def _fold(kind: str, text: str) -> str:
    if kind == "number":
        return plain_number(text)
    if kind == "hard" and _capitals_matter(text):
        return text
    return "usa" if text in ("US", "USA", "U.S") else text.casefold()


def _merge_aliases(tokens: list[_Token]) -> list[_Token]:
    """Put the short form where a name of several words stands."""
    kept: list[_Token] = []
    place = 0
    while place < len(tokens):
        token, end = tokens[place], place + 1
        for words, short in lexicon().aliases:
            run = tokens[place : place + len(words)]
            if token.low == words[0] and tuple(t.low for t in run) == words and not any(t.comma for t in run[1:]):
                token, end = token._replace(text=short, low=short), place + len(words)
                break
        kept.append(token)
        place = end
    return kept


def _region_at(tokens: list[_Token], place: int) -> tuple[str, int] | None:
    """The region that stands alone behind the comma before *place*, and where it ends."""
    known = lexicon()
    for length in (3, 2, 1):
        end = place + length
        if end > len(tokens) or any(t.comma or t.kind != "word" for t in tokens[place + 1 : end]):
            continue
        if end < len(tokens) and not tokens[end].comma:
            continue
        name = "_".join(t.low for t in tokens[place:end])
        if length == 1 and name in known.states and (tokens[place].text.isupper() or len(tokens) <= 4):
            return known.states[name], end
        if name in known.regions:
            return name, end
    return None


def _take_regions(tokens: list[_Token]) -> tuple[list[_Token], list[tuple[str, str]]]:
    """Lift ", CA" and ", France" out of the text; a list of countries stays what it is."""
    known = lexicon()
    regions: list[tuple[str, str]] = []
    kept: list[_Token] = []
    place, after_region = 0, False
    while place < len(tokens):
        behind_comma = place and tokens[place].comma and tokens[place - 1].kind == "word"
        found = _region_at(tokens, place) if behind_comma else None
        if found is not None:
            name, end = found
            before = tokens[place - 1].low
            wider = after_region and name in known.countries and regions[-1][1] not in known.countries
            if wider or (not after_region and before not in known.regions):
                regions.append(("" if wider else before, name))
                place, after_region = end, True
                continue
        kept.append(tokens[place])
        after_region = False
        place += 1
    return kept, regions


def _only_asks(tokens: list[_Token], place: int, opening: bool) -> bool:
    """Whether the word at *place* adds nothing to what is asked for; *opening* while nothing was asked yet."""
    known = lexicon()
    word = tokens[place].low
    before = tokens[place - 1].low if place else ""
    after = tokens[place + 1].low if place + 1 < len(tokens) else ""
    if word == "a":
        return tokens[place].text == "a" and before not in known.lettered
    if word in known.fillers:
        return True
    if word in known.pronouns:
        return before not in known.lettered and (opening or before in known.auxiliaries)
    if word == "me":
        return before in known.asking or before in ("find", "get", "near")
    if word in known.courtesies:
        return before != "to" and (opening or after in known.pronouns)
    if word == "current":
        return after in known.nowadays
    if not opening:
        return False
    if word in known.asking:
        return after in known.company or before in known.company
    return word in known.openers or (word in known.about and after in known.links)


@lru_cache(maxsize=8192)
def read(text: str) -> Phrase:
    """Take *text* apart; the part beyond 20,000 characters counts as one identifier."""
    known = lexicon()
    rest = text[_MAX_CHARACTERS:]
    tokens = _scan(text[:_MAX_CHARACTERS])
    if rest:
        tokens.append(_Token("hard", rest, _fold("hard", rest), False, False))
    tokens = _merge_aliases(tokens)
    plain = tuple(token.low for token in tokens)
    tokens, regions = _take_regions(tokens)
    shouting = text.isupper()
    words: list[Word] = []
    figures: list[str] = []
    signs: list[str] = []
    negated: list[str] = []
    preposition, segment, pending, fillers, past = "", 0, 0, 0, False
    for place, token in enumerate(tokens):
        low = token.low
        upper = token.kind == "word" and len(token.text) > 1 and token.text.isupper() and not shouting
        if token.kind == "sign":
            signs.append(low)
            figures.append(low)
            continue
        if token.kind == "word" and not upper:
            if low in known.negations:
                pending += 1
                continue
            if low in known.links or low in known.roles:
                preposition = low
                segment += 1
                continue
            if _only_asks(tokens, place, opening=not words and not pending):
                fillers += 1
                past = past or low in known.past
                continue
        if token.kind == "number":
            figures.append(low)
        name = token.kind == "word" and token.text[:1].isupper() and not token.starts and not shouting
        rigid = (
            token.kind != "word"
            or name
            or upper
            or low in known.classes
            or stem(low) in known.classes
            or low in known.regions
        )
        canon = canonical_word(low) if token.kind == "word" else low
        words.append(Word(low, canon, rigid, preposition, segment, upper))
        negated.extend([canon] * pending)
        preposition, pending = "", 0
    negated.extend([""] * pending)
    if preposition:
        # A trailing preposition binds nothing but is still said: "turn the lights on".
        words.append(Word(preposition, preposition, True, "", segment, False))
    return Phrase(
        plain,
        tuple(words),
        frozenset(word.canon for word in words),
        tuple(figures),
        tuple(signs),
        tuple(sorted(negated)),
        tuple(regions),
        fillers,
        past,
    )

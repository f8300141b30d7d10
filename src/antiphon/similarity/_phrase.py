"""Read a short text into what must agree and what may differ: numbers, signs, negations, content words."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from antiphon.similarity._lexicon import lexicon

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


class _Raw(NamedTuple):
    kind: str
    text: str
    comma: bool
    starts: bool


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


def _scan(text: str) -> list[_Raw]:
    """Tokens with their kind; each knows whether a comma or the start of a sentence is before it."""
    tokens: list[_Raw] = []
    comma, starts = False, True
    for found in _TOKEN.finditer(text):
        kind, piece = str(found.lastgroup), found.group()
        if kind == "space":
            continue
        if kind == "soft":
            if piece == ",":
                comma = True
            elif piece in ".!?":
                starts = True
            continue
        for part_kind, part in _split(kind, piece):
            tokens.append(_Raw(part_kind, part, comma, starts))
            comma = starts = False
    return tokens


def _split(kind: str, piece: str) -> list[tuple[str, str]]:
    if kind == "initials":
        return [("word", piece.replace(".", ""))]
    if kind == "joined":
        if _HYPHENATED.fullmatch(piece):
            head, *rest = piece.split("-")
            if len(head) == 1 and len(rest) == 1:
                return [("word", head + rest[0])]
            return [("word", part) for part in (head, *rest)]
        return [("hard", piece)]
    if kind == "word":
        if piece.isdigit():
            return [("number", piece)]
        bare = _TAIL.sub("", piece).replace("'", "").replace("’", "")
        return [("word" if _LETTERS.fullmatch(bare) else "hard", bare)] if bare else []
    return [(kind, piece)]


def _capitals_matter(text: str) -> bool:
    """Whether an identifier mixes capitals and small letters (*aB3x*), more than a name does (*Covid-19*)."""
    return not (text.isupper() or text[1:] == text[1:].lower())


def _fold(token: _Raw) -> str:
    """Lower case, except for identifiers whose capitals may matter."""
    if token.kind == "number":
        return plain_number(token.text)
    if token.kind == "hard" and _capitals_matter(token.text):
        return token.text
    if token.text in ("US", "USA", "U.S"):
        return "usa"
    return token.text.casefold()


def _merge_aliases(tokens: list[_Raw], folded: list[str]) -> tuple[list[_Raw], list[str]]:
    """Put the short form where a name of several words stands."""
    known = lexicon()
    kept_tokens: list[_Raw] = []
    kept: list[str] = []
    place = 0
    while place < len(folded):
        for words, short in known.aliases:
            end = place + len(words)
            if tuple(folded[place:end]) == words and not any(t.comma for t in tokens[place + 1 : end]):
                kept_tokens.append(tokens[place]._replace(text=short))
                kept.append(short)
                place = end
                break
        else:
            kept_tokens.append(tokens[place])
            kept.append(folded[place])
            place += 1
    return kept_tokens, kept


def _region_at(tokens: list[_Raw], folded: list[str], place: int) -> tuple[str, int] | None:
    """The region that stands alone behind the comma before *place*, and where it ends."""
    known = lexicon()
    for length in (3, 2, 1):
        end = place + length
        if end > len(folded) or any(t.comma or t.kind != "word" for t in tokens[place + 1 : end]):
            continue
        if end < len(folded) and not tokens[end].comma:
            continue
        name = "_".join(folded[place:end])
        if length == 1 and name in known.states and (tokens[place].text.isupper() or len(folded) <= 4):
            return known.states[name], end
        if name in known.regions:
            return name, end
    return None


def _take_regions(tokens: list[_Raw], folded: list[str]) -> tuple[list[_Raw], list[str], list[tuple[str, str]]]:
    """Lift ", CA" and ", France" out of the text; a list of countries stays what it is."""
    known = lexicon()
    regions: list[tuple[str, str]] = []
    kept_tokens: list[_Raw] = []
    kept: list[str] = []
    place, after_region = 0, False
    while place < len(folded):
        found = (
            _region_at(tokens, folded, place)
            if place and tokens[place].comma and tokens[place - 1].kind == "word"
            else None
        )
        if found is not None:
            name, end = found
            before = folded[place - 1]
            wider = after_region and name in known.countries and regions[-1][1] not in known.countries
            if wider or (not after_region and before not in known.regions):
                regions.append(("" if wider else before, name))
                place, after_region = end, True
                continue
        kept_tokens.append(tokens[place])
        kept.append(folded[place])
        after_region = False
        place += 1
    return kept_tokens, kept, regions


def _only_asks(tokens: list[_Raw], folded: list[str], place: int, opening: bool) -> bool:
    """Whether the word at *place* adds nothing to what is asked for; *opening* while nothing was asked yet."""
    known = lexicon()
    word = folded[place]
    before = folded[place - 1] if place else ""
    after = folded[place + 1] if place + 1 < len(folded) else ""
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
        tokens.append(_Raw("hard", rest, False, False))
    folded = [_fold(token) for token in tokens]
    tokens, folded = _merge_aliases(tokens, folded)
    plain = tuple(folded)
    tokens, folded, regions = _take_regions(tokens, folded)
    shouting = text.isupper()
    words: list[Word] = []
    figures: list[str] = []
    signs: list[str] = []
    negated: list[str] = []
    preposition, segment, pending, fillers, past = "", 0, 0, 0, False
    for place, (token, low) in enumerate(zip(tokens, folded, strict=True)):
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
            if _only_asks(tokens, folded, place, opening=not words and not pending):
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

"""Whether two texts ask for the same thing: first what must agree, then how close the rest is (D11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import sqrt
from operator import mul
from typing import NamedTuple

from antiphon.similarity._phrase import Phrase, Word, lexicon, opposite, read

Embedder = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Texts in, vectors out."""

WORD_THRESHOLD = 0.85
"""Cosine from which two common words count as the same word.

Measured with MiniLM on 208 pairs of things of one kind (*oak* and *birch*, *Nike* and *Adidas*): two reach 0.85.
Synonyms start at 0.5, so no lower line separates them, and the list in ``words/`` does the rest.
"""
_QUALIFIER_WEIGHT = 0.15
_FILLER_WEIGHT = 0.01
_NEAR_CREDIT = 0.95
_MAX_ACRONYM = 6
"""Letters of the longest acronym that is looked for."""
MAX_NEAR_WORDS = 3
"""As many words may have another word of the same meaning in their place."""
MAX_LOOSE = 8
"""With more words than this that only one side has, a text is another text."""


class Likeness(NamedTuple):
    """How close two texts are, and what was decisive."""

    score: float
    why: str


class _Pair(NamedTuple):
    left: int
    right: int
    credit: float


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    """The cosine of two vectors, 0 if one is empty."""
    dot = sum(map(mul, left, right))
    norms = sqrt(sum(map(mul, left, left)) * sum(map(mul, right, right)))
    return dot / norms if norms else 0.0


class Vectors:
    """Vectors of texts and cosines of pairs, each computed once."""

    def __init__(self, embedder: Embedder, limit: int = 20_000) -> None:
        self._embedder = embedder
        self._known: dict[str, Sequence[float]] = {}
        self._cosines: dict[tuple[str, str], float] = {}
        self._limit = limit

    def cosine(self, left: str, right: str) -> float:
        """The cosine of two texts."""
        found = self._cosines.get((left, right))
        if found is None:
            self.warm((left, right))
            if len(self._cosines) >= self._limit:
                self._cosines.clear()
            found = self._cosines[left, right] = cosine(self._known[left], self._known[right])
        return found

    def warm(self, texts: Sequence[str]) -> None:
        """Compute what is missing in one batch."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        if not missing:
            return
        if len(self._known) + len(missing) > self._limit:
            self._known = {text: self._known[text] for text in texts if text in self._known}
        self._known.update(zip(missing, self._embedder(missing), strict=True))


def alike(recorded: str, live: str, vectors: Vectors | None = None) -> Likeness:
    """Score *live* against *recorded*; 0 with the reason if they may not stand for each other.

    >>> alike("San Francisco, CA", "San Francisco").score > 0.85
    True
    >>> alike("cancel the order", "do not cancel the order")
    Likeness(score=0.0, why='negation differs')
    """
    return compare(read(recorded), read(live), recorded, live, vectors)


def compare(a: Phrase, b: Phrase, recorded: str, live: str, vectors: Vectors | None) -> Likeness:
    """:func:`alike` for texts that were read before."""
    if a.plain == b.plain:
        return Likeness(1.0, "same words")
    if a.figures != b.figures:
        return Likeness(0.0, "a number or a sign differs")
    if a.negated != b.negated:
        return Likeness(0.0, "negation differs")
    if a.past != b.past:
        return Likeness(0.0, "only one side speaks of the past")
    dropped, refusal = _regions(a, b)
    if refusal:
        return Likeness(0.0, refusal)
    pairs, loose_a, loose_b = _same_words(a.words, b.words)
    if len(loose_a) + len(loose_b) > MAX_LOOSE:
        return Likeness(0.0, "too many other words")
    if loose_a or loose_b:
        _acronyms(a.words, b.words, pairs, loose_a, loose_b)
    meant: list[_Pair] = []
    if loose_a or loose_b:
        refusal = _near_words(a.words, b.words, loose_a, loose_b, meant, vectors)
        if refusal:
            return Likeness(0.0, refusal)
    if not pairs:
        return Likeness(0.0, "no word in common")
    refusal = _roles(a.words, b.words, [*pairs, *meant])
    if refusal:
        return Likeness(0.0, refusal)
    matched = sum(pair.credit for pair in pairs)
    extra = dropped * _QUALIFIER_WEIGHT + abs(a.fillers - b.fillers) * _FILLER_WEIGHT + len(meant)
    extra += sum(1.0 - pair.credit for pair in pairs)
    containment = matched / (matched + extra)
    if vectors is None or (containment > 0.99 and not meant):
        return Likeness(containment, "words contained")
    meaning = min(1.0, vectors.cosine(recorded, live))
    return Likeness(meaning, "meaning") if meaning > containment else Likeness(containment, "words contained")


def swapped(a: Phrase, b: Phrase) -> bool:
    """Whether the same words play other parts: *the cat sat on the mat*, *the mat sat on the cat*."""
    pairs, loose_a, loose_b = _same_words(a.words, b.words)
    return not loose_a and not loose_b and bool(_roles(a.words, b.words, pairs))


def _regions(a: Phrase, b: Phrase) -> tuple[int, str]:
    """How many regions only one side names, or why that is too much."""
    left, right = {name for _, name in a.regions}, {name for _, name in b.regions}
    if not (left <= right or right <= left):
        return 0, "the region differs"
    dropped = left ^ right
    known = lexicon()
    for place, name in (*a.regions, *b.regions):
        if name not in dropped or not place:
            continue
        if place in known.ambiguous_places or name not in known.homes.get(place, (name,)):
            return 0, f"'{place}' alone may be another place than the one in {name.replace('_', ' ').title()}"
    return len(dropped), ""


def _same_words(a: tuple[Word, ...], b: tuple[Word, ...]) -> tuple[list[_Pair], list[int], list[int]]:
    """Pair equal words, earliest with earliest; the rest is loose."""
    places: dict[str, list[int]] = {}
    for index in range(len(b) - 1, -1, -1):
        places.setdefault(b[index].canon, []).append(index)
    pairs: list[_Pair] = []
    loose_a: list[int] = []
    for index, word in enumerate(a):
        found = places.get(word.canon)
        if found:
            other = found.pop()
            pairs.append(_Pair(index, other, 1.0 if b[other].text == word.text else _NEAR_CREDIT))
        else:
            loose_a.append(index)
    loose_b = sorted(index for rest in places.values() for index in rest)
    return pairs, loose_a, loose_b


def _acronyms(
    a: tuple[Word, ...], b: tuple[Word, ...], pairs: list[_Pair], loose_a: list[int], loose_b: list[int]
) -> None:
    """Pair an acronym on one side with the run of words on the other that it abbreviates."""
    for short, long, loose_short, loose_long, swapped in (
        (a, b, loose_a, loose_b, False),
        (b, a, loose_b, loose_a, True),
    ):
        for index in list(loose_short):
            letters = short[index].text
            if not 2 <= len(letters) <= _MAX_ACRONYM or not (short[index].upper or len(letters) > 2):
                continue
            run = _initials(long, loose_long, letters)
            if run:
                pairs.append(_Pair(run[0], index, _NEAR_CREDIT) if swapped else _Pair(index, run[0], _NEAR_CREDIT))
                loose_short.remove(index)
                for place in run:
                    loose_long.remove(place)


def _initials(words: tuple[Word, ...], loose: list[int], letters: str) -> list[int]:
    """Consecutive loose words whose first letters spell *letters*."""
    for start in range(len(loose) - len(letters) + 1):
        run = loose[start : start + len(letters)]
        adjacent = run[-1] - run[0] == len(letters) - 1
        if adjacent and all(words[place].text[0] == letter for place, letter in zip(run, letters, strict=True)):
            return run
    return []


def may_abbreviate(ours: frozenset[str], theirs: frozenset[str]) -> bool:
    """Whether acronyms could explain every word that only one side has; true too often rather than too seldom."""
    initials, their_initials = {word[0] for word in ours}, {word[0] for word in theirs}
    short = sum(2 <= len(word) <= _MAX_ACRONYM and their_initials.issuperset(word) for word in ours)
    their_short = sum(2 <= len(word) <= _MAX_ACRONYM and initials.issuperset(word) for word in theirs)
    return len(theirs) <= their_short + _MAX_ACRONYM * short and len(ours) <= short + _MAX_ACRONYM * their_short


def _near_words(
    a: tuple[Word, ...],
    b: tuple[Word, ...],
    loose_a: list[int],
    loose_b: list[int],
    meant: list[_Pair],
    vectors: Vectors | None,
) -> str:
    """Pair what is left by meaning, one to one; says why that is impossible."""
    for words, loose in ((a, loose_a), (b, loose_b)):
        for index in loose:
            if words[index].rigid:
                return f"'{words[index].text}' stands on one side only"
    for left in loose_a:
        for right in loose_b:
            if opposite(a[left].text, b[right].text):
                return f"'{a[left].text}' is the opposite of '{b[right].text}'"
    odd = loose_a or loose_b
    if vectors is None or len(loose_a) != len(loose_b) or len(loose_a) > MAX_NEAR_WORDS:
        words = a if loose_a else b
        return f"'{words[odd[0]].text}' stands on one side only"
    vectors.warm([a[index].text for index in loose_a] + [b[index].text for index in loose_b])
    free = list(loose_b)
    for left in loose_a:
        score, right = max((vectors.cosine(a[left].text, b[index].text), index) for index in free)
        if score < WORD_THRESHOLD:
            return f"'{a[left].text}' is not '{b[right].text}'"
        meant.append(_Pair(left, right, score))
        free.remove(right)
    return ""


def _roles(a: tuple[Word, ...], b: tuple[Word, ...], pairs: list[_Pair]) -> str:
    """Whether the paired words play the same parts: same role words, no order that turns the meaning."""
    ordered = sorted(pairs)
    rights = [pair.right for pair in ordered]
    moved = any(x > y for x, y in pairwise(rights))
    route = not moved and any(a[pair.left].preposition == b[pair.right].preposition == "to" for pair in pairs)
    for left, right, _ in ordered:
        refusal = _prepositions(a[left].preposition, b[right].preposition, left == right == 0, route)
        if refusal:
            return refusal
    if not moved:
        return ""
    here = [a[pair.left] for pair in ordered]
    there = [b[pair.right] for pair in ordered]
    turned = {(x, y) for y in range(len(rights)) for x in range(y) if rights[y] < rights[x]}
    for x, y in sorted(turned):
        if not _may_turn(x, y, here, there, turned):
            return f"'{here[x].text}' and '{here[y].text}' change places"
    return ""


def _prepositions(left: str, right: str, first: bool, route: bool) -> str:
    """Why role words before one word disagree; *from* may go where *to* stays, *how to* may be *how do I*."""
    if left == right:
        return ""
    both = {left, right}
    if "for" in both and both & {"about", "regarding", "concerning"}:
        return "'for' is not 'about'"
    links = lexicon().links
    if all(word == "" or word in links for word in both):
        return ""
    if both == {"", "to"} and first:
        return ""
    if both == {"", "from"} and route:
        return ""
    return f"'{left or right}' stands on one side only"


def _may_turn(x: int, y: int, here: list[Word], there: list[Word], turned: set[tuple[int, int]]) -> bool:
    """*news about jazz* may become *jazz news*; *dog bites man* may not become *man bites dog*."""
    known = lexicon()
    if here[x].canon in known.anywhere or here[y].canon in known.anywhere:
        return True
    linked_here = here[x].segment != here[y].segment
    linked_there = there[x].segment != there[y].segment
    if linked_here and linked_there:
        return False
    if not linked_here and not linked_there:
        return (here[x].canon in known.heads) != (here[y].canon in known.heads)
    # What a link joins moves as a whole: a word of it that goes alone changes what it belongs to.
    side = here if linked_here else there
    first = [n for n, word in enumerate(side) if word.segment == side[x].segment]
    second = [n for n, word in enumerate(side) if word.segment == side[y].segment]
    return all((min(n, m), max(n, m)) in turned for n in first for m in second)

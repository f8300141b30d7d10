"""Match a live call's arguments to a recorded one by meaning: explore replay only, free text only.

Numbers, booleans, dates, ids, codes, paths, addresses, enumerated values and keys must be equal. Two free texts must
agree in the known meanings of their words (see ``_reading``); then they score
``max(token containment, embedding cosine)``. The score of a match is the lowest over its leaves. This is never used for
tools with side effects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Mapping
from functools import cache
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from antiphon.similarity._reading import STEM, Reading, clashes, lexicon, read
from antiphon.similarity.embedding import SAME_FROM, Embedder, Vectors

DEFAULT_THRESHOLD = 0.85
T = TypeVar("T")
Kind = Literal["exact", "math", "word", "text", "data"]
"""``math`` may differ in spacing, ``data`` in spacing, case and end punctuation, ``word`` and ``text`` in wording."""

_KEY_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_FORMATS = frozenset(
    "date date-time time duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri uuid "
    "json-pointer regex byte binary".split()
)
_MATH = re.compile(r"(?=.*[\d)a-z]\s*[-+*/^%=<>])(?=.*\d)[\d\s.,()+*/^%=<>-]*(?:[a-z](?![a-z])[\d\s.,()+*/^%=<>-]*)*")
_SINGLE = re.compile(r"[^\W\d_]+")
_PLAIN = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*[.!?,]?")
"""A plain or hyphenated word; any other single token is an identifier, a code or a number."""
_LONGEST_QUERY = 2000
"""A longer text is a document, not a query."""
_REGION_WEIGHT = 0.15
_FILLER_WEIGHT = 0.01
_SURE = 0.99
_SHORT = 3
"""In a request with this few words, one more word changes it: *flights to Oslo*, *direct flights to Oslo*."""
_SHARED = 1 / 3
"""Texts with the same meaning share at least this fraction of the shorter one's words."""
_ALL_THE_SAME = ("day", "month", "currency", "negation", "neutral")


class Leaf(NamedTuple):
    """One value inside arguments, with its path."""

    path: str
    kind: Kind
    value: Any


class LeafMatch(NamedTuple):
    """One leaf that differs, with its score and the reason."""

    path: str
    recorded: Any
    live: Any
    score: float
    why: str


class Match(NamedTuple):
    """Whether a recorded answer may be used for a live call; ``leaves`` are those that differ."""

    score: float
    hit: bool
    leaves: tuple[LeafMatch, ...]
    why: str


class Found(NamedTuple, Generic[T]):
    """A recorded call that matches."""

    ref: T
    match: Match


def similar_arguments(
    recorded: Any,
    live: Any,
    embedder: Embedder | None = None,
    threshold: float = DEFAULT_THRESHOLD,
    schema: Mapping[str, Any] | None = None,
    exact: Collection[str] = (),
) -> Match:
    """Compare two calls' arguments.

    *schema* is the tool's JSON Schema (``enum``, ``format``, ``pattern`` … make a leaf exact), *exact* names further
    exact parameters.

    >>> recorded = {"location": "San Francisco, CA", "units": "metric"}
    >>> similar_arguments(recorded, {"location": "San Francisco", "units": "metric"}).hit
    True
    >>> similar_arguments(recorded, {"location": "San Francisco, CA", "units": "imperial"}).why
    "$.units: 'metric' is not 'imperial'"
    """
    return _Matcher(embedder, threshold).match(leaves(recorded, schema, exact), leaves(live, schema, exact))


class SemanticIndex(Generic[T]):
    """Recorded calls, indexed for fast lookup. A miss only considers calls that share everything that must be equal.

    >>> index: SemanticIndex[str] = SemanticIndex()
    >>> index.add("weather", {"location": "San Francisco, CA"}, "call 7")
    >>> [found.ref for found in index.find("weather", {"location": "San Francisco"})]
    ['call 7']
    """

    def __init__(self, embedder: Embedder | None = None, threshold: float = DEFAULT_THRESHOLD) -> None:
        self.threshold = threshold
        self._matcher = _Matcher(embedder, threshold)
        self._buckets: dict[Hashable, list[tuple[T, list[Leaf], _Words]]] = {}
        self._rules: dict[str, tuple[Mapping[str, Any] | None, Collection[str]]] = {}

    def declare(self, tool: str, schema: Mapping[str, Any] | None = None, exact: Collection[str] = ()) -> None:
        """Declare what is known about a tool's parameters, before its calls are added."""
        self._rules[tool] = (schema, exact)

    def add(self, tool: str, arguments: Any, ref: T) -> None:
        """Add a recorded call under *ref*."""
        found = leaves(arguments, *self._rules.get(tool, (None, ())))
        self._buckets.setdefault((tool, *map(_must_agree, found)), []).append((ref, found, _words(found)))

    def find(self, tool: str, arguments: Any) -> list[Found[T]]:
        """All matches, best first; equal scores in recorded order."""
        live = leaves(arguments, *self._rules.get(tool, (None, ())))
        words = _words(live)
        tried = (
            Found(ref, self._matcher.match(recorded, live))
            for ref, recorded, others in self._buckets.get((tool, *map(_must_agree, live)), ())
            if all(map(_enough, words, others))
        )
        return sorted((found for found in tried if found.match.hit), key=lambda found: -found.match.score)


_Words = list[frozenset[str]]


def _words(found: list[Leaf]) -> _Words:
    return [frozenset(read(leaf.value).words) for leaf in found if leaf.kind in ("text", "word", "data")]


def _enough(ours: frozenset[str], theirs: frozenset[str]) -> bool:
    """A cheap check whether two texts share enough words to have the same meaning."""
    return len(ours & theirs) >= _SHARED * min(len(ours), len(theirs))


def _must_agree(leaf: Leaf) -> Hashable:
    """What two matching leaves share: calls that differ here are never considered."""
    if leaf.kind in ("text", "word", "data"):
        reading = read(leaf.value)
        return leaf.path, reading.figures, *(tuple(sorted(reading.values(kind).elements())) for kind in _ALL_THE_SAME)
    value = squeeze_math(leaf.value) if leaf.kind == "math" else leaf.value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return leaf.path, "constant", repr(value)
    return leaf.path, value


class _Matcher:
    """Compares leaves with one embedder and one threshold."""

    def __init__(self, embedder: Embedder | None, threshold: float) -> None:
        self._embedder = embedder
        self._vectors = Vectors(embedder) if embedder is not None else None
        self._threshold = threshold

    def match(self, recorded: list[Leaf], live: list[Leaf]) -> Match:
        """Compare two lists of leaves."""
        ours, theirs = [leaf.path for leaf in recorded], [leaf.path for leaf in live]
        if ours != theirs:
            odd = sorted(set(ours) ^ set(theirs))
            return Match(0.0, False, (), f"{odd[0] if odd else '$'} stands on one side only")
        differing: list[LeafMatch] = []
        for old, new in zip(recorded, live, strict=True):
            if same_value(old.value, new.value):
                continue
            score, why = self._leaf(old, new)
            differing.append(LeafMatch(old.path, old.value, new.value, score, why))
            if score < self._threshold:
                why = f"{old.path}: {why}" + (f" ({score:.0%} is below {self._threshold:.0%})" if score else "")
                return Match(score, False, tuple(differing), why)
        if not differing:
            return Match(1.0, True, (), "equal")
        worst = min(differing, key=lambda leaf: leaf.score)
        return Match(worst.score, True, tuple(differing), f"{worst.path}: {worst.why}")

    def _leaf(self, old: Leaf, new: Leaf) -> tuple[float, str]:
        """Score two unequal leaves."""
        unequal = 0.0, f"{old.value!r} is not {new.value!r}"
        kinds = {old.kind, new.kind}
        if kinds == {"math"}:
            return (1.0, "same expression") if squeeze_math(old.value) == squeeze_math(new.value) else unequal
        if kinds & {"exact", "math"}:
            return unequal
        if "data" in kinds or kinds == {"word"}:
            # A lone word may be an enumerated value, and data to be processed is no query: only spelling may differ.
            # Capitals beyond the first letter may change a lone word (*US*, *us*).
            same = _spelling(old.value) == _spelling(new.value) and (
                kinds != {"word"} or old.value.strip()[1:] == new.value.strip()[1:]
            )
            return (1.0, "same words") if same else unequal
        return self._text(old.value, new.value)

    def _text(self, old: str, new: str) -> tuple[float, str]:
        """Score two free texts; 0 with the reason if one may not stand in for the other."""
        if _spelling(old) == _spelling(new):
            return 1.0, "same words"
        (recorded, regions), (live, other_regions) = _place(old), _place(new)
        dropped = regions ^ other_regions
        if regions - other_regions and other_regions - regions:
            return 0.0, "the region differs"
        a, b = read(recorded), read(live)
        why = _disagreement(a, b)
        if why:
            return 0.0, why
        ours, theirs = frozenset(a.words), frozenset(b.words)
        if a.words and (a.words == b.words or _turned(a, b)):
            extra = len(dropped) * _REGION_WEIGHT + abs(len(a.tokens) - len(b.tokens)) * _FILLER_WEIGHT
            by_words = len(a.words) / (len(a.words) + extra), "words contained"
        else:
            by_words = 0.0, f"'{min(ours ^ theirs, default='the order of words')}' stands on one side only"
            narrowed = min(len(ours), len(theirs)) <= _SHORT and (ours < theirs or theirs < ours)
            if narrowed or not _enough(ours, theirs):
                return by_words
        if self._vectors is None or by_words[0] > _SURE:
            return by_words
        # Asked late: this may load an embedder.
        same_from = getattr(self._embedder, "same_from", SAME_FROM)
        by_vectors = self._vectors.compare(old, new) if same_from <= 1 else (0.0, "")
        return max(by_words, by_vectors) if by_vectors[0] >= same_from else by_words


def _spelling(text: str) -> Hashable:
    return read(text).tokens, read(text).figures


def _disagreement(a: Reading, b: Reading) -> str:
    """Why one text may not stand in for the other, or nothing."""
    if a.figures != b.figures or a.values("number") - b.values("number") or b.values("number") - a.values("number"):
        return "a number or a sign differs"
    for kind in _ALL_THE_SAME:
        if a.values(kind) != b.values(kind):
            return f"{kind.replace('neutral', 'negation')} differs"
    for left, right in clashes(a, b, "states", "requests"):
        return f"'{left}' is the opposite of '{right}'"
    for name in sorted((a.names - {*b.tokens}) | (b.names - {*a.tokens})):
        return f"'{name}' stands on one side only"
    roles = {*lexicon().lists["arguments"]["roles"].split()}
    if roles.intersection(a.words) != roles.intersection(b.words):
        return f"'{min(roles.intersection(a.words) ^ roles.intersection(b.words))}' stands on one side only"
    moved = a.tokens != b.tokens and sorted(a.tokens) == sorted(b.tokens)
    return "words change places" if moved or (_reordered(a, b) and not _turned(a, b)) else ""


def _turned(a: Reading, b: Reading) -> bool:
    """*news of jazz* may become *jazz news*: the words swap around a link word that is dropped."""
    links = lexicon().lists["arguments"]["links"].split()
    counts = [sum(word in links for word in side.tokens) for side in (a, b)]
    turns = (a.words[n:] + a.words[:n] for n in range(1, len(a.words)))
    return counts[0] != counts[1] and len(a.words) == len(b.words) and b.words in turns


def _reordered(a: Reading, b: Reading) -> bool:
    """Whether the words that both have are in a different order, and no passive explains it."""
    left, right = ([word[:STEM] for word in side.words] for side in (a, b))
    shared = [word for word in left if left.count(word) == right.count(word) == 1]
    passive = ("by" in a.tokens) != ("by" in b.tokens)
    return not passive and [right.index(word) for word in shared] != sorted(right.index(word) for word in shared)


def _place(text: str) -> tuple[str, set[str]]:
    """*text* without a redundant region after its last comma, and that region.

    >>> _place("Paris, France"), _place("Paris, Texas")
    (('Paris', {'france'}), ('Paris, Texas', set()))
    """
    regions, homes, ambiguous = _regions()
    rest, _, last = text.rpartition(",")
    name = regions.get(last.strip().casefold().replace(" ", "_"))
    if not rest or name is None:
        return text, set()
    inner, wider = _place(rest)
    place = "".join(inner.casefold().split()[-1:]).strip(",")
    if not place or place in ambiguous or place in regions or name not in homes.get(place, {name}) | wider:
        return text, set()
    return inner, wider | {name}


@cache
def _regions() -> tuple[dict[str, str], dict[str, set[str]], frozenset[str]]:
    lists = lexicon().lists["arguments"]
    states = dict(line.split() for line in lists["states"].strip().splitlines())
    names = {name: name for name in (*states.values(), *lists["countries"].split())}
    homes = {city: set(found) for city, *found in map(str.split, lists["homes"].strip().splitlines())}
    return {**names, **states}, homes, frozenset(lists["ambiguous_places"].split())


# -- which leaves are free text; everything else must be equal --------------------------------------------------------


def key_words(key: str) -> list[str]:
    """The words of a parameter name in snake or camel case.

    >>> key_words("customerId"), key_words("start_date")
    (['customer', 'id'], ['start', 'date'])
    """
    return [word.lower() for word in _KEY_WORDS.findall(key)]


@cache
def _rules() -> tuple[frozenset[str], frozenset[str], tuple[re.Pattern[str], ...]]:
    lists = lexicon().lists["arguments"]
    patterns = tuple(re.compile(pattern, re.DOTALL) for pattern in lists["code"])
    return frozenset(lists["exact_keys"].split()), frozenset(lists["data_keys"].split()), patterns


def kind_of(value: str, key: str, schema: Mapping[str, Any] | None = None) -> Kind:
    """How far this string may differ.

    >>> kind_of("San Francisco, CA", "location"), kind_of("metric", "units"), kind_of("SELECT a FROM b", "query")
    ('text', 'exact', 'exact')
    """
    exact_keys, data_keys, code = _rules()
    words, text = key_words(key), value.strip()
    if (schema and _fixed_by(schema)) or exact_keys.intersection((*words[-1:], key.lower())):
        return "exact"
    if data_keys.intersection(words[-1:]):
        return "data"
    if not 0 < len(text) <= _LONGEST_QUERY:
        return "exact"
    if _MATH.fullmatch(text):
        return "math"
    if _SINGLE.fullmatch(text):
        return "word"
    lone = len(text.split(maxsplit=1)) == 1 and _PLAIN.fullmatch(text) is None
    return "exact" if lone or any(pattern.search(text) for pattern in code) else "text"


def _fixed_by(schema: Mapping[str, Any]) -> bool:
    return (
        any(name in schema for name in ("enum", "const", "pattern"))
        or schema.get("format") in _FORMATS
        or schema.get("type") in ("integer", "number", "boolean", "null")
    )


def leaves(arguments: Any, schema: Mapping[str, Any] | None = None, exact: Collection[str] = ()) -> list[Leaf]:
    """All leaves in a fixed order; an empty container counts as a leaf."""
    found: list[Leaf] = []
    stack: list[tuple[str, str, Any, Any]] = [("$", "", arguments, schema)]
    while stack:
        path, key, value, part = stack.pop()
        part = part if isinstance(part, Mapping) else {}
        if isinstance(value, Mapping) and value:
            properties = part.get("properties")
            for name in sorted(value, key=str, reverse=True):
                inner = properties.get(name) if isinstance(properties, Mapping) else None
                stack.append((f"{path}.{name}", str(name), value[name], inner))
        elif isinstance(value, (list, tuple)) and value:
            for index in range(len(value) - 1, -1, -1):
                stack.append((f"{path}[{index}]", key, value[index], part.get("items")))
        else:
            fixed = not isinstance(value, str) or key in exact or path[2:] in exact
            found.append(Leaf(path, "exact" if fixed else kind_of(value, key, part), value))
    return found


def same_value(left: Any, right: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, but not True and not "1".

    >>> same_value(1, 1.0), same_value(1, True), same_value([], ())
    (True, False, True)
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same_value, left, right))
    return bool(left == right)


def squeeze_math(text: str) -> str:
    """An expression without insignificant spaces.

    >>> squeeze_math("25 * 4") == squeeze_math("25*4"), squeeze_math("2 5")
    (True, '2 5')
    """
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", " ".join(text.split()))
    return re.sub(r"\s*([-+*/^%=<>()])\s*", r"\1", text)

"""Match a live call's arguments to a recorded one by meaning: explore replay only, free text only (D11).

Numbers, booleans, dates, ids, codes, paths, addresses, enumerated values and keys must be equal. The score of a
match is the lowest over its free-text leaves; each leaf scores ``max(token containment, embedding cosine)``, and 0
where negations, opposites, numbers, names or roles disagree. Tools with side effects never come here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from antiphon.similarity._alike import MAX_LOOSE, MAX_NEAR_WORDS, Embedder, Likeness, Vectors, compare, may_abbreviate
from antiphon.similarity._phrase import Phrase, lexicon, read

__all__ = ["DEFAULT_THRESHOLD", "Embedder", "LeafMatch", "Match", "SemanticIndex", "similar_arguments"]

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
_SQL = re.compile(
    r"\s*(?:select\b.+\bfrom|insert\s+into|update\b.+\bset|delete\s+from|with\b.+\bas\s*\("
    r"|(?:create|drop|alter|truncate)\s+(?:table|index|view|database|schema)|merge\s+into|grant\b.+\bto|revoke\b.+\bfrom|explain\s+select|match\s*\()",
    re.IGNORECASE | re.DOTALL,
)
_SHELL = re.compile(
    r"\s*(?:sudo\s|\$\s|(?:ls|cat|rm|cp|mv|cd|grep|sed|awk|find|git|docker|kubectl|helm|curl|wget|pip|npm|yarn|python3?|node"
    r"|bash|sh|chmod|chown|tar|ssh|scp|echo|export|make|cargo|go|apt|apt-get|systemctl|ps|kill|touch|mkdir|psql|redis-cli"
    r"|terraform|aws|gcloud|az)\s(?=.*(?:\s-{1,2}\w|[|>;$`*&]|\s[./~])))",
    re.DOTALL,
)
_CODE = re.compile(
    r"[{}\\`]|=>|==|!=|->|\(\)|\);|</?\w{1,20}[^>]{0,200}>|\w\(\w{0,40}[,)]|\bdef \w|\breturn\b.{0,200};"
    r"|\w\s{0,3}=\s{0,3}['\"\w\[({]|\.\*|\.\+|\[\^|\(\?|\n[ \t]{1,8}\S|&&|\|\|"
)
_EMAIL = re.compile(r"\S+@\S+\.\w+")
_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:|www\.)\S+")
_PATH = re.compile(r"(?:~|\.{0,2})/\S*|[A-Za-z]:\\.*|\\\\.*|\S+[/\\]\S+")
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}.*|\d{1,2}:\d{2}.*")
_LONGEST_QUERY = 2000
"""A longer text is not a question but a document."""


class Leaf(NamedTuple):
    """One value inside arguments, with its place."""

    path: str
    kind: Kind
    value: Any


class LeafMatch(NamedTuple):
    """One leaf that differs, with its score and the reason for it."""

    path: str
    recorded: Any
    live: Any
    score: float
    why: str


class Match(NamedTuple):
    """Whether a recorded answer may serve a live call; ``leaves`` are those that differ."""

    score: float
    hit: bool
    leaves: tuple[LeafMatch, ...]
    why: str


class Found(NamedTuple, Generic[T]):
    """A recorded call that matches."""

    ref: T
    match: Match


class _Prepared(NamedTuple):
    """Arguments read once."""

    leaves: list[Leaf]
    phrases: list[Phrase | None]
    bucket: Hashable


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
    parameters.

    >>> recorded = {"location": "San Francisco, CA", "units": "metric"}
    >>> similar_arguments(recorded, {"location": "San Francisco", "units": "metric"}).hit
    True
    >>> similar_arguments(recorded, {"location": "San Francisco, CA", "units": "imperial"}).why
    "$.units: 'metric' is not 'imperial'"
    """
    vectors = Vectors(embedder) if embedder is not None else None
    return _match(_prepare(recorded, schema, exact), _prepare(live, schema, exact), vectors, threshold)


def _prepare(arguments: Any, schema: Mapping[str, Any] | None, exact: Collection[str]) -> _Prepared:
    found = leaves(arguments, schema, exact)
    phrases: list[Phrase | None] = []
    bucket: list[Hashable] = []
    for leaf in found:
        if leaf.kind in ("text", "word", "data"):
            phrase = read(leaf.value)
            phrases.append(phrase)
            # What two texts must share goes into the bucket: a call elsewhere is never looked at.
            bucket.append((leaf.path, phrase.figures, phrase.negated, phrase.past))
        else:
            phrases.append(None)
            bucket.append((leaf.path, _frozen(squeeze_math(leaf.value) if leaf.kind == "math" else leaf.value)))
    return _Prepared(found, phrases, tuple(bucket))


def _frozen(value: Any) -> Hashable:
    """A hashable stand-in in which 1 is 1.0 but not True."""
    if isinstance(value, bool) or value is None:
        return ("constant", value)
    if isinstance(value, (int, float, str)):
        return value
    return repr(value)


def _match(recorded: _Prepared, live: _Prepared, vectors: Vectors | None, threshold: float) -> Match:
    ours, theirs = [leaf.path for leaf in recorded.leaves], [leaf.path for leaf in live.leaves]
    if ours != theirs:
        odd = sorted(set(ours) ^ set(theirs))
        return Match(0.0, False, (), f"{odd[0] if odd else '$'} stands on one side only")
    differing: list[LeafMatch] = []
    for old, new, old_phrase, new_phrase in zip(
        recorded.leaves, live.leaves, recorded.phrases, live.phrases, strict=True
    ):
        if same_value(old.value, new.value):
            continue
        likeness = _leaf(old, new, old_phrase, new_phrase, vectors)
        differing.append(LeafMatch(old.path, old.value, new.value, likeness.score, likeness.why))
        if likeness.score < threshold:
            why = f"{old.path}: {likeness.why}"
            if likeness.score:
                why += f" ({likeness.score:.0%} is below {threshold:.0%})"
            return Match(likeness.score, False, tuple(differing), why)
    if not differing:
        return Match(1.0, True, (), "equal")
    worst = min(differing, key=lambda leaf: leaf.score)
    return Match(worst.score, True, tuple(differing), f"{worst.path}: {worst.why}")


def _leaf(
    old: Leaf, new: Leaf, old_phrase: Phrase | None, new_phrase: Phrase | None, vectors: Vectors | None
) -> Likeness:
    """Score two unequal leaves."""
    unequal = Likeness(0.0, f"{old.value!r} is not {new.value!r}")
    kinds = {old.kind, new.kind}
    if kinds == {"math"}:
        return Likeness(1.0, "same expression") if squeeze_math(old.value) == squeeze_math(new.value) else unequal
    if old_phrase is None or new_phrase is None:
        return unequal
    if "data" in kinds or kinds == {"word"}:
        # A lone word may be one of a fixed set, a text that is worked on is no question: only spelling may differ.
        # Capitals beyond the first letter may make a lone word another one (*US*, *us*).
        same = old_phrase.plain == new_phrase.plain and (
            kinds != {"word"} or old.value.strip()[1:] == new.value.strip()[1:]
        )
        return Likeness(1.0, "same words") if same else unequal
    return compare(old_phrase, new_phrase, old.value, new.value, vectors)


class SemanticIndex(Generic[T]):
    """Recorded calls, prepared for fast lookup. A miss looks only at calls that share everything that must be equal.

    >>> index: SemanticIndex[str] = SemanticIndex()
    >>> index.add("weather", {"location": "San Francisco, CA"}, "call 7")
    >>> [found.ref for found in index.find("weather", {"location": "San Francisco"})]
    ['call 7']
    """

    def __init__(self, embedder: Embedder | None = None, threshold: float = DEFAULT_THRESHOLD) -> None:
        self.threshold = threshold
        self._vectors = Vectors(embedder) if embedder is not None else None
        self._buckets: dict[Hashable, list[tuple[T, _Prepared]]] = {}
        self._rules: dict[str, tuple[Mapping[str, Any] | None, Collection[str]]] = {}

    def declare(self, tool: str, schema: Mapping[str, Any] | None = None, exact: Collection[str] = ()) -> None:
        """Say what is known of a tool's parameters, before its calls are added."""
        self._rules[tool] = (schema, exact)

    def add(self, tool: str, arguments: Any, ref: T) -> None:
        """Keep a recorded call under *ref*."""
        prepared = _prepare(arguments, *self._rules.get(tool, (None, ())))
        self._buckets.setdefault((tool, prepared.bucket), []).append((ref, prepared))

    def find(self, tool: str, arguments: Any) -> list[Found[T]]:
        """All matches, best first, equal scores in recorded order."""
        live = _prepare(arguments, *self._rules.get(tool, (None, ())))
        hits = [
            Found(ref, match)
            for ref, recorded in self._buckets.get((tool, live.bucket), ())
            if _worth_a_look(recorded.phrases, live.phrases, self._vectors is not None)
            for match in (_match(recorded, live, self._vectors, self.threshold),)
            if match.hit
        ]
        hits.sort(key=lambda found: -found.match.score)
        return hits


def _worth_a_look(recorded: Iterable[Phrase | None], live: Iterable[Phrase | None], by_meaning: bool) -> bool:
    """Cheap and never wrong: whether the words that only one side has could still be paired at all."""
    for a, b in zip(recorded, live, strict=True):
        if a is None or b is None:
            continue
        shared = len(a.canons & b.canons)
        ours, theirs = len(a.canons) - shared, len(b.canons) - shared
        if ours + theirs > MAX_LOOSE:
            return False
        if (not ours and not theirs) or (by_meaning and ours <= MAX_NEAR_WORDS and theirs <= MAX_NEAR_WORDS):
            continue
        if not may_abbreviate(a.canons - b.canons, b.canons - a.canons):
            return False
    return True


# -- which leaves are free text; everything else must be equal --------------------------------------------------------


def key_words(key: str) -> list[str]:
    """The words of a parameter name, snake or camel case.

    >>> key_words("customerId"), key_words("start_date")
    (['customer', 'id'], ['start', 'date'])
    """
    return [word.lower() for word in _KEY_WORDS.findall(key)]


def kind_of(value: str, key: str, schema: Mapping[str, Any] | None = None) -> Kind:
    """How much of this string may differ.

    >>> kind_of("San Francisco, CA", "location"), kind_of("metric", "units"), kind_of("SELECT a FROM b", "query")
    ('text', 'exact', 'exact')
    """
    if schema and _fixed_by(schema):
        return "exact"
    words, known = key_words(key), lexicon()
    if words and (words[-1] in known.exact_keys or key.lower() in known.exact_keys):
        return "exact"
    if words and words[-1] in known.data_keys:
        return "data"
    text = value.strip()
    if not 0 < len(text) <= _LONGEST_QUERY:
        return "exact"
    if _MATH.fullmatch(text):
        return "math"
    if _SINGLE.fullmatch(text):
        return "word"
    if len(text.split(maxsplit=1)) == 1 and _PLAIN.fullmatch(text) is None:
        return "exact"
    return "exact" if _is_code(text) else "text"


def _is_code(text: str) -> bool:
    """An address, a path, a date, SQL, a shell command, source code or a pattern."""
    return (
        any(pattern.fullmatch(text) is not None for pattern in (_EMAIL, _URL, _PATH, _DATE))
        or any(pattern.match(text) is not None for pattern in (_SQL, _SHELL))
        or _CODE.search(text) is not None
    )


def _fixed_by(schema: Mapping[str, Any]) -> bool:
    return (
        any(name in schema for name in ("enum", "const", "pattern"))
        or schema.get("format") in _FORMATS
        or schema.get("type") in ("integer", "number", "boolean", "null")
    )


def leaves(arguments: Any, schema: Mapping[str, Any] | None = None, exact: Collection[str] = ()) -> list[Leaf]:
    """All leaves in a fixed order; an empty container is a leaf of its own."""
    found: list[Leaf] = []
    stack: list[tuple[str, str, Any, Mapping[str, Any] | None]] = [("$", "", arguments, schema)]
    while stack:
        path, key, value, part = stack.pop()
        if isinstance(value, Mapping) and value:
            properties = part.get("properties") if isinstance(part, Mapping) else None
            for name in sorted(value, key=str, reverse=True):
                inner = properties.get(name) if isinstance(properties, Mapping) else None
                stack.append((f"{path}.{name}", str(name), value[name], inner))
        elif isinstance(value, (list, tuple)) and value:
            items = part.get("items") if isinstance(part, Mapping) else None
            for index in range(len(value) - 1, -1, -1):
                stack.append((f"{path}[{index}]", key, value[index], items if isinstance(items, Mapping) else None))
        elif isinstance(value, str):
            kind: Kind = "exact" if key in exact or path[2:] in exact else kind_of(value, key, part)
            found.append(Leaf(path, kind, value))
        else:
            found.append(Leaf(path, "exact", value))
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
    """An expression without the spaces that do not matter.

    >>> squeeze_math("25 * 4") == squeeze_math("25*4"), squeeze_math("2 5")
    (True, '2 5')
    """
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", " ".join(text.split()))
    return re.sub(r"\s*([-+*/^%=<>()])\s*", r"\1", text)

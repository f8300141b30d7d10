"""Which leaves of a call's arguments are free text. Everything else must be equal (D11)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from antiphon.similarity._lexicon import lexicon

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

"""The word lists of ``words/``: read when the first two texts are compared, then kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any


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

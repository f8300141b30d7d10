"""Answers that sound alike and say the opposite. An embedding does not see that, so it is reported beside it.

*approved* and *denied*, *yes* and *no*, *$100* and *$900* have nearly the same vector. Each such pair is one
:class:`Contradiction`; the similarity itself stays what K5 says it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

from antiphon.similarity._alike import swapped
from antiphon.similarity._phrase import Phrase, lexicon, opposite, read

Kind = Literal["opposite", "negation", "number", "currency", "roles"]

_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?](?!\s|$)[^.!?\n]*)*[.!?]*")
_TRAILING_ZEROS = re.compile(r"(?<=\d)\.0+$|(?<=\.\d)0+$")
_CURRENCY_SIGNS = frozenset("$€£¥₹₩₽")
_MAX_SENTENCES = 200
_SHORT = 4
_OVERLAP = 0.3
_SAME_CLAIM = 0.6


class Contradiction(NamedTuple):
    """One point on which two answers disagree."""

    kind: Kind
    recorded: str
    replayed: str

    def to_wire(self) -> dict[str, str]:
        """The JSON form."""
        return {"kind": self.kind, "recorded": self.recorded, "replayed": self.replayed}


def contradictions(recorded: str, replayed: str) -> list[Contradiction]:
    """Where *replayed* says the opposite of *recorded*, or another number.

    >>> contradictions("refund approved for order 12", "refund denied for order 12")
    [Contradiction(kind='opposite', recorded='approved', replayed='denied')]
    >>> contradictions("Paris is the capital of France.", "France's capital city is Paris.")
    []
    """
    if recorded == replayed:
        return []
    found = [*_sentences(recorded, replayed)]
    old, new = _figures(recorded), _figures(replayed)
    found += _differing("number", (old - new).elements(), (new - old).elements())
    money, other_money = _money(recorded), _money(replayed)
    found += _differing("currency", sorted(money - other_money), sorted(other_money - money))
    return list(dict.fromkeys(found))


def _differing(kind: Kind, recorded: Iterable[str], replayed: Iterable[str]) -> list[Contradiction]:
    left, right = ", ".join(recorded), ", ".join(replayed)
    return [Contradiction(kind, left, right)] if left and right else []


def _split(text: str) -> list[str]:
    return [part.strip() for part in _SENTENCE.findall(text)[:_MAX_SENTENCES] if part.strip()]


def _sentences(recorded: str, replayed: str) -> Iterable[Contradiction]:
    """Compare each recorded sentence with the one that is closest to it."""
    old = [(text, read(text)) for text in _split(recorded)]
    new = [(text, read(text)) for text in _split(replayed)]
    if not old or not new:
        return
    for text, phrase in old:
        overlap, other, other_text = max(
            ((_overlap(phrase, candidate), candidate, candidate_text) for candidate_text, candidate in new),
            key=lambda entry: entry[0],
        )
        if phrase.plain == other.plain:
            continue
        short = max(len(phrase.words), len(other.words)) <= _SHORT
        if overlap < _OVERLAP and not short:
            continue
        pairs = list(_opposites(phrase, other))
        yield from pairs
        if not pairs and overlap >= _SAME_CLAIM and len(phrase.negated) % 2 != len(other.negated) % 2:
            yield Contradiction("negation", text, other_text)
        if not pairs and sorted(phrase.plain) == sorted(other.plain) and swapped(phrase, other):
            yield Contradiction("roles", text, other_text)


def _overlap(a: Phrase, b: Phrase) -> float:
    union = len(a.canons | b.canons)
    return len(a.canons & b.canons) / union if union else 0.0


def _opposites(a: Phrase, b: Phrase) -> Iterable[Contradiction]:
    weak = lexicon().weak_opposites
    only_a = [word for word in dict.fromkeys(a.plain) if word not in b.plain and word not in weak]
    only_b = [word for word in dict.fromkeys(b.plain) if word not in a.plain and word not in weak]
    for left in only_a:
        for right in only_b:
            if opposite(left, right):
                yield Contradiction("opposite", left, right)


def _figures(text: str) -> Counter[str]:
    """Everything with a digit in it; small numbers in words count as figures."""
    found: Counter[str] = Counter()
    spelled = lexicon().numbers
    for token in read(text).plain:
        if token in spelled:
            found[str(spelled[token])] += 1
        elif any(character.isdigit() for character in token):
            found[_TRAILING_ZEROS.sub("", token)] += 1
    return found


def _money(text: str) -> set[str]:
    phrase, names = read(text), lexicon().currencies
    named = {names[word] for word in phrase.plain if word in names}
    return named | {names.get(sign, sign) for sign in phrase.signs if sign in _CURRENCY_SIGNS}

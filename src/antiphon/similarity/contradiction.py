"""Answers that sound alike and say the opposite. An embedding does not see that, so it is reported separately.

*approved* and *denied*, *yes* and *no*, *$100* and *$900*, ✅ and ❌ have nearly the same vector. Each such pair is one
:class:`Contradiction`; the similarity score itself stays as documented.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Literal, NamedTuple

from antiphon.similarity._reading import STEM, Reading, clashes, lexicon, plain, read, swapped

Kind = Literal["opposite", "negation", "number", "currency", "day", "month", "time", "roles"]

_SENTENCE = re.compile(r"[^.!?。！？\n]+(?:[.!?](?!\s|$)[^.!?。！？\n]*)*[.!?。！？]*")
_ABBREVIATED = re.compile(r"\b(Mr|Mrs|Ms|Dr|Prof|St|Sr|Sra|Mme|Nr|vs|approx|ca|bzw|etc)\.")
_FIRST = re.compile(r"\W*(\w+)\s*(?:[,;:、，.!。]|$)")
_LAST = re.compile(r"\b(\w+)\W*$")
_WORD = re.compile(r"[^\s.,;:!?](?:\S*[^\s.,;:!?])?")
MASK = "***"
_MASKS = re.compile(rf"{re.escape(MASK)}(?:[\s,]+{re.escape(MASK)})+")
_MAX_SENTENCES = 200
_SHORT = 4
_OVERLAP = 0.3
_SAME_CLAIM = 0.3
_SAME_WORDS = 0.75


class Contradiction(NamedTuple):
    """One point on which two answers disagree."""

    kind: Kind
    recorded: str
    replayed: str

    def to_wire(self) -> dict[str, str]:
        """The JSON form."""
        return {"kind": self.kind, "recorded": self.recorded, "replayed": self.replayed}


def contradictions(recorded: str, replayed: str) -> list[Contradiction]:
    """Where *replayed* says the opposite of *recorded*, or another number, day or month.

    >>> contradictions("refund approved for order 12", "refund denied for order 12")
    [Contradiction(kind='opposite', recorded='approved', replayed='denied')]
    >>> contradictions("Paris is the capital of France.", "France's capital city is Paris.")
    []
    """
    if recorded == replayed:
        return []
    found = [*_sentences(recorded, replayed)]
    old, new = read(recorded), read(replayed)
    kinds: tuple[Kind, ...] = ("number", "currency", "day", "month", "time")
    for kind in kinds:
        ours, theirs = old.values(kind) - new.values(kind), new.values(kind) - old.values(kind)
        if ours and theirs:
            left, right = (
                ", ".join(mark.text for mark in side.marks if mark.kind == kind and mark.value in only)
                for side, only in ((old, ours), (new, theirs))
            )
            found.append(Contradiction(kind, left, right))
    return list(dict.fromkeys(found))


def as_seen(found: Contradiction, recorded: str, replayed: str) -> Contradiction:
    """*found* with a mask in place of each word that is not in the masked texts.

    >>> found = Contradiction("number", "4111, 20", "5500, 30")
    >>> as_seen(found, "card [card 1] was charged 20 dollars", "card [card 2] was charged 30 dollars")
    Contradiction(kind='number', recorded='***, 20', replayed='***, 30')
    """
    return found._replace(recorded=_seen(found.recorded, recorded), replayed=_seen(found.replayed, replayed))


def _seen(piece: str, text: str) -> str:
    if piece in text:
        return piece
    there = {*_WORD.findall(f"{text} {plain(text)}".casefold()), *(mark.text for mark in read(text).marks)}
    hidden = _WORD.sub(lambda word: word[0] if word[0].casefold() in there else MASK, piece)
    return _MASKS.sub(MASK, hidden)


def _split(text: str) -> list[str]:
    found = _SENTENCE.findall(_ABBREVIATED.sub(r"\1", text))
    return [part.strip() for part in found[:_MAX_SENTENCES] if part.strip()]


def _sentences(recorded: str, replayed: str) -> Iterator[Contradiction]:
    """Compare each recorded sentence with the closest one."""
    new = [(text, _claim(read(text))) for text in _split(replayed)]
    for text in _split(recorded) if new else ():
        claim = _claim(read(text))
        overlap, other = max(((_overlap(claim, words), part) for part, words in new), key=lambda entry: entry[0])
        said, answered = _answer(text), _answer(other)
        if said and answered and said[0] != answered[0]:
            yield Contradiction("opposite", said[1], answered[1])
        elif read(text).tokens != read(other).tokens:
            yield from _compare(text, other, overlap)


def _answer(sentence: str) -> tuple[str, str] | None:
    """A separate *yes* or *no* answer, and how it is written."""
    for found in (_FIRST.match(plain(sentence)), _LAST.search(plain(sentence))):
        for meaning, words in lexicon().lists["answers"].items():
            if found and found[1].casefold() in words.split():
                return meaning, found[1].casefold()
    return None


def _compare(text: str, other: str, overlap: float) -> Iterator[Contradiction]:
    a, b = read(_bare(text)), read(_bare(other))
    if overlap < _OVERLAP and max(len(a.words), len(b.words)) > _SHORT:
        return
    parts = [_joined().split(plain(_bare(side))) for side in (text, other)]
    if 1 < len(parts[0]) == len(parts[1]):  # "approved and sent", "rejected and not sent": compare claim by claim
        for old, new in zip(*parts, strict=True):
            yield from _compare(old, new, _overlap(_claim(read(old)), _claim(read(new))))
        return
    opposites = [pair for pair in clashes(a, b, "states") if not {*pair} & (_negations(a) | _negations(b))]
    counts = [_count(side) for side in (a, b)]
    differ = bool(counts[0]) != bool(counts[1]) or (counts[0] != counts[1] and overlap >= _SAME_WORDS)
    if opposites and not differ:
        yield from (Contradiction("opposite", left, right) for left, right in opposites)
    elif differ and not opposites and overlap >= _SAME_CLAIM:
        # "not approved" and "rejected" agree: one side's negation is the other side's negative state.
        positive, negated = (a, b) if counts[0] < counts[1] else (b, a)
        # "deleted" and "did not delete" do not agree: it is the same word.
        shared = {word[:STEM] for word in positive.words} & {word[:STEM] for word in negated.words}
        said = {(mark.group, mark.value) for mark in negated.marks if mark.kind == "states"}
        only = [mark for mark in positive.marks if mark.kind == "states" and (mark.group, mark.value) not in said]
        if not any(mark.value != "0" and mark.text[:STEM] not in shared for mark in only):
            yield Contradiction("negation", text, other)
    elif swapped(a, b):
        yield Contradiction("roles", text, other)


@cache
def _joined() -> re.Pattern[str]:
    words = "|".join(lexicon().lists["joining"].split())
    return re.compile(rf"\s(?:{words})\s", re.IGNORECASE)


def _count(reading: Reading) -> int:
    """How often a sentence is negated; *no … ninguna* and *ne … pas* count once."""
    said = [mark.text for mark in reading.marks if mark.kind == "negation"]
    own = [word for word in said if word not in lexicon().lists["concord"].split()]
    return len(own) or min(len(said), 1)


def _negations(reading: Reading) -> set[str]:
    return {word for mark in reading.marks if mark.kind == "negation" for word in mark.text.split()}


def _bare(sentence: str) -> str:
    """The sentence without a leading *No,* or *No problem,*."""
    lead = _lead().match(plain(sentence))
    return sentence if lead is None else plain(sentence)[lead.end() :]


@cache
def _lead() -> re.Pattern[str]:
    lists = lexicon().lists
    words = " ".join([*lists["answers"].values(), lists["polite"]]).split()
    known = "|".join(re.escape(word.replace("_", " ")) for word in sorted(words, key=len, reverse=True))
    return re.compile(rf"\W*(?:{known})\s*[,;:!、，。.-]\s*(?=\w)", re.IGNORECASE)


def _claim(reading: Reading) -> set[str]:
    """Words next to negations and states, by their first letters: the forms of a word share them."""
    known = {
        word for mark in reading.marks if mark.kind in ("negation", "neutral", "states") for word in mark.text.split()
    }
    return {word[:STEM] for word in reading.words if word not in known}


def _overlap(left: set[str], right: set[str]) -> float:
    return len(left & right) / len(left | right) if left | right else 1.0

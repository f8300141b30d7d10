"""Compare live values with recorded ones that are masked (D36). This never runs detectors.

With the run's key the recording has the originals, and everything but credentials is compared for plain equality.
Without it the code gets pseudonyms: a live value that differs under a mask is a divergence if it is another pseudonym
of the run, or if the code had been given the recorded one earlier; else the two cannot be compared, and the report says
so.

A credential may differ, because another machine has a different one: if the recording did not give it to the code, and
if the replay uses one twice wherever the recording did. What merely looks like a key may be a recipient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from antiphon.contract.events import Event
from antiphon.redact import Mask
from antiphon.redact._names import classify
from antiphon.redact._pointers import leaf_at, names_of, text_at
from antiphon.redact._standins import GUESS, is_credential

KEY_HINT = "a masked value was not compared: set ANTIPHON_REPLAY_KEY to the output of antiphon replay-key"


class NotCompared(NamedTuple):
    """A masked value that the replay could not compare."""

    seq: int
    path: str
    kind: str
    what: str
    may_differ: bool = False
    """A credential of the machine, whose value may differ: only its pattern of use is compared."""

    def to_wire(self) -> dict[str, Any]:
        return {"seq": self.seq, "path": self.path, "kind": self.kind, "what": self.what}


def has_effect(started: Event) -> bool:
    """Whether the call may have an effect: anything not declared as read-only may (D13)."""
    if started.payload.get("kind") == "llm":
        return False
    effect = started.meta.get("effect")
    return effect != "read" if effect is not None else started.meta.get("idempotent") is not True


class MaskRules:
    """What is known about the masked values of one recording."""

    def __init__(self) -> None:
        self.has_key = False
        self.lost = 0
        """Events whose originals are damaged or were sealed with another key."""
        self.pseudonyms: dict[str, str] = {}
        """All pseudonyms of the run -> kind."""
        self.arrived: dict[str, int] = {}
        """Pseudonyms that the code was given -> the first event that gave them."""
        self.sent: dict[str, int] = {}
        """Pseudonyms that the code had in a call or an output -> the first event that has them."""
        self.pseudonym_of: Callable[[str], str] = str
        """The pseudonym of a value in the recording; a pseudonym maps to itself."""
        self.users: frozenset[str] = frozenset()
        """Kinds from users' rules."""
        self._live: dict[str, str] = {}
        self._recorded: dict[str, str] = {}

    def rewind(self) -> None:
        """Forget which credentials were seen."""
        self._live.clear()
        self._recorded.clear()

    def holds(self, value: Any) -> str | None:
        """A pseudonym of the run inside *value*, if any: it must not reach the outside world."""
        if self.has_key or not self.pseudonyms:
            return None
        text = value if isinstance(value, str) else str(value)
        return next((found for found in self.pseudonyms if len(found) >= 4 and found in text), None)

    def note_pseudonym(self, text: str, kind: str, seq: int, *, comes_in: bool) -> None:
        """Note the pseudonym *text* in event *seq*."""
        self.pseudonyms[text] = kind
        (self.arrived if comes_in else self.sent).setdefault(text, seq)

    def reconcile(
        self, recorded: Any, live: Any, masks: Sequence[Mask], event: Event, what: str
    ) -> tuple[Any, list[NotCompared]]:
        """*live* with the text of *event* wherever a mask allows both to count as equal, and what was not compared."""
        found: list[NotCompared] = []
        for pointer in dict.fromkeys(mask.pointer for mask in masks if not mask.key):
            old, new = leaf_at(recorded, pointer), leaf_at(live, pointer)
            if old == new or type(old) is not type(new) or not isinstance(old, (str, int)):
                continue
            own = sorted((mask for mask in masks if mask.pointer == pointer and not mask.key), key=lambda m: m.start)
            left = self._text(str(old), str(new), own, event, what)
            if left is not None:
                live = with_leaf(live, names_of(pointer), old)
                found += left
        return live, found

    def _text(self, old: str, new: str, masks: list[Mask], event: Event, what: str) -> list[NotCompared] | None:
        """What could not be compared, if the two count as equal; ``None`` if they differ."""
        literals, parts, position = list[str](), list[str](), 0
        for mask in masks:
            end = mask.start + mask.length
            literals.append(old[position : mask.start])
            parts.append(old[mask.start : end])
            position = end
        others = _between(literals, old[position:], new)
        if others is None:
            return None
        found: list[NotCompared] = []
        for mask, part, other in zip(masks, parts, others, strict=True):
            if part == other:
                continue
            may_differ = self._is_of_machine(mask, event)
            kept = self.pseudonym_of(part) != part
            if self._is_known(mask, part, other, event.seq) or (kept and not may_differ):
                return None
            if is_credential(mask.kind, self.users) and (not other or not self._same_pattern(part, other)):
                return None
            place = mask.pointer[1:].replace("/", ".")
            found.append(NotCompared(event.seq, place, mask.kind, what, may_differ))
        return found

    def _is_of_machine(self, mask: Mask, event: Event) -> bool:
        """Whether a masked value is a credential of the recording machine.

        In an argument of a tool with an effect, its name or that of its header must say so: else it may be a recipient.
        """
        if mask.kind == GUESS or not is_credential(mask.kind, self.users):
            return False
        if event.type != "call.started" or not has_effect(event):
            return True
        fields = map(classify, _names_around(event.payload, mask.pointer))
        return any(field is not None and field.mode == "secret" for field in fields)

    def _is_known(self, mask: Mask, recorded: str, live: str, seq: int) -> bool:
        """Whether the code got the recorded value from the recording, or the live one is another of its values.

        A credential that the code had sent before is its own, even if a result repeats it.
        """
        stands = self.pseudonym_of(recorded)
        before = self.sent.get(stands, seq) if is_credential(mask.kind, self.users) else seq
        return self.arrived.get(stands, seq) < min(before, seq) or self.pseudonym_of(live) in self.pseudonyms

    def same_credentials(self, recorded: Any, masks: Sequence[Mask]) -> bool:
        """Whether a call that uses the recorded credentials is consistent with earlier uses of others."""
        texts = [text_at(recorded, mask) for mask in masks if is_credential(mask.kind, self.users)]
        return all(self._same_pattern(text, text) for text in texts)

    def _same_pattern(self, recorded: str, live: str) -> bool:
        """Another machine has other keys; but where the recording used one twice, the replay must, too."""
        return self._live.setdefault(recorded, live) == live and self._recorded.setdefault(live, recorded) == recorded


def _between(literals: list[str], tail: str, text: str) -> list[str] | None:
    """What follows each of the *literals* in *text*, the first texts as short as possible; ``None`` without a match."""
    if not text.startswith(literals[0]):
        return None
    start, found = len(literals[0]), list[str]()
    for literal in literals[1:]:
        at = text.find(literal, start)
        if at < 0:
            return None
        found.append(text[start:at])
        start = at + len(literal)
    end = len(text) - len(tail)
    return [*found, text[start:end]] if start <= end and text.endswith(tail) else None


def _names_around(payload: Any, pointer: str) -> list[str]:
    """The names around a value, including those of ``["Cookie", …]`` and ``{"name": "Cookie", "value": …}``."""
    beside = leaf_at(payload, pointer.rpartition("/")[0])
    named = beside[:1] if isinstance(beside, list) else []
    if isinstance(beside, dict):
        named = [beside.get(name) for name in ("name", "key", "header")]
    return [*names_of(pointer)[1:], *(name for name in named if isinstance(name, str))]


def with_leaf(document: Any, names: list[str], value: Any) -> Any:
    """A copy of *document* with *value* at the path *names*."""
    if not names:
        return value
    name, *rest = names
    if isinstance(document, dict):
        return {**document, name: with_leaf(document[name], rest, value)}
    at = int(name)
    return [*document[:at], with_leaf(document[at], rest, value), *document[at + 1 :]]

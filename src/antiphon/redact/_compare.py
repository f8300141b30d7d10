"""Deprecated: compare a live value with a redacted one, by kinds and equality pattern of the masks in both (D21)."""

from __future__ import annotations

from typing import Any

from antiphon.redact._redactor import Redactor
from antiphon.redact._rules import MASK

__all__ = ["EqualityPattern", "same_after_redaction"]


class EqualityPattern:
    """Which recorded secret corresponds to which live one, over a whole run.

    The key on a test machine need not be the recorded one, but where the recording used one key twice, the live run
    must too, and two different ones must stay different. Kinds must match.
    """

    __slots__ = ("_live", "_recorded")

    def __init__(self) -> None:
        self._live: dict[str, str] = {}
        self._recorded: dict[str, str] = {}

    def same(self, recorded: Any, live: Any) -> bool:
        """Whether the two redacted values agree; their correspondences are remembered only if they do."""
        pairs: list[tuple[str, str]] = []
        if not _paired(recorded, live, pairs):
            return False
        to_live, to_recorded = dict(self._live), dict(self._recorded)
        for old, new in pairs:
            if to_live.setdefault(old, new) != new or to_recorded.setdefault(new, old) != old:
                return False
        self._live, self._recorded = to_live, to_recorded
        return True


def same_after_redaction(
    recorded: Any, live: Any, salt: Redactor | str | bytes, *, pattern: EqualityPattern | None = None
) -> bool:
    """Whether *live* (raw) is what was *recorded* (redacted); *salt* is the run's, or a redactor that has it.

    Secrets are compared by kind and equality pattern; pass one *pattern* for all calls to compare over a whole run.
    """
    redactor = salt if isinstance(salt, Redactor) else Redactor(salt=salt)
    return (pattern or EqualityPattern()).same(recorded, redactor.redact(live))


def _paired(recorded: Any, live: Any, pairs: list[tuple[str, str]]) -> bool:
    if isinstance(recorded, str) and isinstance(live, str):
        return recorded == live or _texts(recorded, live, pairs)
    if isinstance(recorded, dict) and isinstance(live, dict):
        if len(recorded) != len(live):
            return False
        if recorded.keys() == live.keys():
            return all(_paired(item, live[key], pairs) for key, item in recorded.items())
        return all(
            _paired(old_key, new_key, pairs) and _paired(recorded[old_key], live[new_key], pairs)
            for old_key, new_key in zip(sorted(recorded, key=_shape), sorted(live, key=_shape), strict=True)
        )
    if isinstance(recorded, (list, tuple)) and isinstance(live, (list, tuple)):
        return len(recorded) == len(live) and all(_paired(a, b, pairs) for a, b in zip(recorded, live, strict=True))
    if isinstance(recorded, bool) is not isinstance(live, bool):
        return False
    return bool(recorded == live)


def _shape(key: Any) -> str:
    return MASK.sub(lambda match: match[1] or match[3], str(key))


def _texts(recorded: str, live: str, pairs: list[tuple[str, str]]) -> bool:
    position = other = 0
    for old, new in zip(MASK.finditer(recorded), MASK.finditer(live), strict=False):
        if (old[1] or old[3]) != (new[1] or new[3]):
            return False
        if recorded[position : old.start()] != live[other : new.start()]:
            return False
        before, now = old[2] or old[4], new[2] or new[4]
        if before is not None and now is not None:
            pairs.append((before, now))
        position, other = old.end(), new.end()
    return recorded[position:] == live[other:]

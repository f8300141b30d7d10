"""A redactor that is built on first use: compiling its patterns costs more than the rest of a start-up."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.redact import Redactor, Rules


class LateRedactor:
    """Stands in for a :class:`antiphon.redact.Redactor` with a salt of its own."""

    __slots__ = ("_made", "_rules", "redact_bytes")

    def __init__(self, rules: Callable[[], Rules]) -> None:
        self._rules = rules
        self._made: Redactor | None = None
        self.redact_bytes: Callable[[bytes], tuple[bytes, bool]] = self._redact_bytes
        """Once there is a redactor, its own method: every result passes through here."""

    @property
    def made(self) -> Redactor:
        """The redactor itself."""
        if self._made is None:
            from antiphon.redact import Redactor

            self._made = Redactor(self._rules(), salt=os.urandom(16).hex(), environment=os.environ)
            self.redact_bytes = self._made.redact_bytes
        return self._made

    def redact(self, value: Any, field: str = "") -> Any:
        return self.made.redact(value, field)

    def redact_text(self, text: str) -> str:
        return self.made.redact_text(text)

    def _redact_bytes(self, document: bytes) -> tuple[bytes, bool]:
        return self.made.redact_bytes(document)


def traceback_of(error: BaseException, values: Mapping[str, str] | None = None) -> str:
    """The traceback of *error* as it may be logged: redacted, with *values* replaced."""
    import traceback

    from antiphon.redact import without_values

    text = "".join(traceback.format_exception(error)).rstrip()
    return _default().redact_text(without_values(text, values or {}))


def redacted(text: str) -> str:
    """*text* as it may be logged."""
    return _default().redact_text(text)


@functools.cache
def _default() -> Redactor:
    from antiphon.redact import Redactor

    return Redactor()

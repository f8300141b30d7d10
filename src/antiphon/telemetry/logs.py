"""Structured logs: one JSON object per event, through the standard ``logging``, redacted (R11, R14, TR-15)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from antiphon._late import LateRedactor
    from antiphon.redact import Redactor


LEVELS: Mapping[str, int] = {
    "tool_call_start": logging.DEBUG,
    "tool_call_end": logging.INFO,
    "tool_call_blocked": logging.WARNING,
    "tool_call_retry": logging.WARNING,
    "tool_call_circuit_state": logging.WARNING,
}
"""Events that are not listed are warnings: somebody should know."""


class JsonLogListener:
    """Writes events to the logger ``antiphon``; an event below the logger's level costs a fraction of a microsecond."""

    __slots__ = ("_logger", "_now_ms", "_redactor")

    def __init__(
        self,
        redactor: Redactor | LateRedactor,
        *,
        logger: str = "antiphon",
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._redactor = redactor
        self._logger = logging.getLogger(logger)
        self._now_ms = now_ms
        if logger == "antiphon" and not self._logger.handlers:
            # A library that was not told where to write does not write to the screen.
            self._logger.addHandler(logging.NullHandler())

    def wants(self, event: str) -> bool:
        """Whether the event would be written: ask before building its fields."""
        return self._logger.isEnabledFor(LEVELS.get(event, logging.WARNING)) and _is_heard(self._logger)

    def emit(self, event: str, fields: Mapping[str, Any]) -> None:
        level = LEVELS.get(event, logging.WARNING)
        if not (self._logger.isEnabledFor(level) and _is_heard(self._logger)):
            return
        document = {"event": event, "timeMs": self._now_ms()}
        document.update((name, value) for name, value in fields.items() if value is not None and value != "")
        line, _ = self._redactor.redact_bytes(orjson.dumps(document, default=str, option=orjson.OPT_NON_STR_KEYS))
        self._logger.log(level, line.decode())


def _is_heard(logger: logging.Logger) -> bool:
    """Whether anybody would see a line; where no handler at all is in the way, Python writes it by itself."""
    at: logging.Logger | None = logger
    silent = False
    while at is not None:
        for handler in at.handlers:
            if handler.__class__ is not logging.NullHandler:
                return True
            silent = True
        at = at.parent if at.propagate else None
    return not silent


def json_logs(level: str | int = logging.INFO, stream: IO[str] | None = None) -> logging.Handler:
    """Write the logger ``antiphon`` to *stream* (standard error if none), one JSON object per line."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("antiphon")
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return handler

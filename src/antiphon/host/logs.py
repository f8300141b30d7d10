"""The log of ``antiphon serve``: one redacted line per request, run event and tool call, as JSON or text.

Every line names its request, tenant and run, including lines written by user code and other packages.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Literal

import orjson

from antiphon._recording.plain import dump
from antiphon.redact import Redactor

Format = Literal["text", "json"]

_NOTHING: Mapping[str, str] = MappingProxyType({})
about: ContextVar[Mapping[str, str]] = ContextVar("antiphon_log", default=_NOTHING)
"""The request, tenant and run of the current context."""

_FIELDS = "event method path status durationMs bytes client nodeId webhookId sequence code".split()
"""Fields that a line may have besides its text (``extra`` of ``logging``), after those in :data:`about`."""
_ABOUT = ("requestId", "tenant", "runId")
_UNSAID = ("Application startup failed. Exiting.", "failed to start, stopping the parent process.")
"""Server messages that repeat ours."""


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """A record as a document; tool events already are documents."""
    found: dict[str, Any] = {"time": _time(record.created), "level": record.levelname.lower(), "logger": record.name}
    text = record.getMessage()
    parsed: Any = None
    if record.name == "antiphon" and text.startswith("{"):
        with contextlib.suppress(orjson.JSONDecodeError):
            parsed = orjson.loads(text)
    if isinstance(parsed, dict):
        parsed.pop("timeMs", None)
        found |= parsed
    else:
        found["message"] = text
    given = vars(record)
    for name in (*_ABOUT, *_FIELDS):
        value = given.get(name)
        if value is None and name in _ABOUT:
            value = about.get().get(name)
        if value is not None and name not in found:
            found[name] = value
    if record.exc_info and record.exc_info[0] is not None:
        found["exception"] = logging.Formatter().formatException(record.exc_info)
    return found


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"


class JsonFormatter(logging.Formatter):
    """Formats records as JSON, one document per line."""

    def __init__(self) -> None:
        super().__init__()
        self._redactor = Redactor()

    def format(self, record: logging.LogRecord) -> str:
        clean, _ = self._redactor.redact_bytes(dump(fields_of(record)))
        return self.line(clean)

    def line(self, document: bytes) -> str:
        """The line of a redacted document."""
        return document.decode()


class TextFormatter(JsonFormatter):
    """Formats records for people: time, level, text, then the fields."""

    def line(self, document: bytes) -> str:
        fields: dict[str, Any] = orjson.loads(document)
        head = f"{fields.pop('time')} {fields.pop('level').upper():<7}"
        fields.pop("logger", None)
        error = fields.pop("exception", "")
        text = fields.pop("message", "") or fields.pop("event", "")
        rest = "".join(f" {name}={_word(value)}" for name, value in fields.items())
        return f"{head} {_printable(str(text))}{rest}" + (f"\n{error}" if error else "")


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    text = _printable(text)
    return f'"{text}"' if " " in text or not text else text


def _printable(text: str) -> str:
    """One line, with unprintable characters escaped."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class DropRepeats(logging.Filter):
    """Drops server messages that repeat ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().endswith(_UNSAID)


def settings(level: str, style: Format) -> dict[str, Any]:
    """The ``logging`` configuration of the server and each of its workers."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": {"()": JsonFormatter if style == "json" else TextFormatter}},
        "filters": {"once": {"()": DropRepeats}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "lines",
                "filters": ["once"],
                "stream": "ext://sys.stderr",
            }
        },
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "antiphon": {"handlers": ["stderr"], "level": level.upper(), "propagate": False},
            "uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
        },
    }

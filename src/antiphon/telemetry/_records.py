"""Log records with a fixed origin: no stack lookup, half the price of ``logging.LogRecord()``, or none at all.

All of it is a shortcut of what the standard library does. It is taken only while nobody has replaced a part of that.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from threading import current_thread, get_ident
from types import FunctionType
from typing import IO, Any, TypeGuard

_new = object.__new__
_process = os.getpid()


def _after_fork() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


class Records:
    """Makes the records of *logger* as ``logger.makeRecord`` would, with *origin* as the place they come from.

    They are built here only on releases of Python whose records have exactly the attributes that are set here.
    """

    __slots__ = ("_file", "_function", "_has_our_attributes", "_line", "_logger", "_module", "_path", "_start_ms")

    def __init__(self, logger: logging.Logger, origin: Any) -> None:
        self._logger = logger
        code = origin.__code__
        self._path, self._line, self._function = code.co_filename, code.co_firstlineno, code.co_name
        sample = logging.LogRecord(logger.name, logging.INFO, self._path, self._line, "", (), None, self._function)
        self._file, self._module = sample.filename, sample.module
        self._start_ms = sample.created * 1000 - sample.relativeCreated
        self._has_our_attributes = list(vars(self._quick(logging.INFO, ""))) == list(vars(sample))

    def make(self, level: int, message: str) -> logging.LogRecord:
        """A record of *level* for *message*."""
        logger = self._logger
        if (
            _IS_STANDARD
            and self._has_our_attributes
            and logging.getLogRecordFactory() is logging.LogRecord
            and logger.__class__ is logging.Logger
            and logging.Logger.makeRecord is _make_record
            and "makeRecord" not in logger.__dict__
            and logging.logThreads
            and logging.logProcesses
            and logging.logMultiprocessing
        ):
            return self._quick(level, message)
        return logger.makeRecord(logger.name, level, self._path, self._line, message, (), None, self._function)

    def _quick(self, level: int, message: str) -> logging.LogRecord:
        """What ``LogRecord.__init__`` does, in its order: a record's attributes then take the least memory."""
        now = time.time_ns()
        record = _new(logging.LogRecord)
        record.name = self._logger.name
        record.msg = message
        record.args = ()
        record.levelname = logging.getLevelName(level)
        record.levelno = level
        record.pathname = self._path
        record.filename = self._file
        record.module = self._module
        record.exc_info = None
        record.exc_text = None
        record.stack_info = None
        record.lineno = self._line
        record.funcName = self._function
        record.created = now / 1e9
        record.msecs = now // 1_000_000 % 1000 + 0.0
        record.relativeCreated = now / 1e6 - self._start_ms
        record.thread = get_ident()
        record.threadName = current_thread().name
        record.processName = "MainProcess"
        # While it is being imported, multiprocessing has no such function.
        current_process = getattr(sys.modules.get("multiprocessing"), "current_process", None)
        if current_process is not None:
            record.processName = current_process().name
        record.process = _process
        return record


# -- no record at all --------------------------------------------------------------------------------------------------

_LOGGER_METHODS = ("makeRecord", "handle", "callHandlers")
_HANDLER_METHODS = ("handle", "emit", "format", "flush", "acquire", "release")
_make_record, _handle, _call_handlers = (getattr(logging.Logger, name) for name in _LOGGER_METHODS)
_take, _emit, _format = logging.Handler.handle, logging.StreamHandler.emit, logging.Formatter.format


def writes_messages_only(handler: object, logger: logging.Logger) -> TypeGuard[logging.StreamHandler[IO[str]]]:
    """Whether all that happens to a message of *logger* is that *handler*, the only one, writes it to its stream."""
    if handler.__class__ is not logging.StreamHandler:
        return False
    assert isinstance(handler, logging.StreamHandler)
    formatter = handler.formatter or logging._defaultFormatter  # type: ignore[attr-defined]
    return (
        _IS_STANDARD
        and formatter.__class__ is logging.Formatter
        and formatter._fmt == "%(message)s"
        and handler.lock is not None
        and not handler.filters
        and not logger.filters
        and logger.__class__ is logging.Logger
        and logging.getLogRecordFactory() is logging.LogRecord
        and logging.Logger.makeRecord is _make_record
        and logging.Logger.handle is _handle
        and logging.Logger.callHandlers is _call_handlers
        and logging.Handler.handle is _take
        and logging.StreamHandler.emit is _emit
        and logging.Formatter.format is _format
        and logger.__dict__.keys().isdisjoint(_LOGGER_METHODS)
        and handler.__dict__.keys().isdisjoint(_HANDLER_METHODS)
    )


def write(handler: logging.StreamHandler[IO[str]], message: str) -> None:
    """What ``handler.handle`` does with a record that is nothing but *message*."""
    handler.acquire()
    try:
        stream = handler.stream
        stream.write(message + handler.terminator)
        flush = getattr(stream, "flush", None)
        if flush is not None:
            flush()
    except RecursionError:
        raise
    except Exception:
        handler.handleError(logging.makeLogRecord({"msg": message}))
    finally:
        handler.release()


def _is_standard() -> bool:
    """Whether nobody had replaced anything before this module was imported."""
    found = (_make_record, _handle, _call_handlers, _take, _emit, _format, logging.LogRecord.__init__)
    return all(isinstance(one, FunctionType) and one.__globals__ is vars(logging) for one in found)


_IS_STANDARD = _is_standard()

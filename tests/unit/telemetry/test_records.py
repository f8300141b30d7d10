"""R11: log records are what ``logging`` itself would make, and all its switches work while the process runs."""

from __future__ import annotations

import copy
import io
import json
import logging
import logging.handlers
import os
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import antiphon
from antiphon.redact import Redactor
from antiphon.stores import MemoryStore
from antiphon.telemetry.logs import JsonLogListener, json_logs

NAME = "antiphon.records"
FIELDS = {"requestId": "r-1", "toolName": "send_email", "status": "success", "elapsedMs": 1.5}


class Kept(logging.Handler):
    """Keeps the records it is given."""

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger(NAME)
    made.setLevel(logging.INFO)
    made.propagate = False
    yield made
    for handler in list(made.handlers):
        made.removeHandler(handler)
    for chosen in list(made.filters):
        made.removeFilter(chosen)
    made.disabled = False
    made.propagate = True


@pytest.fixture
def kept(logger: logging.Logger) -> Kept:
    handler = Kept()
    logger.addHandler(handler)
    return handler


@pytest.fixture
def listener(logger: logging.Logger) -> JsonLogListener:
    return JsonLogListener(Redactor(salt="unit"), logger=NAME)


def alone(logger: logging.Logger, *handlers: logging.Handler) -> None:
    """Without the handlers that pytest adds."""
    logger.handlers[:] = handlers


def end(listener: JsonLogListener) -> bool:
    """Emit the end of a call; whether the listener wanted it."""
    wanted = listener.wants("tool_call_end")
    listener.emit("tool_call_end", FIELDS)
    return wanted


# -- the record ------------------------------------------------------------------------------------------------------

VOLATILE = {"created", "msecs", "relativeCreated"}


def standard(logger: logging.Logger, record: logging.LogRecord) -> logging.LogRecord:
    return logger.makeRecord(
        NAME, record.levelno, record.pathname, record.lineno, str(record.msg), (), None, record.funcName
    )


def test_a_record_can_be_formatted_copied_and_sent(logger: logging.Logger, listener: JsonLogListener) -> None:
    waiting: queue.Queue[logging.LogRecord] = queue.Queue()
    logger.addHandler(logging.handlers.QueueHandler(waiting))
    end(listener)
    record = waiting.get_nowait()
    style = "%(asctime)s %(name)s %(levelname)s %(process)d %(threadName)s %(filename)s:%(lineno)d %(message)s"
    text = logging.Formatter(style).format(record)
    assert f"{NAME} INFO {os.getpid()} MainThread logs.py:" in text
    assert text.endswith("}")
    for other in (copy.copy(record), pickle.loads(pickle.dumps(record))):
        assert vars(other) == vars(record)


def test_a_record_names_its_thread(kept: Kept, listener: JsonLogListener) -> None:
    thread = threading.Thread(target=end, args=(listener,), name="worker-7")
    thread.start()
    thread.join()
    assert (kept.records[0].threadName, kept.records[0].thread) == ("worker-7", thread.ident)


def test_a_record_factory_is_used_from_the_next_line_on(kept: Kept, listener: JsonLogListener) -> None:
    before = logging.getLogRecordFactory()

    def traced(*args: Any, **options: Any) -> logging.LogRecord:
        record = before(*args, **options)
        record.trace = "t-1"
        return record

    end(listener)
    logging.setLogRecordFactory(traced)
    try:
        end(listener)
    finally:
        logging.setLogRecordFactory(before)
    end(listener)
    assert [hasattr(record, "trace") for record in kept.records] == [False, True, False]


def _marked(made: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    def make(*args: Any, **options: Any) -> logging.LogRecord:
        record = made(*args, **options)
        record.marked = True
        return record

    return make


# -- who is told -----------------------------------------------------------------------------------------------------


def test_levels_may_change_while_the_process_runs(
    logger: logging.Logger, kept: Kept, listener: JsonLogListener
) -> None:
    wanted = []
    for level in (logging.INFO, logging.WARNING, logging.DEBUG, logging.ERROR, logging.INFO):
        logger.setLevel(level)
        wanted.append(end(listener))
    assert wanted == [True, False, True, False, True]
    assert len(kept.records) == 3


def test_the_level_of_a_handler_counts(logger: logging.Logger, kept: Kept, listener: JsonLogListener) -> None:
    alone(logger, kept)
    kept.setLevel(logging.WARNING)
    assert not end(listener)
    assert listener.wants("tool_call_retry")
    quiet = Kept(logging.ERROR)
    logger.addHandler(quiet)
    assert not end(listener)
    kept.setLevel(logging.INFO)
    assert end(listener)
    assert (len(kept.records), len(quiet.records)) == (1, 0)


def test_handlers_may_come_and_go(logger: logging.Logger, listener: JsonLogListener) -> None:
    alone(logger, logging.NullHandler())
    assert not end(listener)
    late = Kept()
    logger.addHandler(late)
    assert end(listener)
    logger.removeHandler(late)
    assert not end(listener)
    assert len(late.records) == 1


def test_without_a_handler_warnings_are_printed_and_events_are_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("", "antiphon"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    gateway = antiphon.Gateway(store=MemoryStore())

    @gateway.tool(idempotent=True, effect="write", retry={"base_ms": 0})
    def send() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        send()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tools/send is called outside any run, turn or key")


def test_lines_propagate(logger: logging.Logger, listener: JsonLogListener) -> None:
    parent, kept = logging.getLogger("antiphon"), Kept()
    alone(logger, logging.NullHandler())
    before, parent.propagate = parent.propagate, False
    parent.addHandler(kept)
    try:
        assert not end(listener)
        logger.propagate = True
        assert end(listener)
    finally:
        parent.removeHandler(kept)
        parent.propagate = before
    assert len(kept.records) == 1


def test_logging_can_be_switched_off(logger: logging.Logger, kept: Kept, listener: JsonLogListener) -> None:
    logging.disable(logging.INFO)
    try:
        assert not end(listener)
        assert listener.wants("tool_call_retry")
    finally:
        logging.disable(logging.NOTSET)
    logger.disabled = True
    assert not end(listener)
    logger.disabled = False
    assert end(listener)
    assert len(kept.records) == 1


def test_filters_of_loggers_and_handlers_decide(logger: logging.Logger, kept: Kept, listener: JsonLogListener) -> None:
    seen: list[str] = []

    def refuse(record: logging.LogRecord) -> bool:
        seen.append(json.loads(record.getMessage())["event"])
        return False

    logger.addFilter(refuse)
    end(listener)
    logger.removeFilter(refuse)
    kept.addFilter(refuse)
    end(listener)
    kept.removeFilter(refuse)
    end(listener)
    assert seen == ["tool_call_end", "tool_call_end"]
    assert len(kept.records) == 1


# -- without a record --------------------------------------------------------------------------------------------------


def _subclass(stream: io.StringIO) -> logging.Handler:
    class Other(logging.StreamHandler[Any]):
        pass

    return Other(stream)


def _with_filter(stream: io.StringIO) -> logging.Handler:
    handler = logging.StreamHandler(stream)
    handler.addFilter(lambda record: True)
    return handler


def _with_format(stream: io.StringIO) -> logging.Handler:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    return handler


def _with_formatter(stream: io.StringIO) -> logging.Handler:
    class Other(logging.Formatter):
        pass

    handler = logging.StreamHandler(stream)
    handler.setFormatter(Other())
    return handler


def _with_emit(stream: io.StringIO) -> logging.Handler:
    handler = logging.StreamHandler(stream)
    handler.emit = handler.emit  # type: ignore[method-assign]
    return handler


def test_a_filter_and_a_factory_see_the_line(logger: logging.Logger, listener: JsonLogListener) -> None:
    stream = io.StringIO()
    alone(logger, logging.StreamHandler(stream))
    seen: list[str] = []
    before = logging.getLogRecordFactory()

    def passed(record: logging.LogRecord) -> bool:
        seen.append("filter")
        return True

    def made(*args: Any, **options: Any) -> logging.LogRecord:
        seen.append("factory")
        return before(*args, **options)

    logger.addFilter(passed)
    end(listener)
    logger.removeFilter(passed)
    logging.setLogRecordFactory(made)
    try:
        end(listener)
    finally:
        logging.setLogRecordFactory(before)
    assert seen == ["filter", "factory"]
    assert len(stream.getvalue().splitlines()) == 2


def test_a_stream_needs_no_flush_and_may_be_broken(
    logger: logging.Logger, listener: JsonLogListener, capsys: pytest.CaptureFixture[str]
) -> None:
    class Simple:
        def __init__(self) -> None:
            self.text = ""

        def write(self, text: str) -> None:
            self.text += text

    simple = Simple()
    alone(logger, logging.StreamHandler(simple))
    end(listener)
    assert json.loads(simple.text)["event"] == "tool_call_end"
    closed = io.StringIO()
    closed.close()
    alone(logger, logging.StreamHandler(closed))
    end(listener)
    assert "--- Logging error ---" in capsys.readouterr().err


def test_lines_of_threads_do_not_mix(logger: logging.Logger, listener: JsonLogListener) -> None:
    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            return sum(io.StringIO.write(self, piece) for piece in (text[:20], text[20:]))

    stream = Slow()
    alone(logger, logging.StreamHandler(stream))
    threads = [threading.Thread(target=lambda: [end(listener) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [json.loads(line)["requestId"] for line in stream.getvalue().splitlines()] == ["r-1"] * 800


# -- json_logs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def stream() -> Iterator[tuple[io.StringIO, logging.Handler]]:
    logger = logging.getLogger("antiphon")
    before = (logger.level, logger.propagate)
    written = io.StringIO()
    handler = json_logs("INFO", written)
    yield written, handler
    logger.removeHandler(handler)
    logger.setLevel(before[0])
    logger.propagate = before[1]


def test_an_exception_is_written_with_its_traceback(stream: tuple[io.StringIO, logging.Handler]) -> None:
    written, _ = stream
    try:
        raise KeyError("gone")
    except KeyError:
        logging.getLogger("antiphon.telemetry").exception("a listener failed on %s", "tool_call_end")
    assert written.getvalue().startswith("a listener failed on tool_call_end\nTraceback")
    logging.getLogger("antiphon").warning("plain %d", 7, stack_info=True)
    assert "plain 7\nStack" in written.getvalue()


def test_the_handler_takes_another_formatter(stream: tuple[io.StringIO, logging.Handler]) -> None:
    written, handler = stream
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    JsonLogListener(Redactor(salt="unit")).emit("tool_call_end", FIELDS)
    assert written.getvalue().startswith('INFO {"event":"tool_call_end"')


def test_a_stream_that_fails_does_not_fail_the_call(
    stream: tuple[io.StringIO, logging.Handler], capsys: pytest.CaptureFixture[str]
) -> None:
    written, _ = stream
    written.close()
    JsonLogListener(Redactor(salt="unit")).emit("tool_call_end", FIELDS)
    assert "--- Logging error ---" in capsys.readouterr().err


# -- the gateway -----------------------------------------------------------------------------------------------------


def test_a_guarded_call_writes_one_line_from_a_template(stream: tuple[io.StringIO, logging.Handler]) -> None:
    written, _ = stream
    listener = JsonLogListener(Redactor(salt="unit"))
    gateway = antiphon.Gateway(store=MemoryStore())
    gateway.listen(listener)

    @gateway.tool(idempotent=True)
    def find_order(number: str) -> str:
        return number

    for n in range(4):
        find_order(f"A-{n}")
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert {line["event"] for line in lines} == {"tool_call_end"}
    assert listener._lines is not None
    forms = listener._lines._templates._template_sets
    assert sum(len(form.templates) for form in forms.values()) == 1, "the quick way knows the fields of a success"

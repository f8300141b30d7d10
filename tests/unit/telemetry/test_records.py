"""R11: log records are what ``logging`` itself would make, and all its switches work while the process runs."""

from __future__ import annotations

import io
import json
import logging
import logging.handlers
import threading
from collections.abc import Iterator
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
    forms = listener._lines._templates._forms
    assert sum(len(form.templates) for form in forms.values()) == 1, "the quick way knows the fields of a success"

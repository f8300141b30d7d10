"""What a person sees: tables, colours, progress; and JSON for machines."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, TypeVar

T = TypeVar("T")


def print_json(value: Any, *, indent: bool = True) -> None:
    """One JSON document on standard output."""
    import orjson

    option = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if indent else 0)
    try:
        document = orjson.dumps(value, str, option)
    except TypeError:  # not encodable as JSON or UTF-8: use the recorded form
        from antiphon._recording.plain import dump

        document = orjson.dumps(orjson.loads(dump(value)), option=option)
    if document.isascii() or (sys.stdout.encoding or "").lower().replace("-", "") == "utf8":
        sys.stdout.write(document.decode())
    else:  # JSON is UTF-8, whatever the terminal's encoding
        sys.stdout.flush()
        sys.stdout.buffer.write(document)


def output(arguments: argparse.Namespace, data: Any, text: str | Iterable[str]) -> None:
    """The data with ``--json``, else the text or its lines."""
    if arguments.json:
        print_json(data)
    else:
        print(text if isinstance(text, str) else "\n".join(text))


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Sequence[int] = (),
    shorten: Mapping[int, int] | None = None,
    keep: Sequence[int] = (),
) -> str:
    """Columns aligned, the last one unpadded, fitted to the terminal's width when there is a terminal.

    Too wide a table shortens the columns of *shorten*, down to the given widths. If there is a column to *keep*, such
    as the status, it loses others, from the right, rather than that one; never the first. What still does not fit is
    cut.
    """
    text = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(head), *text]) for i in range(len(head))]
    least = [min(width, (shorten or {}).get(i, width)) for i, width in enumerate(widths)]
    kept = list(range(len(head)))
    limit = _width()

    def needed(widths: Sequence[int]) -> int:
        return sum(widths[i] for i in kept) + 2 * (len(kept) - 1)

    for column in reversed(range(1, len(head)) if keep else ()):
        if limit and column not in keep and needed(least) > limit:
            kept.remove(column)
    for column in shorten or ():
        if limit and column in kept and needed(widths) > limit:
            widths[column] = max(least[column], limit - needed(widths) + widths[column])

    def cell(value: str, i: int) -> str:
        short = value if len(value) <= widths[i] else value[: widths[i] - 1] + "…"
        return short.rjust(widths[i]) if i in right else short.ljust(widths[i])

    def line(cells: Sequence[str]) -> str:
        return cut("  ".join(cell(cells[i], i) for i in kept).rstrip())

    return "\n".join([bold(line(head)), *(line(row) for row in text)])


def safe(value: Any) -> str:
    """A recorded text in one line: what would move the cursor or speak to the terminal is left out."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "·" for char in str(value))


def _width() -> int:
    """The columns of the terminal; 0 if there is none, or it does not say."""
    return os.get_terminal_size().columns if sys.stdout.isatty() else 0


def cut(text: str) -> str:
    """A line no longer than the terminal is wide."""
    width = _width()
    return text if not width or len(text) <= width else text[: width - 1] + "…"


@contextmanager
def aside(active: bool) -> Iterator[None]:
    """What an agent prints meanwhile goes to standard error: standard output belongs to the document of ``--json``."""
    if not active:
        yield
        return
    sys.stdout.flush()
    try:
        number = sys.__stdout__.fileno() if sys.__stdout__ is not None else -1
        kept = os.dup(number)
    except (OSError, ValueError):
        number = kept = -1
    if kept >= 0:
        os.dup2(2, number)  # includes the output of subprocesses
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if kept >= 0:
            sys.stdout.flush()
            os.dup2(kept, number)
            os.close(kept)


def knows_codes(stream: Any) -> bool:
    """Whether *stream* is a terminal that takes colours and clears lines."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _style(code: str) -> Callable[[str], str]:
    def style(text: str) -> str:
        bare = os.environ.get("NO_COLOR") or not knows_codes(sys.stdout)
        return text if bare else f"\x1b[{code}m{text}\x1b[0m"

    return style


bold, dim, red, green, yellow = (_style(code) for code in ("1", "2", "31", "32", "33"))
plain = str


_EVERY_S = 0.2


def progress(items: Iterable[T], total: int | None, label: str) -> Iterator[T]:
    """A line that counts and, after a second, says how long the rest will take; on a terminal that can clear a line.

    It stands while the next item is made.
    """
    shown = drawn = knows_codes(sys.stderr)
    began = said = time.monotonic()
    if shown:
        print(f"{label}: 0{f' of {total}' if total else ''}", end="", file=sys.stderr, flush=True)
    for number, item in enumerate(items, 1):
        if drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # clear the line for the consumer of the item
        drawn = False
        yield item
        if shown and (number % 50 == 0 or number == total or time.monotonic() - said >= _EVERY_S):
            said, drawn = time.monotonic(), True
            of = f" of {total}" if total else ""
            rest = f", {remaining(said - began, number, total)}" if total and said - began >= 1 else ""
            print(f"\r\x1b[K{label}: {number}{of}{rest}", end="", file=sys.stderr, flush=True)
    if drawn:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def remaining(took_s: float, done: int, total: int) -> str:
    """How long the rest will take, in words.

    >>> remaining(10.0, 5, 20), remaining(60.0, 1, 11)
    ('30.0 s left', '10.0 min left')
    """
    return f"{duration(took_s / done * max(0, total - done) * 1000)} left"


def when(ms: int | None) -> str:
    """A time for people, in the local zone."""
    from datetime import datetime

    return "" if ms is None else datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def fields(record: Mapping[str, Any]) -> Iterator[str]:
    """What is known of a record, line by line; times and durations for people.

    >>> list(fields({"id": "a", "ageMs": 1500, "reason": None}))
    ['id: a', 'age: 1.5 s']
    """
    for name, value in record.items():
        if value in (None, ""):
            continue
        if name.endswith("Ms"):
            name, value = name[:-2], when(value) if name.endswith("AtMs") else duration(value)
        yield f"{name}: {value}"


def duration(ms: float | None) -> str:
    """A duration for people."""
    if ms is None:
        return ""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 7_200_000:
        return f"{ms / 1000:.1f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"
    return f"{ms / 3_600_000:.1f} h" if ms < 172_800_000 else f"{ms / 86_400_000:.1f} days"

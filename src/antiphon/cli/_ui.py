"""What a person sees: tables, colours, progress; and JSON for machines."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    import orjson

    document = orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2) + b"\n"
    if document.isascii() or (sys.stdout.encoding or "").lower().replace("-", "") == "utf8":
        sys.stdout.write(document.decode())
    else:  # JSON is UTF-8, whatever the terminal knows
        sys.stdout.flush()
        sys.stdout.buffer.write(document)


def output(arguments: argparse.Namespace, data: Any, text: str | Iterable[str]) -> None:
    """The data with ``--json``, else the text or its lines."""
    if arguments.json:
        print_json(data)
    else:
        print(text if isinstance(text, str) else "\n".join(text))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[int] = ()) -> str:
    """Columns aligned, the last one unpadded; cut to the terminal's width when there is a terminal."""
    text = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(head), *text]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = (c.rjust(widths[i]) if i in right else c.ljust(widths[i]) for i, c in enumerate(cells))
        return cut("  ".join(padded).rstrip())

    return "\n".join([bold(line(head)), *(line(row) for row in text)])


def safe(value: Any) -> str:
    """A recorded text in one line: what would move the cursor or speak to the terminal is left out."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "·" for char in str(value))


def cut(text: str) -> str:
    if not sys.stdout.isatty():
        return text
    width = os.get_terminal_size().columns  # 0: it does not say
    return text if not width or len(text) <= width else text[: width - 1] + "…"


def _style(code: str) -> Callable[[str], str]:
    def style(text: str) -> str:
        bare = os.environ.get("NO_COLOR") or not sys.stdout.isatty()
        return text if bare else f"\x1b[{code}m{text}\x1b[0m"

    return style


bold, dim, red, green, yellow = (_style(code) for code in ("1", "2", "31", "32", "33"))
plain = str


def progress(items: Iterable[T], total: int | None, label: str) -> Iterator[T]:
    """A line that counts, on a terminal only."""
    shown = sys.stderr.isatty()
    for number, item in enumerate(items, 1):
        if shown and (number % 50 == 0 or number == total):
            of = f" of {total}" if total else ""
            print(f"\r{label}: {number}{of}", end="", file=sys.stderr)
        yield item
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr)


def when(ms: int | None) -> str:
    """A time for people, in the local zone."""
    from datetime import datetime

    return "" if ms is None else datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def duration(ms: float | None) -> str:
    """A duration for people."""
    if ms is None:
        return ""
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"

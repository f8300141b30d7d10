"""Standard input of a run: what the code reads is recorded, redacted like everything else, and returned by a replay.

This covers ``input()`` and reading text from ``sys.stdin``, but not its ``buffer`` or file descriptor.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from typing import Any

from antiphon._scope import EARLIER, RunScope, current_scope

STDIN = "stdin"
"""The name of a ``draw`` from standard input; its value is the text, empty at end of file."""


def draw(scope: RunScope, what: str, fresh: Callable[[], Any]) -> Any:
    """Take a value from its source or from the recording, and record it."""
    site = scope.enter(what, "")
    drawer = scope.gateway_state.get(EARLIER) if scope.invoker is None else scope.invoker
    value = fresh() if drawer is None else drawer.draw(what, site, fresh)
    if scope.write is not None:
        scope.write((scope.encode("draw", site, {"what": what, "value": value, "nth": site.nth}, {}),))
    return value


def _read(fresh: Callable[[], str]) -> str:
    scope = current_scope()
    return fresh() if scope is None else str(draw(scope, STDIN, fresh))


class RecordedInput:
    """Replaces ``sys.stdin`` while runs are open."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def __enter__(self) -> RecordedInput:
        self.stream.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.__exit__(*error)

    def readline(self, size: int = -1, /) -> str:
        return _read(lambda: self.stream.readline(size))

    def read(self, size: int | None = -1, /) -> str:
        return _read(lambda: self.stream.read(size))

    def readlines(self, hint: int = -1, /) -> list[str]:
        return list(self)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self.readline()
        if not line:
            raise StopIteration
        return line


_open = 0
_input = builtins.input


def _recorded_input(prompt: object = "", /) -> str:
    scope, ours = current_scope(), sys.stdin
    if scope is None or not isinstance(ours, RecordedInput):
        return _input(prompt)
    asked = False

    def fresh() -> str:
        nonlocal asked
        asked = True
        sys.stdin = ours.stream  # a terminal lets its user edit the line
        try:
            return _input(prompt) + "\n"
        except EOFError:
            return ""
        finally:
            sys.stdin = ours

    line = str(draw(scope, STDIN, fresh))
    if not asked:
        sys.stdout.write(str(prompt))
        sys.stdout.flush()
    if not line:
        raise EOFError("EOF when reading a line")
    return line.removesuffix("\n")


def begin() -> None:
    """A run begins: record what is read from now on."""
    global _open
    _open += 1
    if not isinstance(sys.stdin, RecordedInput):
        sys.stdin = RecordedInput(sys.stdin)
    builtins.input = _recorded_input


def end() -> None:
    """A run has ended; the last one restores everything."""
    global _open
    _open = max(0, _open - 1)
    if not _open:
        if isinstance(sys.stdin, RecordedInput):
            sys.stdin = sys.stdin.stream
        if builtins.input is _recorded_input:
            builtins.input = _input

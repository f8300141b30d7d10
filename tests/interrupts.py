"""Interrupts where the interpreter raises them: after a call of C code, as a function begins, at a loop's turn."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_AFTER = frozenset({"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME"})


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it came of."""
    while error is not None:
        yield error
        error = error.__context__


@contextmanager
def no_collection() -> Iterator[None]:
    """Else the code of other tests' garbage is interrupted in place of the test's own."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Interrupt:
    """Runs a function and raises ``KeyboardInterrupt`` at one of those moments in some code."""

    def __init__(self, at: int, *files: str) -> None:
        """*files*: parts of the paths of that code."""
        self.at = at
        self.files = files
        self.met = 0
        """How many such moments there were."""
        self._last: dict[FrameType, tuple[str, int]] = {}
        """Name and handler of the instruction before."""
        self._known: dict[Any, dict[int, tuple[str, int]]] = {}

    def run(self, function: Callable[[], Any]) -> bool:
        """Whether it was interrupted: ``False`` once the function has fewer such moments."""
        with no_collection():
            sys.settrace(self._call)
            try:
                function()
            except BaseException as error:
                if not any(isinstance(one, KeyboardInterrupt) for one in causes(error)):
                    raise
                return True  # a lock may have made something else of it
            finally:
                sys.settrace(None)
                self._last.clear()
            return False

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        if not any(part in frame.f_code.co_filename for part in self.files):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "return" and frame.f_back is not None:
            self._last.pop(frame.f_back, None)  # a return from Python code is no such moment
        if event == "opcode":
            now = self._instruction(frame)
            before, handler = self._last.get(frame, ("", -1))
            if before in _AFTER and handler == now[1]:  # the interpreter raises at the instruction before this one
                self.met += 1
                if self.met == self.at:
                    raise KeyboardInterrupt
            self._last[frame] = now
        return self._opcode

    def _instruction(self, frame: FrameType) -> tuple[str, int]:
        code = frame.f_code
        if code not in self._known:
            handlers = dis._parse_exception_table(code)  # type: ignore[attr-defined]
            self._known[code] = {
                one.offset: (
                    one.opname,
                    next((entry.target for entry in handlers if entry.start <= one.offset < entry.end), -1),
                )
                for one in dis.get_instructions(code)
            }
        return self._known[code].get(frame.f_lasti, ("", -1))

"""Replays in child processes: how such a process ends, including exit handlers and finalizers, is part of the verdict.

The child is forked from a process that was started for one command, so it starts cheaply and may exit normally. In a
process that does other things as well, replays run in that process.
"""

from __future__ import annotations

import atexit
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import orjson

from antiphon import _lineage
from antiphon._lineage import Replay
from antiphon.errors import AntiphonError

PATIENCE_S = 30.0
"""How long a process may take to end after its replays have ended."""
INTERRUPTED_S = 5.0
"""How long it may take after a person has interrupted the command."""

Send = Callable[[dict[str, Any]], None]


class SilentExit(SystemExit):
    """Ends a child silently; nobody reports it."""


class Child:
    """One process: what it has sent, and how it ended."""

    def __init__(self, number: int, pid: int, pipe: int) -> None:
        self.number = number
        self.pid = pid
        self.pipe = pipe
        self.code: int | None = None
        self.overdue: float | None = None
        self.left: dict[tuple[str, str], dict[str, Any]] = {}
        """What its replays had not yet done and their recordings did after their end, by run and lane."""
        self.cuts_off: bool = False
        """Whether its end cut off work that was still running."""
        self._rest = b""

    def read(self) -> list[dict[str, Any]] | None:
        """What arrived; ``None`` at the end."""
        data = os.read(self.pipe, 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [orjson.loads(line) for line in lines]

    def notes(self, message: dict[str, Any]) -> bool:
        """Store what a message says about the process itself; false for other messages."""
        if "done" in message:
            self.overdue = time.monotonic() + PATIENCE_S
        elif "left" in message:
            self.left[message["run"], message["lane"]] = message
        elif "came" in message:
            self.left.pop((message["run"], message["came"]), None)
        elif "cutsOff" in message:
            self.cuts_off = True
        else:
            return False
        return True

    def missing(self) -> Iterator[dict[str, Any]]:
        """What had not arrived when it ended."""
        for (run, _), message in self.left.items():
            if message["certain"] or not self.cuts_off:
                yield {"missing": message["left"], "run": run}

    def wait(self) -> int:
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        self.code = os.waitstatus_to_exitcode(status)
        return self.code


def in_children(works: Sequence[Callable[[Send], None]], *, quiet: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run each of *works* in its own process; yields what they send as it arrives, with the number of the work.

    ``{"late": what, "run": id}`` reports what was refused after the end of a replay, ``{"missing": what, "run": id}``
    what its recording has there and did not happen, ``{"ended": code}`` the exit of a process. With *quiet*, output of
    the code goes to standard error. After Ctrl-C nothing follows but a KeyboardInterrupt, once they have ended.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    children = [_fork(number, work, quiet) for number, work in enumerate(works)]
    before, leave_by = signal.getsignal(signal.SIGINT), float("inf")

    def interrupt(number: int, frame: Any) -> None:
        """The terminal signals the children itself. On a second Ctrl-C nobody waits for them."""
        nonlocal leave_by
        leave_by = time.monotonic() + INTERRUPTED_S
        signal.signal(signal.SIGINT, before)

    if before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    try:
        with selectors.DefaultSelector() as ready:
            for child in children:
                ready.register(child.pipe, selectors.EVENT_READ, child)
            while ready.get_map() and time.monotonic() < leave_by:
                for key, _ in ready.select(timeout=1.0):
                    child = key.data
                    messages = child.read()
                    if messages is None:
                        ready.unregister(child.pipe)
                        code = child.wait()
                        messages = [*(child.missing() if code == 0 else ()), {"ended": code}]
                    if leave_by < float("inf"):  # interrupted code reports nothing
                        continue
                    for message in messages:
                        if not child.notes(message):
                            yield child.number, message
                for child in children:
                    if child.code is None and child.overdue is not None and time.monotonic() > child.overdue:
                        child.overdue = None
                        what = f"work that is still running {PATIENCE_S:.0f} s after the end of the replay"
                        yield child.number, {"late": what, "run": ""}
                        os.kill(child.pid, signal.SIGKILL)
            if leave_by < float("inf"):
                raise KeyboardInterrupt
    finally:
        for child in children:
            if child.code is None:
                os.kill(child.pid, signal.SIGKILL)
                child.wait()
        signal.signal(signal.SIGINT, before)


def _fork(number: int, work: Callable[[Send], None], quiet: bool) -> Child:
    reads, writes = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writes)
        return Child(number, pid, reads)
    os.close(reads)
    return _be_child(work, writes, quiet)


def cuts_off() -> bool:
    """Whether the end of this process will cut off work that is still running."""
    return any(thread.daemon and not thread.name.startswith("antiphon") for thread in threading.enumerate())


def _be_child(work: Callable[[Send], None], pipe: int, quiet: bool) -> NoReturn:
    from antiphon.ops.sandbox import hold_process

    output = os.dup(1)
    if quiet:
        os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        data = orjson.dumps(message, default=str) + b"\n"
        while data:
            data = data[os.write(pipe, data) :]

    def late(replay: Replay, what: str) -> None:
        send({"late": what, "run": replay.title})

    def left(replay: Replay, lane: str, what: dict[str, Any] | None, certain: bool) -> None:
        run = replay.title
        send(
            {"came": lane, "run": run} if what is None else {"left": what, "lane": lane, "run": run, "certain": certain}
        )

    def ends() -> None:
        """Other threads have ended by now, unless the process does not wait for them."""
        if cuts_off():
            send({"cutsOff": True})

    _lineage.on_late.append(late)
    _lineage.on_left = left
    atexit.register(ends)
    try:
        work(send)
    except AntiphonError:  # reported as the command reports its errors
        send({"failed": True})
        sys.stdout.flush()
        os.dup2(output, 1)
        raise
    except KeyboardInterrupt:  # reported by the parent
        raise SilentExit(128 + signal.SIGINT) from None
    hold_process()
    send({"done": True})
    raise SilentExit(0)

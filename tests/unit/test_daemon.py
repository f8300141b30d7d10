"""Threads and signals that an interrupt cannot leave half made, wherever it comes."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

from antiphon._daemon import Daemon, Latch, Signal
from tests.interrupts import Interrupt

PATIENCE_S = 30.0


class Machine:
    """Does what is left on its desk, on one thread at a time."""

    def __init__(self) -> None:
        self.desk: list[int] = []
        self.done: list[int] = []
        self.at_once = 0
        self.most = 0
        self.wanted = Signal()
        self.daemon = Daemon("machine")
        self.finished = threading.Condition()

    def leave(self, work: int) -> None:
        self.desk.append(work)
        self.wanted.set()
        self.daemon.start(self._work)

    def _work(self) -> None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        while True:
            while self.desk:
                with self.finished:
                    self.done.append(self.desk.pop(0))
                    self.finished.notify_all()
            self.wanted.wait(0.0)
            if self.daemon.leave_if(lambda: not self.desk):
                self.at_once -= 1
                return

    def until_done(self, work: int) -> bool:
        with self.finished:
            return self.finished.wait_for(lambda: work in self.done, PATIENCE_S)


def test_work_is_done_after_an_interrupt_at_each_moment_of_starting_the_thread() -> None:
    at, interrupted = 0, True
    while interrupted:
        at += 1
        machine = Machine()
        interrupted = Interrupt(at, "antiphon/_daemon.py", "/threading.py").run(lambda one=machine: one.leave(1))  # type: ignore[misc]
        machine.leave(2)
        assert machine.until_done(2), f"nobody works after an interrupt at moment {at}"
        assert machine.most == 1
    assert at > 10


def test_a_thread_that_ends_without_a_word_is_followed_by_another() -> None:
    daemon, begun = Daemon("ends"), Signal()
    for _ in range(3):
        daemon.start(begun.set)
        assert begun.wait(PATIENCE_S)
        thread: Any = daemon.thread
        if thread is not None:
            thread.join(PATIENCE_S)
        assert daemon.thread is None


def test_a_signal_wakes_once_however_often_it_was_set() -> None:
    signal = Signal()
    signal.set()
    signal.set()
    assert signal.wait(0.0)
    assert not signal.wait(0.0)


def test_a_latch_stays_set_for_all() -> None:
    latch = Latch()
    assert not latch.wait(0.0)
    latch.set()
    assert [latch.wait(0.0), latch.wait(0.0)] == [True, True]


def test_interrupted_waiting_keeps_nobody_from_setting() -> None:
    for made in (Signal, Latch):
        at, interrupted = 0, True
        while interrupted:
            at += 1
            event: Any = made()
            interrupted = Interrupt(at, "antiphon/_daemon.py").run(lambda one=event: one.wait(0.001))  # type: ignore[misc]
            setter = threading.Thread(target=event.set, daemon=True)
            setter.start()
            setter.join(PATIENCE_S)
            assert not setter.is_alive()
            assert event.wait(0.0)


def test_work_that_is_left_while_the_thread_leaves_is_done() -> None:
    machine = Machine()
    late = iter([2])

    def looks_idle() -> bool:
        idle = not machine.desk
        for work in late:  # between the look and the leave
            machine.leave(work)
        return idle

    def work() -> None:
        while True:
            while machine.desk:
                with machine.finished:
                    machine.done.append(machine.desk.pop(0))
                    machine.finished.notify_all()
            if machine.daemon.leave_if(looks_idle):
                return

    machine.desk.append(1)
    machine.daemon.start(work)
    assert machine.until_done(2)


def test_an_interrupt_that_comes_as_the_collector_starts_is_raised() -> None:
    program = """
import _thread, gc, operator
import antiphon._daemon
assert gc.callbacks
try:
    list(map(operator.call, [_thread.interrupt_main, gc.collect]))  # no bytecode in between
except KeyboardInterrupt:
    print("raised")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("raised\n", "")

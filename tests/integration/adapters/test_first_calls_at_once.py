"""Parallel tools are often the first calls of a process: threads read a value type for the first time, together."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys, threading
import msgspec
from antiphon.contract._base import decode

sys.setswitchinterval(1e-6)

def kind(number):
    inner = msgspec.defstruct(f"Inner{number}", [("x", int), ("y", "dict[str, int] | None", None)])
    return msgspec.defstruct(f"Outer{number}", [("a", inner), ("b", inner), ("c", "list[int] | None", None)])

def read(found, ready):
    ready.wait()
    decode({"a": {"x": 1}, "b": {"x": 2}}, found)

for number in range(40):
    ready, found = threading.Barrier(4), kind(number)
    threads = [threading.Thread(target=read, args=(found, ready)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("all read")
"""


def test_threads_may_read_a_type_for_the_first_time_together() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "all read\n"), done.stderr

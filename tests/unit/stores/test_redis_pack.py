"""A signal while a command is packed raises what its handler raises; it does not end the process."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import random, signal
from antiphon.stores.redis.client import pack

def handler(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)
words = ("EVALSHA", "a" * 40, 2, "k1", b"k2", *range(100))
interrupts = 0
while interrupts < 500:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 2e-4))
        for _ in range(300):
            pack(words)
    except KeyboardInterrupt:
        interrupts += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(pack(("SET", "k", 12, 1.5)))
"""


def test_a_signal_while_numbers_are_packed() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    assert done.stdout.strip() == str(b"*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n12\r\n$3\r\n1.5\r\n")

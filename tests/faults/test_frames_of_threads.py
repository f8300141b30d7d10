"""To look who waits for whom reads the stacks of other threads: the interpreter must survive a collection meanwhile."""

from __future__ import annotations

import subprocess
import sys

LOOKS = '''
import gc, os, threading, time
from antiphon._gateway.threads import is_waited_for

class Garbage:
    """Lets other threads go on while it is collected."""
    def __init__(self):
        self.me = self
    def __del__(self):
        time.sleep(0.0005)

def deep(levels):
    if levels:
        deep(levels - 1)

def churn():
    while True:
        short = threading.Thread(target=deep, args=(80,))
        short.start()
        short.join()

for _ in range(4):
    threading.Thread(target=churn, daemon=True).start()
gc.set_threshold(2, 1, 1)
for _ in range(1000):
    Garbage()
    is_waited_for("key")
assert gc.isenabled()
print("done", flush=True)
os._exit(0)
'''


def test_a_collection_while_stacks_are_read_does_no_harm() -> None:
    """Without the guard it hung or crashed within a second, on Python 3.11."""
    done = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr

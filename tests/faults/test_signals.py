"""D54: signals and cancellations at random instructions: no orphan, no false unknown, nothing is done twice."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize("store", ["sqlite", "redis", "postgres"])
def test_interrupts_at_random_instructions(store: str) -> None:
    """The short form of ``python -m tests.campaigns.signals``."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.campaigns.signals", "--store", store, "--count", "200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["sum"]["signals"] >= 200

"""Each planted bug outside of the claim protocol is found by the test that is named for it."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.mutants import MUTANTS, ROOT


def test_every_planted_bug_is_found() -> None:
    """In a process of its own: every one of them is a run of pytest."""
    hunt = subprocess.run(
        [sys.executable, "-m", "tests.mutants"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = {said["name"]: said["failed"] for said in map(json.loads, hunt.stdout.splitlines())}
    assert found == dict.fromkeys(MUTANTS, True), hunt.stderr

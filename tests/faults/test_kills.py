"""Processes are killed at any step of sagas and approvals: nothing happens twice, nothing is skipped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.kills import CAMPAIGNS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_killed_processes(campaign: str) -> None:
    words = [sys.executable, "-m", f"tests.campaigns.{campaign}", "--kills", "8", "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    told, wrong = json.loads(done.stdout), CAMPAIGNS[campaign]
    assert {name: told[name] for name in wrong} == dict.fromkeys(wrong, 0)
    assert told["kills"] >= 8

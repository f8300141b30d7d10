"""A recording from elsewhere is data: it cannot choose which code is run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import antiphon
from antiphon.ops.entry import is_agent_code


def unmarked() -> None:
    """A function of some folder."""


@antiphon.agent
def marked() -> None:
    """An agent, wherever it lives."""


def test_what_can_be_imported_is_not_what_may_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_agent_code(os.system)
    assert not is_agent_code(exec)
    assert not is_agent_code(subprocess.run)
    monkeypatch.chdir(tmp_path)
    assert is_agent_code(marked)
    assert not is_agent_code(unmarked)
    monkeypatch.chdir(Path(__file__).parent)
    assert is_agent_code(unmarked)

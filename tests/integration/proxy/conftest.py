"""A store per test."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon import Antiphon


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Antiphon:
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "state"))
    return Antiphon(store=f"sqlite:///{tmp_path / 'proxy.db'}")

"""Fixtures of the host's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.server import workflows
from tests.integration.server.harness import KEY, Client, application, in_process


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("ANTIPHON_API_KEY", KEY)
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "state"))
    return KEY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The conformance workflows."""
    return workflows.write(tmp_path / "workflows")


@pytest.fixture
async def client(tmp_path: Path, folder: Path) -> AsyncIterator[Client]:
    """A host in this process, with test seams."""
    async with in_process(application(tmp_path, folder)) as found:
        yield found

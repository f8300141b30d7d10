"""The stores a fleet shares, as URLs that every worker process can open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.fleet_kit import Effects

FLEET_STORES = ("redis", "postgres")


@pytest.fixture(params=FLEET_STORES)
def fleet_url(request: pytest.FixtureRequest, unique: str) -> str:
    """An empty shared store on a real server."""
    if request.param == "postgres":
        database: Any = request.getfixturevalue("postgres_database")
        return str(database)
    return f"{request.getfixturevalue('valkey_url')}?antiphon_prefix={unique}"


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")

"""The stores the acceptance matrix runs on: one fixture, every back-end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.ports import Store
from antiphon.stores import MemoryStore, SQLiteStore
from tests.acceptance.tr_kit import Bench

STORES = ("memory", "sqlite", "redis", "postgres")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, unique: str) -> Store:
    """An empty store of each kind."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "sqlite":
        return SQLiteStore(tmp_path / "claims.db")
    if request.param == "redis":
        from antiphon.stores import RedisStore

        return RedisStore(request.getfixturevalue("valkey_url"), prefix=unique)
    from antiphon.stores import PostgresStore

    return PostgresStore(request.getfixturevalue("postgres_dsn"), schema=unique)


@pytest.fixture
def bench(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A gateway as users build it, on each store; time is the test's."""
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    for name in ("TOOL_RELIABILITY_ENABLED", "TOOL_RELIABILITY_OPEN_MODE", "TOOL_RELIABLE_DERIVE_IDEMPOTENCY"):
        monkeypatch.delenv(name, raising=False)
    found = Bench(store)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _no_configuration_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    """A file ``antiphon.toml`` where the tests are started must not change them."""
    if "bench" in request.fixturenames:
        monkeypatch.chdir(tmp_path)

"""A program that changes its folder keeps its store and its keys: relative paths stay those of the start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon import AsyncGateway, Gateway
from antiphon.stores import SQLiteStore

QUIET: dict[str, Any] = {"telemetry": {"logs": False}}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    monkeypatch.chdir(before)
    return before, after


@pytest.mark.parametrize("store", [lambda: "sqlite:///shop.db", lambda: SQLiteStore("shop.db")], ids=["url", "store"])
def test_event_loops_of_two_folders_share_claims(
    store: Callable[[], Any], folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = folders
    sent: list[str] = []
    gateway = AsyncGateway(store=store(), config=QUIET)

    @gateway.tool(idempotent=False)
    async def send(order: str) -> str:
        sent.append(order)
        return f"sent {order}"

    async def main() -> str:
        return await send.once("o-1")(order="o-1")

    first = asyncio.run(main())
    monkeypatch.chdir(after)
    assert asyncio.run(main()) == first
    assert sent == ["o-1"]
    assert list(after.iterdir()) == []
    assert (before / "shop.db.seal-key").is_file()


def test_a_store_is_opened_where_it_was_made(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = folders
    gateway = Gateway(store="sqlite:///shop.db", config={**QUIET, "store": {"seal_key_file": "own.key"}})

    @gateway.tool(idempotent=False)
    def send(order: str) -> str:
        return f"sent {order}"

    monkeypatch.chdir(after)
    send.once("o-1")(order="o-1")
    assert list(after.iterdir()) == []
    assert {"shop.db", "own.key"} <= {file.name for file in before.iterdir()}


def test_a_relative_state_folder_stays_that_of_the_store(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = folders
    monkeypatch.setenv("ANTIPHON_HOME", "state")
    gateway = Gateway(config=QUIET)

    @gateway.tool(idempotent=False)
    def send(order: str) -> str:
        return f"sent {order}"

    monkeypatch.chdir(after)
    send.once("o-1")(order="o-1")
    assert list(after.iterdir()) == []
    assert (before / "state" / "antiphon.db").is_file()


@pytest.mark.parametrize("elsewhere", ["", "[gateway]\nenabled = true\n"], ids=["none", "another"])
def test_changes_of_the_configuration_are_followed(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    before, after = folders
    file = before / "antiphon.toml"
    file.write_text("[gateway]\nenabled = true\n")
    gateway = Gateway(store="memory:", config="antiphon.toml")
    calls: list[str] = []

    @gateway.tool(idempotent=True, reuse="session")
    def look_up(name: str) -> str:
        calls.append(name)
        return name.upper()

    assert [look_up("ada"), look_up("ada")] == ["ADA", "ADA"]
    monkeypatch.chdir(after)
    if elsewhere:
        (after / "antiphon.toml").write_text(elsewhere)
    file.write_text("[gateway]\nenabled = false  # incident 4711\n")
    gateway.reload()
    assert [look_up("ada"), look_up("ada")] == ["ADA", "ADA"]
    assert len(calls) == 3

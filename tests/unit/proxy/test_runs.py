"""The proxy's runs: what a name that was never recorded leaves behind."""

from __future__ import annotations

import asyncio
import gc

import pytest

from antiphon.errors import NotFound
from antiphon.proxy.runs import Runs
from tests.unit.replay.kit import memory_app


async def test_names_of_unknown_runs_are_not_kept() -> None:
    app = memory_app()
    with app.run("known"):
        pass
    runs = Runs(app, "replay")
    for number in range(20):
        with pytest.raises(NotFound):
            await runs.open("client", f"unknown-{number}")
    gc.collect()
    assert len(runs._locks) <= 1, "only the latest exception may still be referenced"
    found = await asyncio.gather(*(runs.open("client", "known") for _ in range(5)))
    assert set(found) == {runs.get("client", "known")}
    await runs.end_all()

"""The inbox: it counts what waits, and a store that has to look through all runs is not asked all the time."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import httpx
import pytest

import antiphon
from antiphon.host import recordings
from antiphon.host.http.app import create
from tests.integration.console import kit


@pytest.mark.parametrize(("took", "looked"), [(3.0, [2, 2, 4]), (0.001, [2, 4, 6])])
async def test_a_search_that_takes_long_is_not_made_for_each_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: float, looked: list[int]
) -> None:
    monkeypatch.setenv("ANTIPHON_API_KEY", kit.KEY)
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    app = kit.application(tmp_path)
    kit.open_run(app, "lost", "lost", "interrupted")
    ticks = itertools.count(1.0, took)
    monkeypatch.setattr(recordings, "monotonic", lambda: next(ticks))
    application = create(app=app, executes=False)
    async with application.router.lifespan_context(application):
        journal, asked = application.state.host.journal, []
        found = journal.runs

        async def counted(**wanted: Any) -> Any:
            asked.append(wanted["status"])
            return await found(**wanted)

        monkeypatch.setattr(journal, "runs", counted)
        transport = httpx.ASGITransport(app=application)
        headers = {"Authorization": f"Bearer {kit.KEY}"}
        seen = []
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
            for number in range(3):
                if number == 2:
                    ticks = itertools.count(1_000.0, took)
                answer = (await client.get("/v1/inbox")).json()
                assert [one["id"] for one in answer["interrupted"]] == ["lost"]
                seen.append(len(asked))
    assert seen == looked


async def test_every_approval_that_waits_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_API_KEY", kit.KEY)
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    app = kit.application(tmp_path)

    @antiphon.Gateway(app.store).tool(idempotent=False, approve="always")
    def wire(to: int) -> None: ...

    for number in range(1_001):
        with pytest.raises(antiphon.errors.ApprovalRequired):
            wire(number)
    application = create(app=app, executes=False)
    async with application.router.lifespan_context(application):
        transport = httpx.ASGITransport(app=application)
        headers = {"Authorization": f"Bearer {kit.KEY}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
            answer = (await client.get("/v1/inbox?limit=2")).json()
    assert (len(answer["approvals"]), answer["counts"]["approvals"], answer["atLeast"]) == (2, 1_001, [])

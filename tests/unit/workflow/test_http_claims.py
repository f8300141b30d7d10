"""The claim of a request with an ``Idempotency-Key`` lasts as long as its handler runs."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.errors import InvalidInput
from antiphon.host import http_idempotency
from antiphon.host.http_idempotency import Reply, StillRunning, once
from antiphon.ports import Journal
from antiphon.stores import MemoryStore
from tests.unit.stores.clock import ManualClock


async def _ask(journal: Journal, action: http_idempotency.Action) -> Reply:
    return await once(
        journal, tenant="default", workspace="w", endpoint="approvals", key="k", digest="d", action=action
    )


async def _turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_request_that_takes_longer_than_its_lease_is_processed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    journal = MemoryStore(clock=clock).open_async()
    monkeypatch.setattr(http_idempotency, "_WAIT_S", 0.0)
    monkeypatch.setattr(http_idempotency, "_RENEW_S", 0.0, raising=False)
    ran: list[str] = []

    async def second(identifier: str, again: bool) -> Reply:
        ran.append(identifier)
        return Reply(200, {"by": "second"})

    async def first(identifier: str, again: bool) -> Reply:
        ran.append(identifier)
        for _ in range(3):
            clock.advance(http_idempotency._LEASE_MS - 1)
            await _turns()
            with pytest.raises(StillRunning):
                await _ask(journal, second)
        return Reply(200, {"by": "first"})

    assert (await _ask(journal, first)).body == {"by": "first"}
    again = await _ask(journal, second)
    assert (again.body, again.headers["openwop-Idempotent-Replay"]) == ({"by": "first"}, "true")
    assert len(ran) == 1


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_claim_that_was_taken_over_is_left_to_its_new_holder(
    refuses: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    journal = MemoryStore(clock=clock).open_async()

    async def second(identifier: str, again: bool) -> Reply:
        assert again
        return Reply(200, {"by": "second"})

    async def first(identifier: str, again: bool) -> Reply:
        clock.advance(http_idempotency._LEASE_MS)  # this process was stopped meanwhile
        assert (await _ask(journal, second)).body == {"by": "second"}
        if refuses:
            raise InvalidInput("no")
        return Reply(200, {"by": "first"})

    if refuses:
        with pytest.raises(InvalidInput):
            await _ask(journal, first)
    else:
        assert (await _ask(journal, first)).body == {"by": "first"}
        assert "taken over" in caplog.text
    assert (await _ask(journal, first)).body == {"by": "second"}

"""Claims and leases of a process that is certainly dead do not hold up a host (decision 0010)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon import Antiphon
from antiphon._gateway.owner import owner_token
from antiphon.canonical import canonical_digest
from antiphon.errors import StoreUnavailable
from antiphon.host import http_idempotency, worker_lease
from antiphon.host.http_idempotency import Reply, StillRunning, once
from antiphon.host.worker_lease import LEASE_MS, WorkerLease, is_gone, take_over
from antiphon.ops import runs
from antiphon.ports import Claimed, ClaimTemplate, Journal, Settlement, StaticClaimRequest, Store
from antiphon.stores import ComposedStore, MemoryStore, SQLiteStore
from tests.unit.stores.clock import ManualClock

PLACE, PID, STARTED = owner_token().rsplit(".", 2)
DEAD = f"{PLACE}.{PID}.{int(STARTED) + 1}"
"""Its pid belongs to us by now."""


def request(key: str, process: str, request_id: str = "r") -> StaticClaimRequest:
    template = ClaimTemplate(
        tool="tools/send", session="s", actor="a", ttl_ms=60_000, lease_ms=60_000, owner=process, tenant="default"
    )
    return StaticClaimRequest(key, key, template, key, ("d", "d"), request_id, token="token")


async def test_the_worker_lease_of_a_dead_process_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = MemoryStore().open_async()
    living = WorkerLease(journal)
    await living._take()
    monkeypatch.setattr(worker_lease, "owner_token", lambda: DEAD)
    dead = WorkerLease(journal)
    await dead._take()
    for lease in (living, dead):
        found = await journal.read(lease._key)
        assert found is not None
        assert isinstance(found.current.lock_until_ms, int)
        assert found.current.lock_until_ms > found.now_ms
    assert not await is_gone(journal, living.owner)
    assert await is_gone(journal, dead.owner)


class FailsToSettle:
    """A journal whose next ``settle`` fails before it reaches the store."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def settle(self, *_: Any) -> int | None:
        raise StoreUnavailable("the store went away")


async def test_a_resume_that_did_not_get_through_does_not_keep_others_from_the_run() -> None:
    clock = ManualClock()
    journal = MemoryStore(clock=clock).open_async()
    with pytest.raises(StoreUnavailable):
        await take_over(FailsToSettle(journal), "run", "gone", "second")
    assert not await take_over(journal, "run", "gone", "third"), "the second may still be at it"
    clock.advance(LEASE_MS)
    assert await take_over(journal, "run", "gone", "third")
    assert not await take_over(journal, "run", "gone", "second"), "one host resumes a run"
    clock.advance(LEASE_MS - 1)
    assert not await take_over(journal, "run", "gone", "fourth")


@pytest.mark.parametrize("process", [DEAD, owner_token()], ids=["dead", "living"])
async def test_a_request_of_a_dead_process_is_taken_over_at_once(process: str, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = MemoryStore().open_async()
    monkeypatch.setattr(http_idempotency, "_WAIT_S", 0.05)
    claim = canonical_digest(["openwop-layer-1", "default", "runs", "key"])
    assert isinstance(await journal.begin(request(claim, process, "first")), Claimed)

    async def action(identifier: str, again: bool) -> Reply:
        return Reply(201, {"id": identifier, "again": again})

    async def answer() -> Reply:
        return await once(
            journal, tenant="default", workspace="w", endpoint="runs", key="key", digest="d", action=action
        )

    if process == DEAD:
        assert (await answer()).body == {"id": "first", "again": True}
    else:
        with pytest.raises(StillRunning):
            await answer()


@pytest.mark.parametrize("composed", [False, True])
def test_a_claim_of_a_dead_process_does_not_keep_payloads(composed: bool, tmp_path: Path) -> None:
    store: Store = SQLiteStore(tmp_path / "claims.db")
    if composed:
        store = ComposedStore(claims=store, log=SQLiteStore(tmp_path / "log.db"))
    app = Antiphon(store=store)
    journal = store.open_sync()
    assert not runs._busy(app)
    assert isinstance(journal.begin(request("dead", DEAD)), Claimed)
    assert not runs._busy(app)
    living = journal.begin(request("living", owner_token()))
    assert isinstance(living, Claimed)
    assert runs._busy(app)
    journal.settle("living", living.version, Settlement("done", 1000))
    assert not runs._busy(app)

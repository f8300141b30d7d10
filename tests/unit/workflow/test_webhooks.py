"""Webhooks: what counts as delivered, and what becomes of the deliveries of a deleted subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from antiphon.errors import StoreUnavailable
from antiphon.host import webhooks
from antiphon.host.addresses import Lookup
from antiphon.host.webhooks import Webhooks
from antiphon.ports import Clock, Journal
from antiphon.stores import MemoryStore

URL = "http://127.0.0.1:9/hook"
KIND = "approval.requested"


class Receiver:
    """Answers every delivery with *status* once it may."""

    def __init__(self, status: int = 204) -> None:
        self.status = status
        self.got = 0
        self.may_answer = asyncio.Event()
        self.asked = asyncio.Event()

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], seconds: float, *, address: str | None = None
    ) -> tuple[int, bytes]:
        self.got += 1
        self.asked.set()
        await self.may_answer.wait()
        return self.status, b""


def _webhooks(journal: Journal, receiver: Receiver) -> Webhooks:
    return Webhooks(journal, Clock(), lookup=Lookup(loopback=True), post=receiver.post, sealer=None, most=5)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "_REFRESH_S", 0.0)
    monkeypatch.setattr(webhooks, "_PAUSE_S", 0.0, raising=False)


@pytest.mark.parametrize("status", [200, 204, 302, 401, 408, 410, 429, 503])
async def test_only_2xx_accepts_an_event(status: int) -> None:
    receiver = Receiver(status)
    receiver.may_answer.set()
    hooks = _webhooks(MemoryStore().open_async(), receiver)
    await hooks.create("default", {"url": URL}, "hook-1")
    await hooks.publish("default", KIND, {})
    await asyncio.gather(*(queue.events.join() for queue in hooks._queues.values()))
    assert (receiver.got, hooks.lost) == ((1, 0) if status < 300 else (3, 1))
    await hooks.stop()


async def test_a_queue_ends_when_another_process_deletes_its_subscription() -> None:
    journal, receiver = MemoryStore().open_async(), Receiver()
    one, other = _webhooks(journal, receiver), _webhooks(journal, receiver)
    made: dict[str, Any] = await one.create("default", {"url": URL}, "hook-1")
    for _ in range(3):
        await other.publish("default", KIND, {})
    await receiver.asked.wait()
    await one.delete("default", made["webhookId"])
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == f"antiphon-webhook-{made['webhookId']}")
    receiver.may_answer.set()
    await asyncio.wait((task,), timeout=5.0)
    assert (task.done(), receiver.got, other.lost) == (True, 1, 0)


async def test_events_are_delivered_while_the_store_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    journal, receiver = MemoryStore().open_async(), Receiver()
    receiver.may_answer.set()
    hooks = _webhooks(journal, receiver)
    await hooks.create("default", {"url": URL}, "hook-1")

    async def failing(*where: Any, **options: Any) -> Any:
        raise StoreUnavailable("The store restarts.")

    monkeypatch.setattr(hooks._log, "read", failing)
    await hooks.publish("default", KIND, {})
    await asyncio.gather(*(queue.events.join() for queue in hooks._queues.values()))
    assert (receiver.got, hooks.lost) == (1, 0)
    await hooks.stop()

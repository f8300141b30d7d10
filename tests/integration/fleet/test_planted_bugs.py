"""For each guarantee of a fleet one planted bug, and that it is noticed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

from antiphon import Gateway
from antiphon._drive import drive
from antiphon._gateway import drivers
from antiphon.config.wiring import open_store
from antiphon.contract.spec import Ttls
from antiphon.ops.admin import Admin
from antiphon.ops.app import Antiphon
from antiphon.ports import Begun, Claimed, ClaimRequest, Settlement, SyncJournal
from antiphon.stores import MemoryStore
from antiphon.stores._adapters import AsyncFromSync
from tests.faults.fleet_kit import Effects, Tampered, fleet, of_another, open_gateway, serve, until

KEY = "tool/tools/send"


def _force_open(url: str) -> None:
    journal = AsyncFromSync(open_store(url).open_sync())
    admin = Admin(Antiphon({}, store=MemoryStore()), journal)
    drive(admin.force_open(KEY, "by hand"))
    drive(journal.close())


def _told_within(url: str, seconds: float) -> bool:
    """Whether an idle gateway hears of an operator's act in time."""
    with open_gateway(url) as gateway:

        @gateway.tool(idempotent=True)
        def send() -> str:
            return "sent"

        send()
        _force_open(url)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if gateway._plans.breakers.get(KEY).state == "FORCED_OPEN":
                return True
            time.sleep(0.01)
        return False


def test_an_idle_process_is_told(fleet_url: str) -> None:
    assert _told_within(fleet_url, 1.0)


def test_planted_a_subscription_that_nobody_makes_is_noticed(fleet_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers.BreakerFeed, "pushed", lambda *_: None)
    assert not _told_within(fleet_url, 1.0)


def _away(url: str, spoil: Callable[[Gateway], None], order: str) -> list[str]:
    """A worker wins a claim and is away beyond its lease; another takes over and finishes: what the first one runs."""
    ran: list[str] = []
    away = False

    def begin(journal: SyncJournal, request: ClaimRequest, *events: Any) -> Begun:
        nonlocal away
        got = journal.begin(request, *events)
        if away:
            away = False
            time.sleep(0.4)
            found = journal.read(request.key)
            assert found is not None
            taken = journal.take_over(of_another(request), found.current.version)
            assert isinstance(taken, Claimed)
            assert journal.settle(request.key, taken.version, Settlement("done", 60_000, b'"theirs"')) is not None
        return got

    with Gateway(store=Tampered(open_store(url), begin=begin)) as gateway:

        @gateway.tool(idempotent=True, reuse="session", ttl=Ttls(lease_ms=300))
        def send(order: str) -> str:
            ran.append(order)
            return "mine"

        send("warm")
        ran.clear()
        spoil(gateway)
        away = True
        send(order)
    return ran


def test_planted_a_worker_that_trusts_an_old_claim_is_noticed(fleet_url: str) -> None:
    assert _away(fleet_url, lambda gateway: None, "a") == []

    def spoil(gateway: Gateway) -> None:
        gateway._plans.tools["send"].renew_every = 1e9
        gateway._plans.changed()

    assert _away(fleet_url, spoil, "b") == ["b"], "it ran beside the one that took over"


def _forking(url: str, effects: Effects, number: int, pipe: Connection) -> None:
    gateway = open_gateway(url)

    @gateway.tool(idempotent=True, reuse="never")
    def send() -> str:
        return "sent"

    send()

    def fork() -> int:
        child = os.fork()
        if child:
            return child
        send()  # its own connection, and its own subscription
        effects.add("listening")
        for _ in range(500):
            if gateway._plans.breakers.get(KEY).state == "FORCED_OPEN":
                effects.add("told")
                break
            time.sleep(0.01)
        os._exit(0)

    serve(pipe, {"fork": fork, "wait": lambda child: os.waitpid(child, 0)[1]})


def test_a_forked_child_is_told_too(fleet_url: str, effects: Effects) -> None:
    with fleet(_forking, fleet_url, effects, size=1) as (worker,):
        child = worker.ask(("fork",))
        until(lambda: effects.counts()["listening"] == 1, "the child made its call")
        time.sleep(0.5)
        _force_open(fleet_url)
        assert worker.ask(("wait", child)) == 0
    assert effects.counts()["told"] == 1

"""A rule and a store that contradict each other end a call with an error; it does not ask for ever."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from antiphon import AsyncGateway, Gateway
from antiphon.decide import claim as rules
from antiphon.errors import StoreError
from antiphon.stores import MemoryStore
from antiphon.stores.memory.claims import MemoryClaims

CONFIG = {"telemetry": {"logs": False}}


@pytest.fixture(params=["sync", "async"])
def pay(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """A payment that names what it is about; :attr:`log` has those that were made."""
    log: list[str] = []

    def paid(order: str) -> str:
        log.append(order)
        return f"paid {order}"

    async def paid_later(order: str) -> str:
        return paid(order)

    if request.param == "sync":
        tool: Any = Gateway(MemoryStore(), CONFIG).tool("pay", idempotent=False, key="order")(paid)
    else:
        tool = AsyncGateway(MemoryStore(), CONFIG).tool("pay", idempotent=False, key="order")(paid_later)

    def called(order: str) -> Any:
        made = tool(order)
        return asyncio.run(_awaited(made)) if inspect.isawaitable(made) else made

    called.log = log  # type: ignore[attr-defined]
    return called


async def _awaited(made: Any) -> Any:
    return await made


def _is_given_up(pay: Any) -> None:
    with pytest.raises(StoreError, match="refused 32 times to change the record of this call") as caught:
        pay("1")
    assert "The call was not made" in str(caught.value)
    assert "journal_conformance" in str(caught.value.hint)
    assert pay.log == ["1"]


def test_planted_bug_a_rule_that_runs_what_is_done(pay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pay("1") == "paid 1"
    monkeypatch.setattr(rules, "_own_settled", lambda own, now, asks: rules.Run(own.version, "planted"))
    _is_given_up(pay)


def test_a_store_that_never_lets_a_record_be_replaced(pay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pay("1") == "paid 1"
    monkeypatch.setattr(rules, "_own_settled", lambda own, now, asks: rules.Run(own.version, "planted"))
    asked: list[int] = []

    def refuse(self: MemoryClaims, request: Any, version: int, events: Any = ()) -> Any:
        asked.append(version)
        return self.read(request.key, request.identity)

    monkeypatch.setattr(MemoryClaims, "take_over", refuse)
    _is_given_up(pay)
    assert len(asked) == 33


def test_a_store_that_never_lets_a_record_be_marked(pay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pay("1") == "paid 1"
    monkeypatch.setattr(rules, "_own_settled", lambda own, now, asks: rules.Unknown(own, mark=True))
    monkeypatch.setattr(MemoryClaims, "settle", lambda *arguments: None)
    _is_given_up(pay)

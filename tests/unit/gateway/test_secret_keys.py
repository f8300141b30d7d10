"""The key that a caller gives may be an address: it is sealed on disk, and tools and ``reconcile`` get it as it was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from antiphon import Antiphon, CallContext, DidNotHappen
from antiphon.ops.admin import Admin
from antiphon.stores import SQLiteStore

ADDRESS = "dora.privat@example.com"
ANYTHING: Any = None


def test_an_address_as_a_key_is_sealed_and_given_back(tmp_path: Path) -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=SQLiteStore(tmp_path / "a.db"))
    seen: list[str] = []

    def look(params: dict[str, Any], context: CallContext) -> Any:
        seen.append(f"reconciles {context.idempotency_key}")
        return DidNotHappen()

    @app.gateway.tool(idempotent=False, key="to", reconcile=look)
    def welcome(to: str, context: CallContext = ANYTHING) -> str:
        seen.append(context.idempotency_key)
        if len(seen) == 1:
            raise TimeoutError("no answer")
        return "sent"

    with pytest.raises(TimeoutError):
        welcome(ADDRESS)
    assert welcome(ADDRESS) == "sent"
    assert welcome(ADDRESS) == "sent"
    assert seen == [ADDRESS, f"reconciles {ADDRESS}", ADDRESS]
    (claim,) = asyncio.run(_claims(app))
    assert claim["idempotencyKey"].startswith("[email:")
    for file in tmp_path.iterdir():
        assert ADDRESS.encode() not in file.read_bytes()


def test_a_plain_key_stays_readable(tmp_path: Path) -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=SQLiteStore(tmp_path / "a.db"))
    app.gateway.tool("charge", idempotent=False, key="order")(lambda order: "charged")("order-1042")
    (claim,) = asyncio.run(_claims(app))
    assert claim["idempotencyKey"] == "order-1042"


async def _claims(app: Antiphon) -> list[dict[str, Any]]:
    return await Admin(app).claims()

"""Tries every attack on an approval and makes legitimate flows, on four stores and both faces; prints the counts.

    python -m tests.campaigns.approval_attacks                  (starts its own Redis-compatible server and PostgreSQL)
    python -m tests.campaigns.approval_attacks --flows 500 --stores memory sqlite

An attack that gets its call made, or a flow whose tool does not run exactly once, ends the program with 1. On servers
it also counts round trips: of a call without approval, of the one that asks, and of the one that is approved and runs.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import antiphon
from antiphon.ops.app import Antiphon
from antiphon.ports import Store
from antiphon.stores import MemoryStore, PostgresStore, RedisStore, SQLiteStore
from tests.approval_cases import check_attacks, check_flows
from tests.faultproxy import FaultProxy
from tests.unit.gateway.kit import envelope

STORES = ("memory", "sqlite", "redis", "postgresql")
Open = Callable[[str], Store]
"""A store at an address."""


def round_trips(url: str, proxy: FaultProxy, store: Open) -> dict[str, int]:
    """Between client and server, the least of five calls each: what is not of the call (breakers) only adds to it."""
    people = Antiphon(store=store(url)).approvals("grace")
    gateway = antiphon.Gateway(store(proxy.url(url)))
    namespace = f"trips-{uuid.uuid4().hex[:8]}"
    for name, approve in (("plain", None), ("pay", "always")):
        gateway.tool(name, namespace=namespace, idempotent=False, approve=approve)(_pay)

    def counted(wire: Any) -> tuple[Any, int]:
        before = proxy.asked
        return gateway.execute(wire), proxy.asked - before

    def flow(number: int) -> tuple[int, int, int]:
        params = {"amount": number}
        plain = counted(envelope("plain", params, namespace=namespace, call_id=f"plain-{number}"))
        wire = envelope("pay", params, namespace=namespace, call_id=f"pay-{number}")
        asked = counted(wire)
        people.decide(str(asked[0].error.approval_id), "approve")
        ran = counted(wire)
        assert plain[0].content == ran[0].content == "paid"
        return plain[1], asked[1], ran[1]

    flow(0)  # connections are made and scripts are loaded
    least = (min(found) for found in zip(*(flow(number) for number in range(1, 6)), strict=True))
    gateway.close()
    return dict(zip(("plain", "asks", "approved"), least, strict=True))


def _pay(amount: int) -> str:
    return "paid"


def on_server(url: str, store: Open) -> dict[str, int]:
    """:func:`round_trips` through a proxy of its own."""
    port = urlsplit(url).port
    assert port is not None
    with FaultProxy(port) as proxy:
        return round_trips(url, proxy, store)


def main() -> int:
    """Run it and print a line for each store and face; 1 if an attack succeeded or a flow did not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--flows", type=int, default=500, help="legitimate flows on each store")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # each attack is a line of the log
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in arguments.stores:
            url, store = _opened(name, folder, stack)
            for face in ("sync", "async"):
                began = time.monotonic()
                attacks = check_attacks(store(url), face)
                flows = check_flows(partial(store, url), face, arguments.flows // 2)
                said = {"store": name, "face": face, "attacks": attacks, "succeeded": 0, "flows": flows, "refused": 0}
                print(json.dumps({**said, "seconds": round(time.monotonic() - began, 1)}), flush=True)
            if name in ("redis", "postgresql"):
                trips = on_server(url, store)
                print(json.dumps({"store": name, "roundTrips": trips}), flush=True)
                if trips["approved"] > trips["plain"] + 1:
                    return 1
    return 0


def _opened(name: str, folder: Path, stack: ExitStack) -> tuple[str, Open]:
    if name == "memory":
        return "", lambda url: MemoryStore()
    if name == "sqlite":
        return str(folder / "claims.db"), lambda url: SQLiteStore(url)
    from tests.servers import Postgres, Valkey

    if name == "redis":
        return stack.enter_context(Valkey()).url, lambda url: RedisStore(url, prefix="attacks")
    return stack.enter_context(Postgres()).url, lambda url: PostgresStore(url)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AssertionError as error:
        print("\n".join([*getattr(error, "__notes__", ()), str(error)]), file=sys.stderr)
        sys.exit(1)

"""``antiphon claims resolve --reconcile``: unknown outcomes are settled by what the tools themselves find out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Command

SHOP = """
import antiphon

gateway = antiphon.Gateway()
books = {"o-1": "receipt 1"}


async def was_it_charged(params, ctx):
    if params["order"] == "o-3":
        return None
    found = books.get(params["order"])
    return antiphon.Happened(found) if found else antiphon.DidNotHappen()


def ring_up(order: str, cents: int, email: str = "") -> str:
    raise ValueError("what?")


ring_up = antiphon.AsyncGateway().tool(idempotent=False, effect="write", key="order", reconcile=was_it_charged)(ring_up)


@gateway.tool(idempotent=False, effect="write", key="order")
def parcel(order: str) -> str:
    raise ValueError("what?")


async def main():
    for order in ("o-1", "o-2", "o-3"):
        try:
            await ring_up(order, 500)
        except ValueError:
            pass
    try:
        await ring_up("o-4", 500, email="ada@example.com")
    except ValueError:
        pass
    try:
        parcel("o-5")
    except ValueError:
        pass


if __name__ == "__main__":
    import asyncio

    asyncio.run(main())
"""


@pytest.fixture
def shop(antiphon: Command) -> Command:
    Path("till_to_reconcile.py").write_text(SHOP)
    subprocess.run([sys.executable, "till_to_reconcile.py"], check=True, capture_output=True)
    return antiphon


def test_what_reconcile_knows_is_settled_and_the_rest_stays_unknown(shop: Command) -> None:
    resolve = ("claims", "resolve", "--reconcile", "--entry", "till_to_reconcile.py")
    asked = shop(*resolve)
    assert asked.code == 2, "nobody is there to answer the question"
    assert "2 of 5 unknown outcomes will be settled like this" in asked.err
    assert "receipt 1" in asked.err
    listed = shop("claims", "list", "--state", "unknown", "--json").json
    assert (len(listed["claims"]), listed["more"]) == (5, False)
    few = shop("claims", "list", "--state", "unknown", "--limit", "3", "--json").json
    assert (len(few["claims"]), few["more"]) == (3, True)
    assert "There are more than these 3" in shop("claims", "list", "--limit", "3").out
    settled = shop(*resolve, "--yes", "--json").json
    assert (settled["resolved"], settled["unknown"]) == (2, 3)
    said = {claim["arguments"][10:13]: (claim["verdict"], claim["value"], claim["why"]) for claim in settled["claims"]}
    assert said["o-1"] == ("happened", "receipt 1", "")
    assert said["o-2"] == ("did-not-happen", None, "")
    assert said["o-3"] == (None, None, "it cannot tell")
    assert "masked" in said["o-4"][2]
    assert "no reconcile" in said["o-5"][2]
    states = {claim["idempotencyKey"]: claim["state"] for claim in shop("claims", "list", "--json").json["claims"]}
    assert states == {"o-1": "done", "o-2": "cancelled", "o-3": "unknown", "o-4": "unknown", "o-5": "unknown"}


def test_the_filter_chooses_whom_to_ask(shop: Command) -> None:
    done = shop(
        "claims",
        "resolve",
        "--reconcile",
        "--entry",
        "till_to_reconcile.py:main",
        "--tool",
        "tools/parcel",
        "--yes",
        "--json",
    )
    assert (done.json["resolved"], done.json["unknown"]) == (0, 1)


def test_the_code_that_registers_the_tools_has_to_be_named(antiphon: Command) -> None:
    refused = antiphon("claims", "resolve", "--reconcile")
    assert refused.code == 2
    assert "--entry" in refused.err

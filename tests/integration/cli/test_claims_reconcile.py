"""``antiphon claims resolve --reconcile``: unknown outcomes are settled by what the tools themselves find out."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from antiphon import Antiphon
from antiphon._drive import drive
from antiphon._gateway.settlement import NEVER_MS
from antiphon.canonical import canonical_digest
from antiphon.contract.record import UNKNOWN_CODE
from antiphon.ops.admin import Admin
from antiphon.ops.app import using
from antiphon.ports import Claimed, ClaimTemplate, Settlement, StaticClaimRequest
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


@pytest.mark.parametrize("named", ["key", "fingerprint"])
def test_an_unknown_outcome_is_cleared_only_after_a_question(shop: Command, named: str) -> None:
    *_, claim = shop("claims", "list", "--state", "unknown", "--json").json["claims"]
    clear = ("claims", "clear", claim[named], "--unknown")
    refused = shop(*clear)
    assert refused.code == 2
    assert "1 unknown: equal calls will run although these may have taken effect" in refused.err
    assert len(shop("claims", "list", "--state", "unknown", "--json").json["claims"]) == 5
    assert shop(*clear, "--yes", "--json").json == {"key": claim["key"], "cleared": True}


def test_all_unknown_outcomes_of_a_tool_are_resolved_however_many(antiphon: Command) -> None:
    with using(Antiphon(store="memory:")) as app:
        for number in range(10_001):
            key = canonical_digest(["parcel", number])
            template = ClaimTemplate(
                tool="tools/parcel", session="", actor="", ttl_ms=NEVER_MS, lease_ms=1000, owner="elsewhere.1.1.1"
            )
            claimed = app.journal.begin(StaticClaimRequest(key, key, template, key, (key, key), key, token=key))
            assert isinstance(claimed, Claimed)
            error = (UNKNOWN_CODE, "", True, False)
            app.journal.settle(key, claimed.version, Settlement("failed", NEVER_MS, error=error))
        words = ("claims", "resolve", "--tool", "tools/parcel", "--did-not-happen", "--dry-run", "--json")
        assert antiphon(*words).json["resolved"] == 10_001
        refused = antiphon("claims", "flush", "--tool", "tools/parcel", "--unknown")
        assert "10001 unknown: equal calls will run" in refused.err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("A", "B", "--did-not-happen"), "--version"),
        (("--tool", "tools/parcel", "--did-not-happen"), "--version"),
        (("--reconcile", "--entry", "till_to_reconcile.py"), "--version"),
        (("--tool", "tools/parcel", "--did-not-happen"), "--in-flight"),
        (("--reconcile", "--entry", "till_to_reconcile.py"), "--in-flight"),
    ],
)
def test_options_for_named_claims_are_refused_elsewhere(shop: Command, words: tuple[str, ...], option: str) -> None:
    done = shop("claims", "resolve", *words, option, *(["9"] if option == "--version" else []), "--yes")
    assert done.code == 2
    assert option in done.err
    assert len(shop("claims", "list", "--state", "unknown", "--json").json["claims"]) == 5


def test_several_calls_in_flight_are_resolved_together(antiphon: Command) -> None:
    gateway, go = Antiphon().gateway, threading.Event()

    @gateway.tool(idempotent=False, key="order")
    def send(order: str) -> None:
        go.wait(60)

    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(send, order=order) for order in ("o-1", "o-2")]
        while len(found := antiphon("claims", "list", "--state", "inflight", "--json").json["claims"]) < 2:
            pass
        resolve = ("claims", "resolve", *(claim["key"] for claim in found), "--did-not-happen", "--yes", "--json")
        refused = antiphon(*resolve)
        assert (refused.code, refused.json["resolved"], len(refused.json["refused"])) == (1, 0, 2)
        done = antiphon(*resolve, "--in-flight")
        go.set()
        assert (done.code, done.json["resolved"]) == (0, 2)
        for call in calls:
            call.exception(60)


@pytest.mark.parametrize(
    ("words", "act"),
    [
        (("clear", "KEY", "--unknown"), "clear"),
        (("resolve", "KEY", "--did-not-happen"), "resolve"),
        (("flush", "--tool", "tools/parcel", "--unknown"), "flush"),
    ],
)
def test_a_reason_that_is_no_unicode_is_audited_as_text(shop: Command, words: tuple[str, ...], act: str) -> None:
    (claim,) = shop("claims", "list", "--tool", "tools/parcel", "--json").json["claims"]
    given = (claim["key"] if word == "KEY" else word for word in words)
    assert shop("claims", *given, "--yes", "--reason", "caf\udce9\nau lait").code == 0
    (entry,) = drive(Admin(Antiphon()).audit())
    assert (entry["act"], entry["reason"]) == (act, "caf  au lait")


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

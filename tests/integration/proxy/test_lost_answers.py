"""The campaign of lost answers, in short: ``python -m tests.campaigns.lost_answers`` is the long one."""

from __future__ import annotations

import asyncio
import logging

import pytest

from antiphon import Antiphon
from tests.campaigns.lost_answers import Intent, Relay, Server, judge, listen, play, states_of, violations
from tests.integration.proxy.harness import serving


@pytest.mark.parametrize("identity", [True, False])
def test_cut_connections_and_calls_sent_again(app: Antiphon, identity: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "antiphon.proxy")
    server = Server()

    async def campaign() -> list[Intent]:
        listening, port = await listen(server.serve)
        with serving(app, "live", mcp=f"http://127.0.0.1:{port}") as served:
            relay = Relay(int(served.url.rpartition(":")[2]), 7, 0.5)
            front, at = await listen(relay.serve)
            intents = await play(at, "/run/short/desk/mcp", 80, 7, identity=identity)
            front.close()
        listening.close()
        assert relay.cuts
        return intents

    intents = asyncio.run(campaign())
    found = judge(intents, server.executed, states_of([record.getMessage() for record in caplog.records]))
    assert found.intents == 80
    assert violations(found, identity=identity) == []


def test_the_judge_finds_what_must_not_be() -> None:
    twice = Intent("i1", "a", ["i1.0", "i1.1"], ["i1.1"])
    assert violations(judge([twice], ["i1.0", "i1.1"], {"i1.0": "lost"}), identity=False)
    assert violations(judge([twice], ["i1.0", "i1.1"], {"i1.0": "handed over"}), identity=True)
    assert not violations(judge([twice], ["i1.0", "i1.1"], {"i1.0": "handed over"}), identity=False)
    thrice = Intent("i1", "a", ["i1.0", "i1.1", "i1.2"], ["i1.2"])  # lost, given again and handed over, and cut behind
    states = {"i1.0": "lost", "i1.1": "handed over"}
    assert not violations(judge([thrice], ["i1.0", "i1.2"], states), identity=False)
    swallowed = Intent("i2", "a", ["i2.0"], ["i1.0"])
    first = Intent("i1", "a", ["i1.0"], ["i1.0"])
    assert violations(judge([first, swallowed], ["i1.0"], {"i1.0": "handed over"}), identity=False)
    assert not violations(judge([first, swallowed], ["i1.0"], {"i1.0": "lost"}), identity=False)

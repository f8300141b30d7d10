"""D3, D7: workers of a fleet are killed, or paused beyond their lease; late results are fenced, unknowns explicit."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

from antiphon.config.wiring import open_store
from antiphon.decide.claim import is_unknown
from tests.faults.fleet_kit import Effects, envelope, fleet, open_gateway, serve, short, summary, until

LEASE_MS = 600


def _worker(url: str, effects: Effects, number: int, pipe: Connection) -> None:
    """Calls tools that take a while; which worker did what is in the effects."""
    gateway = open_gateway(url, loop={"enabled": False})

    @gateway.tool(idempotent=False, ttl=short(LEASE_MS))
    def charge(order: str, seconds: float) -> str:
        effects.add(f"charge:{order}")
        effects.add(f"charge:{order}@{number}")
        time.sleep(seconds)
        return f"charged by {number}"

    @gateway.tool(idempotent=True, reuse="session", ttl=short(LEASE_MS))
    def look_up(name: str) -> str:
        effects.add(f"look_up:{name}@{number}")
        time.sleep(30 if number == 0 else 0.05)
        return f"seen by {number}"

    def call(tool: str, params: dict[str, Any], call_id: str, key: str | None = None) -> dict[str, Any]:
        return summary(gateway.execute(envelope(tool, params, call_id, key=key)))

    serve(pipe, {"call": call})


def _charge(order: str, seconds: float, call_id: str) -> tuple[Any, ...]:
    return ("call", "charge", {"order": order, "seconds": seconds}, call_id, order)


def test_a_killed_worker_leaves_an_explicit_unknown(fleet_url: str, effects: Effects) -> None:
    with fleet(_worker, fleet_url, effects, size=3) as (doomed, waiting, later):
        doomed.say(_charge("o1", 60.0, "c1"))
        until(lambda: effects.counts()["charge:o1"] == 1, "the tool was reached")
        waiting.say(_charge("o1", 60.0, "c1"))
        doomed.kill()
        for answer in (waiting.hear(), later.ask(_charge("o1", 60.0, "c2"))):
            assert (answer["status"], answer["code"], answer["attempts"]) == ("error", "outcome_unknown", 0)
            assert "antiphon claims resolve" in answer["message"]
    assert effects.counts()["charge:o1"] == 1, "nothing ran twice"
    (record,) = open_store(fleet_url).open_sync().list(tenant="default")
    assert is_unknown(record)


def test_a_worker_paused_beyond_its_lease_settles_the_unknown_outcome(fleet_url: str, effects: Effects) -> None:
    """D53: the paused worker comes back with a certain result; it settles what was unknown, and redeliveries get it."""
    with fleet(_worker, fleet_url, effects, size=2) as (slow, other):
        slow.say(_charge("o1", 1.0, "c1"))
        until(lambda: effects.counts()["charge:o1"] == 1, "the tool was reached")
        slow.pause()
        time.sleep(2 * LEASE_MS / 1000)
        assert other.ask(_charge("o1", 1.0, "c2"))["code"] == "outcome_unknown"
        slow.resume()
        late = slow.hear()
        assert late["status"] == "success", "its own caller learns what happened"
        assert late["metadata"] == {}, "and it is on record"
        told = other.ask(_charge("o1", 1.0, "c3"))
        assert (told["status"], told["fromCache"], told["value"]) == ("success", True, "charged by 0")
    assert effects.counts()["charge:o1"] == 1, "nothing ran twice"


def test_an_idempotent_call_of_a_paused_worker_is_taken_over_by_one_other(fleet_url: str, effects: Effects) -> None:
    with fleet(_worker, fleet_url, effects, size=4) as (slow, *others):
        ask = ("call", "look_up", {"name": "x"})
        slow.say((*ask, "c0"))
        until(lambda: effects.counts()["look_up:x@0"] == 1, "the tool was reached")
        slow.pause()
        for number, worker in enumerate(others):
            worker.say((*ask, f"c{number + 1}"))
        answers = [worker.hear() for worker in others]
        counts = effects.counts()
        assert sum(counts[f"look_up:x@{number}"] for number in (1, 2, 3)) == 1, "exactly one took over"
        assert len({answer["value"] for answer in answers}) == 1
        assert sorted(answer["fromCache"] for answer in answers) == [False, True, True]
        assert answers[0]["value"] != "seen by 0"


def test_a_worker_that_is_only_slow_keeps_its_lease(fleet_url: str, effects: Effects) -> None:
    """The tool takes several leases; they are renewed, so the second caller waits and shares the answer."""
    with fleet(_worker, fleet_url, effects, size=2) as (slow, other):
        slow.say(_charge("o1", 4 * LEASE_MS / 1000, "c1"))
        until(lambda: effects.counts()["charge:o1"] == 1, "the tool was reached")
        shared = other.ask(_charge("o1", 4 * LEASE_MS / 1000, "c2"))
        assert (shared["status"], shared["fromCache"], shared["value"]) == ("success", True, "charged by 0")
        assert slow.hear()["metadata"].get("fenced") is None
    assert effects.counts()["charge:o1"] == 1


def test_a_fleet_under_fire_runs_nothing_twice(fleet_url: str, effects: Effects) -> None:
    """Workers are killed and paused at random moments; each order is delivered to every worker that is left."""
    orders = [f"o{number}" for number in range(12)]
    with fleet(_worker, fleet_url, effects, size=4) as workers:
        first, second, third, fourth = workers
        lost: list[str] = []
        for number, order in enumerate(orders):
            runner = (first, second, third)[number % 3] if number < 9 else fourth
            if runner in (first, second) and number >= 6:
                runner = fourth
            runner.say(_charge(order, 0.4, f"{order}.1"))
            until(lambda order=order: effects.counts()[f"charge:{order}"] == 1, "the tool was reached")  # type: ignore[misc]
            if number in (3, 4):
                runner.kill()
                lost.append(order)
            elif number == 5:
                runner.pause()
                time.sleep(2 * LEASE_MS / 1000)
                assert fourth.ask(_charge(order, 0.4, f"{order}.2"))["code"] == "outcome_unknown"
                runner.resume()
                assert runner.hear()["status"] == "success"  # a certain result settles the unknown outcome (D53)
            else:
                assert runner.hear()["status"] == "success"
        answers = {order: fourth.ask(_charge(order, 0.4, f"{order}.9")) for order in orders}
    counts = effects.counts()
    assert {order: counts[f"charge:{order}"] for order in orders} == dict.fromkeys(orders, 1), "nothing ran twice"
    unknown = [order for order, answer in answers.items() if answer["code"] == "outcome_unknown"]
    assert unknown == lost, "whatever is not known says so, and nothing else does"

"""D10: the shared server goes away in the middle; calls with effects fail closed, and nothing runs twice."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tests.faults.fleet_kit import Effects, Worker, envelope, fleet, open_gateway, serve, summary, until
from tests.servers import Postgres, Server, Valkey

ORDERS, WORKERS = 60, 3


@pytest.fixture(params=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> Server:
    """A server of the test's own that keeps what it has confirmed."""
    if request.param == "redis":
        start_valkey: Callable[..., Valkey] = request.getfixturevalue("valkey_server")
        return start_valkey(appendonly=True, appendfsync="always")
    start_postgres: Callable[..., Postgres] = request.getfixturevalue("postgres_server")
    return start_postgres(settings={"fsync": "on", "synchronous_commit": "on"})


def _worker(url: str, effects: Effects, number: int, pipe: Connection) -> None:
    gateway = open_gateway(url, loop={"enabled": False})

    @gateway.tool(idempotent=False, effect="write")
    def charge(order: str) -> str:
        effects.add(f"charge:{order}")
        time.sleep(0.01)
        return f"charged by {number}"

    @gateway.tool(idempotent=True, effect="read")
    def look_up(name: str) -> str:
        return "seen"

    def deliver(orders: list[str], delivery: int) -> dict[str, dict[str, Any]]:
        return {
            order: summary(gateway.execute(envelope("charge", {"order": order}, f"{order}", key=order)))
            for order in orders
        }

    def call(tool: str, params: dict[str, Any], call_id: str) -> dict[str, Any]:
        return summary(gateway.execute(envelope(tool, params, call_id)))

    serve(pipe, {"deliver": deliver, "call": call})


def test_a_restart_in_the_middle_doubles_nothing(server: Server, effects: Effects) -> None:
    """Every worker delivers every order, twice, while the server is killed and started again."""
    orders = [f"o{number}" for number in range(ORDERS)]
    with fleet(_worker, server.url, effects, size=WORKERS) as workers:
        for worker in workers:
            worker.say(("deliver", orders, 1))
        while sum(effects.counts().values()) < ORDERS // 4:
            time.sleep(0.01)
        server.kill()
        time.sleep(0.5)
        server.start()
        first = [worker.hear(180) for worker in workers]
        _until_the_store_is_back(workers)
        again = _deliver(workers, orders)
    counts = effects.counts()
    assert max(counts.values()) == 1, "nothing ran twice"
    for answers in (*first, *again):
        for order, answer in answers.items():
            if answer["status"] == "success":
                assert counts[f"charge:{order}"] == 1
            else:
                assert answer["code"] in ("store_unavailable", "in_flight", "outcome_unknown"), answer
    settled = sum(answer["status"] == "success" for answers in again for answer in answers.values())
    assert settled >= len(workers) * (ORDERS - 3 * WORKERS), "the fleet works on after the restart"


def _until_the_store_is_back(workers: list[Worker]) -> None:
    """Each process finds it by itself; until then it refuses calls, or makes reads without a claim."""
    tries = itertools.count()

    def has_it(worker: Worker) -> bool:
        answer = worker.ask(("call", "look_up", {"name": "y"}, f"y{next(tries)}"))
        return "unprotected" not in answer["metadata"]

    for worker in workers:
        until(partial(has_it, worker), "the store is back")


def _deliver(workers: list[Worker], orders: list[str]) -> list[dict[str, dict[str, Any]]]:
    for worker in workers:
        worker.say(("deliver", orders, 2))
    return [worker.hear(180) for worker in workers]


def test_without_the_server_effects_fail_closed_and_reads_go_on(server: Server, effects: Effects) -> None:
    with fleet(_worker, server.url, effects, size=2) as workers:
        for number, worker in enumerate(workers):
            assert worker.ask(("call", "charge", {"order": f"before-{number}"}, f"b{number}"))["status"] == "success"
        server.stop()
        for number, worker in enumerate(workers):
            closed = worker.ask(("call", "charge", {"order": f"down-{number}"}, f"d{number}"))
            assert (closed["status"], closed["code"], closed["attempts"]) == ("retriable_error", "store_unavailable", 0)
            assert "The call was not made" in closed["message"]
            opened = worker.ask(("call", "look_up", {"name": "x"}, f"r{number}"))
            assert (opened["status"], opened["metadata"]["unprotected"]) == ("success", "store_unavailable")
        server.start()
        _until_the_store_is_back(workers)
        for number, worker in enumerate(workers):
            known = worker.ask(("call", "charge", {"order": f"before-{number}"}, f"b{number}"))
            assert (known["status"], known["fromCache"]) == ("success", True), "confirmed claims survived the restart"
            assert worker.ask(("call", "charge", {"order": f"down-{number}"}, f"d{number}"))["status"] == "success"
    assert set(effects.counts().values()) == {1}


def test_a_server_that_hangs_during_calls_doubles_nothing(server: Server, effects: Effects) -> None:
    """Paused, not gone: connections stay open and nothing answers for a while."""
    orders = [f"o{number}" for number in range(20)]
    with fleet(_worker, server.url, effects, size=2) as workers:
        for worker in workers:
            worker.say(("deliver", orders, 1))
        while sum(effects.counts().values()) < 5:
            time.sleep(0.01)
        server.pause()
        threading.Timer(1.5, server.resume).start()
        for worker in workers:
            worker.hear(180)
        answers = _deliver(workers, orders)
    assert max(effects.counts().values()) == 1, "nothing ran twice"
    assert all(answer["status"] == "success" for given in answers for answer in given.values())

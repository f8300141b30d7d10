"""Real processes around one SQLite file: killed, stopped, interrupted, forked, racing (D2, D3, D7, D16)."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from antiphon import Gateway
from tests.faults.fleet_kit import Effects, Worker, envelope, fleet, open_gateway, serve, short, summary, until

LEASE_MS = 1_000


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'claims.db'}"


def build(url: str, effects: Effects, *, idempotent: bool, seconds: float = 0.0, lease_ms: int = LEASE_MS) -> Gateway:
    """A gateway whose tool leaves a line, takes its time, and says who it was."""
    gateway = open_gateway(url, loop={"enabled": False})

    @gateway.tool("send", idempotent=idempotent, reuse="session" if idempotent else None, ttl=short(lease_ms))
    def send(to: str) -> int:
        effects.add(f"send:{to}")
        time.sleep(seconds)
        return os.getpid()

    return gateway


def call(gateway: Gateway, call_id: str, to: str = "ada", key: str | None = None) -> dict[str, Any]:
    return summary(gateway.execute(envelope("send", {"to": to}, call_id, key=key)))


def _worker(url: str, effects: Effects, options: dict[str, Any], number: int, pipe: Connection) -> None:
    gateway = build(url, effects, **options)
    serve(
        pipe,
        {
            "call": lambda call_id, to="ada", key=None: call(gateway, call_id, to, key),
            "interrupted": lambda call_id: _interrupted(gateway, call_id),
        },
    )


def _interrupted(gateway: Gateway, call_id: str) -> str:
    try:
        return str(call(gateway, call_id))
    except KeyboardInterrupt:
        return "KeyboardInterrupt"


def one(url: str, effects: Effects, child: bool = False, **options: Any) -> Any:
    return fleet(_worker, url, effects, options, size=1, child=child)


def running(worker: Worker, effects: Effects, call_id: str = "c1") -> None:
    """Start a call in the worker and wait until its tool has been reached."""
    before = effects.counts().total()
    worker.say(("call", call_id))
    until(lambda: effects.counts().total() > before, "the tool is reached")


# -- kill -9 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reaped", [True, False])
def test_after_kill_9_nothing_is_sent_again(url: str, effects: Effects, reaped: bool) -> None:
    with one(url, effects, child=True, idempotent=False, seconds=60, lease_ms=60_000) as [worker]:
        running(worker, effects)
        os.kill(worker.pid, signal.SIGKILL)
        if reaped:
            worker.process.join()
        else:
            state = Path(f"/proc/{worker.pid}/stat")
            until(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z", "it is dead and nobody has asked")
        gateway = build(url, effects, idempotent=False, lease_ms=60_000)
        began = time.monotonic()
        for call_id in ("c1", "c2"):
            result = call(gateway, call_id)
            assert result["code"] == "outcome_unknown"
            assert "Verify" in result["message"]
        assert time.monotonic() - began < 10, "the lease of a dead process is not waited for"
    assert effects.counts() == {"send:ada": 1}


def test_after_kill_9_an_idempotent_call_is_taken_over(url: str, effects: Effects) -> None:
    with one(url, effects, idempotent=True, seconds=60, lease_ms=60_000) as [worker]:
        running(worker, effects)
        worker.kill()
        gateway = build(url, effects, idempotent=True, lease_ms=60_000)
        result = call(gateway, "c1")
    assert (result["status"], result["value"]) == ("success", os.getpid())
    assert effects.counts() == {"send:ada": 2}


def test_a_waiter_notices_that_the_leader_was_killed(url: str, effects: Effects) -> None:
    with fleet(_worker, url, effects, {"idempotent": False, "seconds": 60, "lease_ms": 60_000}, size=2) as workers:
        running(workers[0], effects, "c1")
        workers[1].say(("call", "c2"))
        time.sleep(0.3)
        workers[0].kill()
        assert workers[1].hear(20)["code"] == "outcome_unknown"
    assert effects.counts() == {"send:ada": 1}


# -- SIGSTOP beyond the lease ----------------------------------------------------------------------------------------


def test_a_stopped_worker_is_fenced_when_it_wakes_up(url: str, effects: Effects) -> None:
    with one(url, effects, idempotent=True, seconds=1.0) as [worker]:
        running(worker, effects)
        worker.pause()
        gateway = build(url, effects, idempotent=True)
        result = call(gateway, "c2")  # waits for the lease, then takes over
        assert result["value"] == os.getpid()
        worker.resume()
        late = worker.hear()
        assert (late["status"], late["metadata"]) == ("success", {"fenced": True})
        assert call(gateway, "c2")["value"] == os.getpid(), "the record is its successor's"
    assert effects.counts() == {"send:ada": 2}


def test_a_stopped_worker_leaves_an_unknown_outcome_and_settles_it_when_it_wakes_up(url: str, effects: Effects) -> None:
    with one(url, effects, idempotent=False, seconds=1.0) as [worker]:
        running(worker, effects)
        worker.pause()
        gateway = build(url, effects, idempotent=False)
        assert call(gateway, "c2")["code"] == "outcome_unknown"
        assert call(gateway, "c1")["code"] == "outcome_unknown"
        worker.resume()
        late = worker.hear()
        assert (late["status"], late["metadata"]) == ("success", {})
        again = call(gateway, "c1")  # its result is certain, and nobody has settled it otherwise
        assert (again["status"], again["value"], again["fromCache"]) == ("success", worker.pid, True)
    assert effects.counts() == {"send:ada": 1}


# -- once ------------------------------------------------------------------------------------------------------------


def test_identical_parallel_calls_run_once_across_4_processes(url: str, effects: Effects) -> None:
    options = {"idempotent": False, "seconds": 0.5, "lease_ms": 30_000}  # a busy machine renews late
    with fleet(_worker, url, effects, options, size=4) as workers:
        for number, worker in enumerate(workers):
            worker.say(("call", f"c{number}"))
        results = [worker.hear() for worker in workers]
        assert len({result["value"] for result in results}) == 1
        assert sum(result["fromCache"] for result in results) == 3
        assert effects.counts() == {"send:ada": 1}
        for round_number in range(6):  # and again, quickly, with keys of the caller
            for worker in workers:
                worker.say(("call", f"r{round_number}", f"to-{round_number}", f"order-{round_number}"))
            values = {worker.hear()["value"] for worker in workers}
            assert len(values) == 1
    assert set(effects.counts().values()) == {1}


def test_a_call_longer_than_its_lease_runs_once(url: str, effects: Effects) -> None:
    with fleet(_worker, url, effects, {"idempotent": False, "seconds": 4.0, "lease_ms": 600}, size=2) as workers:
        running(workers[0], effects, "c1")
        workers[1].say(("call", "c2"))
        first, second = workers[0].hear(), workers[1].hear()
    assert first["value"] == second["value"]
    assert second["fromCache"] is True
    assert effects.counts() == {"send:ada": 1}


def test_c1_c2_then_c1_again_across_processes_and_a_restart(url: str, effects: Effects) -> None:
    with fleet(_worker, url, effects, {"idempotent": False}, size=2) as workers:
        first = workers[0].ask(("call", "c1"))
        second = workers[1].ask(("call", "c2"))
    gateway = build(url, effects, idempotent=False)
    assert call(gateway, "c1")["value"] == first["value"]
    assert call(gateway, "c2")["value"] == second["value"]
    assert first["value"] != second["value"]
    assert effects.counts() == {"send:ada": 2}


# -- signals and forks ---------------------------------------------------------------------------------------


def test_ctrl_c_leaves_an_unknown_outcome(url: str, effects: Effects) -> None:
    with one(url, effects, idempotent=False, seconds=60, lease_ms=60_000) as [worker]:
        worker.say(("interrupted", "c1"))
        until(lambda: effects.counts().total() == 1, "the tool is reached")
        os.kill(worker.pid, signal.SIGINT)
        assert worker.hear() == "KeyboardInterrupt"
        gateway = build(url, effects, idempotent=False)
        assert call(gateway, "c1")["code"] == "outcome_unknown"
    assert effects.counts() == {"send:ada": 1}


def _forking(url: str, effects: Effects, number: int, pipe: Connection) -> None:
    """A process that has used its gateway, forks, and goes on in both."""
    gateway = build(url, effects, idempotent=False, seconds=1.5, lease_ms=600)
    pipe.send("ready")
    pipe.recv()
    parent = call(gateway, "warm", "warm")
    there, here = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = call(gateway, "child", "child")  # longer than its lease: the child renews by itself
        os.write(here, f"{answer['status']} {answer['value']} {os.getpid()}".encode())
        os._exit(0)
    mine = call(gateway, "parent", "parent")
    os.waitpid(pid, 0)
    status, value, child = os.read(there, 1000).decode().split()
    again = call(gateway, "child", "child")
    pipe.send((parent, mine, (status, int(value), int(child)), again, os.getpid()))


def test_gateways_go_on_in_both_processes_after_a_fork(url: str, effects: Effects) -> None:
    with fleet(_forking, url, effects, size=1) as [worker]:
        warm, mine, (status, value, child), again, pid = worker.ask("go")
    assert (warm["value"], mine["value"], mine["metadata"]) == (pid, pid, {})
    assert (status, value) == ("success", child)
    assert child != pid
    assert (again["value"], again["fromCache"]) == (child, True)
    assert effects.counts() == {"send:warm": 1, "send:child": 1, "send:parent": 1}

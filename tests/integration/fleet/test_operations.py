"""R13: the commands of an operator against a live fleet, and the janitor that every process brings along."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon._drive import drive
from antiphon._gateway import leases
from antiphon._gateway.leases import Leases
from antiphon._gateway.settings import Settings
from antiphon.config.wiring import open_store
from antiphon.contract.spec import Ttls
from antiphon.ops.admin import Admin
from antiphon.ports import BreakerRow, Clock
from tests.faults.fleet_kit import Effects, envelope, fleet, open_gateway, serve, summary, until
from tests.servers import Valkey

Type = Callable[..., subprocess.CompletedProcess[str]]


def _worker(url: str, effects: Effects, number: int, pipe: Connection) -> None:
    gateway = open_gateway(url, loop={"enabled": False})

    @gateway.tool(idempotent=False)
    def charge(order: str, seconds: float = 0.0) -> str:
        effects.add(f"charge:{order}")
        time.sleep(seconds)
        return f"charged by {number}"

    def call(order: str, call_id: str, seconds: float = 0.0) -> dict[str, Any]:
        params = {"order": order, "seconds": seconds}
        return summary(gateway.execute(envelope("charge", params, call_id, key=order)))

    serve(pipe, {"call": call})


@pytest.fixture
def command(fleet_url: str, tmp_path: Path) -> Type:
    """``antiphon WORDS`` with the fleet's store in its configuration."""
    return _commands(fleet_url, tmp_path)


def _commands(url: str, folder: Path, *settings: str) -> Type:
    file = folder / "antiphon.toml"
    file.write_text("\n".join(("[store]", f'url = "{url}"', *settings, "")))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "antiphon.cli", *words, "--config", str(file)]
        return subprocess.run(
            line, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def test_an_operator_looks_after_the_claims_of_a_fleet(fleet_url: str, effects: Effects, command: Type) -> None:
    with fleet(_worker, fleet_url, effects, size=2) as (one, doomed):
        for order in ("a1", "a2", "b1"):
            assert one.ask(("call", order, order))["status"] == "success"
        doomed.say(("call", "lost", "l1", 60.0))
        until(lambda: effects.counts()["charge:lost"] == 1, "the tool was reached")
        listed = json.loads(command("claims", "list", "--json").stdout)["claims"]
        assert sorted(claim["state"] for claim in listed) == ["done", "done", "done", "inflight"]
        doomed.kill()
        assert one.ask(("call", "lost", "l2", 60.0))["code"] == "outcome_unknown"
        (unknown,) = json.loads(command("claims", "list", "--state", "unknown", "--json").stdout)["claims"]
        examined = command("doctor")
        assert "1 outcome unknown (tools/charge: 1)" in examined.stdout
        assert examined.returncode == 0
        resolved = command("claims", "resolve", unknown["fingerprint"], "--happened", "--value", '"by hand"')
        assert resolved.returncode == 0, resolved.stderr
        assert one.ask(("call", "lost", "l2", 60.0))["value"] == "by hand", "the fleet goes by the operator's word"
        cleared = command("claims", "clear", listed[-1]["fingerprint"])
        assert cleared.returncode == 0, cleared.stderr
        flushed = json.loads(command("claims", "flush", "--tool", "tools/charge", "--json").stdout)
        assert flushed == {"flushed": 3}
        assert one.ask(("call", "a1", "a1.again"))["fromCache"] is False, "what was forgotten runs again"


def test_an_operator_fences_a_tool_off(fleet_url: str, effects: Effects, command: Type) -> None:
    with fleet(_worker, fleet_url, effects, size=2) as workers:
        for number, worker in enumerate(workers):
            assert worker.ask(("call", f"o{number}", "c"))["status"] == "success"
        forced = command("breakers", "force-open", "tools/charge", "--reason", "provider incident")
        assert forced.returncode == 0, forced.stderr
        until(lambda: all(w.ask(("call", "new", "n"))["code"] == "circuit_open" for w in workers), "all refuse", 1.0)
        assert "FORCED_OPEN" in command("breakers", "list").stdout
        assert command("breakers", "reset", "tools/charge").returncode == 0
        until(lambda: all(w.ask(("call", "new", "n"))["status"] == "success" for w in workers), "open again", 1.0)


def test_the_memory_of_a_record_is_printed(valkey_url: str, unique: str, effects: Effects, tmp_path: Path) -> None:
    url = f"{valkey_url}?antiphon_prefix={unique}"
    command = _commands(url, tmp_path)
    with fleet(_worker, url, effects, size=1) as (worker,):
        for number in range(10):
            worker.ask(("call", f"o{number}", f"c{number}"))
    usage = json.loads(command("claims", "usage", "--json").stdout)
    assert usage["records"] == 10
    assert 200 < usage["bytesPerRecord"] < 2000
    assert usage["bytes"] == pytest.approx(10 * usage["bytesPerRecord"], rel=0.1)
    assert f"about {usage['bytesPerRecord']} bytes each" in command("doctor").stdout


def test_doctor_names_what_weakens_a_server(valkey_server: Callable[..., Valkey], tmp_path: Path) -> None:
    weak = valkey_server(maxmemory="64mb", maxmemory_policy="allkeys-lru")
    said = _commands(weak.url, tmp_path)("doctor")
    assert said.returncode == 0
    assert "allkeys-lru: Redis may evict claims; set noeviction" in said.stdout
    assert "appendonly is off: a restart loses claims" in said.stdout


@pytest.mark.parametrize("fault", ["replica", "full", "too few replicas"])
def test_doctor_fails_where_claims_are_refused(
    valkey_server: Callable[..., Valkey], tmp_path: Path, fault: str
) -> None:
    server = valkey_server(appendonly=True)
    well = _commands(server.url, tmp_path, "wait_replicas = 1" if fault == "too few replicas" else "")
    if fault == "replica":
        replica = valkey_server(replicaof=server, appendonly=True)
        said = _commands(replica.url, tmp_path)("doctor")
        assert f"{replica.url} is a read-only replica\n    Name the primary in [store]." in said.stdout
    elif fault == "full":
        server.command("CONFIG", "SET", "maxmemory", "1")
        said = well("doctor")
        assert "claims are refused" in said.stdout
        assert "is full (maxmemory)" in said.stdout
        server.command("CONFIG", "SET", "maxmemory", "0")
    else:
        said = well("doctor")
        assert "claims are refused: Only 0 of 1 replicas confirmed the claim" in said.stdout
        valkey_server(replicaof=server, appendonly=True)
    assert said.returncode == 1
    assert "may be made again" not in said.stdout, "nothing is lost"
    examined = json.loads(_commands(server.url, tmp_path)("doctor", "--json").stdout)
    assert examined["ok"]


def test_doctor_leaves_no_claim(fleet_url: str, command: Type) -> None:
    assert command("doctor").returncode == 0
    journal = open_store(fleet_url).open_sync()
    assert journal.list(tenant="antiphon-doctor") == []
    assert journal.list(tenant="default") == []
    journal.close()


def _commands_of(server: Valkey) -> int:
    found = re.search(rb"total_commands_processed:(\d+)", server.command("INFO", "stats"))
    assert found is not None
    return int(found[1])


def test_flushing_by_prefix_never_holds_the_server_up(valkey_server: Callable[..., Valkey]) -> None:
    """Thousands of claims are forgotten by many short commands."""
    from tests.integration.stores.redis_kit import request_for

    server = valkey_server(options={"slowlog-log-slower-than": "100000"})  # of a busy machine, too
    journal = open_store(server.url).open_sync()
    for number in range(3000):
        journal.begin(request_for(f"{'ab' if number % 3 else 'cd'}{number:06d}"))
    server.command("SLOWLOG", "RESET")
    before = _commands_of(server)
    app = antiphon.Antiphon(store=open_store(server.url))
    assert drive(Admin(app).flush(prefix="ab", in_flight=True)) == {"flushed": 2000}
    assert _commands_of(server) - before >= 10
    assert server.command("SLOWLOG", "LEN") == b":0"
    left = journal.list(tenant="default", state="inflight", limit=5000)
    assert len(left) == 1000
    journal.close()


def test_every_process_sweeps_what_has_expired(fleet_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PAUSE_S", 0.05)
    store = open_store(fleet_url)
    gateway = open_gateway(fleet_url)

    @gateway.tool(idempotent=True, ttl=Ttls(done_ms=50, failed_ms=50, lease_ms=50))
    def send(n: int) -> int:
        return n

    for n in range(30):
        send(n)
    journal = store.open_sync()
    long_ago = int(time.time() * 1000) - 3 * 86_400_000
    ended = BreakerRow("tool/tools/send#gone.1", "OPEN", 1, long_ago, "5 consecutive failures", long_ago, "gone.1")
    reset = BreakerRow("tool/tools/send", "CLOSED", 2, 0, "reset", long_ago, "operator")
    for row in (ended, reset):
        journal.save_breaker("default", row)
    time.sleep(0.1)
    held = Leases(store, Clock(), Settings())  # what the process's one thread looks after
    monkeypatch.setattr("antiphon._gateway.leases._janitor", leases.Janitor())

    def swept() -> bool:
        held.look()
        return journal.load_breakers("default") == [reset] and journal.sweep() == 0

    until(swept, "expired claims and ended breaker states are gone", 10)
    assert journal.list(tenant="default") == []
    gateway.close()
    journal.close()


def test_a_janitor_sweeps_each_store_once_and_goes_on_after_a_full_portion() -> None:
    swept: list[int] = []

    class Full:
        def sweep(self, limit: int) -> int:
            swept.append(limit)
            return limit if len(swept) < 3 else 0

    keeper = leases.Janitor()
    journal: Any = Full()
    first = keeper.sweep_if_due("redis://a", lambda: journal, 0.0)
    assert leases.PAUSE_S * 0.5 <= first <= leases.PAUSE_S * 1.5
    assert keeper.sweep_if_due("redis://a", lambda: journal, first - 0.1) == pytest.approx(0.1)
    now = first
    assert keeper.sweep_if_due("redis://a", lambda: journal, now) == 1.0, "a full portion: more is waiting"
    assert keeper.sweep_if_due("redis://a", lambda: journal, now + 1.0) == 1.0
    assert keeper.sweep_if_due("redis://a", lambda: journal, now + 2.0) >= leases.PAUSE_S * 0.5
    assert swept == [leases.PORTION] * 3

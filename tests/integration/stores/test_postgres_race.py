"""Many processes on one PostgreSQL: each intent dispatched once, killed and paused holders fenced (D2, D3, D7)."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from antiphon.ports import Claimed, Existing
from antiphon.stores import PostgresStore
from tests.integration.stores.postgres_kit import done, eventually, request_for, row, seqs
from tests.processes import process

PROCESSES, CALLERS, KEYS = 4, 16, 40


def in_processes(work: Callable[..., None], *args: Any) -> None:
    """Run *work* in all processes at once; fails if one does."""
    started = [process(work, number, *args) for number in range(PROCESSES)]
    for one in started:
        one.start()
    for one in started:
        one.join(100)
    assert [one.exitcode for one in started] == [0] * PROCESSES


def note(folder: Path, name: str, line: str) -> None:
    """One atomic line in a file: what really happened in the world."""
    with (folder / name).open("a") as file:
        file.write(line + "\n")


def lines(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().split() if path.exists() else []


def race(number: int, dsn: str, folder: Path) -> None:
    """Every caller of every process wants every key; whoever gets it has an effect in the world."""
    journal = PostgresStore(dsn, max_connections=CALLERS).open_sync()

    def caller(who: int) -> None:
        for n in range(KEYS):
            key = f"key-{n}"
            identity = f"{number}-{who}"
            answer = journal.begin(request_for(key, identity), [row("run")])
            while not isinstance(answer, Claimed):
                assert isinstance(answer, Existing)
                if answer.current.state == "done":
                    break
                journal.wait(key, answer.current.version, 20)
                found = journal.read(key, identity)
                assert found is not None
                answer = found
            else:
                note(folder, "effects", key)
                settled = journal.settle(key, answer.version, done(), [row("run", "call.finished")])
                assert settled is not None
            own_key = f"own-{number}-{who}-{n}"
            mine = journal.begin(request_for(own_key, identity))
            assert isinstance(mine, Claimed)
            note(folder, "effects", own_key)
            assert journal.settle(own_key, mine.version, done()) is not None

    with ThreadPoolExecutor(CALLERS) as pool:
        for finished in [pool.submit(caller, who) for who in range(CALLERS)]:
            finished.result()
    journal.close()


def test_four_processes_of_sixteen_connections_dispatch_each_intent_once(
    postgres_server: Callable[..., Any], tmp_path: Path
) -> None:
    server = postgres_server()
    PostgresStore(server.url).migrate()
    in_processes(race, server.url, tmp_path)
    effects = Counter(lines(tmp_path, "effects"))
    assert len(effects) == KEYS + PROCESSES * CALLERS * KEYS
    assert set(effects.values()) == {1}
    journal = PostgresStore(server.url).open_sync()
    assert list(seqs(journal, "run")) == list(range(2 * KEYS))
    journal.close()


def take_over(number: int, dsn: str, folder: Path) -> None:
    """All processes see the same expired lease; each may replace it only once."""
    journal = PostgresStore(dsn, max_connections=CALLERS).open_sync()

    def caller(who: int) -> None:
        for n in range(KEYS):
            found = journal.read(f"key-{n}")
            assert found is not None
            version = int((folder / f"version-{n}").read_text())
            answer = journal.take_over(request_for(f"key-{n}", f"{number}-{who}"), version)
            if isinstance(answer, Claimed):
                note(folder, "taken", f"key-{n}")
            else:
                assert isinstance(answer, Existing)
                assert answer.current.version != version

    with ThreadPoolExecutor(CALLERS) as pool:
        for finished in [pool.submit(caller, who) for who in range(CALLERS)]:
            finished.result()
    journal.close()


def test_a_version_is_replaced_once_however_many_try(postgres_dsn: str, unique: str, tmp_path: Path) -> None:
    dsn = f"{postgres_dsn}?application_name={unique}"
    journal = PostgresStore(dsn).open_sync()
    for record in journal.list(tenant="default", limit=10_000):
        journal.clear(record.key)
    for n in range(KEYS):
        won = journal.begin(request_for(f"key-{n}", lease_ms=1))
        assert isinstance(won, Claimed)
        (tmp_path / f"version-{n}").write_text(str(won.version))
    in_processes(take_over, dsn, tmp_path)
    taken = Counter(lines(tmp_path, "taken"))
    assert len(taken) == KEYS
    assert set(taken.values()) == {1}
    for record in journal.list(tenant="default", limit=10_000):
        journal.clear(record.key)
    journal.close()


def hold(dsn: str, folder: Path, lease_ms: int) -> None:
    """Claim, have the effect, and come back when the claim may have gone to another."""
    journal = PostgresStore(dsn).open_sync()
    won = journal.begin(request_for("held", "holder", lease_ms=lease_ms), [row("held-run")])
    assert isinstance(won, Claimed)
    (folder / "version").write_text(str(won.version))
    eventually((folder / "taken over").exists, 60)
    late = journal.settle("held", won.version, done(b'"late"'), [row("held-run", "call.finished")])
    (folder / "late").write_text(str(late))
    journal.close()


def start_holder(dsn: str, folder: Path, lease_ms: int) -> tuple[Any, int]:
    holder = process(hold, dsn, folder, lease_ms)
    holder.start()
    eventually(lambda: (folder / "version").exists() and (folder / "version").read_text(), 30)
    return holder, int((folder / "version").read_text())


def test_a_killed_holder_leaves_its_claim_to_be_seen(postgres_database: str, tmp_path: Path) -> None:
    holder, version = start_holder(postgres_database, tmp_path, lease_ms=800)
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    journal = PostgresStore(postgres_database).open_sync()
    start = time.monotonic()
    journal.wait("held", version, 20)
    assert time.monotonic() - start < 15, "the end of the lease wakes"
    seen = journal.begin(request_for("held", "other"))
    assert isinstance(seen, Existing)
    assert (seen.current.state, seen.current.version) == ("inflight", version)
    assert isinstance(seen.current.lock_until_ms, int)
    assert seen.current.lock_until_ms <= seen.now_ms
    assert list(seqs(journal, "held-run")) == [0], "the log says where it stopped"
    assert journal.sweep() == 0, "and the record stays for its whole time"
    journal.close()


def test_a_paused_holder_that_wakes_up_late_is_fenced(postgres_database: str, tmp_path: Path) -> None:
    holder, version = start_holder(postgres_database, tmp_path, lease_ms=300)
    os.kill(holder.pid, signal.SIGSTOP)
    journal = PostgresStore(postgres_database).open_sync()
    journal.wait("held", version, 20)
    successor = journal.take_over(request_for("held", "successor"), version)
    assert isinstance(successor, Claimed)
    assert successor.version > version
    (tmp_path / "taken over").touch()
    os.kill(holder.pid, signal.SIGCONT)
    holder.join(30)
    assert (tmp_path / "late").read_text() == "None"
    found = journal.read("held", "holder")
    assert found is not None
    assert (found.current.version, found.current.state) == (successor.version, "inflight")
    assert found.own is not None
    assert found.own.version == version
    assert list(seqs(journal, "held-run")) == [0, 1], "what the late holder did is history all the same"
    journal.close()

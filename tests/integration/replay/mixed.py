"""Replays and live tests in random order in one pytest process, or under pytest-xdist: nothing escapes, nobody is hurt.

    python -m tests.integration.replay.mixed --rounds 200          # prints the counts
    python -m tests.integration.replay.mixed --rounds 200 --jobs 2

Each round has three live tests (files, a database, a socket, threads, an executor that everybody shares) and three
replayed ones (a clean one, one that leaves a thread behind, one that leaves an exit handler, a finalizer and a
generator behind), in an order of its own. What was left behind is set off by the live test that comes next.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.another_pytest import PYTEST

TESTS = """
import gc
import os
import random
import socket
import sqlite3
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import antiphon
from antiphon.stores import MemoryStore

WORLD = Path(os.environ["WORLD"])
ESCAPES = bool(os.environ.get("ESCAPES"))
POOL = ThreadPoolExecutor(2)
LEFT = []
gateway = antiphon.Gateway(MemoryStore())


def touch(kind):
    name = f"{kind}-{os.getpid()}-{random.getrandbits(64):x}"
    (WORLD / name).write_text(kind)
    return name


@gateway.tool(idempotent=False, effect="write")
def pay(amount: int) -> str:
    touch("paid")
    return f"paid {amount}"


class Thing:
    pass


def opened():
    try:
        yield
    finally:
        touch("escaped")


def set_off():
    while LEFT:
        kind, thing = LEFT.pop()
        if kind == "event":
            thing.set()
        elif kind == "thread":
            thing.join()
        del thing
    gc.collect()


ROUNDS = range(int(os.environ["ROUNDS"]))


@pytest.mark.parametrize("n", ROUNDS)
@pytest.mark.parametrize("kind", ["plain", "in a run", "in threads"])
def test_live(n, kind, tmp_path):
    set_off()

    def work():
        name = touch("live")
        assert (WORLD / name).exists()
        link = sqlite3.connect(tmp_path / f"{threading.get_ident()}.db")
        link.execute("create table if not exists t (x)")
        link.execute("insert into t values (1)")
        link.commit()
        assert link.execute("select count(*) from t").fetchone()[0]
        link.close()
        left, right = socket.socketpair()
        left.sendall(b"x")
        assert right.recv(1) == b"x"
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()
        return True

    if kind == "plain":
        assert work()
        assert pay(amount=1) == "paid 1"
    elif kind == "in a run":
        app = antiphon.Antiphon(store=MemoryStore())
        with app.run("live"):
            assert work()
    else:
        assert all(future.result() for future in [POOL.submit(work) for _ in range(2)])


@pytest.mark.antiphon(path="mixed.antiphon")
@pytest.mark.parametrize("n", ROUNDS)
@pytest.mark.parametrize("kind", ["clean", "thread", "finalizers"])
def test_replayed(n, kind):
    assert pay(amount=3) == "paid 3"
    if ESCAPES and kind == "thread":
        go = threading.Event()
        thread = threading.Thread(target=lambda: (go.wait(), touch("escaped")), daemon=True)
        POOL.submit(lambda: (go.wait(), touch("escaped")))
        thread.start()
        LEFT.extend([("thread", thread), ("event", go)])
    elif ESCAPES and kind == "finalizers":
        thing = Thing()
        weakref.finalize(thing, touch, "escaped")
        LEFT.append(("object", thing))
        generator = opened()
        next(generator)
        LEFT.append(("object", generator))
"""

CONFTEST = """
import os
import random
import threading

threading.excepthook = lambda _: None


def pytest_collection_modifyitems(items):
    chance = random.Random(int(os.environ["SEED"]))
    order = {item: (item.callspec.params["n"], chance.random()) for item in items}
    items.sort(key=order.__getitem__)
"""


class Counts(NamedTuple):
    """What came of it."""

    live: int
    replayed: int
    failed: int
    escaped: int
    named: int
    code: int

    def __str__(self) -> str:
        return (
            f"{self.live} live tests and {self.replayed} replays in random order: {self.failed} failed, "
            f"{self.escaped} effects of replays, {self.named} late attempts named, exit code {self.code}"
        )


def run(folder: Path, rounds: int, *, jobs: int = 0, seed: int = 1) -> Counts:
    """Record once, then run *rounds* rounds with escapes."""
    world = folder / "world"
    world.mkdir(parents=True)
    (folder / "test_mixed.py").write_text(TESTS)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "WORLD": str(world), "SEED": str(seed)}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_CURRENT_TEST"):
        environment.pop(name, None)

    def pytest(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [*PYTEST, "-W", "ignore", *words]
        return subprocess.run(
            command, cwd=folder, env={**environment, **more}, capture_output=True, text=True, check=False
        )

    recorded = pytest("--antiphon-record", "-k", "test_replayed and clean", ROUNDS="1")
    assert recorded.returncode == 0, recorded.stdout
    for path in world.iterdir():
        path.unlink()
    spread = ["-n", str(jobs)] if jobs else []
    done = pytest(*spread, ROUNDS=str(rounds), ESCAPES="1")
    kinds = [path.name.partition("-")[0] for path in world.iterdir()]
    found = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    failed = found.get("failed", 0) + found.get("error", 0)
    if failed:
        sys.stderr.write(done.stdout[-5000:])
    named = set(re.findall(r"tried after its end, and was refused: (\w+)", done.stdout))
    late = len(re.findall(r"tried after its end", done.stdout))
    escaped = kinds.count("escaped") + max(0, kinds.count("paid") - rounds)
    assert named or not rounds, done.stdout[-3000:]
    total = found.get("passed", 0) + failed
    return Counts(total // 2, total - total // 2, failed, escaped, late, done.returncode)


def main() -> int:
    """The full form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=0, help="processes of pytest-xdist")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = run(Path(folder) / "mixed", given.rounds, jobs=given.jobs, seed=given.seed)
    print(counts)
    return 0 if not counts.failed and not counts.escaped else 1


if __name__ == "__main__":
    sys.exit(main())

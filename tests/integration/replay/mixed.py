"""Replays and live tests in random order in one pytest process, or under pytest-xdist: nothing escapes, nobody is hurt.

    python -m tests.integration.replay.mixed --rounds 200            # one process; prints progress and the counts
    python -m tests.integration.replay.mixed --rounds 200 --jobs 2   # two workers of pytest-xdist

Each round has three live tests (files, a database, a socket, threads, an executor that everybody shares) and three
replayed ones (a clean one, one that leaves a thread behind, one that leaves an exit handler, a finalizer and a
generator behind), in an order of its own. What was left behind is set off by the live test that comes next. What is
left behind never ends by itself, so the second that a replay waits for its threads is cut to some milliseconds.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

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

import antiphon.ops.entry

threading.excepthook = lambda _: None
antiphon.ops.entry.GRACE_S = 0.02


def pytest_collection_modifyitems(items):
    chance = random.Random(int(os.environ["SEED"]))
    order = {item: (item.callspec.params["n"], chance.random()) for item in items}
    items.sort(key=order.__getitem__)
"""


class Counts(NamedTuple):
    """What came of it."""

    rounds: int
    live: int
    replayed: int
    hurt: int
    """Live tests that failed."""

    failed: int
    """Replays that failed."""

    escaped: int
    """Effects of replays."""

    named: int
    """Attempts after the end of a replay that were refused and named."""

    code: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds in random order in {self.seconds:.0f} s: {self.live} live tests, {self.hurt} hurt; "
            f"{self.replayed} replays, {self.failed} failed, {self.escaped} escapes; "
            f"{self.named} late attempts refused and named; exit code {self.code}"
        )


def record(folder: Path) -> None:
    """The tests, and the recording that every replay uses."""
    world = folder / "world"
    world.mkdir(parents=True)
    (folder / "test_mixed.py").write_text(TESTS)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    code, output = _pytest(folder, "--antiphon-record", "-k", "test_replayed and clean", ROUNDS="1", SEED="0")
    assert code == 0, output
    for path in world.iterdir():
        path.unlink()


def run(
    folder: Path, rounds: int, *, jobs: int = 0, seed: int = 1, progress: Callable[[str], None] | None = None
) -> Counts:
    """*rounds* rounds of what `record` left in *folder*, with escapes."""
    spread = ["-n", str(jobs)] if jobs else []
    result = folder / f"result-{seed}.xml"
    started = time.monotonic()
    more = {"ROUNDS": str(rounds), "SEED": str(seed), "ESCAPES": "1"}
    code, output = _pytest(folder, *spread, f"--junitxml={result}", progress=progress, **more)
    seconds = time.monotonic() - started
    cases = {"test_live": [0, 0], "test_replayed": [0, 0]}
    for case in ElementTree.parse(result).getroot().iter("testcase"):
        found = cases[case.attrib["name"].partition("[")[0]]
        found[0] += 1
        found[1] += any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
    (live, hurt), (replayed, failed) = cases.values()
    if hurt or failed:
        sys.stderr.write(output[-5000:])
    effects = [path.name.partition("-")[0] for path in (folder / "world").iterdir()]
    for path in (folder / "world").iterdir():
        path.unlink()
    escaped = effects.count("escaped") + max(0, effects.count("paid") - rounds)
    named = len(re.findall(r"tried this after its end and was refused: \w+", output))
    return Counts(rounds, live, replayed, hurt, failed, escaped, named, code, seconds)


def _pytest(
    folder: Path, *words: str, progress: Callable[[str], None] | None = None, **environment: str
) -> tuple[int, str]:
    """One pytest in a process of its own; its exit code and what it printed."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    own = {**outer, **environment, "WORLD": str(folder / "world")}
    started = time.monotonic()
    lines, done = [], 0
    with subprocess.Popen(
        [*PYTEST, "-W", "ignore", *words],
        cwd=folder,
        env=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            dots = re.match(r"([.FEsx]+) +\[ *(\d+)%\]", line)
            if dots is not None and progress is not None:
                done += len(dots[1])
                progress(f"{done} tests ({dots[2]} %), {time.monotonic() - started:.0f} s")
    return process.returncode, "".join(lines)


def main() -> int:
    """The full form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=0, help="processes of pytest-xdist")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "mixed"
        record(folder)
        counts = run(
            folder, given.rounds, jobs=given.jobs, seed=given.seed, progress=lambda line: print(line, flush=True)
        )
    print(counts)
    return 0 if not counts.hurt and not counts.failed and not counts.escaped and counts.named else 1


if __name__ == "__main__":
    sys.exit(main())

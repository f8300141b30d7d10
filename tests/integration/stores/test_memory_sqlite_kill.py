"""R6, D7: kill -9 at any moment leaves a readable file in which everything that was answered is kept."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from antiphon.stores import SQLiteStore

KILLS = 15

CHILD = """
import sys
from antiphon.stores import SQLiteStore
from antiphon.testing.journal_conformance import Harness, claimed, done
store = SQLiteStore(sys.argv[1])
journal, harness, number = store.open_sync(), Harness(lambda: store), sys.argv[2]
harness.tenant = "t"
out = sys.stdout
for n in range(100_000):
    key = f"{number}-{n}"
    held = claimed(journal.begin(harness.request(key), harness.rows("run", f"started {key}")))
    out.write(f"held {key}\\n"); out.flush()
    ttl_ms = 3_600_000 if n % 4 else 60_000  # both ways to write it
    journal.settle(key, held.version, done(ttl_ms=ttl_ms), harness.rows("run", f"finished {key}"))
    out.write(f"done {key}\\n"); out.flush()
"""


def test_killed_at_random_points(tmp_path: Path) -> None:
    path = tmp_path / "antiphon.db"
    chance = random.Random(7)
    told: list[list[str]] = []
    for number in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), str(number)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        lines = [child.stdout.readline()]
        time.sleep(chance.uniform(0, 0.05))
        child.kill()
        lines += child.stdout.read().splitlines(keepends=True)
        child.wait()
        told += [line.split() for line in lines if line.endswith("\n") and line.strip()]
    journal = SQLiteStore(path).open_sync()
    records = {record.key: record for record in journal.list(tenant="t", limit=100_000)}
    types = set()
    start = 0
    while events := journal.events("run", start=start, limit=500):
        assert [event.seq for event in events] == list(range(start, start + len(events))), "no gap"
        types |= {event.type for event in events}
        start += len(events)
    assert len(told) > KILLS
    for state, key in told:
        assert key in records
        assert f"started {key}" in types
        if state == "done":
            assert records[key].state == "done"
            assert f"finished {key}" in types
    for key, record in records.items():  # claim and event are one commit
        assert f"started {key}" in types
        assert (f"finished {key}" in types) == (record.state == "done")
    journal.close()

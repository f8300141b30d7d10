"""R6, D2: whatever is done to them, in whatever order, the memory store and the SQLite store give the same answers."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from antiphon._drive import drive
from antiphon.contract.record import DedupeRecord
from antiphon.ports import Claimed, Existing, Final, Journal
from antiphon.stores import MemoryStore, SQLiteStore
from antiphon.testing._bench import Bench
from tests.unit.stores.clock import ManualClock

KEYS = st.sampled_from(["a", "b", "ab"])
IDENTITIES = st.sampled_from(["call-1", "call-2", "call-3"])
TTLS = st.sampled_from([10, 1_000, 60_000])
FINALS = st.builds(
    lambda state, ttl_ms, payload, dispatched: Final(state, ttl_ms, payload=payload, dispatched=dispatched),
    st.sampled_from(["done", "failed", "cancelled"]),
    TTLS,
    st.sampled_from([None, b'"x"']),
    st.booleans(),
)


class TwoStores(RuleBasedStateMachine):
    """Two stores, one clock. Versions differ between them: they are compared by the order in which a key got them."""

    @initialize()
    def open(self) -> None:
        self.clock = ManualClock()
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        memory = MemoryStore(clock=self.clock)
        sqlite = SQLiteStore(Path(self.folder.name) / "a.db", "NORMAL", clock=self.clock)
        self.bench = Bench(lambda: memory)
        self.journals = [memory.open_sync(), sqlite.open_sync()]
        self.versions: list[dict[str, list[int]]] = [{key: [] for key in ("a", "b", "ab")} for _ in range(2)]

    def teardown(self) -> None:
        if hasattr(self, "journals"):
            drive(self.journals[1].close())
            self.folder.cleanup()

    @rule(key=KEYS, identity=IDENTITIES, ttl=TTLS, lease=TTLS)
    def begin(self, key: str, identity: str, ttl: int, lease: int) -> None:
        ask = self.bench.ask(key, identity, ttl_ms=ttl, lease_ms=lease, tool=f"tools/{key}", session=f"session-{key}")
        self._both(lambda journal, _: drive(journal.begin(ask, self.bench.rows("run", "started"))), key)

    @rule(key=KEYS, identity=IDENTITIES, ttl=TTLS, which=st.integers(0, 5))
    def take(self, key: str, identity: str, ttl: int, which: int) -> None:
        ask = self.bench.ask(key, identity, ttl_ms=ttl, lease_ms=5, tool=f"tools/{key}", session=f"session-{key}")
        self._both(
            lambda journal, version: drive(journal.take(ask, version(which), self.bench.rows("run", "taken"))), key
        )

    @rule(key=KEYS, which=st.integers(0, 5), final=FINALS)
    def settle(self, key: str, which: int, final: Final) -> None:
        rows = self.bench.rows("run", "settled")
        self._both(lambda journal, version: drive(journal.settle(key, version(which), final, rows)), key)

    @rule(key=KEYS, which=st.integers(0, 5), lease=TTLS)
    def renew(self, key: str, which: int, lease: int) -> None:
        self._both(lambda journal, version: drive(journal.renew(key, version(which), lease)), key)

    @rule(key=KEYS, identity=IDENTITIES, which=st.integers(0, 5))
    def alias(self, key: str, identity: str, which: int) -> None:
        self._both(lambda journal, version: drive(journal.alias(key, identity, version(which))), key)

    @rule(key=KEYS)
    def clear(self, key: str) -> None:
        for journal in self.journals:  # how much of what had expired was still there is each store's own affair
            drive(journal.clear(key))

    @rule(
        tool=st.sampled_from(["", "tools/a"]),
        session=st.sampled_from(["", "session-a"]),
        prefix=st.sampled_from(["", "a"]),
    )
    def flush(self, tool: str, session: str, prefix: str) -> None:
        which = {"tenant": self.bench.tenant, "tool": tool, "session": session, "prefix": prefix}
        self._both(lambda journal, _: len(drive(journal.list(**which))))
        if tool or session or prefix:
            for journal in self.journals:
                drive(journal.flush(**which))

    @rule(milliseconds=st.sampled_from([1, 9, 10, 11, 999, 1_000, 59_000, 61_000, -5]))
    def time_passes(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    @rule()
    def sweep(self) -> None:
        for journal in self.journals:
            drive(journal.sweep(limit=10_000))

    @invariant()
    def all_they_show_is_equal(self) -> None:
        if not hasattr(self, "journals"):
            return
        for key in ("a", "b", "ab"):
            for identity in ("call-1", "call-2", "call-3", ""):
                self._both(lambda journal, _, key=key, identity=identity: drive(journal.read(key, identity)), key)
        self._both(lambda journal, _: _not_done(drive(journal.counts(self.bench.tenant))))
        for which in ({}, {"tool": "tools/a"}, {"session": "session-a"}, {"prefix": "a"}, {"state": "inflight"}):
            self._both(lambda journal, _, which=which: self._listed(journal, limit=100, **which))
            self._both(lambda journal, _, which=which: self._listed(journal, limit=1, **which))
        for state in ("done", "failed", "cancelled"):
            self._both(lambda journal, _, state=state: self._listed(journal, tool="tools/b", state=state))
        self._both(lambda journal, _: drive(journal.events("run", limit=10_000)))

    def _listed(self, journal: Journal, **which: Any) -> list[str]:
        return [record.key for record in drive(journal.list(tenant=self.bench.tenant, **which))]

    def _both(self, step: Any, key: str = "") -> None:
        answers = []
        for journal, versions in zip(self.journals, self.versions, strict=True):
            given = versions.get(key, [])
            answer = step(journal, lambda n, given=given: given[-1 - n] if n < len(given) else 7)
            answers.append(_plain(answer, given))
        assert answers[0] == answers[1]


def _plain(answer: Any, given: list[int]) -> Any:
    if isinstance(answer, Claimed):
        return ("claimed", _place(answer.version, given), answer.now_ms)
    if isinstance(answer, Existing):
        return tuple(_plain(part, given) for part in answer)
    if isinstance(answer, DedupeRecord):
        wire = answer.to_wire()
        return wire | {field: _place(wire[field], given) for field in ("version", "fence")}
    if isinstance(answer, int) and answer > 1_000_000_000_000_000:
        return _place(answer, given)
    return answer


def _place(version: int, given: list[int]) -> int:
    """Which of a key's versions this is; a new one is higher than all before."""
    if version not in given:
        assert version > max(given, default=0)
        given.append(version)
    return given.index(version)


def _not_done(counts: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """SQLite counts a done record that has expired for as long as its key has a live execution."""
    return {where: number for where, number in counts.items() if where[1] != "done"}


TwoStores.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_memory_and_sqlite_agree = TwoStores.TestCase

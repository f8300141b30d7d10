"""R6, D2: whatever is done to them, in whatever order, the memory store and the SQLite store give the same answers."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from antiphon.contract.record import DedupeRecord
from antiphon.ports import Claimed, Existing, Settlement, StaticClaimRequest, SyncJournal
from antiphon.stores import MemoryStore, SQLiteStore
from antiphon.stores.sqlite.store import ALL_NEW
from antiphon.testing.journal_conformance import Harness
from tests.unit.stores.clock import ManualClock

KEYS = st.sampled_from(["a", "b", "ab"])
IDENTITIES = st.sampled_from(["call-1", "call-2", "call-3"])
TTLS = st.sampled_from([10, 1_000, 60_000, 3_600_000])
PARAMS = st.sampled_from([b"{}", b"x" * 3_000, ("digest", "exact")])
CALL_IDS = st.sampled_from([None, "call", 'é "1"'])
SETTLEMENTS = st.builds(
    Settlement,
    st.sampled_from(["done", "failed", "cancelled"]),
    TTLS,
    payload=st.sampled_from([None, b'"x"']),
    attempts=st.sampled_from([(), ((1, 2, "", False),), ((1, 2, "refused", True), (3, 4, "", False))]),
    attempt_count=st.sampled_from([0, 1, 2]),
    dispatched=st.booleans(),
)


class TwoStores(RuleBasedStateMachine):
    """Two stores, one clock. Versions differ between them: they are compared by the order in which a key got them."""

    @initialize()
    def open(self) -> None:
        self.clock = ManualClock()
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        memory = MemoryStore(clock=self.clock)
        sqlite = SQLiteStore(Path(self.folder.name) / "a.db", "NORMAL", clock=self.clock)
        self.harness = Harness(lambda: memory)
        self.sqlite = sqlite.open_sync()
        self.journals: list[SyncJournal] = [memory.open_sync(), self.sqlite]
        self.versions: list[dict[str, list[int]]] = [{key: [] for key in ("a", "b", "ab")} for _ in range(2)]

    def teardown(self) -> None:
        if hasattr(self, "journals"):
            self.journals[1].close()
            self.folder.cleanup()

    @rule(key=KEYS, identity=IDENTITIES, ttl=TTLS, lease=TTLS, params=PARAMS, call_id=CALL_IDS, sure=st.booleans())
    def begin(
        self,
        key: str,
        identity: str,
        ttl: int,
        lease: int,
        params: bytes | tuple[str, str],
        call_id: str | None,
        sure: bool,
    ) -> None:
        """*sure*: after so many new claims that SQLite does not look before it writes."""
        self.sqlite._journal.won = ALL_NEW if sure else 0
        request = self._request(key, identity, ttl_ms=ttl, lease_ms=lease, params=params, call_id=call_id)
        self._both(lambda journal, _: journal.begin(request, self.harness.rows("run", "started")), key)

    @rule(key=KEYS, identity=IDENTITIES, ttl=TTLS, which=st.integers(0, 5))
    def take_over(self, key: str, identity: str, ttl: int, which: int) -> None:
        request = self._request(key, identity, ttl_ms=ttl, lease_ms=5)
        rows = self.harness.rows("run", "taken")
        self._both(lambda journal, version: journal.take_over(request, version(which), rows), key)

    @rule(key=KEYS, which=st.integers(0, 5), settlement=SETTLEMENTS, events=st.integers(0, 2))
    def settle(self, key: str, which: int, settlement: Settlement, events: int) -> None:
        rows = self.harness.rows("run", *["settled"] * events)
        self._both(lambda journal, version: journal.settle(key, version(which), settlement, rows), key)

    @rule(key=KEYS, which=st.integers(0, 5), lease=TTLS)
    def renew(self, key: str, which: int, lease: int) -> None:
        self._both(lambda journal, version: journal.renew(key, version(which), lease), key)

    @rule(key=KEYS, identity=IDENTITIES, which=st.integers(0, 5))
    def alias(self, key: str, identity: str, which: int) -> None:
        self._both(lambda journal, version: journal.alias(key, identity, version(which)), key)

    @rule(key=KEYS)
    def clear(self, key: str) -> None:
        for journal in self.journals:  # how much of what had expired was still there is each store's own affair
            journal.clear(key)

    @rule(
        tool=st.sampled_from(["", "tools/a"]),
        session=st.sampled_from(["", "session-a"]),
        prefix=st.sampled_from(["", "a"]),
    )
    def flush(self, tool: str, session: str, prefix: str) -> None:
        which = {"tenant": self.harness.tenant, "tool": tool, "session": session, "prefix": prefix}
        self._both(lambda journal, _: len(journal.list(**which)))
        if tool or session or prefix:
            for journal in self.journals:
                for record in journal.list(**which):  # type: ignore[arg-type]
                    journal.clear(record.key)

    @rule(milliseconds=st.sampled_from([1, 9, 10, 11, 999, 1_000, 59_000, 61_000, 3_700_000, -5]))
    def time_passes(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    @rule()
    def sweep(self) -> None:
        for journal in self.journals:
            journal.sweep(limit=10_000)

    @invariant()
    def all_they_show_is_equal(self) -> None:
        if not hasattr(self, "journals"):
            return
        for key in ("a", "b", "ab"):
            for identity in ("call-1", "call-2", "call-3", ""):
                self._both(lambda journal, _, key=key, identity=identity: journal.read(key, identity), key)
        self._both(lambda journal, _: _not_done(journal.counts(self.harness.tenant)))
        for which in ({}, {"tool": "tools/a"}, {"session": "session-a"}, {"prefix": "a"}, {"state": "inflight"}):
            self._both(lambda journal, _, which=which: self._listed(journal, limit=100, **which))
            self._both(lambda journal, _, which=which: self._listed(journal, limit=1, **which))
        for state in ("done", "failed", "cancelled"):
            self._both(lambda journal, _, state=state: self._listed(journal, tool="tools/b", state=state))
        self._both(lambda journal, _: journal.events("run", limit=10_000))

    def _request(self, key: str, identity: str, **changes: Any) -> StaticClaimRequest:
        return self.harness.request(key, identity, tool=f"tools/{key}", session=f"session-{key}", **changes)

    def _listed(self, journal: SyncJournal, **which: Any) -> list[str]:
        return [record.key for record in journal.list(tenant=self.harness.tenant, **which)]

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

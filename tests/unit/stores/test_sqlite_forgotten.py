"""What became of a record that is not there: forgotten after its time, or lost."""

from __future__ import annotations

from pathlib import Path

from antiphon.stores import SQLiteStore
from antiphon.testing.journal_conformance import Harness, claimed, done
from tests.unit.stores.clock import ManualClock


def test_a_record_that_has_expired_is_forgotten_also_before_it_is_swept(tmp_path: Path) -> None:
    """Else the zombie of a call that was taken over would write its result anew, as if the file had been lost."""
    clock = ManualClock()
    store = SQLiteStore(tmp_path / "claims.db", "NORMAL", clock=clock)
    journal, harness = store.open_sync(), Harness(lambda: store)
    zombie = harness.request("k", "call-1", lease_ms=1, ttl_ms=1_000)
    first = claimed(journal.begin(zombie)).version
    clock.advance(10)
    second = claimed(journal.take_over(harness.request("k", "call-2"), first)).version
    assert journal.settle("k", second, done(ttl_ms=1_000)) is not None
    clock.advance(2_000)
    assert journal.read("k", "call-1") is None
    assert journal.forgotten(zombie, first)
    assert not journal.forgotten(harness.request("never", "call-1"), first), "of others nothing is known"
    journal.close()

"""Pages of claims that were made in one millisecond, which SQLite gives one fence."""

from __future__ import annotations

from pathlib import Path

import pytest

import antiphon
from antiphon._drive import drive
from antiphon.ops.admin import Admin
from antiphon.ports import Cursor, Settlement
from antiphon.stores import SQLiteStore
from antiphon.testing.journal_conformance import Harness, claimed
from tests.unit.stores.clock import ManualClock

LOST = Settlement("failed", 600_000, error=("outcome_unknown", "lost", True, False), attempt_count=1)
EACH = [f"{n}" * 8 for n in range(7)]


@pytest.mark.parametrize("state", ["unknown", "failed", ""])
@pytest.mark.parametrize("cursor", [True, False])
def test_pages_are_whole(tmp_path: Path, state: str, cursor: bool) -> None:
    store = SQLiteStore(tmp_path / "a.db", clock=ManualClock())
    journal, harness = store.open_sync(), Harness(lambda: store)
    for key in EACH:
        version = claimed(journal.begin(harness.request(key, tenant="default"))).version
        journal.settle(key, version, LOST)
    admin = Admin(antiphon.Antiphon({"telemetry": {"logs": False}}, store=store))
    seen: list[str] = []
    before = ""
    while page := drive(admin.claims(state=state, limit=2, before=before)):
        seen += [one["key"] for one in page]
        before = str(Cursor(page[-1]["fence"], page[-1]["key"])) if cursor else page[-1]["key"]
    assert seen == EACH[::-1]
    assert len({record.fence for record in journal.list(tenant="default")}) == 1
    journal.close()

"""R6: the memory store keeps every rule of a journal, in both faces, on a clock that the test moves."""

from __future__ import annotations

import pytest

from antiphon.stores import MemoryStore
from antiphon.testing.journal_conformance import FACES, Face, JournalConformance, WaitRules
from tests.unit.stores.clock import ManualClock

INSTANT = [rule for rule in JournalConformance.rules() if not hasattr(WaitRules, f"rule_{rule}")]
"""Waiting takes real time: those rules run among the integration tests."""


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("rule", INSTANT)
def test_memory(rule: str, face: Face) -> None:
    clock = ManualClock()
    JournalConformance(lambda: MemoryStore(clock=clock), face, advance=clock.advance).check(rule)

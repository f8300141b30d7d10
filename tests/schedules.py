"""Schedules of the simulator as tests, for mutation testing: ``make prove`` and CI's short proof run the same seeds.

Not collected by name: ``pytest tests/schedules.py``.
"""

from __future__ import annotations

import pytest

from antiphon.testing.sim import explore


@pytest.mark.parametrize("start", range(0, 2_000, 50))
def test_no_law_is_broken(start: int) -> None:
    assert [(simulation.seed, simulation.broken) for simulation in explore(range(start, start + 50)).broken] == []

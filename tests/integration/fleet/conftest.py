"""The same shared stores as in ``tests/faults``."""

from __future__ import annotations

from tests.faults.conftest import effects, fleet_url

__all__ = ["effects", "fleet_url"]

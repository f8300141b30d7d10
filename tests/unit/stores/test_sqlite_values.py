"""The values of the statements that every call runs."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.ports import Settlement
from antiphon.stores import MemoryStore
from antiphon.stores.sqlite.claims import claim_values, settle_values
from antiphon.testing.journal_conformance import Harness, done, failed

BOUND_AS_THEY_ARE = {int, str, bytearray}


def _adapted(values: tuple[Any, ...]) -> list[Any]:
    """The values for which ``sqlite3`` looks for an adapter, which takes longer than to bind them."""
    return [value for value in values if type(value) not in BOUND_AS_THEY_ARE and value is not None]


def test_no_value_of_a_claim_needs_an_adapter() -> None:
    request = Harness(MemoryStore).request("key", shown="s2.sealed")
    assert _adapted(claim_values(request, 1, 1000)) == []


@pytest.mark.parametrize("settlement", [done(), done(None), failed()])
def test_no_value_of_an_outcome_needs_an_adapter(settlement: Settlement) -> None:
    assert _adapted(settle_values("key", 1, settlement, 2, 1000)) == []

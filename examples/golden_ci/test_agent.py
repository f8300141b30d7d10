"""Recorded once with ``pytest --antiphon-record``, replayed ever after: no order is placed by this test."""

import pytest
from agent import main


@pytest.mark.antiphon
@pytest.mark.parametrize("item", ["tea", "cake"])
def test_order(item: str) -> None:
    assert main(item).startswith("ordered 2")

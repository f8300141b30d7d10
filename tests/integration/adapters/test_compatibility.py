"""The compatibility table names the versions that are installed here, and every adapter has cases."""

from __future__ import annotations

import pytest

from antiphon.adapters._requirements import REQUIREMENTS
from tests.integration.adapters.compatibility import PAGE, render, variants


def test_the_table_is_current() -> None:
    hint = "write it again: python -m tests.integration.adapters.compatibility"
    assert PAGE.read_text(encoding="utf-8") == render(), hint


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_every_adapter_has_cases(name: str) -> None:
    assert variants(name)

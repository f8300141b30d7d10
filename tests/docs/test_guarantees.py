"""The measured part of the page of guarantees is the result of the last `make prove`, and that result is good."""

from __future__ import annotations

import json

from antiphon.testing.sim import BUGS
from scripts.make_guarantees import PAGE, RESULT, page


def test_page_and_result_agree() -> None:
    text, result = PAGE.read_text(encoding="utf-8"), json.loads(RESULT.read_text(encoding="utf-8"))
    assert page(text, result) == text, "run: python -m scripts.make_guarantees"


def test_the_result_proves_what_the_page_says() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert result["failures"] == []
    assert result["schedules"]["broken"] == 0
    assert all(verdict["violations"] == [] for verdict in result["faults"].values())


def test_every_law_is_on_its_page() -> None:
    page = (PAGE.parent / "laws.md").read_text(encoding="utf-8")
    laws = {law for bug in BUGS.values() for law in bug.invariants}
    assert sorted(law for law in laws if f"| {law} |" not in page) == []

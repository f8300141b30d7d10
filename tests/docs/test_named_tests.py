"""Tests that the documentation names exist: a mitigation whose test was renamed is no mitigation."""

from __future__ import annotations

import re

from tests.docs.pages import DOCS, ROOT

PAGES = (
    DOCS / "how-to" / "runbook.md",
    DOCS / "explanation" / "architecture.md",
    DOCS / "explanation" / "guarantees.md",
)


def test_every_test_named_in_the_documentation_exists() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^\s*(?:async )?def (test_\w+)", sources, re.MULTILINE))
    lost = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lost += [name for name in re.findall(r"`(test_\w+)`", text) if name not in defined]
        lost += [path for path in re.findall(r"`(tests/[\w/.]+)`", text) if not (ROOT / path).exists()]
    assert lost == []

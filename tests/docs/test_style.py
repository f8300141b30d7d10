"""Source lines fit on a screen, and user pages name no internal requirement."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, name, pages, prose

WIDTH = 120
# What no line break may split: a link, inline code, a word.
UNBREAKABLE = re.compile(r"(?:!?\[[^\]]*\]\([^)\s]+\)|`[^`]+`|\S)+")
MARKER = re.compile(r"(?:[-*+]|\d+[.)]|>)")
REQUIREMENT = re.compile(r"(?<![\w-])(?:[TRLKD]\d{1,2}|TR-\d+)(?![\w-])")
PRODUCTS = ("Cloudflare R2",)
USER_PAGES = [page for page in pages() if DOCS / "decisions" not in page.parents]


def too_wide(line: str) -> bool:
    """Whether a line outside of code is longer than it has to be. Tables cannot be wrapped."""
    if len(line) <= WIDTH or line.lstrip().startswith("|"):
        return False
    return len([word for word in UNBREAKABLE.findall(line) if not MARKER.fullmatch(word)]) > 1


def requirements(line: str) -> list[str]:
    """The requirement ids in a line."""
    for product in PRODUCTS:
        line = line.replace(product, "")
    return REQUIREMENT.findall(line)


@pytest.mark.parametrize("page", pages(), ids=name)
def test_lines_are_wrapped(page: Path) -> None:
    wide = [f"line {number}: {len(line)} columns" for number, line in prose(page) if too_wide(line)]
    assert not wide


@pytest.mark.parametrize("page", USER_PAGES, ids=name)
def test_user_pages_name_no_requirement(page: Path) -> None:
    found = [f"line {number}: {', '.join(ids)}" for number, line in prose(page) if (ids := requirements(line))]
    assert not found


def test_the_checks_can_fail() -> None:
    assert too_wide("word " * 30)
    assert too_wide(f"- see [a page](a-page.md) {'x' * 110}")
    assert not too_wide("| a table | " + "x" * 120)
    assert not too_wide(f"- [a long address](https://example.org/{'x' * 120})")
    assert not too_wide("`" + "code " * 30 + "`")
    assert requirements("as asked (R8, D36)") == ["R8", "D36"]
    assert requirements("the matrix TR-12") == ["TR-12"]
    assert not requirements("all-MiniLM-L6-v2, Cloudflare R2, `R2_BUCKET_NAME`, test_TR_4_x")

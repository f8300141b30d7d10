"""Links lead somewhere, and every page can be found from the front page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS, anchors, links, name, pages


@pytest.mark.parametrize("page", pages(), ids=name)
def test_links_resolve(page: Path) -> None:
    broken = []
    for number, target in links(page):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        if not aim.exists():
            broken.append(f"line {number}: {target} does not exist")
        elif anchor and aim.suffix == ".md" and anchor not in anchors(aim):
            broken.append(f"line {number}: {target}: no such heading")
    assert not broken


def test_every_page_is_linked_from_its_folder() -> None:
    lost = []
    for page in DOCS.rglob("*.md"):
        is_index = page.name == "index.md"
        index = (page.parent.parent if is_index else page.parent) / "index.md"
        if page == DOCS / "index.md":
            continue
        aims = {(index.parent / target.partition("#")[0]).resolve() for _, target in links(index)}
        if page.resolve() not in aims:
            lost.append(f"{name(page)} is not linked from {name(index)}")
    assert not lost

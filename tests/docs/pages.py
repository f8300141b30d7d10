"""The documentation as data: its pages, their links, headings and Python examples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
FENCE = re.compile(r"^\s*(```+|~~~+)\s*(?P<info>\S*)(?: title=\"(?P<title>[^\"]+)\")?")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def pages() -> list[Path]:
    """Every page a reader may open."""
    return sorted(
        [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "bench").glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    )


def name(page: Path) -> str:
    """The page's path in the repository."""
    return str(page.relative_to(ROOT))


def lines(page: Path) -> Iterator[tuple[int, str, str | None]]:
    """Number, text and language of each line; the language is ``None`` outside of code.

    A block that is to be saved as a file has ``file:NAME`` for its language.
    """
    inside: str | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if fence:
            start = f"file:{fence['title']}" if fence["title"] else fence["info"] or "text"
            inside = start if inside is None else None
        else:
            yield number, line, inside


def prose(page: Path) -> list[tuple[int, str]]:
    """The numbered lines outside of code."""
    return [(number, line) for number, line, code in lines(page) if code is None]


def links(page: Path) -> list[tuple[int, str]]:
    """The links of a page, with their lines."""
    return [(number, found["target"]) for number, line in prose(page) for found in LINK.finditer(line)]


def anchors(page: Path) -> set[str]:
    """The anchors that the page's headings make."""
    headings = [line.lstrip("#").strip().lower() for _, line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def script(page: Path) -> str:
    """All Python examples of a page as one script whose line numbers are the page's."""
    found = {number: line for number, line, code in lines(page) if code == "python"}
    indent = 0
    out: list[str] = []
    for number in range(1, max(found, default=0) + 1):
        line = found.get(number)
        if line is not None and number - 1 not in found:
            indent = len(line) - len(line.lstrip())  # an example inside of a list item
        out.append("" if line is None else line[indent:] if not line[:indent].strip() else line)
    return "\n".join(out)

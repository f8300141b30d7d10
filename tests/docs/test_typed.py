"""Pages that say what to save and what to type work when that is done literally, in an empty folder.

A block with a title is saved under that name; each ``$`` line of a console block is run, in order. What the page shows
below a command must be what it prints, apart from ids, times and durations; ``…`` stands for anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import name, pages
from tests.docs.test_blocks import Block, blocks

TYPED = [page for page in pages() if any(block.language.startswith("file:") for block in blocks(page))]
VARIABLE = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}(?:-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})?\b|\b[0-9a-f]{8}-…"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "DATE"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:ms|s|min)\b"), "TIME"),
    (re.compile(r"\bin \d+\.\d+s\b"), "in TIME"),
    (re.compile(r"\b\d+ bytes\b"), "SIZE"),
    (re.compile(r"\s+"), " "),
)


def plain(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, word in VARIABLE:
        line = pattern.sub(word, line)
    return line.strip()


def missing(expected: list[str], printed: str) -> str | None:
    """The first expected line that was not printed, in order."""
    rest = [plain(line) for line in printed.splitlines()]
    for line in expected:
        wanted = ".*".join(map(re.escape, plain(line).split("…")))
        place = next((i for i, found in enumerate(rest) if re.fullmatch(wanted, found)), None)
        if place is None:
            return line
        rest = rest[place + 1 :]
    return None


def typed(block: Block) -> list[tuple[str, list[str], int]]:
    """Command, expected output and exit code of each command of a console block."""
    found: list[tuple[str, list[str], int]] = []
    for line in re.sub(r"\\\n\s*", "", block.text).split("\n"):
        if line.startswith("$ "):
            code = re.search(r"# exit code (\d+)", line)
            found.append((line[2:], [], int(code[1]) if code else 0))
        elif line.strip():
            found[-1][1].append(line)
    return found


@pytest.mark.parametrize("page", TYPED, ids=name)
def test_page_works_when_typed(page: Path, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("ANTIPHON_", "PYTEST"))}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{environment['PATH']}", "NO_COLOR": "1"}
    for block in blocks(page):
        if block.language.startswith("file:"):
            path = tmp_path / block.language.removeprefix("file:")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text + "\n", encoding="utf-8")
        elif block.language == "console":
            for command, expected, code in typed(block):
                done = subprocess.run(
                    ["bash", "-c", command],
                    cwd=tmp_path,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    check=False,
                )
                said = f"{name(page)}:{block.line}: {command}\n{done.stdout[-3000:]}"
                assert done.returncode == code, said
                assert missing(expected, done.stdout) is None, f"{missing(expected, done.stdout)!r} is not in\n{said}"
        else:
            assert block.language != "python", f"{name(page)}:{block.line}: where does a reader type this?"


def test_the_comparison_can_fail() -> None:
    assert missing(["2 tea", "…done in 3 ms"], "2 tea\nall done in 17 ms\n") is None
    assert missing(["2 tea", "2 tea"], "2 tea\n") == "2 tea"
    assert missing(["b", "a"], "a\nb\n") == "a"

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

from tests.another_pytest import WITH_PLUGINS
from tests.docs.pages import ROOT, name, pages
from tests.docs.test_blocks import Block, blocks

README = ROOT / "README.md"
TYPED = [page for page in pages() if page != README and any(b.language.startswith("file:") for b in blocks(page))]
SECTION = "## From a clone to a golden test"
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


class Typist:
    """Saves and types what a page says, in one folder."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("ANTIPHON_", "PYTEST"))}
        as_theirs = {"NO_COLOR": "1", "PYTEST_ADDOPTS": " ".join(WITH_PLUGINS)}
        self.environment = kept | as_theirs | environment
        self.commands = 0

    def do(self, block: Block, where: str) -> None:
        """One block of the page."""
        if block.language.startswith("file:"):
            path = self.folder / block.language.removeprefix("file:")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text + "\n", encoding="utf-8")
        elif block.language == "console":
            for command, expected, code in typed(block):
                self.commands += 1
                done = subprocess.run(
                    ["bash", "-c", command],
                    cwd=self.folder,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    check=False,
                )
                said = f"{where}:{block.line}: {command}\n{done.stdout[-3000:]}"
                assert done.returncode == code, said
                assert missing(expected, done.stdout) is None, f"{missing(expected, done.stdout)!r} is not in\n{said}"
        else:
            assert block.language != "python", f"{where}:{block.line}: where does a reader type this?"


@pytest.mark.parametrize("page", TYPED, ids=name)
def test_page_works_when_typed(page: Path, tmp_path: Path) -> None:
    typist = Typist(tmp_path, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for block in blocks(page):
        typist.do(block, name(page))


@pytest.mark.timeout(900)
def test_readme_leads_from_a_clone_to_a_golden_test(tmp_path: Path) -> None:
    """At most 6 commands to a guarded function, 4 more to a golden test. pip gets what is in this environment."""
    lines = README.read_text(encoding="utf-8").splitlines()
    start = lines.index(SECTION)
    stop = next(number for number in range(start + 1, len(lines)) if lines[number].startswith("## "))
    section = [block for block in blocks(README) if start < block.line <= stop]
    offline = {
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTEST_ADDOPTS": "-pno:langsmith_plugin -pno:schemathesis",  # pytest finds ours by itself; these cost seconds
    }
    typist = Typist(tmp_path, REPOSITORY=str(ROOT), **offline)
    to_the_function = 0
    for block in section:
        for one in typed(block) if block.language == "console" else [("", [], 0)]:
            text = "\n".join([f"$ {one[0]}" + (f"  # exit code {one[2]}" if one[2] else ""), *one[1]])
            typist.do(block._replace(text=text) if block.language == "console" else block, "README.md")
            if "venv .venv" in one[0]:
                packages = next((tmp_path / ".venv" / "lib").glob("python*/site-packages"))
                (packages / "beside.pth").write_text(f"{Path(pytest.__file__).parent.parent}\n")
        if block.language == "file:test_mail.py":
            to_the_function = typist.commands
    assert to_the_function <= 6
    assert typist.commands - to_the_function <= 4
    assert (tmp_path / "outbox.txt").read_text().splitlines() == ["ada: hello", "bob: hello"]


def test_the_comparison_can_fail() -> None:
    assert missing(["2 tea", "…done in 3 ms"], "2 tea\nall done in 17 ms\n") is None
    assert missing(["2 tea", "2 tea"], "2 tea\n") == "2 tea"
    assert missing(["b", "a"], "a\nb\n") == "a"

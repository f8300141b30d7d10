"""The files behind a function: also those that are only imported when it runs, without importing them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon._recording.manifest import source_files
from antiphon.ops.entry import load_entry

AGENT = """
import json
from typing import TYPE_CHECKING
import first

if TYPE_CHECKING:
    import only_types


class Desk:
    def work(self):
        def inner():
            from pack import (
                second,  # a comment
                name as other,
            )
            import pack.deep.third as third, \\
                fourth
        import importlib
        importlib.import_module("fifth")
        if self: import sixth


def main():
    return Desk().work()
"""
FILES = {
    "agent.py": AGENT,
    "first.py": "def f():\n    import not_there_at_all, numpy.nothing\n    from . import nowhere",
    "second.py": "",
    "pack/__init__.py": "",
    "pack/second.py": "def run():\n    from .sibling import x\n    from ..above import y\n",
    "pack/sibling.py": "raise RuntimeError('nothing is imported')",
    "pack/deep/__init__.py": "",
    "pack/deep/third.py": "def (:\n    from ..other import x",
    "pack/other.py": "\0",
    "fourth.py": "\xff" * 300,
    "fifth.py": "import " + "x" * 5000,
    "sixth.py": "",
    "only_types.py": "",
    "stranger.py": "",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_imports_that_have_not_run_are_followed_and_not_made(project: Path) -> None:
    found = source_files(load_entry("agent.py:main"))
    assert sorted(found or {}) == sorted(FILES.keys() - {"only_types.py", "stranger.py", "second.py"})
    assert "pack" not in sys.modules


def test_a_change_in_a_file_that_is_imported_late_is_seen(project: Path) -> None:
    main = load_entry("agent.py:main")
    before = source_files(main) or {}
    (project / "pack" / "sibling.py").write_text("x = 2")
    after = source_files(main) or {}
    assert {name for name in after if before[name] != after[name]} == {"pack/sibling.py"}

"""``SECURITY/invariants.yaml``: each invariant has tests that exist, run and pass, and a threat model we ship (L10)."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "SECURITY" / "invariants.yaml"
INVARIANTS: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())


def test_the_file_has_the_published_shape() -> None:
    for invariant in INVARIANTS:
        assert set(invariant) == {"id", "tier", "severity", "threat_model", "tests", "note"}
        assert invariant["tier"] in ("protocol", "host")
        assert invariant["severity"] in ("critical", "high", "medium", "low")
        assert invariant["tests"]
        assert invariant["note"].strip()
        assert (ROOT / invariant["threat_model"]).read_text().startswith("# Threat model")
    ids = [invariant["id"] for invariant in INVARIANTS]
    assert len(ids) == len(set(ids))
    assert "replay-llm-cache-key-portable" in ids


@pytest.mark.parametrize("test", sorted({test for one in INVARIANTS for test in one["tests"]}))
def test_every_named_test_exists(test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    names = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    assert name in names


@pytest.mark.serial
@pytest.mark.timeout(300)
def test_every_named_test_runs_and_passes(tmp_path: Path) -> None:
    """In a session of its own, so that a test that is deselected or skipped there is noticed here."""
    named = sorted({test for one in INVARIANTS for test in one["tests"]})
    report = tmp_path / "report.xml"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "ANTIPHON_"))}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *named]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    ran: dict[str, set[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.attrib["classname"].replace(".", "/") + ".py"
        outcome = "passed" if not [child for child in case if child.tag in ("failure", "error", "skipped")] else "not"
        ran.setdefault(f"{file}::{case.attrib['name'].partition('[')[0]}", set()).add(outcome)
    assert {test: ran.get(test) for test in named} == {test: {"passed"} for test in named}

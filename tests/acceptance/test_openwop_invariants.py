"""``SECURITY/invariants.yaml``: each invariant has tests that the suite runs, and a threat model that we ship (L10)."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
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


def test_every_named_test_is_collected() -> None:
    """The suite runs what it collects; a test that is deselected or skipped at once is noticed here."""
    named = sorted({test for one in INVARIANTS for test in one["tests"]})
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *named]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "ANTIPHON_"))}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert set(named) <= {line.partition("[")[0] for line in done.stdout.splitlines()}

"""Each planted bug outside of the claim protocol is found by the test that is named for it.

The page of surviving mutants names code that exists.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys

from tests import mutation
from tests.mutants import MUTANTS, ROOT


def test_every_planted_bug_is_found() -> None:
    """In a process of its own: every one of them is a run of pytest."""
    hunt = subprocess.run(
        [sys.executable, "-m", "tests.mutants"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = {said["name"]: said["failed"] for said in map(json.loads, hunt.stdout.splitlines())}
    assert found == dict.fromkeys(MUTANTS, True), hunt.stderr


def test_every_explained_mutant_can_still_be_made() -> None:
    explained = {re.sub(r" \(\d+\)$", "", name) for name in mutation.explained()}
    files = {name.partition(" ")[0] for name in explained}
    assert explained - {change for file in files for change in mutation.changes_of(file)} == set()


def test_the_page_names_only_functions_that_are_changed() -> None:
    paths = {
        file.rpartition("/")[2]: [
            path for path, _ in mutation.functions_of(ast.parse((mutation.SOURCE / file).read_text()))
        ]
        for file in mutation.FILES
    }
    rows = re.findall(r"^\| (\w+\.py, [^|]+) \|", mutation.EXPLAINED.read_text(), re.MULTILINE)
    named = [place.split(", ") for row in rows for place in row.split("; ")]
    gone = {
        f"{file} {function}"
        for file, *functions in named
        for function in functions
        if not any(f".{function}." in f".{path}." for path in paths.get(file, ()))
    }
    assert named
    assert gone == set()

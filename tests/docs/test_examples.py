"""Every Python example of the documentation runs: the examples of a page, in order, as one program in an empty folder.

An example that names ``redis://localhost:6379/0`` or ``postgresql://localhost/antiphon`` gets a real server for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, name, pages, script

SERVERS = {"redis://localhost:6379/0": "valkey_url", "postgresql://localhost/antiphon": "postgres_database"}
PAGES = [page for page in pages() if script(page).strip()]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_examples_run(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = script(page)
    for address, fixture in SERVERS.items():
        if address in text:
            text = text.replace(address, request.getfixturevalue(fixture))
    if page.parent == ROOT / "bench":  # its examples are for people who work in the repository
        text = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + text.removeprefix("\n")
    program = tmp_path / f"example_{page.stem}.py"  # a page may be called like the package it is about
    program.write_text(text, encoding="utf-8")
    work = tmp_path / "work"
    work.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_")}
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{name(page)} (line numbers are the page's)\n{done.stderr[-3000:]}"

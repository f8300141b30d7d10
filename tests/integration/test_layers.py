"""The import contracts can fail: each planted import is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LINT = Path(sys.executable).parent / "lint-imports"
PLANTED = {
    "an engine imports another": (
        "_gateway/planted.py",
        "import antiphon.scoring",
        "antiphon._gateway.planted -> antiphon.scoring",
    ),
    "a part imports another": (
        "stores/planted.py",
        "import antiphon.blobs",
        "antiphon.stores.planted -> antiphon.blobs",
    ),
    "a part imports an engine": (
        "telemetry/planted.py",
        "def late():\n    import antiphon._gateway",
        "antiphon.telemetry.planted -> antiphon._gateway",
    ),
    "the contract imports the base": (
        "contract/planted.py",
        "import antiphon.decide",
        "antiphon.contract.planted -> antiphon.decide",
    ),
    "the core imports an extra": (
        "_gateway/planted.py",
        "def late():\n    import redis",
        "antiphon._gateway.planted -> redis",
    ),
    "a decision reads the clock": ("decide/planted.py", "import time", "antiphon.decide.planted -> time"),
    "a module without a layer": ("planted.py", "", "- antiphon.planted\n"),
    "a circle of adapters": (
        "adapters/_requirements.py",
        "def late():\n    import antiphon.adapters.httpx",
        "- ._requirements -> .httpx",
    ),
    "a circle in the proxy": (
        "proxy/upstreams.py",
        "def late():\n    import antiphon.proxy.app",
        "- .upstreams -> .app",
    ),
    "a circle of use cases": (
        "ops/resources.py",
        "def late():\n    import antiphon.ops.admin",
        "- .resources -> .admin",
    ),
    "a circle in a store": (
        "stores/sqlite/schema.py",
        "def late():\n    import antiphon.stores.sqlite.file",
        "- .schema -> .file",
    ),
    "a circle in a store for a type": (
        "stores/postgres/options.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import antiphon.stores.postgres.engine",
        "- .options -> .engine",
    ),
}
"""File, what is planted there, and what is said about it."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report on a copy that has them all."""
    folder = tmp_path_factory.mktemp("planted")
    shutil.copytree(ROOT / "src" / "antiphon", folder / "antiphon", ignore=shutil.ignore_patterns("__pycache__"))
    for file, text, _ in PLANTED.values():
        with (folder / "antiphon" / file).open("a") as module:
            module.write(text + "\n")
    done = subprocess.run(
        [str(LINT), "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    return done.stdout


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_import_is_found(case: str, said: str) -> None:
    assert PLANTED[case][2] in said

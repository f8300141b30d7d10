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
    "an engine imports another": ("_gateway/planted.py", "import antiphon.scoring"),
    "a part imports another": ("stores/planted.py", "import antiphon.blobs"),
    "a part imports an engine": ("telemetry/planted.py", "def late():\n    import antiphon._gateway"),
    "the contract imports the base": ("contract/planted.py", "import antiphon.decide"),
    "the core imports an extra": ("_gateway/planted.py", "def late():\n    import redis"),
    "a decision reads the clock": ("decide/planted.py", "import time"),
    "a module without a layer": ("planted.py", ""),
    "a circle in a store": ("stores/sqlite/schema.py", "def late():\n    import antiphon.stores.sqlite.file"),
    "a circle in a store for a type": (
        "stores/postgres/options.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import antiphon.stores.postgres.engine",
    ),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_import_is_found(case: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "antiphon", tmp_path / "antiphon", ignore=shutil.ignore_patterns("__pycache__"))
    file, text = PLANTED[case]
    with (tmp_path / "antiphon" / file).open("a") as module:
        module.write(text + "\n")
    done = subprocess.run(
        [str(LINT), "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert Path(file).stem in done.stdout

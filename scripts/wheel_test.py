"""Build the wheel and run the unit tests against it, not against the sources (``make wheel-test``).

First the wheel alone, with the packages that it names and no other: a call, a redelivery and a recorded run. Then an
environment with the locked packages and the wheel, in which the unit tests import what users get.

    python scripts/wheel_test.py                  all unit tests
    python scripts/wheel_test.py tests/unit/keys  some of them
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from scripts.pythons import SMOKE  # noqa: E402

WORK = ROOT / "build" / "wheel"
FROM_THE_WHEEL = (
    "import antiphon; assert 'site-packages' in antiphon.__file__, antiphon.__file__; print(antiphon.__file__)"
)


def main(tests: list[str]) -> int:
    """0 if the wheel works alone and the tests pass with it."""
    shutil.rmtree(WORK, ignore_errors=True)
    home = WORK / "home"
    home.mkdir(parents=True)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON_", "PYTHONPATH"))
    }
    environment["ANTIPHON_HOME"] = str(home)

    def run(*command: object, folder: Path = ROOT) -> None:
        subprocess.run([str(part) for part in command], cwd=folder, env=environment, check=True)

    uv = Path(sys.executable).parent / "uv"
    bare, full = (WORK / name / "bin" / "python" for name in ("bare", "full"))
    try:
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", WORK / "dist")
        (wheel,) = (WORK / "dist").glob("*.whl")
        run(uv, "venv", "--quiet", "--python", sys.executable, WORK / "bare")
        run(uv, "pip", "install", "--quiet", "--python", bare, wheel)
        run(bare, "-W", "error::DeprecationWarning", "-c", SMOKE, folder=home)
        sys.stdout.write(f"{wheel.name} works alone\n")
        run(uv, "venv", "--quiet", "--python", sys.executable, WORK / "full")
        run(uv, "pip", "install", "--quiet", "--require-hashes", "--python", full, "-r", ROOT / "requirements.lock")
        run(uv, "pip", "install", "--quiet", "--no-deps", "--python", full, wheel)
        run(full, "-c", FROM_THE_WHEEL, folder=home)
        run(full, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(tests or ["tests/unit"]))
    except subprocess.CalledProcessError as error:
        sys.stdout.write(f"FAILED: {' '.join(error.cmd)[:300]}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

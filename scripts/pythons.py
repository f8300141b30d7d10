"""Run the bare install and its unit tests on every supported Python of this machine (``make pythons``).

Each interpreter gets an environment of its own under build/pythons. A DeprecationWarning that our code causes is an
error, in the tests of the SQLite store, too. The last lines say which versions ran.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "pythons"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
NEEDED = (
    *("orjson", "msgspec", "cryptography", "pyyaml", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist"),
    *("hypothesis", "rfc8785", "hatchling==1.27.0"),
)
TESTS = (
    *("tests/unit/decide", "tests/unit/keys", "tests/unit/canonical", "tests/unit/turn"),
    "tests/integration/stores/test_memory_sqlite_agree.py",
    "tests/integration/stores/test_memory_sqlite_schema.py",
    "tests/integration/stores/test_memory_sqlite_conformance.py",
    "tests/integration/stores/test_sqlite_at_once.py",
    *("--ignore-glob=*/test_classify*", "--ignore=tests/unit/keys/test_typed_arguments.py"),  # these need extras
)
SMOKE = """
import antiphon, warnings
gateway = antiphon.Gateway(store="sqlite:///smoke.db")
@gateway.tool(idempotent=False)
def send(to: str) -> str: return f"sent to {to}"
turn = gateway.session("s").turn()
assert turn.call("send", {"to": "ada"}, call_id="c").content == "sent to ada"
assert turn.call("send", {"to": "ada"}, call_id="c").from_cache
run = antiphon.record(lambda: send("bob"))
assert run.output == "sent to bob" and list(run.events())
"""


def interpreters() -> dict[str, str]:
    """Where each version is, of those that are there."""
    found = {}
    for version in VERSIONS:
        homes = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
        place = homes[-1] if homes else shutil.which(f"python{version}")
        if place:
            found[version] = str(place)
    return found


def check(version: str, python: str) -> bool:
    """Install and test with one interpreter."""
    folder = WORK / version
    made = folder / "bin" / "python"
    uv = str(Path(sys.executable).parent / "uv")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    steps = [
        [uv, "venv", "--quiet", "--python", python, str(folder)],
        [uv, "pip", "install", "--quiet", "--python", str(made), *NEEDED],
        [uv, "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--python", str(made), str(ROOT)],
        [str(made), "-W", "error::DeprecationWarning", "-c", SMOKE],
        [str(made), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", *TESTS],
    ]
    for number, step in enumerate(steps):
        smoke = number == 3
        done = subprocess.run(
            step, cwd=folder if smoke else ROOT, env={**environment, "ANTIPHON_HOME": str(folder)}, check=False
        )
        if done.returncode:
            return False
    return True


def main() -> int:
    """All of them, and a line for each."""
    found = interpreters()
    results = {version: check(version, python) for version, python in found.items()}
    for version in VERSIONS:
        state = "not on this machine" if version not in results else "passed" if results[version] else "FAILED"
        sys.stdout.write(f"Python {version}: {state}\n")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Chromium for tests of pages: found, or installed from the system's packages, or an error with the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.sharing import locked

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""For ``playwright.chromium.launch(executable_path=chromium, args=[*FLAGS])``."""


class NoBrowser(RuntimeError):
    """There is no Chromium and it could not be installed."""


def ensure(folder: Path) -> str:
    """The path of Chromium; the processes of a session install it once."""
    with locked(folder / "chromium.lock"):
        if found := _find():
            return found
        if os.geteuid() or not shutil.which("apt-get"):
            raise NoBrowser("Chromium is not there and this user cannot install it: put `chromium` on the PATH")
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]):
            done = subprocess.run(
                command,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise NoBrowser(f"{' '.join(command)} failed: {done.stderr.strip()[-800:]}")
        if found := _find():
            return found
        raise NoBrowser("the package chromium was installed and there is still no chromium on the PATH")


def _find() -> str | None:
    chosen = os.environ.get("ANTIPHON_TEST_CHROMIUM")
    return chosen or next((path for name in NAMES if (path := shutil.which(name))), None)

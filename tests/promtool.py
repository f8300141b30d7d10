"""Prometheus' own ``promtool`` for tests of alert rules: found, or unpacked from the Debian package ``prometheus``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.sharing import locked

PACKAGE = "prometheus"
KEPT = Path(sys.prefix) / "prometheus"
"""Inside the environment of the tests: nothing is installed, and no service is started."""


class NoPromtool(RuntimeError):
    """There is no promtool and it could not be had."""


def ensure(folder: Path) -> str:
    """The path of ``promtool``; the processes of a session fetch it once."""
    with locked(folder / "promtool.lock"):
        if found := _find():
            return found
        if not shutil.which("apt-get"):
            raise NoPromtool("promtool is not there and there is no apt-get to fetch it: put `promtool` on the PATH")
        with tempfile.TemporaryDirectory() as scratch:
            if _run(["apt-get", "download", PACKAGE], scratch) and os.geteuid() == 0:  # no package lists yet
                _run(["apt-get", "update"], scratch)
            if not list(Path(scratch).glob("*.deb")) and (why := _run(["apt-get", "download", PACKAGE], scratch)):
                raise NoPromtool(f"apt-get download {PACKAGE} failed: {why[-800:]}")
            (package,) = Path(scratch).glob("*.deb")
            if why := _run(["dpkg-deb", "-x", str(package), str(KEPT)], scratch):
                raise NoPromtool(f"{package.name} could not be unpacked: {why[-800:]}")
        if found := _find():
            return found
        raise NoPromtool(f"the package {PACKAGE} has no promtool")


def _find() -> str | None:
    kept = KEPT / "usr/bin/promtool"
    return shutil.which("promtool") or (str(kept) if kept.exists() else None)


def _run(command: list[str], folder: str) -> str:
    """What went wrong; empty if nothing did."""
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300
    )
    return (done.stderr.strip() or f"code {done.returncode}") if done.returncode else ""

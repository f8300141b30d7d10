"""One server of each kind for a whole test session, shared by all its worker processes.

The first process that needs a server starts a keeper for it under a file lock; the keeper holds the server until
the session's main process ends or asks it to stop. ``folder`` is where the processes of a session meet.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.servers import KINDS, START_SECONDS, ServerFailed

ROOT = Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file lock *path*; processes wait for each other here."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def shared(kind: str, folder: Path, owner: int) -> str:
    """The address of the session's server of *kind*, started if nobody has asked for it before."""
    ready, failed = folder / f"{kind}.json", folder / f"{kind}.failed"
    with locked(folder / f"{kind}.lock"):
        if not ready.exists() and not failed.exists():
            command = [sys.executable, "-m", "tests.sharing", kind, str(folder), str(owner)]
            keeper = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True)
            deadline = time.monotonic() + START_SECONDS + 10
            while not ready.exists() and not failed.exists():
                if keeper.poll() is not None or time.monotonic() > deadline:
                    _publish(failed, f"the keeper of {kind} ended with code {keeper.poll()}")
                time.sleep(0.02)
    if failed.exists():
        raise ServerFailed(failed.read_text())
    address: str = json.loads(ready.read_text())["url"]
    return address


def stop_all(folder: Path) -> None:
    """Ask every keeper of the session to stop its server, and wait until all have."""
    for state in folder.glob("*.json"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(json.loads(state.read_text())["keeper"], signal.SIGTERM)
    for state in folder.glob("*.json"):
        with locked(state.with_suffix(".alive")):
            state.unlink()


def keep(kind: str, folder: Path, owner: int) -> None:
    """Start a server, publish its address, hold it while *owner* lives."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with locked(folder / f"{kind}.alive"):
        try:
            server = KINDS[kind]()
            with server:
                _publish(folder / f"{kind}.json", json.dumps({"url": server.url, "keeper": os.getpid()}))
                while _alive(owner):
                    time.sleep(0.2)
        except Exception as error:
            _publish(folder / f"{kind}.failed", f"{type(error).__name__}: {error}")
            raise


def _publish(path: Path, text: str) -> None:
    """Write a file that is whole as soon as it is there."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.rename(path)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    keep(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))

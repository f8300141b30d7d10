"""Environments of the peers: one virtual environment per file of pinned requirements, made once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVS = Path(os.environ.get("ANTIPHON_BENCH_ENVS") or HERE / ".envs")


class PeerUnavailable(RuntimeError):
    """The peer's environment could not be made; the reason is in the message."""


def python_of(peer: str, pinned: Path = HERE / "peers") -> Path:
    """The interpreter of the peer's own environment, made from ``bench/peers/PEER.txt`` when it is not there.

    *pinned* is another folder of pins. Processes that want the same environment at once make it once.
    """
    pins = pinned / f"{peer}.txt"
    if not pins.exists():
        raise PeerUnavailable(f"{pins.relative_to(HERE.parent)} does not exist")
    ENVS.mkdir(parents=True, exist_ok=True)
    with (ENVS / f"{peer}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _made(peer, pins)


def _made(peer: str, pins: Path) -> Path:
    home = ENVS / peer
    python = home / "bin" / "python"
    stamp = home / ".stamp"
    wanted = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"[bench] making the environment of {peer} …", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv:
        _run(peer, [uv, "venv", "--quiet", "--python", sys.executable, str(home)])
        _run(peer, [uv, "pip", "sync", "--quiet", "--require-hashes", "--python", str(python), str(pins)])
    else:
        _run(peer, [sys.executable, "-m", "venv", str(home)])
        _run(peer, [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(pins)])
    stamp.write_text(wanted)
    return python


def _run(peer: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerUnavailable(f"{peer}: {' '.join(command[:3])} failed: {done.stderr.strip()[-800:]}")

